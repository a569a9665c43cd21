"""Initial weights: BERT's truncated normals, and what lets a small model learn earlier."""

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init

from .compat_scratch_bert import is_loaded


def sinusoids(length: int, width: int) -> torch.Tensor:
    """Sinusoids (length, width): sines in even columns, cosines in odd columns (Vaswani et al., 2017, section 3.5)."""
    wavelengths = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))  # (⌈H/2⌉,)
    angles = torch.arange(length)[:, None] * wavelengths  # (P, ⌈H/2⌉)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]  # (P, H)


class SinusoidalPositions(nn.Module):
    """Fixed position embeddings (P, H)."""

    def __init__(self, length: int, width: int):
        super().__init__()
        self.shape = length, width
        self.register_buffer("weight", sinusoids(length, width), persistent=False)

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(position_ids, self.weight)


@torch.no_grad()
def init_weights(module: nn.Module, std: float) -> None:
    """Draw weights from a normal of this `std`, truncated at two deviations; biases 0, LayerNorms 1.

    The paper does not state the initialisation; this is its published code's (tf.truncated_normal). Truncation
    prevents outsized embeddings of a few tokens, and leaves a true deviation of 0.88 × std.
    """
    if isinstance(module, nn.Linear | nn.Embedding):
        init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    elif isinstance(module, nn.LayerNorm):
        init.ones_(module.weight)
    elif isinstance(module, SinusoidalPositions):
        init.copy_(module.weight, sinusoids(*module.shape))
    if getattr(module, "bias", None) is not None:
        init.zeros_(module.bias)
    # A slice lacks the mark that transformers puts on loaded weights, so it is checked here.
    if getattr(module, "padding_idx", None) is not None and not is_loaded(module.weight):
        init.zeros_(module.weight[module.padding_idx])


def init_projection(weight: torch.Tensor) -> None:
    """Start the projection (E, H) of factorised embeddings orthogonal, and such that they keep their deviation."""
    init.orthogonal_(weight, gain=(weight.shape[1] / weight.shape[0]) ** 0.5)


def init_sinusoidal(positions: nn.Embedding, std: float) -> None:
    """Start learned positions as sinusoids of this `std`."""
    table = sinusoids(*positions.weight.shape)
    init.copy_(positions.weight, table * (std / table.std()))


def resized_positions(old: nn.Module, length: int) -> nn.Module:
    """Position embeddings (length, H). Learned ones are repeated from the first on, as in Longformer (Beltagy et al.,
    2020, section 5), so that attention to nearby tokens is as before."""
    if isinstance(old, SinusoidalPositions):
        return SinusoidalPositions(length, old.shape[1]).to(old.weight)
    numbers = torch.arange(length, device=old.weight.device) % old.num_embeddings
    return nn.Embedding.from_pretrained(old.weight[numbers], freeze=not old.weight.requires_grad)


def without_weights(attentions: Iterable[nn.Module]) -> list[nn.Module]:
    """Those whose weights are neither loaded nor initialised, as by a model within the model."""
    return [each for each in attentions if not is_loaded(each) and not is_loaded(each.self.query.weight)]


@torch.no_grad()
def init_mimetic(query: nn.Linear, key: nn.Linear, value: nn.Linear, output: nn.Linear) -> None:
    """Correlate each head's keys with its queries, so that tokens attend to similar tokens, and the output projection
    with the negative of the value projection, so that they subtract part of what they find.

    "Mimetic Initialization of Self-Attention Layers" (Trockman & Kolter, 2023) finds this in trained models. The paper
    sets the products query·keyᵀ and value·output and factorises them; here, the factors are set.
    """
    shape = query.weight.shape  # (A·D, H)
    first, second = torch.randn(shape), 0.7 * torch.randn(shape)
    like_first, like_second = ((x + x.std() * torch.randn(shape)) / 2**0.5 for x in (first, second))
    for linear, weight in ((query, first), (key, like_first), (value, second), (output, -like_second.T)):
        init.copy_(linear.weight, weight / shape[1] ** 0.5)
