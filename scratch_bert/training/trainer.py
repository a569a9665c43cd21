"""Trainer with atomic checkpoints, model cards, complete pushes to the Hub, and a checkpoint on Ctrl-C."""

import logging
import math
import shlex
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list
from huggingface_hub import CommitInfo, HfApi
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import (
    PREFIX_CHECKPOINT_DIR,
    EvalLoopOutput,
    HubStrategy,
    TrainOutput,
    get_last_checkpoint,
)
from transformers.utils import CONFIG_NAME, PushInProgress

from scratch_bert_options.limits import LimitError, explain_limit

from ..atomic import MANIFEST, STAGING, move_into_place, write_json
from ..checkpoints.output_dir import read_metrics
from ..checkpoints.resume import ResumeCallback, check_processes, merge_hyperparameters, warn_of_missing_state
from ..checkpoints.saved import explain_write_errors, find_best, how_to_resume, saved_step, write_checkpoint
from ..checkpoints.weights import find_not_finite
from ..hub.model_card import is_customized
from ..hub.publishing import ensure_branch, public_files, publish
from ..model.configuration_scratch_bert import ScratchBertConfig
from ..repository import RUN_FILE
from .callbacks import PushCallback, SignalCallback, shield_workers
from .clock import LENGTH, UNKNOWN, Clock
from .console import show_on_console, without_progress_bars
from .memory import keep_freed_memory
from .speed import SpeedMeter, known_matrix_peak


logger = logging.getLogger("scratch_bert")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP ended the training."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.exit_code = 128 + signal_number


class DivergenceError(FloatingPointError):
    """The loss, a metric or a weight is not finite."""


class ScratchBertTrainer(Trainer):
    """The stock Trainer, with these differences:

    - A checkpoint or model under its final name is always complete, even if the process dies or the disk is full.
    - A loss, metric or weight that is not finite raises `DivergenceError`, before it is saved.
    - `write_card(trainer, directory)` writes a model card, README.md, into every directory that it saves, unless a
      user has changed the card there.
    - Each push contains code, weights, tokenizer and card, in one commit. The training state (optimizer, arguments,
      random generators) stays on this machine, with every `hub_strategy`.
    - Ctrl-C, SIGTERM and SIGHUP end the step, save a checkpoint and stop; `interrupted` is then True. SIGUSR1 saves a checkpoint.
    - A lack of memory, shared memory, open files or threads raises `LimitError`, an `OSError`, with the remedy.
    - With `max_minutes`, the training ends by the clock, which its schedule follows: see `Clock`.
    - The time of a training is right even if the clock was set meanwhile.
    - On a CPU, the process keeps the memory that it frees: see `keep_freed_memory`.
    - A resumed run takes the learning rates and other hyperparameters of the optimizer from its own options.
    - The log has the speed, in entries speed/…: non-padding tokens per second, MFU, the fraction of time spent on data, and
      memory. The console shows an aligned line for each entry, and a progress line on a terminal.

    For another optimizer, override `create_optimizer`. `results` are metrics for the card, in addition to those of the log.
    `record`, a description of the run, is written into each checkpoint, as run.json.
    """

    def __init__(
        self, *args, write_card: Callable[[Trainer, Path], None] | None = None, record: dict | None = None, **kwargs
    ):
        self.write_card, self.record = write_card, record or {}
        self.results: dict[str, float] = {}
        self._evaluations: dict[int, EvalLoopOutput] = {}
        super().__init__(*args, **kwargs)
        if self.args.fsdp and not self.is_fsdp_enabled:
            raise ValueError(
                "fsdp needs several processes, each with an accelerator: start them by torchrun, or leave it out."
            )
        self._signals, self._resume = SignalCallback(), ResumeCallback()
        self._speed = SpeedMeter(self.model.config, self.args.device)
        minutes = getattr(self.args, "max_minutes", None)
        self._clock = minutes and Clock(60 * minutes)
        for callback in filter(None, (self._signals, self._resume, self._clock, self._speed)):
            self.add_callback(callback)
        if self.args.push_to_hub:
            self.add_callback(PushCallback(self))
        show_on_console(self)

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        # accelerate's autocast copies all outputs to fp32, in each step also the logits, of which only some steps read any.
        # With fp16, it also decides on the scaling of gradients; label smoothing takes fp32; DataParallel has no autocast.
        replaces = self.args.n_gpu < 2 and not self.args.label_smoothing_factor
        self._autocast = replaces and self.accelerator.native_amp and self.accelerator.mixed_precision == "bf16"
        self.accelerator.native_amp &= not self._autocast

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager:
        return torch.autocast(self.args.device.type, torch.bfloat16) if self._autocast else nullcontext()

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs):
        checkpoint = resume_from_checkpoint or None
        if checkpoint is True:
            checkpoint = get_last_checkpoint(self.args.output_dir)
        if checkpoint:
            rng_state = "rng_state.pth" if self.args.world_size == 1 else f"rng_state_{self.args.process_index}.pth"
            fsdp = self.accelerator.state.fsdp_plugin.state_dict_type.name if self.is_fsdp_enabled else None
            check_processes(checkpoint, rng_state, fsdp)
            if not Path(checkpoint, MANIFEST).exists():
                logger.info(
                    f"{checkpoint} has no {MANIFEST}, as the stock Trainer's: whether its files belong together is unknown"
                )
        self._resume.checkpoint, self._resume.step = checkpoint, saved_step(checkpoint) if checkpoint else 0
        if self._clock:
            self._clock.restore(checkpoint)
        if self.args.device.type == "cpu":
            keep_freed_memory()
        dtype = torch.bfloat16 if self.args.bf16 else torch.float16 if self.args.fp16 else torch.float32
        self._speed.start(known_matrix_peak(self.args.device.type, dtype) * max(self.args.n_gpu, 1))
        limit = self.args.save_total_limit
        try:
            with self._signals:
                output = super().train(resume_from_checkpoint, *args, **kwargs)
        except (OSError, MemoryError, RuntimeError) as error:
            reason = explain_limit(error)
            if reason is None:
                raise
            raise LimitError(f"{reason} Then continue: {how_to_resume(self.args)}") from error
        finally:
            self.args.save_total_limit = limit  # which `_choose_best` changes
        self._wait_for_processes()
        if checkpoint and self.state.global_step == self._resume.step:  # a finished run: its metrics instead of zeros
            metrics = read_metrics(self.args.output_dir)
            kept = {name: metrics[name] for name in output.metrics.keys() & metrics.keys()}
            output.metrics.update(kept)
            self.state.log_history[-1].update(kept)
        return output

    def set_initial_training_values(self, *args) -> tuple:
        self._start = time.monotonic()
        epochs, *others, max_steps = super().set_initial_training_values(*args)
        step = self._resume.step
        if self._clock and self._clock.share == 1:
            max_steps = step
        if step > max_steps:
            raise OSError(
                f"{self._resume.checkpoint} is of step {step}, but the run ends at {max_steps}: pass more --max_steps "
                "or --num_train_epochs, or name an earlier checkpoint."
            )
        if step == max_steps:  # otherwise, the loop would train one more step
            epochs = 0
        return (epochs, *others, max_steps)

    @property
    def counts_on_the_host(self) -> bool:
        """Whether batches should carry counts, by `CountingCollator`: for a model that takes them, which is compiled, or on one
        accelerator for each process."""
        args, takes_them = self.args, self.model.config.model_type == ScratchBertConfig.model_type
        return takes_them and args.n_gpu < 2 and (args.torch_compile or args.device.type != "cpu")

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C, SIGTERM or SIGHUP ended the training."""
        return self._signals.stopped

    @property
    def will_resume_later(self) -> bool:
        """Whether the training stopped before its last step, to be resumed."""
        return self.interrupted

    def raise_if_interrupted(self) -> None:
        """Raise `Interrupted`, with how to continue, if a signal ended the training or, where it has a checkpoint of its last step
        and is the only process, came after that step."""
        step = self.state.global_step
        saved = Path(self.args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}").is_dir()
        at_the_end = self._signals.requested == "stop" and saved and self.args.world_size == 1
        if self.interrupted or at_the_end:
            raise Interrupted(
                f"Stopped at step {step}. To continue: {how_to_resume(self.args)}",
                self._signals.number,
            )

    def latest_metrics(self) -> dict[str, float]:
        """Return the latest value of each entry in the log, and the `results`."""
        return {name: value for entry in self.state.log_history for name, value in entry.items()} | self.results

    def init_hf_repo(self, token: str | None = None, **options) -> None:  # older versions know no more options
        try:
            super().init_hf_repo(token=token, **options)
            if self.is_world_process_zero():
                ensure_branch(self._hub(token), self.hub_model_id, self.args.hub_revision)
        except Exception as error:  # a network fails in many ways
            raise OSError(
                f"Cannot push to the Hub: {error}. Log in with `hf auth login` or set HF_TOKEN, check the network, or "
                "leave out --push_to_hub and publish later with scratch-bert-push."
            ) from error
        if self.args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            logger.info("Pushed checkpoints contain the model only: the training state stays on this machine")

    def get_batch_samples(self, *args, **kwargs):
        self._speed.resume()
        samples = super().get_batch_samples(*args, **kwargs)
        self._speed.got_examples()
        return samples

    def training_step(self, model, inputs, num_items_in_batch=None):
        self._speed.count(inputs, self.count_predicted(inputs))
        return super().training_step(model, inputs, num_items_in_batch)

    def count_predicted(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor | int:
        """Return the number of positions in a batch that get MLM logits."""
        return 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= self._speed.report(partial(self.accelerator.reduce, reduction="sum"))
        if "train_loss" in logs:
            self._count_tokens()
        self.check_finite(logs)
        super().log(logs, start_time)
        if "train_loss" in logs and self.is_in_train:  # the last entry of a training
            self._choose_best()

    def _count_tokens(self) -> None:
        """Add the tokens since the last call to the state, which the stock Trainer does only on request, with a wait per step."""
        if self.args.include_num_input_tokens_seen != "no":  # by the stock Trainer
            return
        self.state.num_input_tokens_seen += self._speed.take_tokens(partial(self.accelerator.reduce, reduction="sum"))

    @property
    def share_done(self) -> float:
        """The fraction of the training that is done, by the clock or in steps, from 0 to 1."""
        return self._clock.share if self._clock else self.state.global_step / self.state.max_steps

    @property
    def minutes_used(self) -> float | None:
        """The time that a training with `max_minutes` has used, also before a resume; None without."""
        return self._clock and self._clock.used / 60

    def create_scheduler(self, num_training_steps: int, *args, **kwargs):
        if self._clock and self.lr_scheduler is None:
            scheduler = super().create_scheduler(LENGTH, *args, **kwargs)
            self._clock.drive(scheduler)
            return scheduler
        warmup = self.args.get_warmup_steps(num_training_steps)
        if warmup >= num_training_steps:
            logger.warning(
                f"The warm-up takes {warmup:,} steps, and the run has {num_training_steps:,}: the learning rate never "
                "reaches its peak. Lower warmup_steps; below 1, it is a fraction of all steps."
            )
        return super().create_scheduler(num_training_steps, *args, **kwargs)

    def check_finite(self, metrics: dict[str, float]) -> None:
        """Raise `DivergenceError` for a loss or a metric of an evaluation that is not finite."""
        for name, value in metrics.items():
            checked = name in ("loss", "train_loss") or name.startswith(("eval_", "test_"))
            if checked and isinstance(value, float) and not math.isfinite(value):
                self._raise_divergence(f"{'The loss' if name == 'loss' else name} is {value}")

    def _choose_best(self) -> None:
        """Prepare the end of a training, where the stock Trainer loads the best checkpoint."""
        self.args.save_total_limit = None  # with a limit of 1, it would delete the last one before the model is saved
        if self.args.load_best_model_at_end:
            self.accelerator.wait_for_everyone()  # the last checkpoint may be the best
            chooses = self.is_world_process_zero() and not self.will_resume_later
            best = find_best(Path(self.args.output_dir), self.state) if chooses else None
            self.state.best_model_checkpoint = broadcast_object_list([best])[0]

    def _raise_divergence(self, what: str) -> None:
        last = get_last_checkpoint(self.args.output_dir)
        raise DivergenceError(
            f"{what} at step {self.state.global_step}: the training has diverged. "
            + (f"The last checkpoint is {last}. " if last else "There is no checkpoint yet. ")
            + "Try a lower learning rate, a longer warm-up, or fp32 instead of bf16 or fp16"
            + (", with --resume_from_checkpoint auto" if last else "")
        )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        name = find_not_finite(self.model.named_parameters())
        if name:
            self._raise_divergence(f"{name} is not finite")
        directory = Path(output_dir or self.args.output_dir)
        if directory.parent.name == STAGING:  # a checkpoint, which is moved into place as a whole
            self._save_with_card(directory, directory)
            return
        staged = directory / STAGING / "model"
        with explain_write_errors("The model", directory):
            self._save_with_card(staged, directory)
            if self.args.should_save:  # the card and its picture last
                for file in sorted(staged.iterdir(), key=lambda file: file.suffix in (".md", ".png")):
                    move_into_place(file, directory / file.name)
                shutil.rmtree(directory / STAGING, ignore_errors=True)
        if self.is_fsdp_enabled:
            self._wait_for_processes()  # its weights are gathered
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save_with_card(self, directory: Path, place: Path) -> None:
        plugin = self.accelerator.state.fsdp_plugin if self.is_fsdp_enabled else None
        if plugin:  # also checkpoints whose training state is sharded have the complete model
            kind = plugin.state_dict_type
            plugin.set_state_dict_type("FULL_STATE_DICT")
        with without_progress_bars():
            super().save_model(str(directory), _internal_call=True)
        if plugin:
            plugin.set_state_dict_type(kind)
        if not self.args.should_save:
            return
        for weights in directory.glob("*.safetensors"):  # safetensors makes them readable by their owner only
            weights.chmod((directory / CONFIG_NAME).stat().st_mode)
        if self.write_card and not is_customized(place):
            self.write_card(self, directory)

    def evaluation_loop(self, dataloader: DataLoader, *args, **kwargs) -> EvalLoopOutput:
        shield_workers(dataloader)
        if self.is_in_train:
            best = self.state.best_global_step
            self._evaluations = {step: output for step, output in self._evaluations.items() if step == best}
        output = super().evaluation_loop(dataloader, *args, **kwargs)
        if self.is_in_train:
            self._evaluations[self.state.global_step] = output
        self._wait_for_processes()
        return output

    @property
    def weights_step(self) -> int:
        """The step after which the model had its weights: the last one, or that of the best checkpoint once it is loaded."""
        best = not self.is_in_train and self.args.load_best_model_at_end and self.state.best_model_checkpoint
        # Not `best_global_step`, after which there may be no checkpoint.
        return saved_step(best) if best else self.state.global_step

    @property
    def final_evaluation(self) -> EvalLoopOutput | None:
        """What this training's evaluation has given for the weights that the model has after it; None if there was none."""
        return self._evaluations.get(self.weights_step)

    def _wait_for_processes(self) -> None:
        """Wait for the other processes, after which this one may exit.

        gloo's threads free the tensors that they have gathered a moment later, and a process that exits meanwhile is aborted,
        or hangs: the threads need Python's lock. There is nothing to wait for: that they are done can't be seen.
        """
        self.accelerator.wait_for_everyone()
        if torch.distributed.is_initialized() and "gloo" in torch.distributed.get_backend():
            time.sleep(0.1)

    def push_to_hub(
        self, commit_message="End of training", blocking=True, token=None, revision=None, private=None, **kwargs
    ) -> CommitInfo | Future[CommitInfo] | None:
        """Save the model in `output_dir` and push it. `kwargs` are for the stock Trainer's card, which is not written."""
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, **({} if private is None else {"private": private}))
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        if self.push_in_progress is not None:
            self.push_in_progress.wait_until_done()
        api, directory = self._hub(token), self.args.output_dir
        revision = revision or self.args.hub_revision
        options = {"api": api, "revision": revision, "commit_message": commit_message}
        if not blocking:
            options["files"] = public_files(directory)  # here, as it builds a model
            job = api.run_as_future(publish, directory, self.hub_model_id, **options)
            self.push_in_progress = PushInProgress([job])
            return job
        try:
            return publish(directory, self.hub_model_id, **options)
        except Exception as error:  # a network fails in many ways
            command = ["scratch-bert-push", str(directory), self.hub_model_id]
            command += ["--revision", revision] if revision else []
            raise OSError(
                f"The model is saved in {directory}, but the push to {self.hub_model_id} failed: {error}\n"
                f"To push it, log in or set HF_TOKEN, then run: {shlex.join(command)}"
            ) from error

    def _hub(self, token: str | None = None) -> HfApi:
        return HfApi(token=token or self.args.hub_token)

    # ------------------------- overrides of transformers' private methods, listed in tests/training/test_private_names.py

    def _determine_best_metric(self, *args, **kwargs) -> bool:
        # With save_strategy best, the stock Trainer would drop a checkpoint that a signal has requested.
        return super()._determine_best_metric(*args, **kwargs) or self.control.should_save

    def _save_checkpoint(self, model, trial) -> None:
        if trial is None:
            self.store_flos()
        place = Path(self._get_output_dir(trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        best = place.with_name(f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}")
        if self.state.best_global_step and (best == place or best.is_dir()):
            self.state.best_model_checkpoint = str(best)
        self._count_tokens()
        if self._clock:
            if self._clock.share < 1:  # the evaluation after the last step is not training
                self._clock.read()
            self._clock.save_to(self.lr_scheduler)
        wait, best_checkpoint = self.accelerator.wait_for_everyone, self.state.best_model_checkpoint
        write_checkpoint(place, self._save_model_and_state, wait, self.args, best_checkpoint)

    def _save_model_and_state(self, directory: Path) -> None:
        self.save_model(str(directory), _internal_call=True)
        if not self.args.save_only_model:
            self._save_optimizer_and_scheduler(str(directory))
            self._save_scaler(str(directory))
            self._save_rng_state(str(directory))
        if self.args.should_save:
            callbacks = [*self.callback_handler.callbacks, self.control]
            exported = TrainerState(
                stateful_callbacks=[part for part in callbacks if isinstance(part, ExportableState)]
            )
            self.state.stateful_callbacks |= exported.stateful_callbacks
            self.state.save_to_json(str(directory / TRAINER_STATE_NAME))
            write_json(directory / RUN_FILE, self.record)

    def _finalize_training(self, trial, num_train_samples, start_time) -> TrainOutput:
        if self._clock:
            num_train_samples = num_train_samples * self.state.global_step // UNKNOWN
        # The stock Trainer subtracts times of day, but the clock may have been set meanwhile.
        return super()._finalize_training(trial, num_train_samples, time.time() - (time.monotonic() - self._start))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        requested = [dict(group) for group in self.optimizer.param_groups]
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except (ValueError, KeyError) as error:
            raise OSError(
                f"The optimizer's state in {checkpoint} cannot be loaded ({error}): resume with the --optim and the "
                "--lr_scheduler_type that the run was started with."
            ) from error
        if checkpoint:
            warn_of_missing_state(getattr(self.optimizer, "optimizer", self.optimizer))
        groups = self.optimizer.param_groups
        for group, merged in zip(groups, merge_hyperparameters(groups, requested), strict=True):
            group.update(merged)
        self.lr_scheduler.base_lrs = [group.get("initial_lr") for group in groups]
        if isinstance(self.lr_scheduler, LambdaLR):  # the schedule may be longer than the one that saved the rates
            for group, base_lr, factor in zip(
                groups, self.lr_scheduler.base_lrs, self.lr_scheduler.lr_lambdas, strict=True
            ):
                group["lr"] = base_lr * factor(self.lr_scheduler.last_epoch)
        self.lr_scheduler._last_lr = [group["lr"] for group in groups]
