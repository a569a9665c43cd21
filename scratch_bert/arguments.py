"""The options of the scripts, and how they are read: flags, after a YAML or JSON file if the first argument is one."""

import dataclasses
import difflib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import torch
import yaml
from huggingface_hub.errors import StrictDataclassError
from transformers import HfArgumentParser, TrainingArguments

from .configuration_scratch_bert import PRESETS, ScratchBertConfig
from .corpus import FORMATS
from .pairs import SPECIAL_TOKENS
from .tokenizer import TOKENIZER_TYPES


def option(default: Any, help: str, **metadata: Any) -> Any:
    return field(default=default, metadata={"help": help, **metadata})


def refuse(arguments: Any, names: Iterable[str], where: str) -> None:
    """Raise `ValueError` for an option of these that has another value than its default."""
    for name in names:
        if getattr(arguments, name) != arguments.__dataclass_fields__[name].default:
            raise ValueError(f"{name} has no effect {where}: leave it out.")


@dataclass
class ModelArguments:
    preset: str = option("tiny", "Size of the model, as published for BERT.", choices=list(PRESETS))
    config_overrides: str | None = option(
        None, "Config fields that differ from the preset, as in norm_first=true,hidden_dropout_prob=0."
    )
    max_position_embeddings: int | None = option(
        None, "Longest sequence that the model will ever take, in tokens; max_seq_length if not given."
    )

    def __post_init__(self):
        self.config_overrides = parse_overrides(self.config_overrides or "")  # from here on a dict


_OF_TEXT = ("text_column", "text_format", "sentence_splitter", "language", "dataset_config", "validation_file")
_OF_ROWS = ("validation_share", "max_seq_length", "short_seq_prob", "sentence_objective", "static_pairs")
_OF_TRAINED_TOKENIZERS = ("tokenizer_type", "vocab_size", "min_frequency", "lowercase")
WITHOUT_EFFECT = {
    "prepared_data": _OF_TEXT + _OF_ROWS + _OF_TRAINED_TOKENIZERS,
    "streaming": ("static_pairs", "validation_share"),
    "train_file": ("dataset_config",),
    "tokenizer_name_or_path": _OF_TRAINED_TOKENIZERS,
}


@dataclass
class DataArguments:
    train_file: list[str] | None = option(
        None,
        "Text: files, globs, or directories; UTF-8 text, .csv, .tsv, .json and .jsonl, gzipped or not, or .parquet; tables "
        "with a text_column. Without any text: the built-in corpus, Python's own help texts.",
    )
    validation_file: list[str] | None = option(
        None, "Text to evaluate on, as train_file. Without it: documents held out from the training text."
    )
    dataset_name: str | None = option(
        None,
        "Instead of train_file: a data set of the Hub, or a local directory that datasets.load_dataset opens. Its "
        "split train; its split validation, if it has one, is evaluated on.",
    )
    dataset_config: str | None = option(None, "Which configuration of dataset_name.")
    streaming: bool = option(
        False,
        "Read the training text as it is needed, without a copy of it, again and again until max_steps. Rows then "
        "depend on the number of workers and machines.",
    )
    stream_buffer: int = option(1000, "Documents of a stream to hold at a time: pairs are drawn among them.")
    prepared_data: str | None = option(
        None, "Instead of text: a directory that scripts/inspect_data.py --output_dir has written."
    )
    text_column: str = option("text", "The column of a table or data set that holds the text.")
    text_format: str | None = option(
        None,
        "How text parts into documents. "
        + "; ".join(f"{name}: {text_format.description}" for name, text_format in FORMATS.items())
        + ". Without it: blank_line for text files, file for tables.",
        choices=list(FORMATS),
    )
    sentence_splitter: str = option(
        "sentencex",
        "Where a sentence ends. sentencex: by the rules of the language; line: with its line, as in logs and in the "
        "input of Google's BERT scripts; anything else: a separator that stands between sentences.",
    )
    language: str | None = option(
        None, "ISO 639 code of the text's language: for sentencex, which takes English if not told, and for the card."
    )
    validation_share: float = option(0.1, "Share of the documents held out for evaluation; 0 for none.")
    cache_dir: str = option(
        str(Path(datasets.config.HF_DATASETS_CACHE) / "scratch_bert"),
        "Where token ids and trained tokenizers are kept, so that the next run on the same text starts at once.",
    )
    tokenizer_name_or_path: str | None = option(
        None, "A tokenizer to use instead of training one: a local directory or a Hub repository."
    )
    tokenizer_type: str = option(
        "wordpiece", "Kind of tokenizer to train: BERT's word pieces, or whole words.", choices=list(TOKENIZER_TYPES)
    )
    vocab_size: int | None = option(
        None, "Entries of the vocabulary to train, at most; BERT's 30522, or 2048 for the small built-in corpus."
    )
    min_frequency: int = option(2, "How often a word or word piece must occur to enter the vocabulary.")
    lowercase: bool = option(True, "Lower-case the text and strip its accents, as uncased BERT does.")
    max_seq_length: str = option(
        "128",
        "Tokens in a row: [CLS], two segments, two [SEP]. Or auto:70, which has room for two sentences as long as the "
        "corpus' 70th percentile.",
    )
    short_seq_prob: float = option(0.1, "Share of the rows that are filled to a random shorter length only.")
    sentence_objective: str = option(
        "nsp",
        "What the second head learns. nsp: whether segment B follows A or is from another document; sop: whether A and "
        "B are in order; none: nothing, rows are unbroken text for masked words alone.",
        choices=list(SPECIAL_TOKENS),
    )
    static_pairs: bool = option(False, "Keep the first epoch's pairs instead of drawing new ones each epoch.")
    mlm_probability: float = option(0.15, "Share of the tokens to predict.")
    mask_replace_prob: float = option(0.8, "Share of these that [MASK] replaces.")
    random_replace_prob: float = option(0.1, "Share of these that a random token replaces; the others stay.")
    whole_word_mask: bool = option(False, "Choose and replace all pieces of a word together.")
    max_predictions_per_seq: int | None = option(None, "Tokens to predict in a row, at most.")

    def __post_init__(self):
        sources = [name for name in ("train_file", "dataset_name", "prepared_data") if getattr(self, name)]
        if len(sources) > 1:
            raise ValueError(f"Give one of {' and '.join(sources)}, not both.")
        if self.streaming and not (self.train_file or self.dataset_name):
            raise ValueError("streaming needs a train_file or a dataset_name.")
        for source, without_effect in WITHOUT_EFFECT.items():
            if getattr(self, source):
                refuse(self, without_effect, f"with {source}")
        if not re.fullmatch(r"\d+|auto:0*([1-9]\d?|100)", self.max_seq_length):
            raise ValueError(f"max_seq_length must be a number or auto:1 to auto:100, got {self.max_seq_length}.")
        if not 0 < self.mlm_probability <= 1:
            raise ValueError(f"mlm_probability must be greater than 0 and at most 1, got {self.mlm_probability}.")
        if self.stream_buffer < 2:
            raise ValueError(f"stream_buffer must be 2 or more, got {self.stream_buffer}.")
        if not self.sentence_splitter:
            raise ValueError("sentence_splitter must not be empty.")
        if self.vocab_size is None:
            self.vocab_size = 30522 if sources else 2048

    @property
    def percentile(self) -> int | None:
        """The percentile that max_seq_length follows from, if it does."""
        return int(self.max_seq_length[5:]) if self.max_seq_length.startswith("auto:") else None


@dataclass
class CommonArguments(TrainingArguments):
    """What pretraining and fine-tuning share of Trainer's arguments, where we differ."""

    output_dir: str | None = option(None, "Where checkpoints, the model, its card and its metrics go.")
    resume_from_checkpoint: str | None = option(
        None,
        "Continue the run in output_dir from its last checkpoint, or from the checkpoint directory given.",
        nargs="?",
        const="last",
    )
    per_device_eval_batch_size: int = option(32, "Rows per evaluation step and device.")
    weight_decay: float = option(0.01, "Decoupled weight decay, not applied to biases and LayerNorms.")
    warmup_steps: float = option(0.1, "Steps of linear warm-up, or their share of all steps if below 1.")
    bf16: bool | None = option(
        None,
        "bf16 autocast instead of fp32. Without it: on CPUs that multiply in bf16; on GPUs it must be asked for.",
        nargs="?",
        const=True,
    )
    license: str | None = option(
        None, "The model's licence for its card, as the Hub names it: apache-2.0, mit, cc-by-4.0, …"
    )
    dataloader_pin_memory: bool = option(torch.accelerator.is_available(), "Pin batches in memory; for accelerators.")
    ddp_find_unused_parameters: bool | None = option(False, "Search each step for parameters without a gradient.")

    def __post_init__(self):
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()  # else Trainer refuses bf16 there
        self.bf16_by_default = self.bf16 is None and self.use_cpu and not self.fp16 and cpu_multiplies_bf16()
        self.bf16 = self.bf16 or self.bf16_by_default
        super().__post_init__()
        if self.license and not re.fullmatch(r"[a-z0-9.+-]+", self.license):
            raise ValueError(f"license must be an identifier as the Hub has them, such as mit, got {self.license!r}.")

    def must_stay(self, **fixed: tuple[Any, str]) -> None:
        """Raise `ValueError` for an argument that has another value than the one that goes, for the reason given."""
        for name, (value, reason) in fixed.items():
            if getattr(self, name) != value:
                raise ValueError(f"{name} must stay {value}: {reason}.")


@dataclass
class PretrainingArguments(CommonArguments):
    """Trainer's own arguments with the defaults of a short run on the built-in corpus."""

    output_dir: str | None = option("runs/pretrain", "Where checkpoints, the model, its card and its metrics go.")
    per_device_train_batch_size: int = option(16, "Rows per step and device.")
    learning_rate: float = option(1e-3, "Peak learning rate. 1e-4 is BERT's for the base size.")
    num_train_epochs: float = option(24, "Passes over the corpus, each with newly drawn pairs.")
    eval_strategy: str = option("steps", "When to evaluate: no, steps or epoch.")
    eval_steps: float | None = option(250, "Steps between evaluations.")
    save_steps: float = option(500, "Steps between checkpoints.")
    save_total_limit: int | None = option(2, "Checkpoints to keep.")
    logging_steps: float = option(100, "Steps between log lines.")
    pack_sequences: bool = option(
        False,
        "Put the rows of a training batch together into fewer rows of max_seq_length. Where padding costs, which is on "
        "GPUs and under torch_compile: elsewhere it is left out in any case.",
    )
    remove_unused_columns: bool = option(False, "Must stay False: the collator reads more columns than the model.")
    batch_eval_metrics: bool = option(True, "Must stay True: metrics are summed by batch, as no logits are kept.")

    def __post_init__(self):
        super().__post_init__()
        self.must_stay(
            remove_unused_columns=(False, "the collator reads more columns than the model"),
            batch_eval_metrics=(True, "metrics are summed batch by batch"),
            prediction_loss_only=(False, "the metrics are made from predictions"),
            label_smoothing_factor=(0, "both losses come from the model itself"),
            dataloader_persistent_workers=(False, "workers that stay would go on with the first epoch's rows"),
        )


@dataclass
class EvaluationDataArguments(DataArguments):
    """The text to evaluate on: `validation_file` alone is all of it."""

    def __post_init__(self):
        of_tokenizers = ("tokenizer_name_or_path", *_OF_TRAINED_TOKENIZERS)
        refuse(self, of_tokenizers, "in an evaluation, which takes the models' tokenizer")
        refuse(self, ["streaming"], "in an evaluation, which is of the same rows each time")
        super().__post_init__()
        if self.validation_file and not (self.train_file or self.dataset_name):
            self.train_file, self.validation_file, self.validation_share = self.validation_file, None, 0.0


@dataclass
class EvaluationArguments:
    model_name_or_path: list[str] | None = option(
        None, "The models to evaluate, with the same tokenizer: directories or Hub repositories, ours or BERTs."
    )
    trust_remote_code: bool = option(False, "Run the code that a checkpoint of a foreign architecture brings.")
    per_device_eval_batch_size: int = option(32, "Rows per step and device. The masks depend on it.")
    bf16: bool = option(False, "bf16 autocast instead of fp32.")
    seed: int = option(42, "Of the held-out documents, the rows and the masks; by default that of pretraining.")
    output_file: str | None = option(None, "A JSON file to write the figures to; it must not exist yet.")

    def __post_init__(self):
        if not self.model_name_or_path:
            raise ValueError("Say with --model_name_or_path what to evaluate.")
        if self.output_file and Path(self.output_file).exists():
            raise ValueError(f"output_file {self.output_file} exists: choose another name.")
        if self.output_file and not Path(self.output_file).resolve().parent.is_dir():
            raise ValueError(
                f"output_file {self.output_file} is to be in a directory that does not exist: make it first."
            )


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


def cpu_multiplies_bf16() -> bool:
    """Whether bf16 products are native: where they are not, they are slower than those of fp32."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))  # the last is ARM's name


def parse_overrides(text: str) -> dict[str, Any]:
    """`"head_dim=32,norm_first=true"` → `{"head_dim": 32, "norm_first": True}`.

    Raises `ValueError` for a part without `=`, a value that is none, and a name that is no field of the config or is
    not free, because it follows from the tokenizer.
    """
    fields = {field.name for field in dataclasses.fields(ScratchBertConfig)}
    overrides = {}
    for part in filter(None, text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ValueError(f"config_overrides takes field=value pairs parted by commas, but {part!r} has no '='.")
        if name not in fields:
            raise ValueError(f"config_overrides: {name} is no field of the config.{_similar(name, fields)}")
        if name in ("pad_token_id", "max_position_embeddings"):
            raise ValueError(f"config_overrides: {name} follows from the tokenizer and --max_position_embeddings.")
        try:
            overrides[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError(f"config_overrides: {value!r} is no value for {name}.") from None
        if isinstance(overrides[name], str) and overrides[name][:1].isdigit():
            overrides[name] = float(overrides[name])  # to YAML, 1e-5 is a text
    return overrides


def _similar(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {matches[0]}?" if matches else ""


def parse_arguments(
    *dataclasses: type, description: str, argv: list[str] | None = None, tasks: Iterable[str] = ()
) -> tuple:
    """One object per dataclass, and a namespace with the `task`, the first argument, if there are `tasks`. Flags win over
    the file. An unknown option ends the program with a suggestion."""
    parser = HfArgumentParser(
        dataclasses,
        description=description,
        usage=f"%(prog)s {'TASK ' if tasks else ''}[OPTIONS.yaml|OPTIONS.json] [--option value ...]",
        allow_abbrev=False,
    )
    if tasks:
        parser.add_argument("task", metavar="TASK", choices=list(tasks), help="One of " + ", ".join(tasks) + ".")
    argv = sys.argv[1:] if argv is None else argv
    before, argv = (argv[:1], argv[1:]) if tasks else ([], argv)
    known = {action.dest for action in parser._actions}

    def reject(option: str, where: str) -> None:
        parser.error(f"{where}: there is no option {option}.{_similar(option.lstrip('-').split('=')[0], known)}")

    if argv and argv[0].endswith((".yaml", ".yml", ".json")):
        try:
            values = yaml.safe_load(Path(argv[0]).read_text(encoding="utf-8")) or {}  # JSON is YAML, too
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            parser.error(f"{argv[0]} cannot be read: {error}")
        if not isinstance(values, dict):
            parser.error(f"{argv[0]} must hold options as name: value pairs.")
        for unknown in sorted(set(values) - known):
            reject(unknown, argv[0])
        argv = [flag for name, value in values.items() for flag in _as_flags(name, value)] + argv[1:]
    try:
        *parsed, remaining = parser.parse_args_into_dataclasses(before + argv, return_remaining_strings=True)
    except ValueError as error:
        parser.error(str(error))
    if remaining:
        reject(remaining[0], "command line")
    return tuple(parsed)


@contextmanager
def one_line_errors(
    kinds: tuple = (OSError, ValueError, ImportError, StrictDataclassError), stopped: str = "Stopped."
) -> Iterator[None]:
    """End the program with the message of what the user can mend, or after a Ctrl-C with `stopped`; no traceback."""
    try:
        yield
    except kinds as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(stopped)


def _as_flags(name: str, value: Any) -> list[str]:
    """An option from a file as it would stand on the command line, so that it is checked in the same way."""
    if value is None:
        return []
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    if isinstance(value, dict) and name == "config_overrides":
        value = ",".join(f"{field}={json.dumps(item)}" for field, item in value.items())
    return [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]
