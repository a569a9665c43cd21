"""The options of fine-tuning."""

from dataclasses import dataclass

from ..cli import check_ranges, option, refuse
from ..training.arguments import CommonArguments


@dataclass
class TaskArguments:
    """What to fine-tune, on which data, for which task. Raises `ValueError` for values that do not go together."""

    # model
    model_name_or_path: str | None = option(
        None, "The pretrained checkpoint: a directory or a Hub repository. A BERT is loaded as scratch_bert."
    )
    random_init: bool = option(
        False, "Train from scratch, as a baseline: use the checkpoint's config and tokenizer, but not its weights."
    )
    trust_remote_code: bool = option(False, "Run the code of a custom-code model, or of a Hub metric.")

    # data
    train_file: list[str] | None = option(
        None,
        "Training data: .csv, .tsv (in which quotes are text), .json or .jsonl, gzipped or not, or .parquet; CoNLL files "
        "for token-classification; SQuAD's JSON for question-answering. Files, globs or directories.",
    )
    validation_file: list[str] | None = option(
        None, "Validation data, which also selects the best checkpoint. Default: a share of the training examples."
    )
    test_file: list[str] | None = option(None, "Data to predict at the end, with or without labels.")
    dataset_name: str | None = option(
        None,
        "Instead of files: a dataset of the Hub, or a local directory that datasets.load_dataset takes, with the splits "
        "train, validation and test. Default for GLUE's tasks: nyu-mll/glue.",
    )
    dataset_config: str | None = option(None, "The configuration of dataset_name.")
    validation_share: float = option(
        0.1, "Share of the training examples to hold out if there are none for validation.", within="(0, 1)"
    )
    text_column: str | None = option(
        None,
        "Column of the text or the words. Default: text; tokens for token-classification, context for question-answering. "
        "In CoNLL files a number, from 1, as for label_column. Default there: the first for the words, the last for the "
        "tags.",
    )
    text_pair_column: str | None = option(
        None,
        "Column of a second text; of the question in question-answering; of the beginning of each choice in "
        "multiple-choice.",
    )
    label_column: str | None = option(
        None,
        "Column of the label. Default: label; ner_tags for token-classification, answers for question-answering.",
    )
    choices_column: list[str] | None = option(
        None, "For multiple-choice: a column of lists, or several columns with a choice each. Default: choices."
    )

    # task
    problem_type: str | None = option(
        None,
        "For sequence-classification. Default: multi-label if the labels are lists, regression if they are floats, "
        "otherwise single-label. In CSV, several labels are comma-separated.",
        choices=["single_label_classification", "multi_label_classification", "regression"],
    )
    max_seq_length: int | None = option(
        None,
        "Tokens in a sequence, at most. Default: the model's limit, and 384 at most for question-answering.",
        within="[8, 1000000]",
    )
    doc_stride: int | None = option(
        None,
        "For question-answering: tokens by which the windows over a long context overlap. Default: a third of "
        "max_seq_length.",
        within="[0, inf)",
    )
    max_answer_length: int = option(30, "For question-answering: tokens in an answer, at most.", within="[1, inf)")
    metrics: list[str] | None = option(
        None,
        "Metrics instead of the task's own: names of scratch_bert/finetuning/metrics.py, or Hub metrics, which "
        "evaluate.load takes.",
    )

    # training
    dropout: float | None = option(
        None,
        "Dropout of hidden states and attention, instead of the checkpoint's. Small datasets benefit, as from 0.1, if "
        "the model was pretrained without.",
        within="[0, 1)",
    )
    early_stopping_patience: int | None = option(
        None, "Stop after this many evaluations in a row without a new best metric.", within="[1, inf)"
    )
    seeds: list[int] | None = option(
        None, "Run once with each seed, in directories of their own, and report mean and standard deviation."
    )

    def __post_init__(self):
        if not self.model_name_or_path:
            raise ValueError("Name the pretrained checkpoint with --model_name_or_path.")
        if self.train_file and self.dataset_name:
            raise ValueError("Give train_file or dataset_name, not both.")
        if (self.validation_file or self.test_file) and not self.train_file:
            raise ValueError("validation_file and test_file need a train_file.")
        if not self.dataset_name:
            refuse(self, ["dataset_config"], "without a dataset_name")
        if self.validation_file:
            refuse(self, ["validation_share"], "with validation_file")
        check_ranges(self)
        if self.seeds and len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must differ, got {self.seeds}.")


@dataclass
class FinetuningArguments(CommonArguments):
    """`TrainingArguments` with the usual values of BERT's fine-tuning (paper, appendix A.3)."""

    output_dir: str | None = option(
        "runs/finetune", "Directory for checkpoints, the model, its card, predictions and metrics."
    )
    per_device_train_batch_size: int = option(32, "Examples per step and device.")
    learning_rate: float = option(5e-5, "Peak learning rate. Small models need more: up to 5e-4.")
    num_train_epochs: float = option(3, "Passes over the training examples.")
    eval_strategy: str = option("epoch", "When to evaluate: no, steps or epoch.")
    save_strategy: str = option("epoch", "When to save a checkpoint: no, steps or epoch.")
    save_total_limit: int | None = option(2, "Checkpoints to keep; the best and the last are among them, even with 1.")
    logging_steps: float = option(50, "Steps between log lines.")
    load_best_model_at_end: bool = option(True, "Load the best checkpoint after training.")
    metric_for_best_model: str | None = option(
        None, "The metric that selects the best checkpoint. Default: the task's main one."
    )

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
