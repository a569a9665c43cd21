"""Resumes: a run ends as if nothing had stopped it, but with the hyperparameters of the resume."""

from pathlib import Path

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput, get_last_checkpoint

from ..checkpoints.output_dir import read_metrics
from ..checkpoints.resume import read_record
from ..checkpoints.saved import FSDP_STATES, archive_later_checkpoints, saved_step
from ..logs import logger
from ..repository import read_json
from .best import PatienceCallback
from .clock import TimedTrainer
from .threads import use_free_cores


AVERAGES = ("exp_avg", "exp_avg_sq", "momentum_buffer")  # of gradients, in an optimizer's state
HYPERPARAMETERS = ("initial_lr", "weight_decay", "betas", "eps")  # of an optimizer's groups: a resume may change them


class ResumingTrainer(TimedTrainer):
    """Trainer that resumes from checkpoints that fit its run, including the last step's."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._resume = ResumeCallback()
        self.add_callback(self._resume)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs) -> TrainOutput:
        checkpoint = resume_from_checkpoint or None
        if checkpoint is True:
            checkpoint = get_last_checkpoint(self.args.output_dir)
        if checkpoint:
            rng_state = "rng_state.pth" if self.args.world_size == 1 else f"rng_state_{self.args.process_index}.pth"
            fsdp = self.accelerator.state.fsdp_plugin.state_dict_type.name if self.is_fsdp_enabled else None
            check_processes(checkpoint, rng_state, fsdp)
        self._resume.checkpoint, self._resume.step = checkpoint, saved_step(checkpoint) if checkpoint else 0
        if self.clock:
            self.clock.restore(checkpoint)
        if self.args.device.type == "cpu":
            before = read_record(checkpoint).get("threads") if checkpoint else None
            self.record.setdefault("options", {})["threads"] = use_free_cores(before)
        output = super().train(resume_from_checkpoint, *args, **kwargs)
        if checkpoint:
            kept = {"train_loss": self._loss_of_all_steps(output.training_loss)}
            if self.state.global_step == self._resume.step:  # a finished run: its metrics instead of zeros
                metrics = read_metrics(self.args.output_dir)
                kept |= {name: metrics[name] for name in output.metrics.keys() & metrics.keys()}
            output.metrics.update(kept)
            self.state.log_history[-1].update(kept)
        return output

    def _loss_of_all_steps(self, since: float) -> float:
        """The mean loss of the training, from the log before the resume and the mean `since` then."""
        step = loss = 0.0
        for entry in self.state.log_history:
            if "loss" in entry and entry["step"] <= self._resume.step:
                loss, step = loss + entry["loss"] * (entry["step"] - step), entry["step"]
        steps = self.state.global_step - self._resume.step
        return (loss + since * steps) / (step + steps) if step + steps else since

    def set_initial_training_values(self, *args) -> tuple:
        epochs, *others, max_steps = super().set_initial_training_values(*args)
        step = self._resume.step
        if self.clock and self.clock.fraction_used == 1 or self._stopped_early():
            max_steps = step
        if step > max_steps:
            raise OSError(
                f"{self._resume.checkpoint} is at step {step}, but the run ends at {max_steps}: raise --max_steps "
                "or --num_train_epochs, or name an earlier checkpoint."
            )
        if step == max_steps:  # otherwise, the loop would train one more step
            epochs = 0
        return (epochs, *others, max_steps)

    def _stopped_early(self) -> bool:
        """Whether early stopping, as it is set now, has ended the run at the checkpoint."""
        found = [part for part in self.callback_handler.callbacks if isinstance(part, PatienceCallback)]
        if not found or not self._resume.checkpoint:
            return False
        saved = read_json(Path(self._resume.checkpoint, TRAINER_STATE_NAME)).get("stateful_callbacks", {})
        attributes = saved.get(PatienceCallback.__name__, {}).get("attributes", {})
        return attributes.get("early_stopping_patience_counter", 0) >= found[0].early_stopping_patience

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        requested = [dict(group) for group in self.optimizer.param_groups]
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except (ValueError, KeyError) as error:
            raise OSError(
                f"The optimizer's state in {checkpoint} cannot be loaded ({error}): resume with the --optim, the "
                "--muon_matrices and the --lr_scheduler_type that the run was started with, or from another checkpoint."
            ) from error
        if checkpoint:
            warn_of_missing_state(getattr(self.optimizer, "optimizer", self.optimizer))
            last = getattr(self.lr_scheduler, "last_epoch", 0)  # a schedule in DeepSpeed's own config has none
            if last > self._resume.step:  # fewer in fp16, which skips steps
                raise OSError(
                    f"The schedule in {checkpoint} is at step {last:,}, not {self._resume.step:,}: "
                    "resume from another checkpoint."
                )
        groups, scheduler = self.optimizer.param_groups, self.lr_scheduler
        for group, options in zip(groups, requested, strict=True):
            if group.get("initial_lr") and "initial_lr" in options:  # not every schedule has it
                group["lr"] *= options["initial_lr"] / group["initial_lr"]
            group.update({name: options[name] for name in HYPERPARAMETERS if name in options})
        scheduler.base_lrs = [group.get("initial_lr") for group in groups]
        if isinstance(scheduler, LambdaLR):  # the schedule may be longer than the one that saved the rates
            for group, base_lr, factor in zip(groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
                group["lr"] = base_lr * factor(scheduler.last_epoch)
        scheduler._last_lr = [group["lr"] for group in groups]


def check_processes(checkpoint: str, rng_state: str, fsdp: str | None) -> None:
    """Raise `OSError` if `checkpoint` was saved with another `state_dict_type` than `fsdp`, which is None without
    FSDP. Log it if the checkpoint has no file `rng_state` with the state of this process's random generators."""
    saved = next((kind for kind, name in FSDP_STATES.items() if Path(checkpoint, name).exists()), None)
    if saved != fsdp:
        how = f"with FSDP and the state_dict_type {saved}" if saved else "without FSDP"
        raise OSError(f"{checkpoint} was saved {how}: resume it in the same way, on any number of processes.")
    if not Path(checkpoint, rng_state).is_file():
        logger.warning(
            f"{checkpoint} has no {rng_state}, as if saved by a different number of processes: the run resumes, but "
            "its results will not be bit-identical to those of an uninterrupted run"
        )


def warn_of_missing_state(optimizer: torch.optim.Optimizer) -> None:
    """Log it if the loaded state lacks weights, as that of another model does: PyTorch silently starts them anew."""
    if not type(optimizer).__module__.startswith(("torch.optim.", "scratch_bert.")):
        return  # others may keep their state elsewhere
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    weights = [weight for weight in weights if weight.numel()]  # FSDP has empty ones
    for weight in weights:
        for name in AVERAGES:
            average = optimizer.state.get(weight, {}).get(name)
            if average is not None and average.shape != weight.shape:  # beyond whose end PyTorch may read
                raise OSError(f"The checkpoint's optimizer state belongs to another model: {name} {average.shape}.")
    missing = sum(not optimizer.state.get(weight) for weight in weights)
    if missing and (optimizer.state or not isinstance(optimizer, torch.optim.SGD)):  # it may have no state
        which = f"lacks {missing} of {len(weights)} weights"
        logger.warning(f"The optimizer's state in the checkpoint {which}: their averages of the gradients start anew")


class ResumeCallback(TrainerCallback):
    """Adapts a checkpoint's loaded state to the resumed run: intervals are those of its options, the best checkpoint
    may have been moved with this one, and later checkpoints in the output directory are renamed."""

    checkpoint: str | None = None
    step = 0  # of the checkpoint

    def on_train_begin(self, args, state, control, **kwargs):
        state.compute_steps(args, state.max_steps)
        if self.checkpoint:
            best = Path(self.checkpoint).with_name(f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}")
            if best.is_dir():
                state.best_model_checkpoint = str(best)
            if args.should_save:  # not before the checkpoint is loaded
                archive_later_checkpoints(self.checkpoint, Path(args.output_dir))
