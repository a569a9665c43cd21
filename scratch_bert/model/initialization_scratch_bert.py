"""Initial weights from which attention works early: sinusoidal positions, mimetic attention, heads that compare segments.

Dimensions are those of `modeling_scratch_bert.py`. docs/learning.md in the repository has what each start gives.
"""

import math

import torch
from torch import nn
from transformers import initialization as init


# Of heads that compare segments: how much of a state becomes the segment's mean, and how sharp the comparison is. A gain of
# 3 to 5 and a similarity of 0.3 to 1 learn NSP alike; from 8 on, the means get in the way of MLM.
GAIN, SIMILARITY = 4.0, 1.0


def sinusoids(length: int, width: int) -> torch.Tensor:
    """Sines in the even columns, cosines in the odd ones (Vaswani et al., 2017, 3.5): (length, width)."""
    wavelengths = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))  # (⌈H/2⌉,)
    angles = torch.arange(length)[:, None] * wavelengths  # (P, ⌈H/2⌉)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]  # (P, H)


def init_mimetic(attention: nn.Module, output: nn.Linear) -> None:
    """Correlated weights: each head's keys start like its queries, so that tokens attend to tokens like themselves, and
    the output projection like the negative of the value projection, so that they subtract part of what they find.

    After "Mimetic Initialization of Self-Attention Layers" (Trockman & Kolter, 2023), which finds this in trained
    models. There the products query·keyᵀ and value·output are set, and factorised; here, their factors.
    """
    shape = attention.query.weight.shape  # (A·D, H)
    query, value = torch.randn(shape), 0.7 * torch.randn(shape)
    key, back = ((x + x.std() * torch.randn(shape)) / 2**0.5 for x in (query, value))
    targets = (attention.query, query), (attention.key, key), (attention.value, value), (output, -back.T)
    for linear, weight in targets:
        init.copy_(linear.weight, weight / shape[1] ** 0.5)


def init_segment_comparison(embeddings: nn.Module, first: nn.Module, second: nn.Module) -> None:
    """Heads that compare the two segments, so that next-sentence prediction is learned early: half of the heads of the
    `first` layer's attention, which give each token the mean of the token embeddings of its own segment, and half of
    the `second`'s, which attend to a token the more, the more alike these means are.

    So [CLS], in the first segment, attends the more to the second, the more words the two have in common. Without this
    start, [CLS] is all but the same for all pairs, and the noise of first gradients takes the rest.
    """
    positions, segments = embeddings.position_embeddings.weight, embeddings.token_type_embeddings.weight
    width, head_dim = positions.shape[1], first.self.head_dim
    heads = first.self.query.out_features // head_dim // 2
    if heads == 0 or len(segments) < 2:
        return
    # The means leave out what is no token's own: the main directions of positions, the segments, and what LayerNorm adds.
    main = torch.linalg.svd(positions - positions.mean(0), full_matrices=False).Vh[: width // 4]
    common = torch.cat([main, positions.mean(0, keepdim=True), segments, torch.ones(1, width)])
    common = torch.linalg.qr(common.mT).Q  # (H, at most H/4 + …)
    rank = min(heads * head_dim, width - common.shape[1])
    tokens = torch.randn(width, rank)
    tokens = torch.linalg.qr(tokens - common @ (common.mT @ tokens)).Q.mT  # (rank, H), orthonormal

    difference = segments[-1] - segments[-2]
    difference = (difference - difference.mean()) / (difference - difference.mean()).norm()
    # LayerNorm leaves ±(H/6)½ of it in a state of words, a position and a segment: scores are then ±2.
    strength = (12 / width * head_dim**0.5) ** 0.5
    for linear in (first.self.query, first.self.key):
        weight = linear.weight.clone()
        weight[: heads * head_dim] = 0
        weight[: heads * head_dim : head_dim] = strength * difference
        init.copy_(linear.weight, weight)
    for linear, weight in (
        (first.self.value, tokens),
        (second.self.query, SIMILARITY**0.5 * tokens),
        (second.self.key, SIMILARITY**0.5 * tokens),
    ):
        init.copy_(linear.weight, torch.cat([weight, linear.weight[rank:]]))
    output = first.output.dense
    init.copy_(output.weight, torch.cat([GAIN * tokens.mT, output.weight[:, rank:]], dim=1))
