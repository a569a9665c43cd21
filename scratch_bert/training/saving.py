"""Saves: a model or checkpoint under its final name is complete, even if the process dies or the disk is full; and
finite, as a training that has diverged stops before anything of it is logged or saved."""

import math
import shutil
from pathlib import Path

from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint
from transformers.utils import CONFIG_NAME

from ..atomic import STAGING, move_into_place, write_json
from ..checkpoints.saved import explain_write_errors, write_checkpoint
from ..checkpoints.weights import find_not_finite
from ..hub.model_card import is_customized, mark_as_generated
from ..logs import logger
from ..repository import RUN_FILE
from .console import without_progress_bars
from .decorations import DecoratedTrainer
from .processes import wait_for_processes
from .push import PushingTrainer


class DivergenceError(ValueError):
    """The loss, a metric or a weight is not finite."""


class SavingTrainer(PushingTrainer, DecoratedTrainer):
    """Trainer whose saves are atomic: the model with the card of `write_card`, checkpoints also with `record`. It
    stops at the first loss, metric or weight that is not finite."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        self.check_finite(logs)
        super().log(logs, start_time)

    def check_finite(self, metrics: dict[str, float]) -> None:
        """Raise `DivergenceError` for a loss or a metric of an evaluation that is not finite."""
        for name, value in metrics.items():
            checked = name in ("loss", "train_loss") or name.startswith(("eval_", "test_"))
            if checked and isinstance(value, float) and not math.isfinite(value):
                self.raise_divergence(f"{'The loss' if name == 'loss' else name} is {value}")

    def raise_divergence(self, what: str) -> None:
        """Raise `DivergenceError`, with the last checkpoint and what may help."""
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
            self.raise_divergence(f"{name} is not finite")
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
                self.name_failures()
        if self.is_fsdp_enabled:
            wait_for_processes(self.accelerator)  # its weights are gathered
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
        if is_customized(place):
            logger.info(f"{place / 'README.md'} was changed and stays as it is")
        elif self.write_card:
            with self.decoration("The model card"):
                self.write_card(self, directory)
                mark_as_generated(directory / "README.md")

    def _save_checkpoint(self, model, trial) -> None:
        if trial is None:
            self.store_flos()
        place = Path(self._get_output_dir(trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        best = place.with_name(f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}")
        if self.state.best_global_step and (best == place or best.is_dir()):
            self.state.best_model_checkpoint = str(best)
        wait, best_checkpoint = self.accelerator.wait_for_everyone, self.state.best_model_checkpoint
        write_checkpoint(place, self._save_model_and_state, wait, self.args, best_checkpoint)
        if self.args.push_to_hub:
            self.push_checkpoint(place)

    def _save_model_and_state(self, directory: Path) -> None:
        self.save_model(str(directory), _internal_call=True)
        if not self.args.save_only_model:
            self._save_optimizer_and_scheduler(str(directory))
            self._save_scaler(str(directory))
            self._save_rng_state(str(directory))
        if self.args.should_save:
            parts = (*self.callback_handler.callbacks, self.control)
            exported = TrainerState(stateful_callbacks=[part for part in parts if isinstance(part, ExportableState)])
            self.state.stateful_callbacks |= exported.stateful_callbacks
            self.state.save_to_json(str(directory / TRAINER_STATE_NAME))
            write_json(directory / RUN_FILE, self.record)
