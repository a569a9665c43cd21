"""Training for a given time: the schedule of the learning rate follows the clock instead of the steps (24hBERT, Izsak
et al., 2021)."""

import math
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback
from transformers.trainer import SCHEDULER_NAME
from transformers.trainer_utils import TrainOutput

from ..examples.dataset import evenly_spread
from ..logs import logger
from .processes import from_rank_zero


SCHEDULE_LENGTH = 1000  # "steps" of a schedule that follows the clock: thousandths of the time
LOG_SECONDS = 30
UNKNOWN_STEPS = 10**9  # `max_steps` before the first step has shown how long it takes
TIMED_BATCHES = 5  # of an evaluation, to estimate how long it takes; the first is slower


class Clock(TrainerCallback):
    """Stops training early enough for a final evaluation, which takes `reserved` seconds, to end after `limit` seconds.
    Evaluations and checkpoints during training are part of its time; an evaluation that would not leave enough for the
    final one is skipped. Until the end, `state.max_steps` is an estimate. The log has an entry at least every
    `LOG_SECONDS`, whatever the number of steps.

    The time used is in each checkpoint, so that a resumed run has the rest of it. Every process takes rank 0's time,
    once a step, or they would have different rates.
    """

    def __init__(self, limit: float):
        self.limit, self.used, self.reserved = limit, 0.0, 0.0
        self.estimating = 0.0  # seconds before the first step, to find out how long the final evaluation takes

    @property
    def seconds(self) -> float:
        """The time to train: at least half of the limit."""
        return max(self.limit - self.estimating - self.reserved, self.limit / 2)

    @property
    def fraction_used(self) -> float:
        """The fraction of the time to train that is used, from 0 to 1."""
        return min(self.used / self.seconds, 1.0)

    def restore(self, checkpoint: str | Path | None) -> None:
        """Continue from the time that a checkpoint has; from 0 if it has none, or without a checkpoint."""
        saved = torch.load(Path(checkpoint, SCHEDULER_NAME), weights_only=True) if checkpoint else {}
        self.used, self.reserved = saved.get("seconds_used", 0.0), saved.get("seconds_reserved", 0.0)

    def read(self) -> None:
        """Add the time since the last reading."""
        now = time.perf_counter()
        self.used, self._last_reading = self.used + now - self._last_reading, now

    def on_train_begin(self, args, state, control, **kwargs):
        self._last_reading, self._last_entry = time.perf_counter(), self.used

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.read()
        if args.world_size > 1:
            self.used = float(from_rank_zero(str(self.used)))
        step = state.global_step + 1  # this step is counted, and the next rate set, afterwards
        done = self.fraction_used
        state.max_steps = step if done == 1 else max(step + 1, math.ceil(step / done - 1e-9))
        control.should_log |= args.logging_strategy == "steps" and self.used - self._last_entry >= LOG_SECONDS

    def on_step_end(self, args, state, control, **kwargs):
        control.should_evaluate &= self.fraction_used == 1 or self.used + self.reserved < self.seconds

    on_epoch_end = on_step_end

    def on_log(self, args, state, control, **kwargs):
        self._last_entry = self.used


class TimedTrainer(Trainer):
    """Trainer that ends by the `clock`, if it has one. `test_dataset` is predicted after the final evaluation."""

    clock: Clock | None = None
    test_dataset: Dataset | None = None

    @property
    def fraction_done(self) -> float:
        """The fraction of the training that is done, by the clock or in steps, from 0 to 1."""
        return self.clock.fraction_used if self.clock else self.state.global_step / self.state.max_steps

    @property
    def minutes_used(self) -> float | None:
        """The time that a training with a clock has used, also before a resume; None without."""
        return self.clock and (self.clock.used + self.clock.estimating) / 60

    def create_scheduler(self, num_training_steps: int, *args, **kwargs):
        if not self.clock or self.lr_scheduler is not None:
            return super().create_scheduler(num_training_steps, *args, **kwargs)
        scheduler = super().create_scheduler(SCHEDULE_LENGTH, *args, **kwargs)
        clock, factors = self.clock, scheduler.lr_lambdas
        scheduler.lr_lambdas = [lambda _, at=factor: at(clock.fraction_used * SCHEDULE_LENGTH) for factor in factors]
        return scheduler

    def _prepare_for_training(self, *args, **kwargs) -> tuple:
        prepared = super()._prepare_for_training(*args, **kwargs)
        datasets = [dataset for dataset in (self.eval_dataset, self.test_dataset) if dataset]
        if self.clock and self.fraction_done < 1 and datasets:
            self._reserve_time(self.clock, datasets)
        return prepared

    def _reserve_time(self, clock: Clock, datasets: list[Dataset]) -> None:
        """Reserve the time of the final evaluation on these; warn if that leaves less than half of the limit."""
        start = time.perf_counter()
        clock.reserved = sum(map(self._seconds_to_evaluate, datasets))
        clock.estimating = time.perf_counter() - start
        if self.args.world_size > 1:
            clock.reserved = float(from_rank_zero(str(clock.reserved)))
            clock.estimating = float(from_rank_zero(str(clock.estimating)))
        if clock.estimating + clock.reserved > clock.limit / 2:
            total = clock.seconds + clock.estimating + clock.reserved
            logger.warning(
                f"The final evaluation takes about {clock.reserved / 60:.1f} minutes. Training keeps half of "
                f"max_minutes, so the run takes {total / 60:.1f} minutes in all: raise max_minutes, or evaluate on fewer "
                "examples"
            )

    def _seconds_to_evaluate(self, dataset: Dataset) -> float:
        """Estimate how long an evaluation takes, from a few batches that are evenly spread over the dataset."""
        batch_size = self.args.eval_batch_size * self.args.world_size
        readings = [time.perf_counter()]
        self.model.eval()
        for inputs in self.get_test_dataloader(evenly_spread(dataset, TIMED_BATCHES * batch_size)):
            self.prediction_step(self.model, inputs, prediction_loss_only=False)
            if torch.accelerator.is_available():
                torch.accelerator.synchronize()
            readings.append(time.perf_counter())
        seconds = np.diff(readings)[1 - TIMED_BATCHES :]  # without the first, if all have been taken
        return float(seconds.sum()) / max(len(seconds), 1) * math.ceil(len(dataset) / batch_size)

    def _save_checkpoint(self, *args, **kwargs) -> None:
        if self.clock:
            if self.fraction_done < 1:  # the evaluation after the last step is not training
                self.clock.read()
            # A checkpoint has the scheduler's attributes.
            self.lr_scheduler.seconds_used = self.clock.used + self.clock.estimating
            self.lr_scheduler.seconds_reserved = self.clock.reserved
        super()._save_checkpoint(*args, **kwargs)

    def _finalize_training(self, trial, num_train_samples, *args, **kwargs) -> TrainOutput:
        if self.clock:
            num_train_samples = num_train_samples * self.state.max_steps // UNKNOWN_STEPS
        return super()._finalize_training(trial, num_train_samples, *args, **kwargs)
