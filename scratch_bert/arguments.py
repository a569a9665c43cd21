"""The options of the scripts, and how they are read: flags, after a YAML or JSON file if the first argument is one."""

import dataclasses
import difflib
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import HfArgumentParser, TrainingArguments

from .configuration_scratch_bert import PRESETS, ScratchBertConfig
from .corpus import DOCUMENT_BOUNDARIES, SENTENCE_BOUNDARIES


def option(default: Any, help: str, **metadata: Any) -> Any:
    return field(default=default, metadata={"help": help, **metadata})


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


@dataclass
class DataArguments:
    train_file: list[str] | None = option(
        None,
        "UTF-8 text files, or directories of .txt files. Without it: the built-in corpus, Python's own help texts.",
    )
    validation_file: list[str] | None = option(
        None, "Text to evaluate on, as train_file. Without it: documents held out from the training text."
    )
    document_boundary: str = option(
        "blank_line", "Where a document ends: at a blank line, or with its file.", choices=list(DOCUMENT_BOUNDARIES)
    )
    sentence_boundary: str = option(
        "punctuation",
        "Where a sentence ends: at its full stop, question or exclamation mark; or with its line, as in logs.",
        choices=list(SENTENCE_BOUNDARIES),
    )
    validation_share: float = option(0.1, "Share of the documents held out for evaluation; 0 for none.")
    tokenizer_name_or_path: str | None = option(
        None, "A tokenizer to use instead of training one: a local directory or a Hub repository."
    )
    vocab_size: int | None = option(
        None, "Entries of the WordPiece vocabulary to train; BERT's 30522, or 2048 for the small built-in corpus."
    )
    min_frequency: int = option(2, "How often a word piece must occur to enter the vocabulary.")
    lowercase: bool = option(True, "Lower-case the text and strip its accents, as uncased BERT does.")
    max_seq_length: int = option(128, "Tokens in a row: [CLS], two segments, two [SEP].")
    short_seq_prob: float = option(0.1, "Share of the rows that are filled to a random shorter length only.")
    mlm_probability: float = option(0.15, "Share of the tokens to predict.")

    def __post_init__(self):
        if self.vocab_size is None:
            self.vocab_size = 30522 if self.train_file else 2048
        if not 0 < self.mlm_probability <= 1:
            raise ValueError(f"mlm_probability must be greater than 0 and at most 1, got {self.mlm_probability}.")


@dataclass
class PretrainingArguments(TrainingArguments):
    """Trainer's own arguments with the defaults of a short run on the built-in corpus."""

    output_dir: str | None = option("runs/pretrain", "Where checkpoints, the model, its card and its metrics go.")
    resume_from_checkpoint: str | None = option(
        None,
        "Continue the run in output_dir from its last checkpoint, or from the checkpoint directory given.",
        nargs="?",
        const="last",
    )
    per_device_train_batch_size: int = option(16, "Rows per step and device.")
    per_device_eval_batch_size: int = option(32, "Rows per evaluation step and device.")
    learning_rate: float = option(1e-3, "Peak learning rate. 1e-4 is BERT's for the base size.")
    weight_decay: float = option(0.01, "Decoupled weight decay, not applied to biases and LayerNorms.")
    warmup_steps: float = option(0.1, "Steps of linear warm-up, or their share of all steps if below 1.")
    num_train_epochs: float = option(22, "Passes over the corpus, each with newly drawn pairs.")
    eval_strategy: str = option("steps", "When to evaluate: no, steps or epoch.")
    eval_steps: float | None = option(250, "Steps between evaluations.")
    save_steps: float = option(500, "Steps between checkpoints.")
    save_total_limit: int | None = option(2, "Checkpoints to keep.")
    logging_steps: float = option(100, "Steps between log lines.")
    dataloader_pin_memory: bool = option(torch.accelerator.is_available(), "Pin batches in memory; for accelerators.")
    remove_unused_columns: bool = option(False, "Must stay False: the collator reads more columns than the model.")
    batch_eval_metrics: bool = option(True, "Must stay True: metrics are summed by batch, as no logits are kept.")

    def __post_init__(self):
        super().__post_init__()
        fixed = {
            "remove_unused_columns": (False, "the collator reads more columns than the model"),
            "batch_eval_metrics": (True, "metrics are summed batch by batch"),
            "prediction_loss_only": (False, "the metrics are made from predictions"),
            "label_smoothing_factor": (0, "both losses come from the model itself"),
            "dataloader_persistent_workers": (False, "workers that stay would go on with the first epoch's rows"),
        }
        for name, (value, reason) in fixed.items():
            if getattr(self, name) != value:
                raise ValueError(f"{name} must stay {value}: {reason}.")


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
        if name in ("vocab_size", "pad_token_id", "max_position_embeddings"):
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


def parse_arguments(*dataclasses: type, description: str, argv: list[str] | None = None) -> tuple:
    """One object per dataclass. Flags win over the file. An unknown option ends the program with a suggestion."""
    parser = HfArgumentParser(
        dataclasses,
        description=description,
        usage="%(prog)s [OPTIONS.yaml|OPTIONS.json] [--option value ...]",
        allow_abbrev=False,
    )
    argv = sys.argv[1:] if argv is None else argv
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
        *parsed, remaining = parser.parse_args_into_dataclasses(argv, return_remaining_strings=True)
    except ValueError as error:
        parser.error(str(error))
    if remaining:
        reject(remaining[0], "command line")
    return tuple(parsed)


def _as_flags(name: str, value: Any) -> list[str]:
    """An option from a file as it would stand on the command line, so that it is checked in the same way."""
    if value is None:
        return []
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    if isinstance(value, dict) and name == "config_overrides":
        value = ",".join(f"{field}={json.dumps(item)}" for field, item in value.items())
    return [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]
