"""A training that has diverged stops, before anything of it is logged or saved."""

import math

from transformers import Trainer
from transformers.trainer_utils import get_last_checkpoint


class DivergenceError(ValueError):
    """The loss, a metric or a weight is not finite."""


class FiniteTrainer(Trainer):
    """Trainer that stops at the first loss or metric in its log that is not finite."""

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
