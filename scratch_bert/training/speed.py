"""The speed of a training: non-padding tokens per second, the time spent on data, and memory."""

import time
from collections.abc import Callable
from functools import partial

import psutil
import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import TrainOutput

from .arguments import global_batch_size


class SpeedMeter(TrainerCallback):
    """Counts the tokens and the time of training steps in one process, between two entries of the log. As a callback,
    it stops the clock after each step."""

    def __init__(self, device: torch.device):
        self.device = device
        self.tokens = torch.zeros(2, dtype=torch.long, device=device)  # since the last report, and `take_tokens`
        self.start()

    def start(self) -> None:
        """Start again, except for the count of `take_tokens`."""
        self.tokens[0] = 0
        self.steps = 0
        self.seconds = self.data_seconds = 0.0
        self.since: float | None = None

    def resume(self) -> None:
        """Start the clock of a step, which begins by waiting for its examples."""
        self.since = self.since or time.perf_counter()
        self.data_since = time.perf_counter()

    def got_examples(self) -> None:
        """Stop the clock of the data."""
        self.data_seconds += time.perf_counter() - self.data_since

    def pause(self) -> None:
        """Stop the clock: evaluations and saves are not part of a step."""
        if self.since is not None:
            self.seconds += time.perf_counter() - self.since
            self.since = None

    def on_train_begin(self, args, state, control, **kwargs):
        self.start()

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1
        if not control.should_log:  # otherwise `report` pauses, after the wait for the device
            self.pause()

    def count(self, batch: dict[str, torch.Tensor]) -> None:
        """Add the non-padding tokens of a micro-batch. The host does not wait for the device."""
        lengths, mask = batch.get("sequence_lengths"), batch.get("attention_mask")
        if lengths is not None:  # a list: the collator has counted
            self.tokens += sum(lengths)
        elif mask is not None:
            self.tokens += mask.sum(dtype=torch.long).to(self.device, non_blocking=True)
        else:
            self.tokens += batch["input_ids"].numel()

    def take_tokens(self, reduce: Callable[[torch.Tensor], torch.Tensor]) -> int:
        """Return the non-padding tokens of all processes since the last call: `reduce` sums over processes."""
        tokens = int(reduce(self.tokens[1]))
        self.tokens[1] = 0
        return tokens

    def report(self, reduce: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, float]:
        """Return entries for the log about all processes since the last report: `reduce` sums a tensor over processes.
        The memory, in MiB, is this process's: the maximum allocated on the GPU, or the resident set on the CPU."""
        self.pause()
        if not self.seconds:
            return {}
        measured = torch.tensor([self.data_seconds, self.seconds, 1.0], device=self.device)
        tokens, data_seconds, seconds, processes = reduce(torch.cat([self.tokens[:1].float(), measured])).tolist()
        on_gpu = self.device.type == "cuda"
        memory = torch.cuda.max_memory_allocated() if on_gpu else psutil.Process().memory_info().rss
        steps = max(self.steps, 1)
        self.start()
        return {
            "speed/tokens_per_second": tokens * processes / seconds,
            "speed/tokens_per_step": tokens / steps,
            "speed/data_share": data_seconds / seconds,
            "speed/memory_mib": memory / 2**20,
        }


class MeasuredTrainer(Trainer):
    """Trainer with the speed in its log, in entries speed/…, and the right duration if the clock was set."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._speed = SpeedMeter(self.args.device)
        self._reduce = partial(self.accelerator.reduce, reduction="sum")
        self.add_callback(self._speed)

    def set_initial_training_values(self, *args) -> tuple:
        self._start = time.monotonic()
        return super().set_initial_training_values(*args)

    def get_batch_samples(self, *args, **kwargs):
        self._speed.resume()
        samples = super().get_batch_samples(*args, **kwargs)
        self._speed.got_examples()
        return samples

    def training_step(self, model, inputs, num_items_in_batch=None):
        self._speed.count(inputs)
        return super().training_step(model, inputs, num_items_in_batch)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and (speed := self._speed.report(self._reduce)):
            logs |= speed | {"speed/examples_per_step": global_batch_size(self.args)}
        super().log(logs, start_time)

    def _count_tokens(self) -> None:
        """Add the tokens since the last call to the state. The stock Trainer would wait for them in each step."""
        if self.args.include_num_input_tokens_seen == "no":
            self.state.num_input_tokens_seen += self._speed.take_tokens(self._reduce)

    def _save_checkpoint(self, *args, **kwargs) -> None:
        self._count_tokens()
        super()._save_checkpoint(*args, **kwargs)

    def _finalize_training(self, trial, num_train_samples, start_time) -> TrainOutput:
        self._count_tokens()
        start_time = time.time() - (time.monotonic() - self._start)  # the stock Trainer subtracts times of day
        return super()._finalize_training(trial, num_train_samples, start_time)
