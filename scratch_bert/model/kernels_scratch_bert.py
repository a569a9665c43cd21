"""Operations that make a step fast: linear layers, dropout, and attention within sequences.

Their results are those of plain PyTorch, in the precision of the step: under bf16 autocast, attention on the CPU stays
in bf16, where PyTorch's converts to fp32. On the CPU, PyTorch spends most of a BERT step outside of matrix products:
it draws dropout masks one number at a time, and writes tensors larger than the caches many times over. Dimensions are
those of the model file; n is the number of rows of each sequence in a group, R the number of all rows.
"""

import re
from collections.abc import Callable, Sequence

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .compat_scratch_bert import is_eager, is_plain_linear, softmax_backward, varlen_attn


def is_cpu(device: torch.device) -> bool:
    """Whether operations on `device` take their form for CPUs; the tests also take the other one there."""
    return device.type == "cpu"


def in_half_precision(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether `device` multiplies with weights of `dtype` in bf16 or fp16."""
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else dtype
    return dtype in (torch.float16, torch.bfloat16)


# --------------------------------------------------------------------------------------------------- linear layers


def project(states: torch.Tensor, layers: Sequence[torch.nn.Linear]) -> Sequence[torch.Tensor]:
    """The outputs of linear `layers` of one shape. Under autocast, which copies weights and states for each product
    anyway, by one product instead of one for each layer."""
    device = states.device.type
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    if not autocast or not is_eager(states) or not all(map(is_plain_linear, layers)):
        return [layer(states) for layer in layers]
    weight, bias = torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers])
    return F.linear(states, weight, bias).chunk(len(layers), -1)


def project_with_bias(states: torch.Tensor, layer: torch.nn.Linear, bias: torch.Tensor) -> torch.Tensor:
    """The output of a linear `layer` and a `bias` beside it, within one product: to add it afterwards takes another
    pass over all outputs."""
    if is_eager(states) and is_plain_linear(layer) and layer.bias is None:
        return F.linear(states, layer.weight, bias.to(layer.weight.dtype))
    outputs = layer(states)
    return outputs + bias.to(outputs.dtype)


# ------------------------------------------------------------------------------------------------------- dropout


def random_ones(like: torch.Tensor, p: float) -> torch.Tensor:
    """Ones, in the shape and type of `like`, on the CPU; zeros with probability `p`, rounded to a multiple of 2⁻¹⁶.

    One 64-bit draw decides on four numbers, in a seventh of the time of `bernoulli_`.
    """
    draws = torch.empty((like.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    draws = draws[: like.numel()].view(like.shape)
    # Written directly in the type of `like`: comparing into bool and converting takes ten times as long.
    return torch.ge(draws, round(p * 2**16) - 2**15, out=torch.empty_like(like, memory_format=torch.contiguous_format))


def apply_dropout(states: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """`torch.nn.functional.dropout`, faster on the CPU."""
    if not training or p == 0 or not is_cpu(states.device) or not is_eager(states):
        return F.dropout(states, p, training)
    return (states * random_ones(states, p)).mul_(1 / (1 - p))


class Dropout(torch.nn.Dropout):
    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return apply_dropout(states, self.p, self.training)


# ------------------------------------------------------------------------------------- attention within sequences


class GroupedAttention(torch.autograd.Function):
    """Attention on the CPU, one group of sequences after the other, so that each one's weights stay in the cache.

    R is the number of rows of all `groups`.
    """

    @staticmethod
    def forward(ctx, query, key, value, groups: list, scaling: float, dropout: float):  # (A, R, D) each
        context, saved = torch.empty_like(query), []
        for group, *parts, output in zip(groups, *split_groups(groups, query, key, value, context), strict=True):
            q, k, v = (part.contiguous().flatten(0, 1) for part in parts)  # (A·N, n, D), with N sequences in the group
            scores = scaled_bmm(q, k.transpose(1, 2), scaling)  # (A·N, n, n)
            if group.lengths[-1] < group.rows:
                copies = torch.arange(group.rows) >= torch.tensor(group.lengths)[:, None, None]  # (N, 1, n)
                scores.unflatten(0, output.shape[:2]).masked_fill_(copies, -torch.inf)
            weights = scores.softmax(-1)
            kept = random_ones(weights, dropout) if dropout > 0 else None
            used = weights if kept is None else weights * kept
            output.copy_(torch.bmm(used, v).view_as(output))
            if any(ctx.needs_input_grad):
                saved += [q, k, v, weights, kept]
        ctx.groups, ctx.scaling, ctx.dropout = groups, scaling, dropout
        ctx.save_for_backward(*saved)
        return context.mul_(1 / (1 - dropout)) if dropout > 0 else context

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_context):
        saved = ctx.saved_tensors  # read once: gradient checkpointing does not allow more
        grads = [torch.empty_like(grad_context) for _ in range(3)]
        columns = *split_groups(ctx.groups, grad_context, *grads), *(saved[place::5] for place in range(5))
        for part, grad_q, grad_k, grad_v, q, k, v, weights, kept in zip(*columns, strict=True):
            grad, used = part.contiguous().flatten(0, 1), weights  # (A·N, n, D)
            if kept is not None:
                grad, used = grad * (1 / (1 - ctx.dropout)), weights * kept
            grad_v.copy_(torch.bmm(used.transpose(1, 2), grad).view_as(grad_v))
            grad_weights = torch.bmm(grad, v.transpose(1, 2))  # (A·N, n, n)
            if kept is not None:
                grad_weights.mul_(kept)
            grad_scores = softmax_backward(grad_weights, weights)
            grad_q.copy_(scaled_bmm(grad_scores, k, ctx.scaling).view_as(grad_q))
            grad_k.copy_(scaled_bmm(grad_scores.transpose(1, 2), q, ctx.scaling).view_as(grad_k))
        return *grads, None, None, None


def scaled_bmm(first: torch.Tensor, second: torch.Tensor, scaling: float) -> torch.Tensor:
    return torch.baddbmm(first.new_empty(()), first, second, beta=0, alpha=scaling)


def split_groups(groups: list, *states: torch.Tensor) -> list[list[torch.Tensor]]:
    """Views (A, N, n, D) of `states` (A, R, D) for each group of N sequences of n rows."""
    shapes = [(len(group.lengths), group.rows) for group in groups]
    splits = (each.split([count * rows for count, rows in shapes], 1) for each in states)
    return [[part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)] for parts in splits]


# Attention over unpadded states, with the signature of transformers' attention functions: states (1, A, R, D) →
# context (1, R, A, D). `interface` is the function that transformers would call.


def grouped_attention(module, query, key, value, attention_mask, scaling, dropout, plan, **kwargs):
    context = GroupedAttention.apply(query[0], key[0], value[0], plan.groups, scaling, dropout)  # (A, R, D)
    return context.transpose(0, 1)[None], None


def varlen_attention(module, query, key, value, attention_mask, scaling, dropout, plan, **kwargs):
    states = (states[0].transpose(0, 1) for states in (query, key, value))  # (R, A, D) each
    cu_seqlens, max_seqlen = plan.cu_seqlens.to(query.device), max(plan.lengths)
    return varlen_attn(*states, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, scale=scaling)[None], None


def flash_attention(module, query, key, value, attention_mask, plan, interface, **kwargs):
    cu_seqlens, max_seqlen = plan.cu_seqlens.to(query.device), max(plan.lengths)
    lengths = {"cu_seq_lens_q": cu_seqlens, "cu_seq_lens_k": cu_seqlens}
    lengths |= {"max_length_q": max_seqlen, "max_length_k": max_seqlen}
    # A collator that joins sequences may have passed the same lengths.
    return interface(module, query, key, value, None, **kwargs | lengths)


def padded_attention(module, query, key, value, attention_mask, plan, interface, **kwargs):
    """Pad the states for an `interface` that needs padding; `attention_mask` is that of the padded batch."""
    states = (plan.put(states.transpose(1, 2)).transpose(1, 2) for states in (query, key, value))  # (B, A, S, D)
    context, _ = interface(module, *states, attention_mask, **kwargs)  # (B, S, A, D)
    return plan.take(context), None


def find_attention(config, training: bool, device: torch.device, dtype: torch.dtype, max_seqlen: int) -> Callable:
    """The attention over unpadded states that replaces the implementation named by the model's `config`.

    Eager attention needs padding; so does sdpa on a GPU with dropout or in fp32, which PyTorch's varlen attention does
    not support, and on a CPU for long sequences, whose weights take much memory that sdpa saves.
    """
    implementation, dropout = config._attn_implementation, config.attention_probs_dropout_prob if training else 0.0
    if "flash" in implementation:
        if dropout > 0 and re.search("att(n|ention)_?[34]", implementation):
            raise ValueError(
                f"{implementation} has no dropout: set attention_probs_dropout_prob to 0, or the attention "
                "implementation to sdpa."
            )
        return flash_attention
    if implementation == "sdpa" and is_cpu(device):
        longest = 256 if torch.is_grad_enabled() and dropout == 0 else 1024  # with dropout, sdpa keeps weights, too
        return grouped_attention if max_seqlen <= longest else padded_attention
    fits = in_half_precision(dtype, device) and config.attention_head_size in range(8, 257, 8)
    if implementation == "sdpa" and dropout == 0 and fits and has_varlen_attention(device):
        return varlen_attention
    return padded_attention


def has_varlen_attention(device: torch.device) -> bool:
    """Whether PyTorch has flash attention over unpadded states for `device`."""
    if device.type != "cuda" or varlen_attn is None or torch.version.hip is not None:
        return False
    flash = torch.backends.cuda.is_flash_attention_available() and torch.backends.cuda.flash_sdp_enabled()
    return flash and torch.cuda.get_device_capability(device) >= (8, 0)
