"""The Trainer of both kinds of training: each of its parts has its own file."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from scratch_bert_options.errors import LimitError, explain_limit
from scratch_bert_options.training import CommonOptions

from ..checkpoints.saved import check_space
from ..logs import logger
from ..model.configuration_scratch_bert import ScratchBertConfig
from .best import BestModelTrainer
from .clock import Clock
from .console import show_on_console
from .memory import keep_freed_memory
from .processes import wait_for_processes
from .resuming import ResumingTrainer
from .saving import DivergenceError, SavingTrainer
from .signals import Interrupted
from .speed import MeasuredTrainer
from .workers import shield_workers


__all__ = ["DivergenceError", "Interrupted", "ScratchBertTrainer"]


class ScratchBertTrainer(ResumingTrainer, BestModelTrainer, MeasuredTrainer, SavingTrainer):
    """The stock Trainer, with these differences:

    - A checkpoint or model under its final name is always complete (`saving`), and each push is (`push`).
    - A loss, metric or weight that is not finite raises `DivergenceError`, before it is saved (`saving`).
    - Signals save a checkpoint and stop the training; `interrupted` is then True (`signals`).
    - A resumed run takes the learning rates and other hyperparameters from its own options (`resuming`).
    - With `max_minutes`, the training ends by the clock, which its schedule follows (`clock`).
    - The log has the speed (`speed`), and the console a line for each entry and a progress line (`console`).
    - On a CPU, the process keeps the memory that it frees (`memory`).
    - A lack of memory, shared memory, open files or threads raises `LimitError`, an `OSError`, with the remedy.

    For another optimizer, override `create_optimizer`. `results` are metrics for the card, beside those of the log.

    Args:
        write_card: `write_card(trainer, directory)` writes a model card, README.md, into every directory that is
            saved, unless a user has changed the card there.
        record: A description of the run, written into each checkpoint as run.json.
    """

    def __init__(
        self,
        *args,
        options: CommonOptions | None = None,
        write_card: Callable[[Trainer, Path], None] | None = None,
        record: dict | None = None,
        **kwargs,
    ):
        self.write_card, self.record = write_card, record or {}
        self.results: dict[str, float] = {}
        self.snapshots = 0  # that will be written
        super().__init__(*args, **kwargs)
        self.options = options or CommonOptions(output_dir=self.args.output_dir)
        if self.args.fsdp and not self.is_fsdp_enabled:
            raise ValueError("fsdp needs several processes, each with an accelerator: start them with torchrun.")
        if self.options.max_minutes:
            self.clock = Clock(60 * self.options.max_minutes)
            self.add_callback(self.clock)
        show_on_console(self, self.options.json_logs)

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        # accelerate's autocast copies all outputs to fp32, in each step also the logits, which only some steps read.
        # With fp16, it also scales the gradients; label smoothing takes fp32; DataParallel has no autocast.
        replaces = self.args.n_gpu < 2 and not self.args.label_smoothing_factor
        self._autocast = replaces and self.accelerator.native_amp and self.accelerator.mixed_precision == "bf16"
        self.accelerator.native_amp &= not self._autocast

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager:
        return torch.autocast(self.args.device.type, torch.bfloat16) if self._autocast else nullcontext()

    def create_scheduler(self, num_training_steps: int, *args, **kwargs):
        warmup = self.args.get_warmup_steps(num_training_steps)
        if warmup >= num_training_steps:
            logger.warning(
                f"The warm-up ({warmup:,} step{'s' * (warmup != 1)}) covers the entire run: the learning rate never "
                "reaches its peak. Lower warmup_steps; below 1, it is a fraction of all steps."
            )
        return super().create_scheduler(num_training_steps, *args, **kwargs)

    def train(self, *args, **kwargs) -> TrainOutput:
        if self.args.device.type == "cpu":
            keep_freed_memory()
        if self.args.should_save and not (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            check_space(self.model, self.args, self.snapshots)
        try:
            output = super().train(*args, **kwargs)
        except (OSError, MemoryError, RuntimeError) as error:
            reason = explain_limit(error)
            if reason is None:
                raise
            raise LimitError(f"{reason} Then continue: {self.options.how_to_resume()}") from error
        wait_for_processes(self.accelerator)
        return output

    def evaluation_loop(self, dataloader: DataLoader, *args, **kwargs) -> EvalLoopOutput:
        shield_workers(dataloader)
        output = super().evaluation_loop(dataloader, *args, **kwargs)
        wait_for_processes(self.accelerator)
        return output

    def latest_metrics(self) -> dict[str, float]:
        """Return the latest value of each entry in the log, and the `results`."""
        return {name: value for entry in self.state.log_history for name, value in entry.items()} | self.results

    @property
    def counts_on_the_host(self) -> bool:
        """Whether batches should carry counts, by `CountingCollator`: for a model that takes them, which is compiled,
        or on one accelerator for each process."""
        args, takes_them = self.args, self.model.config.model_type == ScratchBertConfig.model_type
        return takes_them and args.n_gpu < 2 and (args.torch_compile or args.device.type != "cpu")
