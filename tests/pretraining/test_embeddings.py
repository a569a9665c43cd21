"""Token embeddings that start from latent semantic analysis, against a dense one, and what they do to a model."""

import copy

import numpy as np
import pytest
import torch

from helpers import make_model
from scratch_bert.pretraining.embeddings import init_token_embeddings, lsa


TOPIC_SIZE, TOPICS = 20, 4
FIRST, VOCABULARY = 5, 100  # special tokens before the first, tokens that never occur after the last


def segments(number, seed=0):
    """Each of tokens of one topic, and of a token that is in all of them: (number, 30)."""
    rng = np.random.default_rng(seed)
    topics = np.arange(number)[:, None] % TOPICS
    tokens = FIRST + 1 + topics * TOPIC_SIZE + rng.integers(TOPIC_SIZE, size=(number, 30))
    return np.where(rng.random(tokens.shape) < 0.2, FIRST, tokens)


def examples(number):
    """[CLS] A [SEP] B [SEP], of two topics, with the ids 2 and 3."""
    one, other = segments(number), segments(number, seed=1)[::-1]
    for a, b in zip(one, other, strict=True):
        ids = np.concatenate([[2], a, [3], b, [3]])
        yield {
            "input_ids": ids,
            "token_type_ids": (np.arange(len(ids)) > len(a) + 1).astype(int),
            "special_tokens_mask": (ids < FIRST).astype(int),
        }


def dense_lsa(table, dimensions):
    counts = np.stack([np.bincount(row, minlength=VOCABULARY) for row in table]).astype(float)
    joint = counts / counts.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        information = np.log(joint / (joint.sum(0) * joint.sum(1, keepdims=True)))
    information = np.where(information > 0, information, 0)  # the logarithm of 0, too
    vectors = np.linalg.svd(information)[2][:dimensions].T
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = np.where(norms > 1e-9, vectors / np.maximum(norms, 1e-9), 0)
    vectors = np.where(norms > 1e-9, vectors - joint.sum(0) @ vectors, 0)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


@pytest.mark.parametrize("dimensions", [4, 50])  # 50 dimensions of 40 segments
def test_lsa_is_that_of_the_dense_matrix(dimensions):
    torch.manual_seed(0)
    table = segments(40)
    numbers = torch.arange(40).repeat_interleave(30)
    vectors = lsa(numbers, torch.from_numpy(table.flatten()), VOCABULARY, dimensions)
    assert vectors.shape == (VOCABULARY, dimensions)
    expected = dense_lsa(table, min(dimensions, 40))
    # The same up to a rotation, as singular values of topics are all alike: compared by the cosines.
    torch.testing.assert_close(vectors @ vectors.T, torch.tensor(expected @ expected.T).float(), atol=1e-3, rtol=0)
    assert not vectors[:FIRST].any() and not vectors[FIRST + 1 + TOPICS * TOPIC_SIZE :].any()


def test_token_embeddings_of_one_topic_start_alike():
    torch.manual_seed(0)
    model = make_model(vocab_size=VOCABULARY, hidden_size=64)
    before = copy.deepcopy(model.state_dict())
    init_token_embeddings(model, list(examples(200)))
    changed = {name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])}
    assert changed <= {"bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"}
    embeddings, normal = (x["bert.embeddings.word_embeddings.weight"] for x in (model.state_dict(), before))
    unseen = torch.ones(VOCABULARY, dtype=torch.bool)
    unseen[FIRST : FIRST + 1 + TOPICS * TOPIC_SIZE] = False
    assert torch.equal(embeddings[unseen], normal[unseen])
    topics = embeddings[FIRST + 1 : FIRST + 1 + TOPICS * TOPIC_SIZE]
    cosines = torch.nn.functional.cosine_similarity(topics[:, None], topics, dim=-1)
    cosines = cosines.unflatten(0, (TOPICS, -1)).unflatten(2, (TOPICS, -1)).mean((1, 3))  # (topics, topics)
    assert cosines.diagonal().min() > 0.15 and (cosines - cosines.diagonal().diag()).max() <= 0
    assert cosines.diagonal().max() < 0.5  # tokens stay apart


@pytest.mark.parametrize("token", [7, 1])  # the only one; [UNK] alone
def test_text_of_one_token_leaves_all_finite(token):
    torch.manual_seed(0)
    model = make_model(vocab_size=VOCABULARY, hidden_size=64)
    ids = np.array([2, token, token, 3, token, 3])
    example = {"input_ids": ids, "token_type_ids": np.array([0, 0, 0, 0, 1, 1]), "special_tokens_mask": (ids < 5) * 1}
    init_token_embeddings(model, [example] * 3)
    assert model.get_input_embeddings().weight.isfinite().all()
