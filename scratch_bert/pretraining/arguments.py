"""The options of the scripts, and how they are read: flags, after a YAML or JSON file if the first argument is one."""

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import yaml

from ..cli import option, refuse, similar
from ..model.configuration_scratch_bert import PRESETS, ScratchBertConfig
from ..tokenizer import TOKENIZER_TYPES
from ..training.arguments import CommonArguments
from .pairs import SPECIAL_TOKENS
from .text import FORMATS


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
            raise ValueError(f"config_overrides: {name} is no field of the config.{similar(name, fields)}")
        if name in ("pad_token_id", "max_position_embeddings"):
            raise ValueError(f"config_overrides: {name} follows from the tokenizer and --max_position_embeddings.")
        try:
            overrides[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError(f"config_overrides: {value!r} is no value for {name}.") from None
        if isinstance(overrides[name], str) and overrides[name][:1].isdigit():
            overrides[name] = float(overrides[name])  # to YAML, 1e-5 is a text
    return overrides
