"""Snapshots of a training: models with weights in bf16, close together at its beginning, where it learns fastest."""

import shutil
import weakref
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import PreTrainedModel, Trainer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME

from ..atomic import STAGING, move_into_place, write_json
from ..checkpoints.saved import EXAMPLES, SNAPSHOTS, snapshots_in
from ..training.console import without_progress_bars


DEFAULT_COUNT = 20
MAX_BYTES = 10**9  # of all snapshots, if their number is not given
FIRST_FRACTION = 0.003  # of the training: before it, only the initial weights have a snapshot


def default_count(parameters: int) -> int:
    """Snapshots of a model of this size, in bf16: `DEFAULT_COUNT`, or none if these would exceed `MAX_BYTES`."""
    return DEFAULT_COUNT if 2 * parameters * DEFAULT_COUNT <= MAX_BYTES else 0


def snapshot_fractions(count: int) -> list[float]:
    """The fractions of the training after which a snapshot is taken: 0, then each a constant multiple of the one
    before, up to 1. A single one is taken at the end."""
    last = max(count - 1, 1)
    return [0.0, *(FIRST_FRACTION ** (1 - number / last) for number in range(1, last + 1))][-count:]


class SnapshotCallback(TrainerCallback):
    """Keeps about `count` snapshots of the model, with its tokenizer and the log, in `output_dir`/snapshots, beside
    `examples` to try them on, drawn by the process that writes them.

    A snapshot that can't be written is the last one tried; the training continues.
    """

    def __init__(self, count: int, trainer: Trainer, examples: Callable[[], dict[str, list]]):
        self.trainer, self.examples = weakref.proxy(trainer), examples  # the trainer keeps its callbacks
        self.fractions = snapshot_fractions(count)
        self.taken = 0  # number of fractions reached

    def on_train_begin(self, args, state, control, model, processing_class, **kwargs):
        if not state.is_world_process_zero:
            return
        for snapshot in snapshots_in(Path(args.output_dir)):  # of a training that went further
            if int(snapshot.name) > state.global_step:
                shutil.rmtree(snapshot, ignore_errors=True)
        self.taken = self._due() if state.global_step else 0
        self._take(args, state, model, processing_class)

    def on_step_end(self, args, state, control, model, processing_class, **kwargs):
        if state.is_world_process_zero:
            self._take(args, state, model, processing_class)

    def _due(self) -> int:
        return sum(fraction <= self.trainer.fraction_done for fraction in self.fractions)

    def _take(self, args, state, model, tokenizer) -> None:
        due = self._due()
        if due <= self.taken:
            return
        self.taken = len(self.fractions)  # no more of them if this one fails
        place = Path(args.output_dir, SNAPSHOTS, str(state.global_step))
        staged = Path(args.output_dir, STAGING, SNAPSHOTS)
        with self.trainer.decoration("The snapshot"):
            place.parent.mkdir(exist_ok=True)
            if not (place.parent / EXAMPLES).exists():
                write_json(place.parent / EXAMPLES, self.examples())
            shutil.rmtree(staged, ignore_errors=True)
            with without_progress_bars():
                model.save_pretrained(staged, state_dict=in_bf16(model))
            tokenizer.save_pretrained(staged)
            state.save_to_json(str(staged / TRAINER_STATE_NAME))
            move_into_place(staged, place)
            self.taken = due
        for leftovers in (staged, place.parent / STAGING):
            shutil.rmtree(leftovers, ignore_errors=True)


def in_bf16(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The weights in bf16. Names that share a tensor share its copy, which is saved once."""
    weights = model.state_dict()
    copies = {tensor.data_ptr(): tensor.bfloat16() for tensor in weights.values() if tensor.is_floating_point()}
    return {name: copies.get(tensor.data_ptr(), tensor) for name, tensor in weights.items()}
