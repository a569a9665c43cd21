"""Trainer with whole checkpoints, model cards, complete pushes to the Hub, and a checkpoint on Ctrl-C."""

import json
import logging
import math
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list
from huggingface_hub import CommitInfo, HfApi
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, HubStrategy, get_last_checkpoint
from transformers.utils import CONFIG_NAME, PushInProgress

from ..hub.loading import find_not_finite
from ..hub.model_card import is_customized
from ..hub.publishing import ensure_branch, publish
from ..storage import STAGING, locked, move_into_place, seal, write_json
from .callbacks import IntervalsCallback, SignalCallback
from .checkpoint import (
    FSDP_STATES,
    METRICS_FILE,
    RUN_FILE,
    abandon_later,
    find_damage,
    naming_what_is_kept,
    remove_surplus,
)
from .console import show_on_console
from .speed import SpeedMeter, known_matrix_peak


logger = logging.getLogger("scratch_bert")
HYPERPARAMETERS = ("initial_lr", "weight_decay", "betas", "eps")  # of an optimizer's group, which a resume may change
STAGED = ".push-"  # prefix of the temporary directories that are pushed during training


def read_metrics(directory: str | Path) -> dict:
    """Those that a finished run has written, or none."""
    try:
        return json.loads(Path(directory, METRICS_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}


def write_metrics(directory: str | Path, metrics: dict) -> None:
    """Write the metrics of a finished run, or of several, to `directory`/metrics.json."""
    with naming_what_is_kept(METRICS_FILE, Path(directory)):
        write_json(Path(directory, METRICS_FILE), metrics)


@contextmanager
def holding_output_dir(args: TrainingArguments, record: dict, checkpoint: str | None) -> Iterator[None]:
    """For all that a run writes into its output directory: refuses a second run there, cleans up after a dead one, and leaves
    the `record` of what the run is."""
    if not args.should_save:
        yield
        return
    output_dir = Path(args.output_dir)
    with locked(output_dir):
        if checkpoint and not Path(checkpoint).is_dir():
            raise OSError(f"{checkpoint} is gone: another run has gone on from it. Start the command again.")
        shutil.rmtree(output_dir / STAGING, ignore_errors=True)
        with naming_what_is_kept(RUN_FILE, output_dir):
            write_json(output_dir / RUN_FILE, record)
        yield


def start_worker(init: Callable[[int], None] | None, number: int) -> None:
    """Begin a data loader's worker in a process group of its own: signals to the group end the training in good order, which
    needs the workers until then."""
    if hasattr(os, "setpgrp"):  # not on Windows
        os.setpgrp()
    if init is not None:
        init(number)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM has ended the training."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.exit_code = 128 + signal_number


class DivergenceError(FloatingPointError):
    """The loss or a weight is not finite."""


class ScratchBertTrainer(Trainer):
    """The stock Trainer, with these differences:

    - Checkpoints and the model are written beside their place and renamed: what has the name is whole, whenever the
      process dies or the disk fills.
    - A loss or weight that is not finite raises `DivergenceError`, before it is saved.
    - `write_card(trainer, directory)` writes a model card, README.md, into every directory that it saves, unless a
      user has changed the card there.
    - Each push contains code, weights, tokenizer and card, in one commit. The training state (optimizer, arguments,
      random generators) stays on this machine, with every `hub_strategy`.
    - Ctrl-C and SIGTERM end the step, save a checkpoint and stop the training; `interrupted` is then True. SIGUSR1 saves
      a checkpoint.
    - A resumed run takes the learning rates and other hyperparameters of the optimizer from its own options.
    - The log has the speed, in entries speed/…: non-padding tokens per second, MFU, the share of time spent on data, and memory.
      The console shows an aligned line for each entry of the log, and a progress line on a terminal.

    For another optimizer, override `create_optimizer`. `results` are metrics for the card, in addition to those of the log.
    `record`, what the run is, is written into each checkpoint, as run.json.
    """

    def __init__(
        self,
        *args,
        write_card: Callable[[Trainer, Path], None] | None = None,
        record: dict | None = None,
        **kwargs,
    ):
        self.write_card, self.record = write_card, record or {}
        self.results: dict[str, float] = {}
        self._saves_checkpoint = False
        self._speed: SpeedMeter | None = None  # in `train`
        super().__init__(*args, **kwargs)
        if self.args.fsdp and not self.is_fsdp_enabled:
            raise ValueError(
                "fsdp needs several processes, each with an accelerator: start them by torchrun, or leave it out."
            )
        self._signals = SignalCallback()
        self.add_callback(self._signals)
        self.add_callback(IntervalsCallback)
        show_on_console(self)

    def train(self, *args, **kwargs):
        dtype = torch.bfloat16 if self.args.bf16 else torch.float16 if self.args.fp16 else torch.float32
        peak = known_matrix_peak(self.args.device.type, dtype) * max(self.args.n_gpu, 1)
        self._speed = SpeedMeter(self.model.config, self.args.device, peak)
        with self._signals:
            output = super().train(*args, **kwargs)
        # A process that exits while gloo's threads still free the tensors that it has gathered is aborted, or hangs.
        self.accelerator.wait_for_everyone()
        return output

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM ended the training."""
        return self._signals.stopped

    def raise_if_interrupted(self) -> None:
        """Raise `Interrupted`, with how to continue, if Ctrl-C or SIGTERM ended the training, or came while its last checkpoint
        was saved: not where no checkpoint has the last step, or other processes don't know of the signal."""
        step = self.state.global_step
        saved = Path(self.args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}").is_dir()
        at_the_end = self._signals.requested == "stop" and saved and self.args.world_size == 1
        if self.interrupted or at_the_end:
            raise Interrupted(
                f"Stopped at step {step}. To continue: the same command with --resume_from_checkpoint auto",
                self._signals.number,
            )

    def latest_metrics(self) -> dict[str, float]:
        """The latest value of each entry in the log, and the `results`."""
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
            logger.info("Pushed checkpoints contain the model only: what a resume needs stays on this machine")
        if self.is_world_process_zero():
            for left_over in Path(self.args.output_dir).glob(f"{STAGED}*"):  # of a run that was killed
                shutil.rmtree(left_over)

    def get_batch_samples(self, *args, **kwargs):
        if self._speed is None:
            return super().get_batch_samples(*args, **kwargs)
        self._speed.resume()
        samples = super().get_batch_samples(*args, **kwargs)
        self._speed.got_examples()
        return samples

    def training_step(self, model, inputs, num_items_in_batch=None):
        if self._speed is not None:
            self._speed.count(inputs, self.count_predicted(inputs))
        return super().training_step(model, inputs, num_items_in_batch)

    def count_predicted(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor | int:
        """The positions of a batch that get MLM logits."""
        return 0

    def _maybe_log_save_evaluate(self, *args, **kwargs) -> None:
        if not self.control.should_log:  # otherwise `log` pauses, after the wait for the device
            self._speed.pause()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._speed is not None:
            logs |= self._speed.report(partial(self.accelerator.reduce, reduction="sum"))
        super().log(logs, start_time)
        if not math.isfinite(logs.get("loss", 0.0)):
            self._raise_divergence(f"The loss is {logs['loss']}")

    def _raise_divergence(self, what: str) -> None:
        last = get_last_checkpoint(self.args.output_dir)
        raise DivergenceError(
            f"{what} at step {self.state.global_step}: the training has diverged. "
            + (f"The last checkpoint is {last}. " if last else "There is no checkpoint yet. ")
            + "Try a lower learning rate, a longer warm-up, or fp32 instead of bf16 or fp16"
            + (", with --resume_from_checkpoint auto" if last else "")
        )

    def _check_finite(self) -> None:
        name = find_not_finite(self.model.named_parameters())
        if name:
            self._raise_divergence(f"{name} is not finite")

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        self._check_finite()
        directory = Path(output_dir or self.args.output_dir)
        if self._saves_checkpoint:
            self._save_with_card(directory, directory)
            return
        staged = directory / STAGING / "model"
        with naming_what_is_kept("The model", directory):
            self._save_with_card(staged, directory)
            if self.args.should_save:  # the card and its picture last
                for file in sorted(staged.iterdir(), key=lambda file: file.suffix in (".md", ".png")):
                    move_into_place(file, directory / file.name)
                shutil.rmtree(directory / STAGING, ignore_errors=True)
        if self.is_fsdp_enabled:
            self.accelerator.wait_for_everyone()  # its weights are gathered: as after a training
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save_with_card(self, directory: Path, place: Path) -> None:
        plugin = self.accelerator.state.fsdp_plugin if self.is_fsdp_enabled else None
        if plugin:  # a whole model in checkpoints whose state is sharded, too
            kind = plugin.state_dict_type
            plugin.set_state_dict_type("FULL_STATE_DICT")
        super().save_model(str(directory), _internal_call=True)
        if plugin:
            plugin.set_state_dict_type(kind)
        if not self.args.should_save:
            return
        for weights in directory.glob("*.safetensors"):  # which safetensors writes for their owner alone
            weights.chmod((directory / CONFIG_NAME).stat().st_mode)
        if self.write_card and not is_customized(place):
            self.write_card(self, directory)

    def _init_training_state(self, max_steps, num_update_steps, num_epochs, checkpoint, trial) -> tuple[int, int]:
        progress = super()._init_training_state(max_steps, num_update_steps, num_epochs, checkpoint, trial)
        if self.state.global_step > max_steps:
            raise OSError(
                f"{checkpoint} is of step {self.state.global_step}, but the run ends at {max_steps}: pass more --max_steps or "
                "--num_train_epochs, or name an earlier checkpoint."
            )
        if checkpoint:
            best = Path(checkpoint).with_name(f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}")
            if best.is_dir():  # wherever it was saved
                self.state.best_model_checkpoint = str(best)
        return progress

    def _run_epoch(self, *args, **kwargs) -> None:
        # Resumed at the end, the stock method would train a step more.
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*args, **kwargs)

    def _determine_best_metric(self, *args, **kwargs) -> bool:
        # With save_strategy best, the stock trainer saves nothing else, whatever a signal asks for.
        return super()._determine_best_metric(*args, **kwargs) or self.control.should_save

    def _finalize_training(self, *args, **kwargs):
        if self.args.load_best_model_at_end:
            self.accelerator.wait_for_everyone()  # the last checkpoint may be the best
            best = self._find_best() if self.is_world_process_zero() and not self.stops_early else None
            self.state.best_model_checkpoint = broadcast_object_list([best])[0]
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:  # with a limit of 1, the stock method deletes the last checkpoint before the model is saved
            output = super()._finalize_training(*args, **kwargs)
        finally:
            self.args.save_total_limit = limit
        if self.state.global_step == self._initial_global_step:  # a finished run, resumed: no zeros for its training
            metrics = read_metrics(self.args.output_dir)
            kept = {name: metrics[name] for name in output.metrics.keys() & metrics.keys()}
            output.metrics.update(kept)
            self.state.log_history[-1].update(kept)
        return output

    def evaluation_loop(self, *args, **kwargs) -> EvalLoopOutput:
        output = super().evaluation_loop(*args, **kwargs)
        self.accelerator.wait_for_everyone()  # as after a training
        return output

    @property
    def stops_early(self) -> bool:
        """Whether the training is to go on later."""
        return self.interrupted

    def _find_best(self) -> str | None:
        """The best checkpoint, if it is whole: in the output directory, or beside the one that the run was resumed from."""
        if not self.state.best_global_step:
            return None
        here = Path(self.args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}")
        best = here if here.is_dir() else Path(self.state.best_model_checkpoint or here)
        try:
            damage = find_damage(best)
        except OSError as error:
            damage = str(error)
        if damage:
            logger.warning(f"The best checkpoint, {best}, cannot be used, {damage}: the last model is kept instead")
            return None
        return str(best)

    def _get_dataloader(self, *args, **kwargs) -> DataLoader:
        loader = super()._get_dataloader(*args, **kwargs)
        stock = getattr(loader, "base_dataloader", loader)  # accelerate's wrap it
        stock.worker_init_fn = partial(start_worker, stock.worker_init_fn)
        return loader

    def _get_output_dir(self, trial) -> str:
        directory = super()._get_output_dir(trial)
        return str(Path(directory, STAGING)) if self._saves_checkpoint else directory

    def _save_checkpoint(self, model, trial) -> None:
        output_dir, name = Path(self._get_output_dir(trial)), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        staged, place = output_dir / STAGING / name, output_dir / name
        with naming_what_is_kept(name, output_dir):
            self._saves_checkpoint = True
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._saves_checkpoint = False
            best = output_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
            if self.state.best_global_step and (best == place or best.is_dir()):
                self.state.best_model_checkpoint = str(best)
            self.accelerator.wait_for_everyone()  # each process has written the state of its random generators
            if self.args.should_save:
                self.state.save_to_json(str(staged / TRAINER_STATE_NAME))
                write_json(staged / RUN_FILE, self.record)
                seal(staged, without=("README.md", "curves.png"))  # which a user may edit
                move_into_place(staged, place)
                remove_surplus(place, self.args.save_total_limit, self.state.best_model_checkpoint)
                shutil.rmtree(output_dir / STAGING, ignore_errors=True)

    def _load_from_checkpoint(self, checkpoint: str, model=None) -> None:
        saved = next((kind for kind, name in FSDP_STATES.items() if Path(checkpoint, name).exists()), None)
        if saved != (self.accelerator.state.fsdp_plugin.state_dict_type.name if self.is_fsdp_enabled else None):
            how = f"with FSDP and the state_dict_type {saved}" if saved else "without FSDP"
            raise OSError(f"{checkpoint} was saved {how}: resume it in the same way, on any number of processes.")
        super()._load_from_checkpoint(checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        asked = [
            {name: group[name] for name in HYPERPARAMETERS if name in group} for group in self.optimizer.param_groups
        ]
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except (ValueError, KeyError) as error:
            raise OSError(
                f"The optimizer's state in {checkpoint} cannot be loaded ({error}): resume with the --optim and the "
                "--lr_scheduler_type that the run was started with."
            ) from error
        groups = self.optimizer.param_groups
        for group, options in zip(groups, asked, strict=True):
            if group.get("initial_lr") and "initial_lr" in options:  # not with every schedule
                group["lr"] *= options["initial_lr"] / group["initial_lr"]
            group.update(options)
        self.lr_scheduler.base_lrs = [group.get("initial_lr") for group in groups]
        self.lr_scheduler._last_lr = [group["lr"] for group in groups]
        if checkpoint and self.args.should_save:  # not before it is loaded
            abandon_later(checkpoint, Path(self.args.output_dir))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        name = "rng_state.pth" if self.args.world_size == 1 else f"rng_state_{self.args.process_index}.pth"
        if checkpoint and not Path(checkpoint, name).is_file():
            logger.warning(
                f"{checkpoint} was saved by another number of processes: the run goes on, but not to the very weights "
                "that it would have had without the interruption"
            )
        super()._load_rng_state(checkpoint)

    def push_to_hub(
        self,
        commit_message: str = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs,
    ) -> CommitInfo | Future[CommitInfo] | None:
        """Save the model in `output_dir` and push it; `kwargs` are for Trainer's own card, which is not written."""
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, **({} if private is None else {"private": private}))
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self._finish_current_push()
        api, directory = self._hub(token), self.args.output_dir
        revision = revision or self.args.hub_revision
        options = {"api": api, "revision": revision, "commit_message": commit_message}
        if not blocking:
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

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        if self.push_in_progress is not None and not self.push_in_progress.is_done():
            if not self.args.hub_always_push:
                logger.info(f"Step {self.state.global_step} is not pushed: the previous push is still running")
                return
            self._finish_current_push()
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        # A copy, as save_total_limit may delete the checkpoint before the push ends.
        staged = tempfile.TemporaryDirectory(dir=self.args.output_dir, prefix=STAGED)
        state = shutil.ignore_patterns("*.pt", "*.pth", "*.bin", "pytorch_model_fsdp_*", "optimizer_*")
        try:
            shutil.copytree(checkpoint_folder, staged.name, ignore=state, dirs_exist_ok=True)
        except OSError as error:  # such as a full disk
            staged.cleanup()
            logger.warning(f"Step {self.state.global_step} is not pushed, training continues: {error}")
            return
        subfolders = {"checkpoint": "last-checkpoint", "all_checkpoints": Path(checkpoint_folder).name}
        job = self._hub().run_as_future(
            self._push_staged, staged, self.state.global_step, subfolders.get(self.args.hub_strategy)
        )
        self.push_in_progress = PushInProgress([job])

    def _push_staged(self, staged: tempfile.TemporaryDirectory, step: int, subfolder: str | None) -> None:
        options = {"revision": self.args.hub_revision, "subfolder": subfolder}
        message = f"Training in progress, step {step}"
        try:
            with staged as directory:
                publish(directory, self.hub_model_id, self._hub(), commit_message=message, **options)
        except Exception as error:  # a network failure must not end the training
            logger.warning(f"The push of step {step} failed, training continues. {type(error).__name__}: {error}")

    def _hub(self, token: str | None = None) -> HfApi:
        return HfApi(token=token or self.args.hub_token)
