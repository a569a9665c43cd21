"""Counts that a batch can carry, so that in a step on a GPU the host does not wait for the device to count."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass
class CountingCollator:
    """Adds to another collator's batches what the model would otherwise count on the device: `sequence_lengths`, of
    all sequences in order, and with `labels` `num_masked`, the number of labels other than -100. Leaves batches
    without an attention_mask and with padding on the left as they are.

    With `compiled`, only `num_masked` is added, rounded up by at most an eighth: a compiled model keeps the padding,
    and is fastest for numbers that it has been compiled for."""

    collator: Callable[[list[dict]], dict[str, torch.Tensor]]
    labels: bool = True
    compiled: bool = False

    def __call__(self, examples: list[dict]) -> dict[str, torch.Tensor | list[int] | int]:
        batch = self.collator(examples)
        counts = {"num_masked": int((batch["labels"] != -100).sum())} if self.labels else {}
        if self.compiled:
            return batch | {name: round_up(count) for name, count in counts.items()}
        mask = batch.get("attention_mask")
        if mask is None or (mask[..., 0] < mask.amax(-1)).any():
            return batch
        return batch | counts | {"sequence_lengths": [n for n in sequence_lengths(batch).tolist() if n > 0]}


def sequence_lengths(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the number of tokens in each sequence of a batch, padded or packed; 0 where there is no sequence."""
    mask = batch["attention_mask"].long()  # (B, S), or (B, C, S) in multiple choice
    if "seq_idx" not in batch:
        return mask.sum(-1).flatten()
    return torch.zeros_like(mask).scatter_add_(1, batch["seq_idx"], mask).flatten()


def round_up(count: int) -> int:
    """To one of eight evenly spaced numbers from one power of two to the next."""
    step = 2 ** max(0, count.bit_length() - 4)
    return -(-count // step) * step
