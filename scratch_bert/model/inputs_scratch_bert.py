"""Inputs made complete and checked, before anything is computed: ids, segments and positions, and packed sequences.

Dimensions are those of the model file. Values are checked on the CPU only: on an accelerator, reading them would make
the host wait for the device.
"""

from typing import NamedTuple

import torch
from torch import nn

from .compat_scratch_bert import can_branch, is_eager


# Attention implementations that take any mask. Others, as that of a server, keep sequences apart themselves.
KNOWN_ATTENTION = ("eager", "sdpa", "flex_attention")


class EmbeddingInputs(NamedTuple):
    """Complete inputs of the embeddings: either `input_ids` or `inputs_embeds` is None."""

    input_ids: torch.Tensor | None  # (B, S)
    token_type_ids: torch.Tensor  # (B, S)
    position_ids: torch.Tensor  # (B, S)
    inputs_embeds: torch.Tensor | None  # (B, S, E)


def complete_inputs(
    embeddings: nn.Module,
    input_ids: torch.Tensor | None,  # (B, S)
    token_type_ids: torch.Tensor | None,  # (B, S) or (1, S)
    position_ids: torch.Tensor | None,  # (B, S) or (1, S)
    inputs_embeds: torch.Tensor | None,  # (B, S, E)
) -> EmbeddingInputs:
    """Check the inputs, and add default segments and positions. Raises `ValueError` or `IndexError`."""
    config = embeddings.config
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("Pass either input_ids or inputs_embeds, and not both.")
    width = () if inputs_embeds is None else (config.embedding_size or config.hidden_size,)
    given = input_ids if inputs_embeds is None else inputs_embeds
    if given.dim() != 2 + len(width):
        wanted = "input_ids of shape (B, S) or inputs_embeds of shape (B, S, E)"
        raise ValueError(f"The model takes {wanted}, got the shape {tuple(given.shape)}.")
    shape, length = tuple(given.shape[:2]), given.shape[1]

    if position_ids is None:
        if length > config.max_position_embeddings:
            raise ValueError(
                f"The sequences are {length} tokens long, but the model has max_position_embeddings="
                f"{config.max_position_embeddings} positions. Truncate the text to that length."
            )
        position_ids = embeddings.position_ids[:, :length]  # (1, S)
    else:
        check_shape("position_ids", position_ids, shape, (1, length))
        check_range("position_ids", position_ids, config.max_position_embeddings, "max_position_embeddings")
    position_ids = position_ids.expand(shape)
    if token_type_ids is None:
        token_type_ids = torch.zeros_like(position_ids)
    else:
        check_shape("token_type_ids", token_type_ids, shape, (1, length))
        check_range("token_type_ids", token_type_ids, config.type_vocab_size, "type_vocab_size")
    # A replacement of the word embeddings, as PEFT's, may have no size.
    if inputs_embeds is None and (size := getattr(embeddings.word_embeddings, "num_embeddings", None)):
        check_range("input_ids", input_ids, size, "vocab_size")
    check_shape("inputs_embeds", given, (*shape, *width))
    return EmbeddingInputs(input_ids, token_type_ids.expand(shape), position_ids, inputs_embeds)


def find_sequences(config, shape: tuple[int, int], attention_mask, seq_idx, position_ids, cu_seq_lens):
    """The mask and the `seq_idx` (B, S) of a batch of this `shape`, whichever way it tells its packed sequences apart;
    None where it has none. Raises `ValueError` or `IndexError` for a mask or numbers of another batch."""
    if torch.is_tensor(attention_mask) and attention_mask.dim() != 4:
        check_shape("attention_mask", attention_mask, shape)
    by_position = attention_mask is None and config._attn_implementation in KNOWN_ATTENTION
    if seq_idx is None and (by_position or cu_seq_lens is not None):
        seq_idx = flattened_seq_idx(position_ids, cu_seq_lens, shape)
    if seq_idx is not None:
        attention_mask = torch.ones_like(seq_idx) if attention_mask is None else attention_mask
        check_packing(seq_idx, attention_mask, shape)
    return attention_mask, seq_idx


def flattened_seq_idx(
    position_ids: torch.Tensor | None, cu_seq_lens: torch.Tensor | None, shape: tuple[int, int]
) -> torch.Tensor | None:
    """`seq_idx` (1, S) of sequences that a collator has joined to one batch entry, or None if there is one alone.

    They are known from `cu_seq_lens` (N + 1,), the starts of the sequences and the end of the last, or from
    `position_ids` (1, S) that count up, and from the first position again with each sequence. Raises `ValueError` for
    `cu_seq_lens` of another batch.
    """
    if cu_seq_lens is not None:
        on_cpu = cu_seq_lens.device.type == "cpu" and is_eager(cu_seq_lens)
        if shape[0] != 1 or (on_cpu and cu_seq_lens[[0, -1]].tolist() != [0, shape[1]]):
            raise ValueError(
                f"cu_seq_lens_q must run from 0 to the number of tokens in a batch of shape (1, T), but the batch has "
                f"the shape {shape}."
            )
        return torch.bucketize(torch.arange(shape[1], device=cu_seq_lens.device), cu_seq_lens[1:-1], right=True)[None]
    if position_ids is None or shape[0] != 1 or shape[1] == 0 or not can_branch(position_ids):
        return None
    before, after = position_ids[:, :-1], position_ids[:, 1:]  # (1, S - 1)
    starts = position_ids == position_ids[:, :1]  # (1, S)
    counted = (starts[:, 1:] | (after == before + 1)).all()
    restarted = (after < before).any()
    return starts.cumsum(1) - 1 if counted & restarted else None


def chosen_states(output_hidden_states: bool | int | list[int] | None, count: int) -> set[int]:
    """Which of `count` hidden states to return: all, none, or those with these indices, from the end if negative."""
    if output_hidden_states is None or isinstance(output_hidden_states, bool):
        return set(range(count)) if output_hidden_states else set()
    indices = [output_hidden_states] if isinstance(output_hidden_states, int) else output_hidden_states
    return {index % count for index in indices if -count <= index < count}


def check_shape(name: str, tensor: torch.Tensor, *allowed: tuple[int, ...]) -> None:
    """Raise `ValueError` if the shape of `tensor` is none of `allowed`."""
    if tuple(tensor.shape) not in allowed:
        expected = " or ".join(map(str, dict.fromkeys(allowed)))
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}, but these inputs need {expected}.")


def check_range(name: str, ids: torch.Tensor, size: int, size_name: str) -> None:
    """Raise `IndexError` if an id in `ids` (any shape) is not in [0, size).

    On the CPU only: on an accelerator, reading the extremes would make the host wait for the device.
    """
    if ids.device.type != "cpu" or not is_eager(ids) or ids.numel() == 0:
        return
    low, high = (int(extreme) for extreme in ids.aminmax())
    if low < 0 or high >= size:
        raise IndexError(
            f"{name} must lie between 0 and {size - 1} ({size_name} is {size}), but they run from {low} to {high}."
        )


def check_packing(seq_idx: torch.Tensor, attention_mask: object, shape: tuple[int, int]) -> None:
    """Raise `ValueError` or `IndexError` if the numbers `seq_idx` do not delimit packed sequences."""
    check_shape("seq_idx", seq_idx, shape)
    check_range("seq_idx", seq_idx, shape[1], "length of a batch entry")
    if not is_padding_mask(attention_mask):
        raise ValueError(
            "seq_idx needs an attention_mask of shape (B, S), or none: a 4-D mask already defines who attends to whom."
        )
    if seq_idx.device.type == "cpu" and is_eager(seq_idx):
        numbers = seq_idx.masked_fill(attention_mask == 0, 0)
        if ((numbers.cummax(1).values > seq_idx) & (attention_mask != 0)).any():
            raise ValueError("seq_idx must not decrease: number the sequences 0, 1, 2, … from left to right.")


def is_padding_mask(attention_mask: object) -> bool:
    """Whether the mask marks padding (B, S), rather than who attends to whom: (B, 1, S, S), or flex attention's."""
    return torch.is_tensor(attention_mask) and attention_mask.dim() == 2
