"""Training for a given time: the schedule of the learning rate follows the clock instead of the steps (24hBERT, Izsak et
al., 2021)."""

import math
import time
from pathlib import Path

import torch
from torch import distributed
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback
from transformers.trainer import SCHEDULER_NAME

from .callbacks import RUN_AHEAD


LENGTH = 1000  # "steps" of a schedule that follows the clock: thousandths of the time
LOG_SECONDS = 30
UNKNOWN = 10**9  # the number of steps before the first one has shown how long it takes


class Clock(TrainerCallback):
    """Stops training after `seconds`, evaluations and checkpoints included. Until then, `state.max_steps` is an
    estimate. The log has an entry at least every `LOG_SECONDS`, as how many steps these are is unknown.

    The time used is in each checkpoint, so that a resumed run has the rest of it. All processes take that of the first one, once
    a step, or they would have different rates.
    """

    trainings = 0  # in this process

    def __init__(self, seconds: float):
        self.seconds, self.used = seconds, 0.0

    @property
    def share(self) -> float:
        """The fraction of the time that is used, from 0 to 1."""
        return min(self.used / self.seconds, 1.0)

    def drive(self, scheduler: LambdaLR) -> None:
        """Let a schedule of `LENGTH` steps follow the clock."""
        scheduler.lr_lambdas = [self._at_this_time(factor) for factor in scheduler.lr_lambdas]
        self.save_to(scheduler)

    def _at_this_time(self, factor):
        return lambda step: factor(self.share * LENGTH)

    def save_to(self, scheduler: LambdaLR) -> None:
        """Note the time in the scheduler, whose attributes are its state in a checkpoint."""
        scheduler.seconds_used = self.used

    def restore(self, checkpoint: str | Path | None) -> None:
        """Continue from a checkpoint, or start again. A checkpoint whose schedule didn't follow a clock has used no time."""
        self.used = 0.0
        if checkpoint:
            self.used = torch.load(Path(checkpoint, SCHEDULER_NAME), weights_only=True).get("seconds_used", 0.0)

    def read(self) -> None:
        """Add the time since the last reading."""
        now = time.perf_counter()
        self.used, self._last_reading = self.used + now - self._last_reading, now

    def on_train_begin(self, args, state, control, **kwargs):
        self._last_reading, self._last_entry = time.perf_counter(), self.used
        Clock.trainings += 1  # an earlier training's times are not for this one

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.read()
        if args.world_size > 1:
            self.used = self._that_of_the_first(state.global_step)
        step = state.global_step + 1  # which is counted, and the rate of the next one set, after this
        state.max_steps = step if self.share == 1 else max(step + 1, math.ceil(step / self.share - 1e-9))

    def on_step_end(self, args, state, control, **kwargs):
        control.should_log |= args.logging_strategy == "steps" and self.used - self._last_entry >= LOG_SECONDS

    def on_log(self, args, state, control, **kwargs):
        self._last_entry = self.used

    def _that_of_the_first(self, step: int) -> float:
        """The time used by the first process, through the store of their rendezvous: a broadcast would wait for the GPU."""
        store, key = distributed.distributed_c10d._get_default_store(), f"scratch_bert/seconds-used-{Clock.trainings}-"
        if distributed.get_rank() > 0:
            return float(store.get(f"{key}{step}"))
        store.set(f"{key}{step}", str(self.used))
        store.delete_key(f"{key}{step - 2 * RUN_AHEAD}")
        return self.used
