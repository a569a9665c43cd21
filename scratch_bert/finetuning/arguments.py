"""The options of fine-tuning."""

from dataclasses import dataclass

from ..cli import option, refuse
from ..training.arguments import CommonArguments


@dataclass
class TaskArguments:
    model_name_or_path: str | None = option(
        None, "The checkpoint to start from: a directory or a Hub repository. A BERT is opened as scratch_bert."
    )
    trust_remote_code: bool = option(
        False, "Run the code that a checkpoint of a foreign architecture brings, or one of evaluate's metrics."
    )
    random_weights: bool = option(
        False, "Leave the checkpoint's weights out, to see what they are worth: its config and tokenizer alone."
    )
    train_file: list[str] | None = option(
        None,
        "Rows to train on: .csv, .tsv (in which quotes are text), .json or .jsonl, gzipped or not, or .parquet; words and "
        "tags in columns (CoNLL) for token-classification; SQuAD's JSON for question-answering. Files, globs, directories.",
    )
    validation_file: list[str] | None = option(
        None,
        "Rows to evaluate on, and to choose the best checkpoint by. Without them: held out from the training rows.",
    )
    test_file: list[str] | None = option(None, "Rows to predict at the end, with or without labels.")
    dataset_name: str | None = option(
        None,
        "Instead of files: a data set of the Hub, or a local directory that datasets.load_dataset opens, with its splits "
        "train, validation and test. GLUE's tasks find theirs without it.",
    )
    dataset_config: str | None = option(None, "Which configuration of dataset_name.")
    validation_share: float = option(0.1, "Share of the training rows to hold out if there are none to validate on.")
    text_column: str | None = option(
        None,
        "The text, or the words: text; tokens for token-classification, context for question-answering. In CoNLL files "
        "the column's number from 1, as for label_column; without it, the first is the word and the last the tag.",
    )
    text_pair_column: str | None = option(
        None, "A second text; the question of question-answering; what stands before each choice of multiple-choice."
    )
    label_column: str | None = option(
        None, "What to learn: label; ner_tags for token-classification, answers for question-answering."
    )
    choices_column: list[str] | None = option(
        None,
        "For multiple-choice: a column that holds a list, or several that hold a choice each. Without it: choices.",
    )
    problem_type: str | None = option(
        None,
        "For sequence-classification. Without it: several labels if the label is a list, regression if it is a fraction, "
        "else one label. Several labels in CSV are parted by commas.",
        choices=["single_label_classification", "multi_label_classification", "regression"],
    )
    metrics: list[str] | None = option(
        None, "Figures other than the task's own: names of scratch_bert/task_metrics.py, or what evaluate.load takes."
    )
    dropout: float | None = option(
        None,
        "Dropout of states and attention in place of the checkpoint's own. Small sets want some, as 0.1, for checkpoints "
        "that were pretrained without.",
    )
    max_seq_length: int | None = option(
        None, "Tokens in a row; without it, the model's own limit, and 384 at most for question-answering."
    )
    doc_stride: int | None = option(
        None,
        "For question-answering: tokens that the windows over a long context share; a third of them if not given.",
    )
    max_answer_length: int = option(30, "For question-answering: tokens of an answer, at most.")
    seeds: list[int] | None = option(
        None, "Run once with each, in directories of their own, and report mean and standard deviation."
    )
    early_stopping_patience: int | None = option(
        None, "Stop after so many evaluations in a row without a better figure."
    )

    def __post_init__(self):
        if not self.model_name_or_path:
            raise ValueError("Say with --model_name_or_path which checkpoint to start from.")
        if self.train_file and self.dataset_name:
            raise ValueError("Give train_file or dataset_name, not both.")
        if (self.validation_file or self.test_file) and not self.train_file:
            raise ValueError("validation_file and test_file go with a train_file.")
        if not self.dataset_name:
            refuse(self, ["dataset_config"], "without a dataset_name")
        if self.validation_file:
            refuse(self, ["validation_share"], "with validation_file")
        if not 0 < self.validation_share < 1:
            raise ValueError(f"validation_share must be greater than 0 and less than 1, got {self.validation_share}.")
        for name, least in (
            ("max_seq_length", 8),
            ("doc_stride", 0),
            ("max_answer_length", 1),
            ("early_stopping_patience", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be {least} or more, got {value}.")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1, got {self.dropout}.")
        if self.seeds and len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must differ, got {self.seeds}.")


@dataclass
class FinetuningArguments(CommonArguments):
    """Trainer's own arguments with the usual ones of BERT's fine-tuning (paper, appendix A.3)."""

    output_dir: str | None = option("runs/finetune", "Where checkpoints, the model, predictions and metrics go.")
    per_device_train_batch_size: int = option(32, "Rows per step and device.")
    learning_rate: float = option(5e-5, "Peak learning rate. Small models want more: up to 5e-4.")
    num_train_epochs: float = option(3, "Passes over the training rows.")
    eval_strategy: str = option("epoch", "When to evaluate: no, steps or epoch.")
    save_strategy: str = option("epoch", "When to save a checkpoint: no, steps or epoch.")
    save_total_limit: int | None = option(2, "Checkpoints to keep; the best stays in any case.")
    logging_steps: float = option(50, "Steps between log lines.")
    load_best_model_at_end: bool = option(True, "Go back to the best checkpoint after training.")
    metric_for_best_model: str | None = option(None, "Which figure is to be best; without it, the task's main one.")

    def __post_init__(self):
        self.best_by_task = self.metric_for_best_model is None
        self.greater_is_better_told = self.greater_is_better is not None
        super().__post_init__()
        self.must_stay(
            prediction_loss_only=(False, "figures are made from predictions"),
            dataloader_drop_last=(False, "it would leave out rows to predict, too"),
        )
        if self.train_sampling_strategy == "group_by_length":
            raise ValueError("group_by_length would mix up the order of predictions; padding is not computed anyhow.")
