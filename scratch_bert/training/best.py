"""The best checkpoint: it is kept and loaded after the training, and its evaluation is the model's."""

from pathlib import Path

from accelerate.utils import broadcast_object_list
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from ..checkpoints.saved import find_best, saved_step
from ..logs import logger
from .signals import InterruptibleTrainer


class BestModelTrainer(InterruptibleTrainer):
    """Trainer that ends with the best checkpoint, if it is intact, and remembers the evaluation of its model."""

    _evaluations: dict[int, EvalLoopOutput] = {}  # by step: of the best one and the last one

    @property
    def weights_step(self) -> int:
        """The step after which the model had its weights: the last one or, once it is loaded, the best one."""
        best = not self.is_in_train and self.args.load_best_model_at_end and self.state.best_model_checkpoint
        # Not `best_global_step`, after which there may be no checkpoint.
        return saved_step(best) if best else self.state.global_step

    @property
    def final_evaluation(self) -> EvalLoopOutput | None:
        """The training's own evaluation of its final weights; None if there was none."""
        return self._evaluations.get(self.weights_step)

    def evaluation_loop(self, dataloader: DataLoader, *args, **kwargs) -> EvalLoopOutput:
        if not self.is_in_train:
            return super().evaluation_loop(dataloader, *args, **kwargs)
        best = self.state.best_global_step
        self._evaluations = {step: output for step, output in self._evaluations.items() if step == best}
        output = super().evaluation_loop(dataloader, *args, **kwargs)
        self._evaluations[self.state.global_step] = output
        return output

    def _determine_best_metric(self, *args, **kwargs) -> bool:
        # With save_strategy best, the stock Trainer would drop a checkpoint that a signal has requested.
        return super()._determine_best_metric(*args, **kwargs) or self.control.should_save

    def _finalize_training(self, *args, **kwargs) -> TrainOutput:
        limit = self.args.save_total_limit
        self.args.save_total_limit = None  # with a limit of 1, the last checkpoint would go before the model is saved
        if self.args.load_best_model_at_end:
            self.accelerator.wait_for_everyone()  # the last checkpoint may be the best
            chooses = self.is_world_process_zero() and not self.will_resume_later
            best = find_best(Path(self.args.output_dir), self.state) if chooses else None
            self.state.best_model_checkpoint = broadcast_object_list([best])[0]
            if best and (step := saved_step(best)) < self.state.global_step:
                name = (self.args.metric_for_best_model or "loss").removeprefix("eval_")
                logger.info(f"The model is that of step {step:,}, which has the best {name}")
        try:
            return super()._finalize_training(*args, **kwargs)
        finally:
            self.args.save_total_limit = limit


class PatienceCallback(EarlyStoppingCallback):
    """Early stopping that continues to count in a resumed run.

    `restore_callback_states_from_checkpoint` would also restore the patience, whatever the options of the resumed run
    say, and fails if the checkpoint was saved without early stopping.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        self.early_stopping_patience_counter = saved["attributes"]["early_stopping_patience_counter"]
