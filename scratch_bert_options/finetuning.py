"""The options of fine-tuning."""

from typing import ClassVar

from .declare import OptionGroup, option, options
from .training import EVALUATION, INTERVALS, CommonOptions, SeedsOptions


GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "rte", "qqp", "mnli", "qnli", "wnli")
TASKS = ("sequence-classification", "token-classification", "question-answering", "multiple-choice", *GLUE_TASKS)


@options
class CheckpointOptions(OptionGroup, group="Model"):
    model_name_or_path: str | None = option(
        None, "Pretrained checkpoint: a directory or a Hub repository, scratch_bert or BERT. Required.", path=True
    )
    random_init: bool = option(
        False, "Train from scratch, as a baseline: use the checkpoint's config and tokenizer, but not its weights."
    )
    trust_remote_code: bool = option(False, "Run the code of a custom-code model, or of a Hub metric.")
    dropout: float | None = option(
        None,
        "Dropout for hidden states and attention, instead of the checkpoint's. Small datasets benefit, for example "
        "from 0.1, if the model was pretrained without.",
        within="[0, 1)",
    )
    classifier_pooling: str | None = option(
        None,
        "What the classifier of a text or a pair of texts reads. Default: as in the checkpoint.",
        choices={
            "cls": "the pooled [CLS], as in BERT",
            "mean": "the mean of the tokens",
            "pairs": "the mean of each text, and each token compared with its counterpart in the other text (the "
            "best for pairs if a small model has seen little text); cannot be converted to BERT",
        },
    )

    def __post_init__(self):
        if not self.model_name_or_path:
            raise ValueError("Name the pretrained checkpoint with --model_name_or_path.")
        super().__post_init__()


@options
class TaskDataOptions(OptionGroup, group="Data"):
    train_file: list[str] | None = option(
        None,
        "Training data: files, globs or directories of .csv, .tsv, .json or .jsonl, optionally gzipped, "
        "or .parquet; CoNLL files for token-classification; SQuAD's JSON for question-answering.",
        path=True,
    )
    validation_file: list[str] | None = option(
        None,
        "Validation data, which also selects the best checkpoint. Default: a fraction of the training examples.",
        path=True,
    )
    test_file: list[str] | None = option(None, "Data to predict at the end, with or without labels.", path=True)
    dataset_name: str | None = option(
        None,
        "Instead of files: a dataset on the Hub, or a local directory that datasets.load_dataset opens, with splits "
        "train, validation and test. Default for GLUE's tasks: nyu-mll/glue.",
        path=True,
    )
    dataset_config: str | None = option(None, "Configuration of the dataset.", requires="dataset_name")
    validation_share: float = option(
        0.1,
        "Fraction of the training examples (of the contexts, for question-answering) to hold out if there are none for "
        "validation.",
        within="(0, 1)",
        unless="validation_file",
    )
    split_seed: int = option(
        42,
        "Random seed of that split: runs with different seeds are evaluated on the same examples.",
        within="[0, 4294967296)",
        unless="validation_file",
    )
    text_column: str | None = option(
        None,
        "Column of the text or words. Default: text; tokens for token-classification, context for question-answering. "
        "In CoNLL files, its number from 1, as for label_column; default: the first for words, the last for tags.",
    )
    text_pair_column: str | None = option(
        None,
        "Column of a second text; of the question in question-answering; of the beginning of each choice in "
        "multiple-choice.",
    )
    label_column: str | None = option(
        None, "Column of the label. Default: label; ner_tags for token-classification, answers for question-answering."
    )
    choices_column: list[str] | None = option(
        None, "For multiple-choice: a column of lists, or several columns, one per choice. Default: choices."
    )

    def __post_init__(self):
        if self.train_file and self.dataset_name:
            raise ValueError("Give train_file or dataset_name, not both.")
        if (self.validation_file or self.test_file) and not self.train_file:
            raise ValueError("validation_file and test_file need a train_file.")
        super().__post_init__()


@options
class TaskOptions(SeedsOptions, TaskDataOptions, CheckpointOptions, group="Task"):
    """What to fine-tune, on which data, for which task."""

    max_seq_length: int | None = option(
        None,
        "Maximum number of tokens in a sequence. Default: the model's, and 384 at most for question-answering.",
        within="[8, 1000000]",
    )
    search: int | None = option(
        None,
        "Search for hyperparameters in this many trials, each a training run: learning rates of encoder and head, "
        "epochs, batch size and dropout. The best model on the validation data is kept. Needs optuna.",
        within="[1, 1000000]",
    )
    problem_type: str | None = option(
        None,
        "For sequence-classification. Default: multi-label if the labels are lists, regression if they are floats, "
        "otherwise single-label. In CSV, several labels are comma-separated.",
        choices=["single_label_classification", "multi_label_classification", "regression"],
    )
    positive_label: str | None = option(
        None,
        "Of two classes, the one that precision, recall, F1 and average precision refer to. Default: a class of "
        "less than 40% of the training examples, otherwise the second by name.",
    )
    decision_threshold: float | None = option(
        None,
        "Minimum probability for predicting the positive class. Default: 0.5; if less than 40% of the training "
        "examples are positive, the one with the highest F1 on the validation data. It is saved in the config.",
        within="(0, 1]",
    )
    class_weights: str | None = option(
        None,
        "Class weights in the loss, for single labels of texts or words. Default: none.",
        choices={"balanced": "in inverse proportion to the frequency of each class in training"},
    )
    doc_stride: int | None = option(
        None,
        "For question-answering: overlap of windows over a long context, in tokens. Default: max_seq_length / 3.",
        within="[0, 1000000]",
    )
    max_answer_length: int = option(
        30, "For question-answering: maximum number of tokens in an answer.", within="[1, 1000000]"
    )
    metrics: list[str] | None = option(
        None, "Metrics instead of the task's own: those of scratch_bert/finetuning/metrics.py, or Hub metrics."
    )
    early_stopping_patience: int | None = option(
        None, "Stop after this many evaluations in a row without a new best metric.", within="[1, 1000000]"
    )


@options
class FinetuningOptions(CommonOptions, group="Training"):
    """The options of training, with the usual values of BERT's fine-tuning (paper, appendix A.3)."""

    numbered: ClassVar = "runs/finetune"

    output_dir: str | None = option(
        None,
        "Directory for checkpoints, the model, its card, predictions and metrics. Default: runs/finetune-1 or the "
        "next free number; when resuming, the newest.",
    )
    per_device_train_batch_size: int = option(32, "Examples per batch and device.", within="[1, 1000000]")
    learning_rate: float | None = option(
        None,
        "Peak learning rate. Default: 5e-5 for a hidden size of 768, as for BERT-base, more for narrower models: "
        "5e-5 × 768 / hidden size.",
        within="[0, 10]",
    )
    head_learning_rate: float | None = option(
        None,
        "Peak learning rate of newly initialised weights, the task's head. Default: 10 × learning_rate. Not with "
        "random_init.",
        within="[0, 10]",
    )
    eval_strategy: str = option("epoch", "When to evaluate.", choices=INTERVALS)
    save_strategy: str = option("epoch", "When to save a checkpoint.", choices=[*INTERVALS, "best"])
    save_total_limit: int | None = option(
        2, "Number of checkpoints to keep; always includes the best and the last, even with 1.", within="[1, 1e9]"
    )
    logging_steps: float = option(50, "Steps between log lines; with max_minutes, also every 30 s.", within="(0, 1e9]")
    load_best_model_at_end: bool = option(True, "Load the best checkpoint after training.")
    metric_for_best_model: str | None = option(
        None, "Metric that selects the best checkpoint. Default: the task's main one."
    )
    greater_is_better: bool | None = option(
        None, "Whether a greater metric_for_best_model is better. Default: known for built-in ones.", group=EVALUATION
    )
