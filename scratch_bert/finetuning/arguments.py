"""The options of fine-tuning as objects: `scratch_bert_cli.finetuning` declares them, without Trainer."""

from dataclasses import dataclass

from scratch_bert_cli.finetuning import FinetuningOptions, TaskArguments
from scratch_bert_cli.glue import GlueOptions

from ..training.arguments import CommonArguments


@dataclass
class FinetuningArguments(FinetuningOptions, CommonArguments):
    """`TrainingArguments` with the usual values of BERT's fine-tuning (paper, appendix A.3)."""

    def __post_init__(self):
        metric, greater_is_better = self.metric_for_best_model, self.greater_is_better
        super().__post_init__()
        # `TrainingArguments` would select by the loss; the task knows better.
        self.metric_for_best_model, self.greater_is_better = metric, greater_is_better
        self.must_stay(
            prediction_loss_only=(False, "metrics are computed from predictions"),
            dataloader_drop_last=(False, "it would drop examples to predict, too"),
        )
        if self.train_sampling_strategy == "group_by_length":
            raise ValueError("group_by_length would change the order of predictions; padding is not computed anyway.")


@dataclass
class GlueTrainingArguments(GlueOptions, FinetuningArguments):
    """`FinetuningArguments` with the defaults for all tasks of GLUE."""
