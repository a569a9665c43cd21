"""What a classifier of sequences can read instead of the pooled [CLS]: means of the tokens, and comparisons of
segments."""

import torch
from torch.nn import functional as F

from .inputs_scratch_bert import is_padding_mask


# Of `pool_tokens`, in hidden sizes: two means of segments, and four comparisons of each of two layers.
POOLED_WIDTH = {"cls": 1, "mean": 1, "pairs": 10}


def masked_mean(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean (B, H) of the states (B, S, H) where the mask (B, S) is True; 0 where it is True nowhere."""
    weights = mask / mask.sum(1, keepdim=True).clamp(min=1)  # (B, S)
    return (weights.to(states.dtype)[:, None] @ states).squeeze(1)


def compare_aligned(states: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Compare each token with its counterpart in the other segment (Parikh et al., 2016, section 3): (B, 4·H).

    `states` (B, S, H); `first` and `second` (B, S) mark the tokens of the segments. A counterpart is the mean of the
    other segment's states, weighted by a softmax of their cosines with the token over 0.1. The features are the means,
    over each segment, of |a - b| and a · b for a token a and its counterpart b; 0 without a second segment.
    """
    directions = F.normalize(states, dim=-1)
    scores = directions @ directions.mT / 0.1  # (B, S, S)
    features = []
    for own, other in ((first, second), (second, first)):
        weights = scores.masked_fill(~other[:, None], torch.finfo(scores.dtype).min).softmax(-1)
        counterparts = weights.to(states.dtype) @ states  # (B, S, H)
        features += [masked_mean((states - counterparts).abs(), own), masked_mean(states * counterparts, own)]
    return torch.cat(features, dim=-1) * (first.any(1) & second.any(1))[:, None]


def pool_tokens(
    states: torch.Tensor,  # (B, S, H)
    embeddings: torch.Tensor,  # (B, S, H)
    attention_mask: torch.Tensor | None,  # (B, S)
    token_type_ids: torch.Tensor | None,  # (B, S)
    seq_idx: torch.Tensor | None,  # (B, S)
    pooling: str,
) -> torch.Tensor:
    """What a classifier reads of the tokens' last states and embeddings: with the `pooling` mean, the mean of the
    states (B, H); with pairs, the mean of each segment's states, and both segments' states and embeddings compared
    (B, 10·H). Embeddings are first scaled to the size of states: a small model's are so small that the words which two
    texts share would hardly count.

    The first segment is that of the first token; the mean of the second is 0 if there is none. Raises `ValueError` for
    packed sequences and for a mask that says who attends to whom.
    """
    if seq_idx is not None or not (attention_mask is None or is_padding_mask(attention_mask)):
        raise ValueError(
            f"classifier_pooling={pooling} takes one sequence in each batch entry, and an attention_mask (B, S)."
        )
    tokens = torch.ones(states.shape[:2], device=states.device) if attention_mask is None else attention_mask
    tokens = tokens.bool()  # (B, S)
    if pooling == "mean":
        return masked_mean(states, tokens)
    first = tokens
    if token_type_ids is not None:
        token_type_ids = token_type_ids.expand_as(tokens)  # one row may be that of all
        first = tokens & (token_type_ids == token_type_ids.gather(1, tokens.int().argmax(1, keepdim=True)))
    second = tokens & ~first
    means = [masked_mean(states, segment) for segment in (first, second)]
    layers = F.rms_norm(embeddings, embeddings.shape[-1:]), states
    return torch.cat([*means, *(compare_aligned(layer, first, second) for layer in layers)], dim=-1)
