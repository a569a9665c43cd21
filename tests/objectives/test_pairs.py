import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import make_corpus
from scratch_bert.objectives import OBJECTIVES


NSP = OBJECTIVES["nsp"]


def documents_of(corpus, positions):
    """The document that holds each token position."""
    return np.searchsorted(corpus.document_tokens[:, 0], positions, side="right") - 1


@pytest.mark.parametrize("objective", ["nsp", "sop", "none"])
def test_pairs_are_those_of_the_docstring(objective):
    (line,) = [line for line in OBJECTIVES[objective].__doc__.splitlines() if "·" in line]
    expected = [[int(number) for number in pair.split()] for pair in line.strip(" ·…").split("·")]
    corpus, special_tokens = make_corpus([10] * 8, [10] * 8), OBJECTIVES[objective].special_tokens
    pairs = OBJECTIVES[objective].build_pairs(corpus, 40 + special_tokens, 0.0, np.random.default_rng(0)).tolist()
    assert expected == pairs[:4]


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_nsp_statistics_over_the_builtin_corpus(pairs, corpus, epoch):
    pairs.set_epoch(epoch)
    a_start, a_end, b_start, b_end, label = pairs.pairs.T
    lengths = a_end - a_start + b_end - b_start + 3
    assert lengths.max() <= 128
    assert (a_end > a_start).all() and (b_end > b_start).all()
    same_document = documents_of(corpus, a_start) == documents_of(corpus, b_start)
    assert same_document[label == 0].all()
    assert not same_document[label == 1].any()
    assert (label == 0).mean() == pytest.approx(0.5, abs=0.02)
    for start, end in ((a_start, a_end), (b_start, b_end)):
        assert (documents_of(corpus, start) == documents_of(corpus, end - 1)).all()
    assert pairs.coverage() > 0.95
    assert np.array_equal(pairs.lengths(), [len(pairs[i]["input_ids"]) for i in range(len(pairs))])
    assert np.array_equal(pairs.labels()[:50], [pairs[i]["next_sentence_label"] for i in range(50)])


def test_nsp_labels_do_not_follow_from_lengths(pairs):
    """The labels of pairs of the same lengths differ as often as those of any two pairs."""
    epochs = []
    for epoch in range(20):
        pairs.set_epoch(epoch)
        epochs.append(np.array(pairs.pairs))
    a_start, a_end, b_start, b_end, label = np.concatenate(epochs).T
    lengths = (a_end - a_start) // 16 * 8 + (b_end - b_start) // 16
    # The best prediction from lengths: for each pair of lengths, its majority label.
    correct = sum(max(np.bincount(label[lengths == value])) for value in np.unique(lengths))
    assert correct / len(label) < 0.55


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    documents=st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=40), min_size=2, max_size=12),
    room=st.integers(0, 65),
    short_seq_prob=st.sampled_from([0.0, 0.1, 1.0]),
    single_segment_prob=st.sampled_from([0.0, 0.5]),
    objective=st.sampled_from(list(OBJECTIVES)),
    seed=st.integers(0, 3),
)
def test_pairs_of_any_corpus_are_right(documents, room, short_seq_prob, single_segment_prob, objective, seed):
    """Every pair, read token by token, beside the corpus read in the same way."""
    corpus = make_corpus(*documents)
    document_of, token = {}, 5
    for number, document in enumerate(documents):
        document_of |= dict.fromkeys(range(token, token + sum(document)), number)
        token += sum(document) + 1

    rng, special = np.random.default_rng(seed), OBJECTIVES[objective].special_tokens
    max_seq_length = special + OBJECTIVES[objective].min_tokens + room
    pairs = OBJECTIVES[objective].build_pairs(corpus, max_seq_length, short_seq_prob, rng, single_segment_prob)
    seen = []
    for a_start, a_end, b_start, b_end, label in pairs.tolist():
        a, b = corpus.tokens[a_start:a_end].tolist(), corpus.tokens[b_start:b_end].tolist()
        assert len(a) + len(b) + special <= max_seq_length
        assert len(a) == a_end - a_start > 0 and len(b) == b_end - b_start
        assert len({document_of[token] for token in a}) == 1
        seen += [*a, *b]
        if objective == "none":
            assert not b and label == 0
            continue
        if label == -100:
            assert not b and a == list(range(a[0], a[0] + len(a)))
            assert single_segment_prob
            continue
        assert len({document_of[token] for token in b}) == 1
        follows = [*a, *b] == list(range(a[0], a[0] + len(a) + len(b)))
        if objective == "nsp":
            assert (document_of[a[0]] == document_of[b[0]]) == (label == 0) == follows
        elif objective == "sop":
            assert [*a, *b] == list(range(a[0], a[0] + len(a) + len(b))) if label == 0 else a[0] == b[-1] + 1
            assert document_of[a[0]] == document_of[b[0]]

    labels = pairs[:, 4]
    limit = max_seq_length - special
    # A document of one short sentence has no continuation; of the others, each token is for some pair.
    lone = sum(len(document) == 1 and document[0] <= limit // 2 for document in documents)
    if objective == "none":
        assert seen == list(corpus.tokens)
    elif objective == "sop":
        assert abs((labels == 0).sum() - (labels == 1).sum()) <= 1
        assert len(seen) == len(set(seen))
    elif lone == 0 and not single_segment_prob:
        # A chunk is two units at least, and a document's last unit can be left over: it can only be in a random pair.
        assert (labels == 1).sum() - (labels == 0).sum() <= len(documents) + 4
        assert (labels == 0).sum() - (labels == 1).sum() <= 4 or len(documents) == 2


@pytest.mark.parametrize("objective", ["nsp", "sop"])
def test_share_of_single_segments(objective):
    corpus = make_corpus(*[[4, 5, 3, 6, 2] * 40, [3, 3, 9] * 50, [7] * 100] * 5)
    build = OBJECTIVES[objective].build_pairs
    pairs = np.concatenate([build(corpus, 64, 0.1, np.random.default_rng(s), 0.3) for s in range(9)])
    labels, length = pairs[:, 4], pairs[:, 1] - pairs[:, 0] + pairs[:, 3] - pairs[:, 2]
    assert (labels == -100).mean() == pytest.approx(0.3, abs=0.03)
    assert (labels == 0).mean() == pytest.approx((labels == 1).mean(), abs=0.02)
    assert length[labels == -100].mean() == pytest.approx(length[labels != -100].mean(), rel=0.05)


def test_nsp_epoch_has_each_token_once():
    corpus = make_corpus(*[[4, 5, 3, 6, 2] * 8, [3, 3, 9] * 9, [7] * 20] * 5)
    for seed in range(20):
        times = np.zeros(len(corpus.tokens), dtype=int)
        for a_start, a_end, b_start, b_end, _ in NSP.build_pairs(corpus, 64, 0.1, np.random.default_rng(seed)):
            times[a_start:a_end] += 1
            times[b_start:b_end] += 1
        assert (times > 0).mean() > 0.95
        assert (times > 1).mean() < 0.03  # where a lone sentence had no partner


def test_nsp_segments_are_whole_sentences_unless_cut_at_the_outer_ends():
    corpus = make_corpus(*[[4, 5, 3, 6, 2, 9, 8] * 8] * 9)
    bounds = set(corpus.sentence_offsets.tolist())
    for a_start, a_end, b_start, b_end, _ in NSP.build_pairs(corpus, 64, 0.1, np.random.default_rng(0)).tolist():
        assert {a_end, b_start} <= bounds
        assert {a_start, b_end} <= bounds or a_end - a_start + b_end - b_start == 61


def test_nsp_lone_sentences_are_paired_with_each_other():
    corpus = make_corpus(*[[5]] * 6, *[[5] * 10] * 4)
    pairs = NSP.build_pairs(corpus, 32, 0.0, np.random.default_rng(0))
    lone = pairs[documents_of(corpus, pairs[:, 0]) < 6]
    assert len(lone) == 3 and (lone[:, 4] == 1).all()
    assert set(documents_of(corpus, lone[:, [0, 2]]).ravel()) == set(range(6))


def test_nsp_random_segments_come_from_everywhere_else():
    """Also from a corpus in which one document has most of the text."""
    corpus = make_corpus([5] * 300, [5] * 20, [5] * 40)
    pairs = np.concatenate([NSP.build_pairs(corpus, 16, 0.0, np.random.default_rng(seed)) for seed in range(50)])
    pairs = pairs[pairs[:, 4] == 1]
    a, b = documents_of(corpus, pairs[:, 0]), documents_of(corpus, pairs[:, 2])
    assert (a != b).all()
    counts = np.bincount(b[a == 0], minlength=3)
    assert counts[1] / counts.sum() == pytest.approx(1 / 3, abs=0.05)  # by text, not by documents


def test_nsp_of_two_short_documents_keeps_a_pair_of_label_0():
    """As the held-out part of a small text has."""
    corpus = make_corpus([5, 5], [5, 5])
    for seed in range(50):
        assert (NSP.build_pairs(corpus, 128, 0.1, np.random.default_rng((seed, 0)))[:, 4] == 0).any(), seed
