"""The operations that let the model compute only what counts: no padding, no copy that a large tensor can do without.

They give what plain PyTorch gives, in the precision of the step: under bf16 autocast, attention on the CPU stays in
bf16, where PyTorch's converts to fp32. On the CPU, PyTorch spends most of a BERT step's time outside of matrix
products: it draws dropout masks one number at a time, and writes tensors larger than the caches many times over.
Dimensions are those of the model's file, and:
    T  real tokens in the batch     N  sequences in the batch     n  tokens of one sequence
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # checkpoints are opened with older versions of PyTorch, too
    varlen_attn = None


@dataclass
class Sequences:
    """Where the real tokens of a batch are, and which of them make up a sequence, so that nothing else is computed.

    `shape` is (B, S), `lengths` are the tokens of each of the N sequences in the order of the rows, and `positions`
    (T,) where the tokens stand in the flattened batch; None if all are real. `padded_left` says whether there is a row
    that begins with padding. `attention` takes the sequences as they are; None if none does, so that query, key and
    value must be padded for it.
    """

    shape: tuple[int, int]
    lengths: list[int]
    positions: torch.Tensor | None = None
    padded_left: bool = False
    attention: Callable | None = None
    _bounds: torch.Tensor | None = None

    @classmethod
    def find(cls, attention_mask: torch.Tensor, seq_idx: torch.Tensor | None = None) -> "Sequences":
        """From a mask (B, S), not 0 at real tokens, and numbers (B, S) of the sequences within each row, ascending.

        Without numbers, a row is a sequence. The host waits for the device once, for the counts.
        """
        real = attention_mask.bool()
        if seq_idx is None:
            counts = real.sum(1)  # (B,)
        else:
            counts = torch.zeros(real.shape, dtype=torch.long, device=real.device)
            counts.scatter_add_(1, seq_idx.long(), real.long())
        padded_left = (real.any(1) & ~real[:, 0]).any()
        *counts, padded_left = torch.cat([counts.flatten(), padded_left[None]]).tolist()
        lengths = [length for length in counts if length > 0]
        tokens = sum(lengths)
        positions = None
        if tokens < real.numel():
            positions = torch.nonzero_static(real.flatten(), size=tokens)[:, 0]  # (T,)
        return cls(tuple(real.shape), lengths, positions, bool(padded_left))

    def unpad(self, padded: torch.Tensor) -> torch.Tensor:
        """(B, S, …) → (1, T, …): one row, so that what takes rows takes it as well."""
        flat = padded.flatten(0, 1)
        return (flat if self.positions is None else flat.index_select(0, self.positions.to(flat.device)))[None]

    def pad(self, unpadded: torch.Tensor) -> torch.Tensor:
        """(1, T, …) → (B, S, …), 0 at padding."""
        flat = unpadded[0]
        if self.positions is not None:
            padded = flat.new_zeros((self.shape[0] * self.shape[1], *flat.shape[1:]))
            flat = padded.index_copy(0, self.positions.to(flat.device), flat)
        return flat.unflatten(0, self.shape)

    def bounds(self, device: torch.device) -> torch.Tensor:
        """Where each sequence begins among the T tokens, and where the last ends: (N + 1,) int32."""
        if self._bounds is None or self._bounds.device != device:  # kept, as each layer asks for it
            self._bounds = torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32, device=device)
        return self._bounds

    def flash_attention_kwargs(self, device: torch.device) -> dict:
        """What transformers' flash attention takes for a row of many sequences."""
        bounds, longest = self.bounds(device), max(self.lengths)
        return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}


# ------------------------------------------------------------------------------------------------------- dropout


def random_ones(like: torch.Tensor, p: float) -> torch.Tensor:
    """A tensor as `like`, on the CPU, of ones with a share `p` of zeros, rounded to a multiple of 2⁻¹⁶.

    One 64-bit draw decides on four numbers, which takes a seventh of the time of `bernoulli_`.
    """
    draws = torch.empty((like.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    draws = draws[: like.numel()].view(like.shape)
    # Written at once in the type of `like`: to compare into bool and convert would take ten times as long.
    return torch.ge(draws, round(p * 2**16) - 2**15, out=torch.empty_like(like, memory_format=torch.contiguous_format))


def apply_dropout(states: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """As `torch.nn.functional.dropout`."""
    if not training or p == 0 or states.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(states, p, training)
    return (states * random_ones(states, p)).mul_(1 / (1 - p))


class Dropout(torch.nn.Dropout):
    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return apply_dropout(states, self.p, self.training)


# ------------------------------------------------------------------------------------- attention within sequences


class SequenceAttention(torch.autograd.Function):
    """Attention of each sequence to itself, on the CPU, one sequence after the other: its weights stay in the cache."""

    @staticmethod
    def forward(ctx, query, key, value, lengths: list[int], scaling: float, dropout: float):  # (T, A, D) each
        context, saved = torch.empty_like(query), []
        parts = (states.split(lengths) for states in (query, key, value, context))
        for *inputs, output in zip(*parts, strict=True):
            q, k, v = (part.transpose(0, 1).contiguous() for part in inputs)  # (A, n, D)
            weights = torch.bmm(q, k.transpose(1, 2)).mul_(scaling).softmax(-1)  # (A, n, n)
            kept = random_ones(weights, dropout) if dropout > 0 else None
            output.copy_(torch.bmm(weights if kept is None else weights * kept, v).transpose(0, 1))  # (n, A, D)
            if any(ctx.needs_input_grad):
                saved += [weights, kept]
        ctx.lengths, ctx.scaling, ctx.dropout = lengths, scaling, dropout
        ctx.save_for_backward(query, key, value, *saved)
        return context.mul_(1 / (1 - dropout)) if dropout > 0 else context

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_context):
        query, key, value, *weights_and_kept = ctx.saved_tensors
        inputs = (query, key, value)
        grads = [torch.empty_like(states) for states in inputs]
        parts = (states.split(ctx.lengths) for states in (*inputs, grad_context, *grads))
        for *states, grad_q, grad_k, grad_v, weights, kept in zip(
            *parts, weights_and_kept[::2], weights_and_kept[1::2], strict=True
        ):
            q, k, v, grad = (part.transpose(0, 1).contiguous() for part in states)  # (A, n, D)
            used = weights
            if kept is not None:
                grad, used = grad * (1 / (1 - ctx.dropout)), weights * kept
            grad_v.copy_(torch.bmm(used.transpose(1, 2), grad).transpose(0, 1))
            grad_weights = torch.bmm(grad, v.transpose(1, 2))  # (A, n, n)
            if kept is not None:
                grad_weights.mul_(kept)
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype).mul_(ctx.scaling)
            grad_q.copy_(torch.bmm(grad_scores, k).transpose(0, 1))
            grad_k.copy_(torch.bmm(grad_scores.transpose(1, 2), q).transpose(0, 1))
        return *grads, None, None, None


def attend_on_cpu(
    query: torch.Tensor,  # (T, A, D), as key and value
    key: torch.Tensor,
    value: torch.Tensor,
    sequences: Sequences,
    scaling: float,
    dropout: float,
) -> torch.Tensor:
    return SequenceAttention.apply(query, key, value, sequences.lengths, scaling, dropout)  # (T, A, D)


def attend_on_gpu(
    query: torch.Tensor,  # (T, A, D), as key and value
    key: torch.Tensor,
    value: torch.Tensor,
    sequences: Sequences,
    scaling: float,
    dropout: float,
) -> torch.Tensor:
    bounds = sequences.flash_attention_kwargs(query.device).values()
    return varlen_attn(query, key, value, *bounds, scale=scaling)  # (T, A, D)


def find_attention(
    implementation: str, device: torch.device, dtype: torch.dtype, head_dim: int, dropout: float, longest: int
) -> Callable | None:
    """The attention that takes sequences without padding where transformers' `implementation` would run.

    None if there is none: eager attention returns weights (B, A, S, S); on a GPU, PyTorch's takes no dropout and no
    fp32; on a CPU, the weights of long sequences take much memory, which sdpa can do without.
    """
    if implementation != "sdpa":
        return None
    if device.type == "cpu":
        keeps_weights_that_sdpa_does_not = torch.is_grad_enabled() and dropout == 0
        return attend_on_cpu if longest <= (256 if keeps_weights_that_sdpa_does_not else 1024) else None
    flash = torch.backends.cuda.is_flash_attention_available() and torch.backends.cuda.flash_sdp_enabled()
    fits = dropout == 0 and dtype in (torch.float16, torch.bfloat16) and head_dim % 8 == 0 and head_dim <= 256
    if device.type == "cuda" and flash and fits and varlen_attn is not None and torch.version.hip is None:
        return attend_on_gpu if torch.cuda.get_device_capability(device) >= (8, 0) else None
    return None


# ------------------------------------------------------------------------------------------------- cross entropy


class ChunkedCrossEntropy(torch.autograd.Function):
    """Sum of the cross entropies of many classes, a few rows at a time, so that no fp32 copy of all logits is made."""

    @staticmethod
    def forward(ctx, logits, labels, ignore_index: int, rows: int):  # (N, V), (N,)
        ctx.counted, ctx.rows = labels.ne(ignore_index), rows
        classes = labels.where(ctx.counted, 0)[:, None]  # (N, 1)
        log_likelihoods, normalizers = logits.new_empty((2, len(logits), 1), dtype=torch.float32)
        for chunk in _chunks(len(logits), rows):
            scores = logits[chunk].float()
            log_likelihoods[chunk] = scores.log_softmax(-1).gather(-1, classes[chunk])
            normalizers[chunk] = scores.gather(-1, classes[chunk]) - log_likelihoods[chunk]  # log Σ exp
        ctx.save_for_backward(logits, classes, normalizers)
        return -(log_likelihoods[:, 0] * ctx.counted).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_sum):
        logits, classes, normalizers = ctx.saved_tensors
        grad, scale = torch.empty_like(logits), (grad_sum * ctx.counted)[:, None]  # (N, V), (N, 1)
        for chunk in _chunks(len(logits), ctx.rows):
            probabilities = logits[chunk].float().sub_(normalizers[chunk]).exp_()
            probabilities.scatter_add_(-1, classes[chunk], -torch.ones_like(normalizers[chunk]))
            grad[chunk] = probabilities.mul_(scale[chunk])
        return grad, None, None, None


def _chunks(length: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, length, size)]


def cross_entropy_sum(logits: torch.Tensor, labels: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
    """Cross entropy in fp32 of logits (N, V) and labels (N,), summed over the labels other than `ignore_index`."""
    # What fits in a CPU's cache; on a GPU, what keeps it busy.
    elements = 2**19 if logits.device.type == "cpu" else 2**26
    if torch.compiler.is_compiling() or logits.numel() <= elements:
        return F.cross_entropy(logits.float(), labels, ignore_index=ignore_index, reduction="sum")
    return ChunkedCrossEntropy.apply(logits, labels, ignore_index, max(1, elements // logits.shape[-1]))
