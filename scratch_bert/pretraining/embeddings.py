"""Initial token embeddings: from latent semantic analysis of the training text, so that attention has something to
compare from the first step (docs/learning.md measures the effect); for added tokens, from their pieces."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..logs import logger


MAX_EXAMPLES = 30_000  # evenly spread over a larger dataset: more examples hardly change the vectors, but take seconds


def lsa(segments: Tensor, tokens: Tensor, vocab_size: int, dimensions: int) -> Tensor:
    """Latent semantic analysis (Deerwester et al., 1990) of tokens (T,) and the numbers of their segments (T,): unit
    vectors (vocab_size, dimensions), similar for tokens of the same segments, and 0 for tokens without information.

    They are the right singular vectors of the segments' positive pointwise mutual information with the tokens, a row
    for each token: scaled to unit length, less the text's mean row, and scaled again.
    """
    cells, counts = torch.unique(segments * vocab_size + tokens, return_counts=True)  # (N,), sorted
    rows, columns = cells // vocab_size, cells % vocab_size
    shape = (int(rows[-1]) + 1, vocab_size)
    frequency = torch.bincount(tokens, minlength=vocab_size) / len(tokens)  # (V,)
    length = torch.bincount(segments) / len(tokens)  # (S,)
    information = (counts / len(tokens) / (length[rows] * frequency[columns])).log().clamp(min=0)
    with torch.sparse.check_sparse_tensor_invariants():
        matrix = torch.sparse_coo_tensor(torch.stack([rows, columns]), information, shape, is_coalesced=True)
    rank = min(dimensions, *shape)
    _, values, vectors = torch.svd_lowrank(matrix, q=min(rank + 16, *shape), niter=4)
    vectors = F.normalize((vectors * (values > 1e-4 * values[0]))[:, :rank])
    known = torch.zeros(vocab_size).index_add(0, columns, information) > 0
    vectors = F.normalize(vectors - frequency @ vectors) * known[:, None]
    return F.pad(vectors, (0, dimensions - rank))


@torch.no_grad()
def init_token_embeddings(model: PreTrainedModel, examples: Dataset) -> None:
    """Set a quarter of the dimensions of the model's token embeddings, along random directions, to `lsa` of the
    examples' segments, twice as large as the other dimensions, which stay random and tell tokens apart.

    Tokens that are not in the examples keep their embeddings. Raises `ValueError` for token ids that the
    model lacks.
    """
    indices = np.linspace(0, len(examples) - 1, min(len(examples), MAX_EXAMPLES)).astype(int)
    tokens, segments = [], []
    for number, example in enumerate(examples[int(index)] for index in indices):
        words = example["special_tokens_mask"] == 0
        tokens.append(example["input_ids"][words])
        segments.append(2 * number + (example["token_type_ids"][words] != example["token_type_ids"][0]))
    tokens, segments = (torch.from_numpy(np.concatenate(parts)).long() for parts in (tokens, segments))
    if len(tokens) == 0:  # all tokens are unknown
        return
    embeddings = model.get_input_embeddings().weight  # (V, E)
    vocab_size, width = embeddings.shape
    if tokens.max() >= vocab_size:
        raise ValueError(f"The examples have the token id {tokens.max()}, but the model's vocab_size is {vocab_size}.")
    dimensions = width // 4
    logger.info(f"Token embeddings: latent semantic analysis of {len(indices):,} examples")
    vectors = lsa(segments, tokens, vocab_size, dimensions).to(embeddings.device)
    directions = torch.linalg.qr(torch.randn(width, dimensions)).Q.mT.to(embeddings.device)  # (D, E), orthonormal
    known = vectors.any(1)  # (V,)
    random = embeddings[known]
    random = 0.7 * (random - random @ directions.mT @ directions)
    size = 2 * model.config.initializer_range * dimensions**0.5
    embeddings[known] = random + size * vectors[known] @ directions


@torch.no_grad()
def init_added_embeddings(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, old_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Give tokens that `old_tokenizer` lacks the mean embedding and output bias of the pieces into which it splits
    them (Gee et al., 2022, https://arxiv.org/abs/2402.09977), or of all tokens if a piece is unknown."""
    embeddings, bias = model.get_input_embeddings().weight, model.cls.predictions.bias  # (V, E), (V,)
    old_vocabulary = old_tokenizer.get_vocab()
    known = torch.tensor(sorted(set(old_vocabulary.values()) - set(old_tokenizer.all_special_ids)))
    added = {token: number for token, number in tokenizer.get_vocab().items() if token not in old_vocabulary}
    for token, number in added.items():
        pieces = old_tokenizer.encode(token.removeprefix("##"), add_special_tokens=False)
        source = known if old_tokenizer.unk_token_id in pieces else torch.tensor(pieces)
        embeddings[number], bias[number] = embeddings[source].mean(0), bias[source].mean()
    logger.info(f"Vocabulary: {len(added):,} tokens added")
