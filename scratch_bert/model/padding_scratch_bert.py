"""Which rows of a batch are computed: its tokens, sequence after sequence, without the padding.

`plan_rows` makes an immutable `RowPlan` of a mask; `take` leaves the padding out, `put` restores it. Dimensions are
those of the model file; R is the number of rows: T, and copies of some rows that keep the number of shapes small on a
CPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from transformers.masking_utils import create_bidirectional_mask

from .compat_scratch_bert import is_eager, is_observed, keep_mask
from .inputs_scratch_bert import KNOWN_ATTENTION, check_shape, is_padding_mask
from .kernels_scratch_bert import find_attention, grouped_attention, in_half_precision, is_cpu, padded_attention


# ------------------------------------------------------------------------------------------------------------ the plan


class Group(NamedTuple):
    """Sequences with these `lengths`, the longest first, each extended to this number of `rows`."""

    rows: int
    lengths: list[int]


@dataclass(frozen=True, eq=False)
class RowPlan:
    """The rows to compute of a batch of this `shape` (B, S), and the N sequences that they form.

    The mask [[1, 1, 0], [0, 1, 1]] has the shape (2, 3), the lengths [2, 2] and the indices [0, 1, 4, 5].
    """

    shape: tuple[int, int]
    lengths: list[int]
    """Length of each sequence, in order."""
    has_padding: bool = False
    indices: torch.Tensor | None = None
    """Position (R,) in the flattened batch that each row is taken from. None: all positions, in order."""
    targets: torch.Tensor | None = None
    """Position (R,) that each row is put to, B·S for a copy that is not put back. None: the indices."""
    groups: list[Group] | None = None
    """The sequences in the order of the rows, if they were `grouped`."""
    cu_seqlens: torch.Tensor | None = None
    """Start of each sequence among the T tokens, and the end of the last: (N + 1,) int32; of `with_cu_seqlens`."""
    attention: Callable | None = None
    """The attention function for these rows: see `find_attention` in the kernels."""

    @property
    def rows(self) -> int:
        return self.shape[0] * self.shape[1] if self.indices is None else len(self.indices)

    def take(self, padded: torch.Tensor) -> torch.Tensor:
        """Leave the padding out: (B, S, …) → (1, R, …)."""
        flat = padded.flatten(0, 1)
        return (flat if self.indices is None else flat.index_select(0, self.indices.to(flat.device)))[None]

    def put(self, rows: torch.Tensor) -> torch.Tensor:
        """Restore the padding: (1, R, …) → (B, S, …), 0 at padding."""
        flat, size = rows[0], self.shape[0] * self.shape[1]
        if self.targets is not None:
            padded = flat.new_zeros((size + 1, *flat.shape[1:]))  # the last one is for copies
            flat = padded.index_copy(0, self.targets.to(flat.device), flat)[:size]
        elif self.indices is not None:
            padded = flat.new_zeros((size, *flat.shape[1:]))
            flat = padded.index_copy(0, self.indices.to(flat.device), flat)
        return flat.unflatten(0, self.shape)

    def grouped(self, heads: int, multiple: int) -> "RowPlan":
        """The sequences sorted by length, the longest first, and in `groups` of similar ones, so that attention takes
        a few large operations instead of many small ones. The attention weights of a group fit in a cache.

        Unless all are equally long, each is extended to a `common_length` by copies of its last token.
        """
        runs = sorted(zip(self.lengths, [0, *accumulate(self.lengths)], strict=False), key=lambda run: -run[0])
        uniform = runs[0][0] == runs[-1][0]
        groups = []
        for rows, similar in groupby(runs, lambda run: run[0] if uniform else common_length(run[0], multiple)):
            lengths = [length for length, _ in similar]
            while lengths:
                # Powers of two: few shapes, as in `surplus_rows`.
                count = 2 ** (min(len(lengths), max(1, 2**18 // max(1, heads * rows**2))).bit_length() - 1)
                groups.append(Group(rows, lengths[:count]))
                lengths = lengths[count:]
        if uniform:
            return replace(self, groups=groups)  # all are still in order
        token_counts, first_tokens = torch.tensor(runs).T  # (N,) each
        row_counts = torch.tensor([group.rows for group in groups for _ in group.lengths])  # (N,)
        numbers = torch.arange(len(runs)).repeat_interleave(row_counts)  # (R,): each row's sequence
        offsets = torch.arange(len(numbers)) - (row_counts.cumsum(0) - row_counts)[numbers]  # and its place there
        last = token_counts[numbers] - 1
        return self._select(first_tokens[numbers] + offsets.minimum(last), offsets <= last, groups=groups)

    def extended(self, surplus: int) -> "RowPlan":
        """With copies of the first row, as more sequences that are not longer than the longest: see `surplus_rows`."""
        if surplus == 0:
            return self
        rows, longest = torch.arange(self.rows + surplus), max(self.lengths)
        more = [min(longest, surplus - start) for start in range(0, surplus, longest)]
        if self.groups is None:
            changes = {"lengths": self.lengths + more}
        else:
            changes = {"groups": self.groups + [Group(length, [length]) for length in more]}
        put_back = rows < self.rows
        return self._select(rows * put_back, put_back, **changes)

    def with_cu_seqlens(self, device: torch.device) -> "RowPlan":
        ends = torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32)
        if device.type == "cuda":  # from unpinned memory, the host would wait for the copy
            ends = ends.pin_memory()
        return replace(self, cu_seqlens=ends.to(device, non_blocking=True))

    def _select(self, rows: torch.Tensor, put_back: torch.Tensor, **changes) -> "RowPlan":
        """With these `rows` of its rows, in any order and repeated if need be, some of which are not `put_back`."""
        discarded = self.shape[0] * self.shape[1]
        indices = torch.arange(discarded) if self.indices is None else self.indices
        targets = indices if self.targets is None else self.targets
        return replace(self, indices=indices[rows], targets=targets[rows].where(put_back, discarded), **changes)


def plan_rows(
    attention_mask: torch.Tensor, seq_idx: torch.Tensor | None = None, lengths: list[int] | None = None
) -> RowPlan:
    """The rows where the mask (B, S) is not 0; `seq_idx` (B, S) numbers the packed sequences of each batch entry.

    Without the `lengths` of all sequences, in order, the host waits for the device to count them. With `lengths`, the
    batch must be padded on the right only.
    """
    mask = attention_mask.bool()
    if lengths is None:
        if seq_idx is None:
            counts = mask.sum(1)  # (B,)
        else:
            counts = torch.zeros(mask.shape, dtype=torch.long, device=mask.device)
            counts.scatter_add_(1, seq_idx.long(), mask.long())  # (B, S)
        lengths = [count for count in counts.flatten().tolist() if count > 0]
    count = sum(lengths)
    has_padding = count < mask.numel()
    return RowPlan(tuple(mask.shape), lengths, has_padding, true_positions(mask, count) if has_padding else None)


def true_positions(mask: torch.Tensor, count: int | None = None) -> torch.Tensor:
    """Indices (count,) of the True elements of a flattened mask, then -1. Without `count`, the host waits for the
    device."""
    flat = mask.flatten()
    return (flat.nonzero() if count is None else torch.nonzero_static(flat, size=count))[:, 0]


def common_length(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def surplus_rows(count: int, device: torch.device) -> int:
    """How many rows to add to `count` rows, so that batches of different lengths have few shapes.

    On CPUs, tensors of ever-changing sizes fragment the memory, which grows for hundreds of steps. oneDNN compiles each
    product in bf16 and fp16 for its shape: one of a new shape takes several times as long as one of a known shape.
    There, the sum is one of 16 evenly spaced numbers from one power of two to the next, and a multiple of 8.
    """
    if not is_cpu(device):
        return 0
    step = max(8, 2 ** (count.bit_length() - 5))
    return -count % step


def first_tokens(
    attention_mask: torch.Tensor, seq_idx: torch.Tensor, lengths: Sequence[int] | None = None
) -> torch.Tensor:
    """Indices (N,) of the packed sequences' first tokens in the flattened batch."""
    count = None if lengths is None else len(lengths)  # N
    highest = seq_idx.masked_fill(attention_mask == 0, -1).cummax(1).values  # (B, S): the highest number so far
    return true_positions(highest > F.pad(highest[:, :-1], (1, 0), value=-1), count)


def packed_labels(
    labels: torch.Tensor,
    attention_mask: torch.Tensor | None,
    seq_idx: torch.Tensor | None,
    lengths: Sequence[int] | None = None,
) -> torch.Tensor:
    """Labels (B, K) of packed sequences → (N,), without padding. A label may be -100, like padding."""
    if seq_idx is None:
        return labels[labels != -100]
    count = None if lengths is None else len(lengths)  # N
    mask = torch.ones_like(seq_idx) if attention_mask is None else attention_mask
    entries = first_tokens(mask, seq_idx, lengths) // seq_idx.shape[1]  # (N,)
    counts = torch.zeros_like(labels[:, 0]).index_add_(0, entries, torch.ones_like(entries))  # (B,)
    present = torch.arange(labels.shape[1], device=labels.device) < counts[:, None]  # (B, K)
    return labels.flatten()[true_positions(present, count)]


def take_predicted(
    states: torch.Tensor, labels: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The states (B, S, H) and labels (B, S) at the `positions` (M,) to predict, and of surplus rows: (≥ M, H), (≥
    M,)."""
    check_shape("labels", labels, tuple(states.shape[:2]))
    found = positions.clamp(min=0)  # -1 where there are fewer labels than positions
    # Not [found], whose gradient sorts the positions on a GPU.
    states = states.flatten(0, 1).index_select(0, found)  # (M, H)
    labels = labels.flatten().index_select(0, found).where(positions >= 0, -100)  # (M,)
    surplus = surplus_rows(len(positions), found.device) if is_eager(states) else 0
    if surplus:
        # Copies of a token: of zeros, LayerNorm's gradient is infinite in fp16.
        states = torch.cat([states, states[-1:].expand(surplus, -1)])
        labels = F.pad(labels, (0, surplus), value=-100)
    return states, labels


# ----------------------------------------------------------------------------------------------- decisions for a batch


def may_unpad(model: nn.Module, ids: torch.Tensor, attention_mask, seq_idx, lengths: list[int] | None) -> bool:
    """Whether `model` can leave out the padding of the batch with these `ids` (B, S) or embeddings (B, S, E)."""
    implementation = model.config._attn_implementation
    if not is_eager(ids):
        return False  # its shapes must be static, or its values cannot be read
    if implementation not in KNOWN_ATTENTION and "flash" not in implementation:
        return False
    if is_observed(model.embeddings) or is_observed(model.encoder):
        return False  # a hook expects padded states
    if attention_mask is not None and not is_padding_mask(attention_mask):
        return False  # it says who attends to whom
    if attention_mask is None or lengths is not None:
        return ids.numel() > 0
    mask = attention_mask.bool()
    possible = mask.any()
    # Like BERT's, the pooler reads the first position, even if that is padding.
    if model.pooler is not None and seq_idx is None:
        possible = possible & (mask[:, 0] | ~mask.any(1)).all()
    return bool(possible)


def plan_batch(
    model: nn.Module, shape: tuple[int, int], device: torch.device, attention_mask, seq_idx, lengths: list[int] | None
) -> RowPlan:
    """The rows to compute of a batch of this `shape`, and the attention function for them."""
    if attention_mask is None:
        plan = RowPlan(shape, [shape[1]] * shape[0])
    else:
        plan = plan_rows(attention_mask, seq_idx, lengths)
    # FSDP1 and DataParallel's replicas have no parameters of their own.
    dtype = next((each.dtype for each in model.parameters() if each.is_floating_point()), torch.float32)
    attention = find_attention(model.config, model.training, device, dtype, max(plan.lengths))
    if attention not in (grouped_attention, padded_attention):
        return replace(plan.with_cu_seqlens(device), attention=attention)
    if attention is grouped_attention:
        # Computing the copies costs more than larger groups save in a wide model, or in fp32: measured.
        multiple = 8 if model.config.hidden_size <= 512 and in_half_precision(dtype, device) else 1
        plan = plan.grouped(model.config.num_attention_heads, multiple)
    return replace(plan.extended(surplus_rows(plan.rows, device)), attention=attention)


def attention_mask_for(
    config, embeddings: torch.Tensor, attention_mask: torch.Tensor | None, seq_idx: torch.Tensor | None, keep: bool
):
    """The mask of a padded batch in the form that the attention implementation takes, or None if every token attends
    to all; with `keep`, never None for an `attention_mask`. `embeddings` (B, S, …) give shape, dtype and device."""
    if seq_idx is not None and config._attn_implementation not in KNOWN_ATTENTION:
        raise ValueError(
            f"{config._attn_implementation} cannot keep packed sequences (seq_idx) apart where padding is kept: with "
            "unpad_inputs=False, under torch.compile, or if hidden states or attentions are asked for. Take the "
            "attention implementation sdpa."
        )

    def same_sequence(batch, head, query, key):
        return seq_idx[batch, query] == seq_idx[batch, key]

    return create_bidirectional_mask(
        config=config,
        inputs_embeds=embeddings,
        attention_mask=attention_mask,
        and_mask_function=None if seq_idx is None else same_sequence,
        **(keep_mask if keep else {}),
    )
