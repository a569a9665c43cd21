"""Operations that make a step fast: unpadding, and faster dropout, attention and cross entropy.

Their results are those of plain PyTorch, in the precision of the step: under bf16 autocast, attention on the CPU stays
in bf16, where PyTorch's converts to fp32. On the CPU, PyTorch spends most of a BERT step outside of matrix products:
it draws dropout masks one number at a time, and writes tensors larger than the caches many times over. Dimensions are
those of the model file; n is the number of rows of each sequence in a group.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import is_in_torch_dispatch_mode


try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # checkpoints are opened with older versions of PyTorch, too
    varlen_attn = None


# ------------------------------------------------------------------------------------------------- when to be fast


def is_eager(tensor: torch.Tensor) -> bool:
    """Whether operations on `tensor` run as they are called, on values that can be read.

    They do not if they are compiled, exported or traced, transformed by torch.func, or without values, as under
    FakeTensorMode or on the meta device: then, the model takes the operations of plain PyTorch and static shapes.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or is_in_torch_dispatch_mode():
        return False
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type != "meta"
    return plain and not torch._C._are_functorch_transforms_active()


def can_branch(tensor: torch.Tensor) -> bool:
    """Whether shapes and branches may depend on the values of `tensor`: torch.compile breaks its graph there."""
    return is_eager(tensor) or (torch.compiler.is_compiling() and not torch.compiler.is_exporting())


def is_cpu(device: torch.device) -> bool:
    """Whether operations on `device` take their form for CPUs; the tests also take the other one there."""
    return device.type == "cpu"


# Hooks that trainers set, and that look at no shapes: the packages that define them, and names of others.
_TRAINING_PACKAGES = ("torch.", "deepspeed.")
_TRAINING_HOOKS = ("output_capturing_hook", "make_inputs_require_grads", "make_inputs_require_grad")


def _observes(hook: Callable) -> bool:
    hook = getattr(hook, "func", hook)  # of a partial
    package = f"{getattr(hook, '__module__', '')}."
    return not package.startswith(_TRAINING_PACKAGES) and getattr(hook, "__name__", "") not in _TRAINING_HOOKS


def is_observed(module: torch.nn.Module) -> bool:
    """Whether something looks into `module`: a hook on any of its parts, or on all modules, or a replaced `forward`.

    Costs no more than PyTorch's own look for hooks, at each call of each part.
    """
    if torch_module._has_any_global_hook():
        return True
    hooks, parts = [], [module]
    for part in parts:  # which grows: several times as fast as module.modules()
        if part is None:
            continue
        if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks:
            hooks += [part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks]
        if "forward" in part.__dict__ and "_hf_hook" not in part.__dict__:  # accelerate's, which moves tensors
            return True
        parts += part._modules.values()
    return any(_observes(hook) for found in hooks for hook in found.values())


# --------------------------------------------------------------------------------------------------- linear layers


def is_plain_linear(module: torch.nn.Module) -> bool:
    """Whether a call of `module` is a product with its weight and nothing else: a subclass or a hook, as of PEFT,
    DeepSpeed or a quantization, may replace or fetch the weight."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    observed = any(hooks) or torch_module._has_any_global_hook() or "forward" in module.__dict__
    # The weight last: DeepSpeed fetches it from other devices when it is read.
    return type(module) is torch.nn.Linear and not observed and is_eager(module.weight)


def project(states: torch.Tensor, layers: Sequence[torch.nn.Linear]) -> Sequence[torch.Tensor]:
    """The outputs of linear `layers` of one shape. Under autocast, which copies weights and states for each product
    anyway, by one product instead of one for each layer."""
    device = states.device.type
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    if not autocast or not is_eager(states) or not all(map(is_plain_linear, layers)):
        return [layer(states) for layer in layers]
    weight, bias = torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers])
    return F.linear(states, weight, bias).chunk(len(layers), -1)


# ------------------------------------------------------------------------------------------------------ unpadding


def surplus_rows(count: int, states: torch.Tensor, dtype: torch.dtype) -> int:
    """How many rows to add to `count` rows of `states`, so that their products with weights of `dtype` have few shapes.

    On CPUs, oneDNN compiles each product in bf16 and fp16 for its shape. A product of a new shape takes several times as
    long as one of a known shape, and each compiled product that is replaced by another leaves the memory more
    fragmented. There, the sum is one of 16 evenly spaced numbers from one power of two to the next, and a multiple of 8.
    """
    if not is_cpu(states.device) or not is_eager(states):
        return 0
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else dtype
    if dtype.itemsize != 2:
        return 0
    step = max(8, 2 ** (count.bit_length() - 5))
    return -count % step


def true_positions(mask: torch.Tensor, count: int | None = None) -> torch.Tensor:
    """Indices (count,) of the True elements of a flattened mask, then -1. Without `count`, the host waits for the device."""
    flat = mask.flatten()
    return (flat.nonzero() if count is None else torch.nonzero_static(flat, size=count))[:, 0]


class Group(NamedTuple):
    """Sequences with these `lengths`, the longest first, each extended to this number of `rows`."""

    rows: int
    lengths: list[int]


def common_length(length: int, hidden_size: int) -> int:
    """The length to which a sequence of this `length` is extended: at most a sixteenth longer. Wide models extend
    fewer, as computing the copies would cost more than larger groups save."""
    step = 2 ** max(0, (length - 1).bit_length() - 5)
    return length if step * hidden_size > 2048 else -(-length // step) * step  # measured


@dataclass
class Sequences:
    """The non-padding tokens of a batch, and the N sequences that they form.

    `shape` is (B, S); `lengths` has the length of each sequence, in order; `indices` (T,) are the positions of the
    tokens in the flattened batch, or None if these are all; `padded_left` is whether any batch entry begins with
    padding; `attention` is one of the functions below. The mask [[1, 1, 0], [0, 1, 1]] has the shape (2, 3), the
    lengths [2, 2] and the indices [0, 1, 4, 5], and is padded on the left.

    On a CPU, `group` and `extend` then change the unpadded rows: `indices` (rows,) has the position that a row is
    taken from, and `targets` (rows,) the position that it is returned to, B·S if it is a copy that is not returned.
    """

    shape: tuple[int, int]
    lengths: list[int]
    indices: torch.Tensor | None = None
    padded_left: bool = False
    attention: Callable | None = None
    groups: list[Group] | None = None
    targets: torch.Tensor | None = None
    _cu_seqlens: torch.Tensor | None = None

    def __post_init__(self):
        self.padded = self.indices is not None

    @classmethod
    def from_mask(
        cls,
        attention_mask: torch.Tensor,
        seq_idx: torch.Tensor | None = None,
        lengths: list[int] | None = None,
    ) -> "Sequences":
        """The sequences of a mask (B, S), 0 at padding; `seq_idx` (B, S) numbers the packed ones of each batch entry.

        Without the `lengths` of all sequences, in order, the host waits once for the device to count them. With
        `lengths`, the batch must be padded on the right only.
        """
        mask = attention_mask.bool()
        if lengths is not None:
            return cls(tuple(mask.shape), lengths, cls._indices(mask, lengths))
        if seq_idx is None:
            counts = mask.sum(1)  # (B,)
        else:
            counts = torch.zeros(mask.shape, dtype=torch.long, device=mask.device)
            counts.scatter_add_(1, seq_idx.long(), mask.long())  # (B, S)
        padded_left = (mask.any(1) & ~mask[:, 0]).any()
        *counts, padded_left = torch.cat([counts.flatten(), padded_left[None]]).tolist()
        lengths = [count for count in counts if count > 0]
        return cls(tuple(mask.shape), lengths, cls._indices(mask, lengths), bool(padded_left))

    @staticmethod
    def _indices(mask: torch.Tensor, lengths: list[int]) -> torch.Tensor | None:
        count = sum(lengths)
        return true_positions(mask, count) if count < mask.numel() else None  # (T,)

    @property
    def rows(self) -> int:
        """The number of unpadded rows."""
        return self.shape[0] * self.shape[1] if self.indices is None else len(self.indices)

    def group(self, heads: int, hidden_size: int) -> None:
        """Sort the sequences by length, the longest first, and form `groups` of similar ones, so that attention takes a
        few large operations instead of many small ones. The attention weights of several sequences fit in a cache.

        Unless all are equally long, each is extended to its `common_length` by copies of its last token.
        """
        runs = sorted(zip(self.lengths, [0, *accumulate(self.lengths)], strict=False), key=lambda run: -run[0])
        uniform = runs[0][0] == runs[-1][0]
        self.groups = []
        for rows, similar in groupby(runs, lambda run: run[0] if uniform else common_length(run[0], hidden_size)):
            lengths = [length for length, _ in similar]
            while lengths:
                # Powers of two: few shapes, as in `surplus_rows`.
                count = 2 ** (min(len(lengths), max(1, 2**18 // max(1, heads * rows**2))).bit_length() - 1)
                self.groups.append(Group(rows, lengths[:count]))
                lengths = lengths[count:]
        if uniform:
            return  # all are still in order
        token_counts, first_tokens = torch.tensor(runs).T  # (N,) each
        row_counts = torch.tensor([group.rows for group in self.groups for _ in group.lengths])  # (N,)
        numbers = torch.arange(len(runs)).repeat_interleave(row_counts)  # (T,): each row's sequence
        offsets = torch.arange(len(numbers)) - (row_counts.cumsum(0) - row_counts)[numbers]  # and its place there
        last = token_counts[numbers] - 1
        self._take(first_tokens[numbers] + offsets.minimum(last), offsets <= last)

    def extend(self, surplus: int) -> None:
        """Add copies of the first row, as more sequences that are not longer than the longest: see `surplus_rows`."""
        if surplus == 0:
            return
        rows, longest = torch.arange(self.rows + surplus), max(self.lengths)
        returned = rows < self.rows
        self._take(rows * returned, returned)
        more = [min(longest, surplus - start) for start in range(0, surplus, longest)]
        if self.groups is None:
            self.lengths = self.lengths + more
        else:
            self.groups += [Group(length, [length]) for length in more]

    def _take(self, rows: torch.Tensor, returned: torch.Tensor) -> None:
        """Replace the rows by these `rows` of them, in any order and repeated if need be; `pad` returns only those where
        `returned` is True."""
        nowhere = self.shape[0] * self.shape[1]
        indices = torch.arange(nowhere) if self.indices is None else self.indices
        targets = indices if self.targets is None else self.targets
        self.indices, self.targets = indices[rows], targets[rows].where(returned, nowhere)

    def unpad(self, padded: torch.Tensor) -> torch.Tensor:
        """Remove padding: (B, S, …) → (1, T, …)."""
        flat = padded.flatten(0, 1)
        return (flat if self.indices is None else flat.index_select(0, self.indices.to(flat.device)))[None]

    def pad(self, unpadded: torch.Tensor) -> torch.Tensor:
        """Restore padding: (1, T, …) → (B, S, …), 0 at padding."""
        flat, size = unpadded[0], self.shape[0] * self.shape[1]
        if self.targets is not None:
            padded = flat.new_zeros((size + 1, *flat.shape[1:]))  # the last row is for copies
            flat = padded.index_copy(0, self.targets.to(flat.device), flat)[:size]
        elif self.indices is not None:
            padded = flat.new_zeros((size, *flat.shape[1:]))
            flat = padded.index_copy(0, self.indices.to(flat.device), flat)
        return flat.unflatten(0, self.shape)

    def cu_seqlens(self, device: torch.device) -> torch.Tensor:
        """The start of each sequence among the T tokens, and the end of the last: (N + 1,) int32."""
        if self._cu_seqlens is None or self._cu_seqlens.device != device:  # kept, as each layer needs it
            ends = torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32)
            if device.type == "cuda":  # from unpinned memory, the host would wait for the copy
                ends = ends.pin_memory()
            self._cu_seqlens = ends.to(device, non_blocking=True)
        return self._cu_seqlens


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

    T is the number of rows of all `groups`.
    """

    @staticmethod
    def forward(ctx, query, key, value, groups: list[Group], scaling: float, dropout: float):  # (A, T, D) each
        context, saved = torch.empty_like(query), []
        for group, *parts, output in zip(groups, *split_groups(groups, query, key, value, context), strict=True):
            q, k, v = (part.contiguous().flatten(0, 1) for part in parts)  # (A·N, n, D), with N sequences in the group
            scores = torch.bmm(q, k.transpose(1, 2)).mul_(scaling)  # (A·N, n, n)
            if group.lengths[-1] < group.rows:
                copies = torch.arange(group.rows) >= torch.tensor(group.lengths)[:, None, None]  # (N, 1, n)
                scores.unflatten(0, output.shape[:2]).masked_fill_(copies, -torch.inf)
            weights = scores.softmax(-1)
            kept = random_ones(weights, dropout) if dropout > 0 else None
            used = weights if kept is None else weights * kept
            output.copy_(torch.bmm(used, v).view_as(output))
            if any(ctx.needs_input_grad):
                saved += [weights, kept]
        ctx.groups, ctx.scaling, ctx.dropout = groups, scaling, dropout
        ctx.save_for_backward(query, key, value, *saved)
        return context.mul_(1 / (1 - dropout)) if dropout > 0 else context

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_context):
        saved = ctx.saved_tensors  # read once: gradient checkpointing does not allow more
        grads = [torch.empty_like(states) for states in saved[:3]]
        splits = split_groups(ctx.groups, *saved[:3], grad_context, *grads)
        for *parts, grad_q, grad_k, grad_v, weights, kept in zip(*splits, saved[3::2], saved[4::2], strict=True):
            q, k, v, grad = (part.contiguous().flatten(0, 1) for part in parts)  # (A·N, n, D)
            used = weights
            if kept is not None:
                grad, used = grad * (1 / (1 - ctx.dropout)), weights * kept
            grad_v.copy_(torch.bmm(used.transpose(1, 2), grad).view_as(grad_v))
            grad_weights = torch.bmm(grad, v.transpose(1, 2))  # (A·N, n, n)
            if kept is not None:
                grad_weights.mul_(kept)
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype).mul_(ctx.scaling)
            grad_q.copy_(torch.bmm(grad_scores, k).view_as(grad_q))
            grad_k.copy_(torch.bmm(grad_scores.transpose(1, 2), q).view_as(grad_k))
        return *grads, None, None, None


def split_groups(groups: list[Group], *states: torch.Tensor) -> list[list[torch.Tensor]]:
    """Views (A, N, n, D) of `states` (A, T, D) for each group of N sequences of n rows."""
    shapes = [(len(group.lengths), group.rows) for group in groups]
    splits = (each.split([count * rows for count, rows in shapes], 1) for each in states)
    return [[part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)] for parts in splits]


# Attention over unpadded states, with the signature of transformers' attention functions: states (1, A, T, D) →
# context (1, T, A, D). `interface` is the function that transformers would call.


def grouped_attention(module, query, key, value, attention_mask, scaling, dropout, sequences, **kwargs):
    context = GroupedAttention.apply(query[0], key[0], value[0], sequences.groups, scaling, dropout)  # (A, T, D)
    return context.transpose(0, 1)[None], None


def varlen_attention(module, query, key, value, attention_mask, scaling, dropout, sequences, **kwargs):
    states = (states[0].transpose(0, 1) for states in (query, key, value))  # (T, A, D) each
    cu_seqlens, max_seqlen = sequences.cu_seqlens(query.device), max(sequences.lengths)
    return varlen_attn(*states, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, scale=scaling)[None], None


def flash_attention(module, query, key, value, attention_mask, sequences, interface, **kwargs):
    cu_seqlens, max_seqlen = sequences.cu_seqlens(query.device), max(sequences.lengths)
    lengths = {"cu_seq_lens_q": cu_seqlens, "cu_seq_lens_k": cu_seqlens}
    lengths |= {"max_length_q": max_seqlen, "max_length_k": max_seqlen}
    # A collator that joins sequences may have passed the same lengths.
    return interface(module, query, key, value, None, **kwargs | lengths)


def padded_attention(module, query, key, value, attention_mask, sequences, interface, **kwargs):
    """Pad the states for an `interface` that needs padding; `attention_mask` is that of the padded batch."""
    states = (sequences.pad(states.transpose(1, 2)).transpose(1, 2) for states in (query, key, value))  # (B, A, S, D)
    context, _ = interface(module, *states, attention_mask, **kwargs)  # (B, S, A, D)
    return sequences.unpad(context), None


def find_attention(config, training: bool, device: torch.device, dtype: torch.dtype, max_seqlen: int) -> Callable:
    """The attention over unpadded states that replaces the implementation named by the model's `config`.

    Eager attention needs padding; so does sdpa on a GPU with dropout or in fp32, which PyTorch's varlen attention does
    not support, and on a CPU for long sequences, whose weights take much memory that sdpa saves.
    """
    implementation, dropout = config._attn_implementation, config.attention_probs_dropout_prob if training else 0.0
    if "flash" in implementation:
        if dropout > 0 and re.search("att(n|ention)_?[34]", implementation):
            raise ValueError(
                f"{implementation} has no dropout: set attention_probs_dropout_prob to 0, or the attention implementation to sdpa."
            )
        return flash_attention
    if implementation == "sdpa" and is_cpu(device):
        longest = 256 if torch.is_grad_enabled() and dropout == 0 else 1024  # with dropout, sdpa keeps weights, too
        return grouped_attention if max_seqlen <= longest else padded_attention
    if implementation == "sdpa" and dropout == 0 and has_varlen_attention(device):
        head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
        dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else dtype
        if dtype in (torch.float16, torch.bfloat16) and head_dim % 8 == 0 and head_dim <= 256:
            return varlen_attention
    return padded_attention


def has_varlen_attention(device: torch.device) -> bool:
    """Whether PyTorch has flash attention over unpadded states for `device`."""
    if device.type != "cuda" or varlen_attn is None or torch.version.hip is not None:
        return False
    flash = torch.backends.cuda.is_flash_attention_available() and torch.backends.cuda.flash_sdp_enabled()
    return flash and torch.cuda.get_device_capability(device) >= (8, 0)


# ------------------------------------------------------------------------------------------------- cross entropy


class ChunkedCrossEntropy(torch.autograd.Function):
    """Sum of cross entropies over many classes, chunk by chunk, without an fp32 copy of all logits."""

    @staticmethod
    def forward(ctx, logits, labels, ignore_index: int, chunk_size: int):  # (M, V), (M,)
        ctx.counted, ctx.chunk_size = labels.ne(ignore_index), chunk_size
        classes = labels.where(ctx.counted, 0)[:, None]  # (M, 1)
        log_likelihoods = logits.new_empty((len(logits), 1), dtype=torch.float32)
        chunks = (tensor.split(chunk_size) for tensor in (logits, classes, log_likelihoods))
        for scores, chosen, log_likelihood in zip(*chunks, strict=True):
            log_likelihood.copy_(scores.log_softmax(-1, dtype=torch.float32).gather(-1, chosen))
        ctx.save_for_backward(logits, classes)
        return -(log_likelihoods[:, 0] * ctx.counted).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_sum):
        logits, classes = ctx.saved_tensors
        grad, scale = torch.empty_like(logits), (grad_sum * ctx.counted)[:, None]  # (M, V), (M, 1)
        chunks = (tensor.split(ctx.chunk_size) for tensor in (logits, classes, scale, grad))
        for scores, chosen, factor, output in zip(*chunks, strict=True):
            probabilities = scores.softmax(-1, dtype=torch.float32)
            probabilities.scatter_add_(-1, chosen, -torch.ones_like(factor))
            output.copy_(probabilities.mul_(factor))
        return grad, None, None, None


def cross_entropy_sum(logits: torch.Tensor, labels: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
    """Cross entropy in fp32 of logits (M, V) and labels (M,), summed over the labels other than `ignore_index`."""
    # Chunks that fit in a CPU's cache, or keep a GPU busy.
    elements = 2**19 if is_cpu(logits.device) else 2**26
    if logits.numel() <= elements or not is_eager(logits):
        return F.cross_entropy(logits.float(), labels, ignore_index=ignore_index, reduction="sum")
    return ChunkedCrossEntropy.apply(logits, labels, ignore_index, max(1, elements // logits.shape[-1]))
