"""Resumes: a run ends as if nothing had stopped it, but takes the hyperparameters of its own options."""

from torch.optim.lr_scheduler import LambdaLR
from transformers.trainer_utils import TrainOutput, get_last_checkpoint

from ..checkpoints.output_dir import read_metrics
from ..checkpoints.resume import ResumeCallback, check_processes, merge_hyperparameters, warn_of_missing_state
from ..checkpoints.saved import saved_step
from .clock import TimedTrainer


class ResumingTrainer(TimedTrainer):
    """Trainer that resumes from checkpoints that fit its run, also from that of the last step."""

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
        output = super().train(resume_from_checkpoint, *args, **kwargs)
        if checkpoint and self.state.global_step == self._resume.step:  # a finished run: its metrics instead of zeros
            metrics = read_metrics(self.args.output_dir)
            kept = {name: metrics[name] for name in output.metrics.keys() & metrics.keys()}
            output.metrics.update(kept)
            self.state.log_history[-1].update(kept)
        return output

    def set_initial_training_values(self, *args) -> tuple:
        epochs, *others, max_steps = super().set_initial_training_values(*args)
        step = self._resume.step
        if self.clock and self.clock.fraction_used == 1:
            max_steps = step
        if step > max_steps:
            raise OSError(
                f"{self._resume.checkpoint} is of step {step}, but the run ends at {max_steps}: pass more --max_steps "
                "or --num_train_epochs, or name an earlier checkpoint."
            )
        if step == max_steps:  # otherwise, the loop would train one more step
            epochs = 0
        return (epochs, *others, max_steps)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        requested = [dict(group) for group in self.optimizer.param_groups]
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except (ValueError, KeyError) as error:
            raise OSError(
                f"The optimizer's state in {checkpoint} cannot be loaded ({error}): resume with the --optim and the "
                "--lr_scheduler_type that the run was started with, or from another checkpoint."
            ) from error
        if checkpoint:
            warn_of_missing_state(getattr(self.optimizer, "optimizer", self.optimizer))
        groups = self.optimizer.param_groups
        for group, merged in zip(groups, merge_hyperparameters(groups, requested), strict=True):
            group.update(merged)
        scheduler = self.lr_scheduler
        scheduler.base_lrs = [group.get("initial_lr") for group in groups]
        if isinstance(scheduler, LambdaLR):  # the schedule may be longer than the one that saved the rates
            for group, base_lr, factor in zip(groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
                group["lr"] = base_lr * factor(scheduler.last_epoch)
        scheduler._last_lr = [group["lr"] for group in groups]
