"""The options of fine-tuning as objects: `scratch_bert_cli.finetuning` declares them, without Trainer."""

from dataclasses import dataclass

from transformers import PreTrainedConfig

from scratch_bert_cli.finetuning import TASKS, FinetuningOptions, TaskArguments

from ..training.arguments import CommonArguments


BASE_LEARNING_RATE, BASE_WIDTH = 5e-5, 768  # one of BERT-base's three (paper, appendix A.3), and its hidden size
HEAD_FACTOR = 10  # docs/finetuning.md


@dataclass
class FinetuningArguments(FinetuningOptions, CommonArguments):
    """`TrainingArguments` with the usual values of BERT's fine-tuning (paper, appendix A.3)."""

    def __post_init__(self):
        metric, greater_is_better = self.metric_for_best_model, self.greater_is_better
        learning_rate, self.learning_rate = self.learning_rate, self.learning_rate or 0.0  # None fails its checks
        super().__post_init__()
        self.learning_rate = learning_rate
        # `TrainingArguments` would select by the loss; the task knows better.
        self.metric_for_best_model, self.greater_is_better = metric, greater_is_better
        self.must_stay(
            prediction_loss_only=(False, "metrics are computed from predictions"),
            dataloader_drop_last=(False, "it would drop examples to predict, too"),
        )
        if self.train_sampling_strategy == "group_by_length":
            raise ValueError("group_by_length would change the order of predictions; padding is not computed anyway.")

    def fit_learning_rates(self, config: PreTrainedConfig, random_init: bool = False) -> None:
        """Set the rates that are None, for a model of this config. If all weights are new, they learn at one rate."""
        if self.learning_rate is None:
            rate = BASE_LEARNING_RATE * BASE_WIDTH / getattr(config, "hidden_size", BASE_WIDTH)
            self.learning_rate = float(f"{rate:.2g}")
        if random_init:
            self.head_learning_rate = None
        elif self.head_learning_rate is None:
            self.head_learning_rate = float(f"{HEAD_FACTOR * self.learning_rate:.6g}")
