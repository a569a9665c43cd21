"""The options of pretraining, of evaluating a pretrained model, and of inspecting its data."""

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import datasets
import yaml
from huggingface_hub.errors import StrictDataclassError
from transformers.training_args import OptimizerNames
from transformers.utils import ExplicitEnum

from ..cli import check_ranges, option, refuse, similar
from ..model.configuration_scratch_bert import PRESETS, ScratchBertConfig
from ..tokenizer import TOKENIZER_TYPES
from ..training.arguments import CommonArguments
from .data.text import FORMATS, SPLITTERS
from .objectives import OBJECTIVES


@dataclass
class ModelArguments:
    preset: str = option(
        "micro",
        "Size of the model, as published for BERT; but micro, which is tiny with four heads instead of two.",
        choices=list(PRESETS),
    )
    config_overrides: str | None = option(
        None, "Config fields that differ from the preset, as in norm_first=true,hidden_dropout_prob=0."
    )
    max_position_embeddings: int | None = option(
        None,
        "Maximum sequence length that the model can ever take, in tokens; default: max_seq_length. Beyond those of "
        "model_name_or_path, its position embeddings are repeated.",
        within="[1, 1000000]",
    )
    token_embedding_init: str = option(
        "lsa",
        "How token embeddings start: from latent semantic analysis of the training text, so that words of one topic are "
        "alike, or normal, as in BERT.",
        choices=["lsa", "normal"],
    )
    dropout: float = option(
        0.0,
        "Of hidden states and attention weights. BERT's is 0.1: for many passes over the text, where a model overfits; "
        "in a short run it only slows learning. Fine-tuning has its own.",
        within="[0, 1)",
    )
    model_name_or_path: str | None = option(
        None,
        "Continue from this model instead of starting a new one: a directory or Hub repository, scratch_bert or BERT. Its "
        "tokenizer is used; a head that it doesn't have starts anew.",
    )
    add_tokens: str | None = option(
        None,
        "With model_name_or_path: a file of tokens to add to its vocabulary, one a line, words or ##continuations. An "
        "embedding starts as the mean of those of the token's pieces.",
    )

    def __post_init__(self):
        if self.model_name_or_path:
            refuse(self, ["preset", "config_overrides", "token_embedding_init"], "with model_name_or_path")
        else:
            refuse(self, ["add_tokens"], "without model_name_or_path")
        parse_overrides(self.config_overrides)  # an error is reported before any work
        check_ranges(self)

    def overrides(self) -> dict[str, Any]:
        """The config fields that the options set."""
        dropout = {"hidden_dropout_prob": self.dropout, "attention_probs_dropout_prob": self.dropout}
        return dropout | parse_overrides(self.config_overrides)

    def config(self) -> ScratchBertConfig:
        """Raises `ValueError` for values that make no model."""
        try:
            return ScratchBertConfig.from_preset(self.preset, **self.overrides())
        except (StrictDataclassError, TypeError, LookupError, AttributeError) as error:
            # A `StrictDataclassError` has a cause, which says what is wrong.
            raise ValueError(f"config_overrides: {error.__cause__ or error}") from None


def parse_overrides(text: str | None) -> dict[str, Any]:
    """`"head_dim=32,norm_first=true"`, or the same as JSON → `{"head_dim": 32, "norm_first": True}`.

    Raises `ValueError` for what is no pair, what is no value, and a field that the config doesn't have or that follows
    from the tokenizer.
    """
    fields = {field.name for field in dataclasses.fields(ScratchBertConfig)}
    overrides = {}
    try:
        if (text or "").startswith("{"):
            overrides = yaml.safe_load(text)  # JSON is YAML, too
        else:
            for pair in filter(None, (text or "").split(",")):
                name, equals, value = (part.strip() for part in pair.partition("="))
                if not equals:
                    raise ValueError(f"config_overrides takes comma-separated field=value pairs; {pair!r} has no '='.")
                overrides[name] = yaml.safe_load(value)
    except yaml.YAMLError:
        raise ValueError(
            f"config_overrides: {text!r} cannot be parsed; write it as field=value,field=value."
        ) from None
    for name, value in overrides.items():
        if name not in fields:
            raise ValueError(f"config_overrides: the config has no field {name}.{similar(str(name), fields)}")
        if name in ("pad_token_id", "max_position_embeddings"):
            raise ValueError(f"config_overrides: {name} follows from the tokenizer and --max_position_embeddings.")
        if isinstance(value, str) and value[:1].isdigit():
            overrides[name] = float(value)  # to YAML, 1e-5 is a string
    return overrides


EVAL_MLM_PROBABILITY = 0.15  # BERT's (paper, section 3.1), whatever the share in training
_TEXT = ("text_column", "text_format", "sentence_splitter", "language", "dataset_config", "validation_file")
_EXAMPLES = ("validation_share", "max_seq_length", "short_seq_prob", "single_segment_prob", "sentence_objective")
_EXAMPLES += ("static_pairs",)
TOKENIZER_TRAINING = ("tokenizer_type", "vocab_size", "min_frequency", "lowercase", "first_segment_id")
WITHOUT_EFFECT = {  # an option → the options that have no effect with it
    "prepared_data": _TEXT + _EXAMPLES + TOKENIZER_TRAINING,
    "streaming": ("static_pairs", "validation_share"),
    "tokenizer_name_or_path": TOKENIZER_TRAINING,
}


@dataclass
class DataArguments:
    # Source: files, a dataset, a stream, prepared examples; without any, the built-in corpus.
    train_file: list[str] | None = option(
        None,
        "Text: files, globs, or directories; UTF-8 text, .csv, .tsv, .json and .jsonl, gzipped or not, or .parquet; "
        "tables with a text_column. Without any text: the built-in corpus, the help texts and docstrings that come with Python.",
    )
    validation_file: list[str] | None = option(
        None, "Text to evaluate on, as train_file. Default: documents held out from the training text."
    )
    validation_share: float = option(
        0.1, "Share of the documents held out for evaluation; 0 for none.", within="[0, 1)"
    )
    dataset_name: str | None = option(
        None,
        "Instead of train_file: a dataset of the Hub, or a local directory that datasets.load_dataset opens. Its "
        "split train is trained on; its split validation, if there is one, is evaluated on.",
    )
    dataset_config: str | None = option(None, "Which configuration of dataset_name.")
    streaming: bool = option(
        False,
        "Read the training text during training, without a copy of it, repeating it until max_steps. Examples then "
        "depend on the number of workers and machines.",
    )
    stream_buffer: int = option(
        1000,
        "Documents of a stream to hold at a time: pairs are drawn among them. Of prepared examples, how many to shuffle among.",
        within="[2, inf)",
    )
    prepared_data: str | None = option(
        None, "Instead of text: a directory written by inspect_data.py --output_dir or prepare_data.py."
    )
    cache_dir: str = option(
        str(Path(datasets.config.HF_DATASETS_CACHE) / "scratch_bert"),
        "Directory for token ids and trained tokenizers, so that the next run on the same text starts at once.",
    )

    # Text: how it is split into documents and sentences.
    text_column: str = option("text", "The column of a table or dataset that holds the text.")
    text_format: str | None = option(
        None,
        "How text is split into documents. "
        + "; ".join(f"{name}: {text_format.description}" for name, text_format in FORMATS.items())
        + ". Default: blank_line for text files, file for tables.",
        choices=list(FORMATS),
    )
    sentence_splitter: str = option(
        "sentencex",
        "How documents are split into sentences. sentencex: by the rules of the language; line: each line is a "
        "sentence, as in logs and in the input of Google's BERT scripts; anything else: a delimiter between sentences.",
    )
    language: str | None = option(
        None, "ISO 639 code of the text's language: for sentencex (default: en) and for the model card."
    )

    # Tokenizer: an existing one, or one that is trained on the text.
    tokenizer_name_or_path: str | None = option(
        None, "A tokenizer to use instead of training one: a local directory or a Hub repository."
    )
    tokenizer_type: str = option(
        "wordpiece", "Kind of tokenizer to train: BERT's WordPiece, or whole words.", choices=list(TOKENIZER_TYPES)
    )
    vocab_size: int | None = option(
        None,
        "Maximum vocabulary size of a trained tokenizer. Default: BERT's 30522, or 2048 for the built-in corpus.",
        within="[6, 100000000]",
    )
    min_frequency: int = option(
        2, "How often a word or word piece must occur to enter the vocabulary.", within="[0, 4294967296)"
    )
    lowercase: bool = option(True, "Lower-case the text and strip its accents, as uncased BERT does.")
    first_segment_id: int = option(
        0,
        "Segment id of the first segment; the second's is one more. 0 is BERT's; with 1, padding has an id of its own, 0, "
        "and the model three.",
        choices=[0, 1],
    )

    # Examples: what a sequence is made of.
    sentence_objective: str = option(
        "nsp",
        "Objective of the second head. "
        + "; ".join(f"{name}: {objective.description}" for name, objective in OBJECTIVES.items())
        + ".",
        choices=list(OBJECTIVES),
    )
    max_seq_length: str | None = option(
        None,
        "Tokens in a sequence: [CLS], two segments, two [SEP]. Or auto:70, which has room for two sentences as long as "
        "the corpus' 70th percentile. Default: 128, or 64 for the built-in corpus.",
    )
    short_seq_prob: float = option(
        0.1, "Share of the examples that are only filled to a random shorter length.", within="[0, 1]"
    )
    single_segment_prob: float = option(
        0.0,
        "Share of the training examples that are one segment, [CLS] A [SEP], for MLM alone: so the model also learns to read "
        "single texts.",
        within="[0, 1)",
    )
    static_pairs: bool = option(False, "Keep the first epoch's pairs instead of drawing new ones each epoch.")

    # Masking.
    mlm_probability: float = option(
        0.3,
        "Share of the tokens to predict in training. BERT's is 0.15, which evaluation always takes, so that models "
        "can be compared; more teaches a small model faster (docs/learning.md).",
        within="(0, 1]",
    )
    mask_replace_prob: float = option(0.8, "Share of these that [MASK] replaces.", within="[0, 1]")
    random_replace_prob: float = option(
        0.1, "Share of these that a random token replaces; the others stay.", within="[0, 1]"
    )
    whole_word_mask: bool = option(False, "Whole-word masking: select and replace all pieces of a word together.")
    max_predictions_per_seq: int | None = option(
        None, "Maximum number of tokens to predict in a sequence.", within="[1, inf)"
    )

    def __post_init__(self):
        sources = [name for name in ("train_file", "dataset_name", "prepared_data") if getattr(self, name)]
        if len(sources) > 1:
            raise ValueError(f"Give one of {' and '.join(sources)}, not both.")
        if self.streaming and not sources:
            raise ValueError("streaming needs a train_file, a dataset_name or prepared_data.")
        for source, without_effect in WITHOUT_EFFECT.items():
            if getattr(self, source):
                refuse(self, without_effect, f"with {source}")
        for needed, dependent in (("dataset_name", "dataset_config"), ("streaming", "stream_buffer")):
            if not getattr(self, needed):
                refuse(self, [dependent], f"without {needed}")
        if self.max_seq_length is None:
            self.max_seq_length = "128" if sources else "64"
        parse_max_seq_length(self.max_seq_length)  # an error is reported before any work
        check_ranges(self)
        total = self.mask_replace_prob + self.random_replace_prob
        if total > 1 + 1e-9:
            raise ValueError(f"mask_replace_prob and random_replace_prob must add up to 1 at most, got {total:g}.")
        if self.language and not re.fullmatch(r"[a-z]{2,3}", self.language):
            raise ValueError(f"language must be an ISO 639 code, such as en, got {self.language}.")
        if not self.sentence_splitter:
            raise ValueError("sentence_splitter must not be empty.")
        typo = similar(self.sentence_splitter, SPLITTERS) if self.sentence_splitter not in SPLITTERS else ""
        if typo:
            raise ValueError(f"There is no sentence_splitter {self.sentence_splitter}.{typo}")

    def max_vocab_size(self) -> int:
        """Of a tokenizer that is trained on the text."""
        return self.vocab_size or (30522 if self.train_file or self.dataset_name else 2048)


def parse_max_seq_length(text: str | int) -> tuple[int | None, int | None]:
    """`"128"` → (128, None), a number of tokens; `"auto:70"` → (None, 70), a percentile of the sentence lengths."""
    match = re.fullmatch(r"(\d+)|auto:0*([1-9]\d?|100)", str(text))
    if not match:
        raise ValueError(f"max_seq_length must be a number or auto:1 to auto:100, got {text}.")
    tokens, percentile = (int(group) if group else None for group in match.groups())
    if tokens and tokens > 1_000_000:
        raise ValueError(f"max_seq_length must be at most 1,000,000, got {tokens}.")
    return tokens, percentile


class OwnOptimizerNames(ExplicitEnum):
    """The values of `optim` beside transformers' `OptimizerNames`, which cannot be extended."""

    MUON = "muon"


OPTIMIZERS = [name.value for names in (OwnOptimizerNames, OptimizerNames) for name in names]


@dataclass
class PretrainingArguments(CommonArguments):
    """Trainer's own arguments with the defaults of a short run on the built-in corpus."""

    output_dir: str | None = option("runs/pretrain", "Directory for checkpoints, the model, its card and its metrics.")
    per_device_train_batch_size: int = option(16, "Examples per step and device.")
    learning_rate: float = option(1e-3, "Peak learning rate. 1e-4 is BERT's for the base size.")
    optim: str = option(
        OwnOptimizerNames.MUON.value,
        "muon: Muon (Jordan 2024) for the matrices of the encoder's layers, AdamW for all other parameters. The others "
        f"are Trainer's: {', '.join(OPTIMIZERS[1:])}.",
    )
    muon_learning_rate: float = option(
        0.02, "Peak learning rate of Muon; that of its AdamW is learning_rate.", within="(0, 10]"
    )
    weight_decay: float = option(
        0.1,
        "Decoupled weight decay, not applied to biases and LayerNorms. With Muon, it keeps attention from collapsing in a "
        "long run. BERT's is 0.01.",
    )
    num_train_epochs: float = option(6, "Passes over the corpus, each with newly drawn pairs.")
    eval_strategy: str = option("steps", "When to evaluate: no, steps or epoch.")
    eval_steps: float | None = option(250, "Steps between evaluations.")
    save_steps: float = option(500, "Steps between checkpoints.")
    save_total_limit: int | None = option(2, "Number of checkpoints to keep.")
    logging_steps: float = option(100, "Steps between log lines.")
    pack_sequences: bool = option(
        False,
        "Pack the sequences of a training batch into fewer of max_seq_length. For GPUs and torch_compile, where "
        "padding is computed; elsewhere it is left out in any case.",
    )
    final_max_seq_length: int | None = option(
        None,
        "Tokens in a sequence of the last steps, as the paper's 512 after 128 (appendix A.2). Needs max_steps. There, the run "
        "goes on as if it were resumed: with its optimizer and schedule.",
        within="[5, 1000000]",
    )
    final_share: float = option(0.1, "Share of the steps that have final_max_seq_length.", within="(0, 1)")
    show_predictions: int = option(
        4, "After training: masked words, and pairs of segments, to show with predictions.", within="[0, inf)"
    )
    tensorboard_graph: bool = option(False, "With report_to tensorboard: show the model's graph there, too.")
    remove_unused_columns: bool = option(False, "Must stay False: the collator reads more columns than the model.")
    batch_eval_metrics: bool = option(True, "Must stay True: metrics are summed batch by batch, no logits are kept.")

    def __post_init__(self):
        optim = self.optim
        if optim not in OPTIMIZERS:
            known = f" There are {', '.join(OPTIMIZERS)}."
            raise ValueError(f"There is no optim {optim}.{similar(optim, OPTIMIZERS) or known}")
        if optim == OwnOptimizerNames.MUON:
            self.optim = OptimizerNames.ADAMW_TORCH  # as `TrainingArguments` takes its own names alone
        super().__post_init__()
        if optim == OwnOptimizerNames.MUON:
            self.optim = OwnOptimizerNames.MUON
            refuse(self, ["optim_args", "optim_target_modules"], "with optim muon")
        else:
            refuse(self, ["muon_learning_rate"], "without optim muon")
        if "tensorboard" not in self.report_to:
            refuse(self, ["tensorboard_graph"], "without report_to tensorboard")
        if not self.final_max_seq_length:
            refuse(self, ["final_share"], "without final_max_seq_length")
        elif not 0 < self.final_phase_start() < self.max_steps:
            raise ValueError("final_max_seq_length needs max_steps, of which final_share is one or more, but not all.")
        self.must_stay(
            remove_unused_columns=(False, "the collator reads more columns than the model"),
            batch_eval_metrics=(True, "metrics are summed batch by batch"),
            prediction_loss_only=(False, "metrics are computed from predictions"),
            label_smoothing_factor=(0, "both losses come from the model itself"),
            dataloader_persistent_workers=(False, "persistent workers would keep the first epoch's examples"),
        )

    def final_phase_start(self) -> int:
        """After which step sequences have `final_max_seq_length` tokens."""
        return self.max_steps - round(self.max_steps * self.final_share)


@dataclass
class PreparationDataArguments(DataArguments):
    """How documents become examples: of a `DataArguments`, what applies to text that others read."""

    USED: ClassVar = (
        "text_column",
        "text_format",
        "sentence_splitter",
        "language",
        "tokenizer_name_or_path",
        "sentence_objective",
        "max_seq_length",
        "short_seq_prob",
        "single_segment_prob",
    )

    max_seq_length: str | None = option("128", "Tokens in a sequence: [CLS], two segments, two [SEP].")

    def __post_init__(self):
        refuse(self, self.unused(), "here")
        super().__post_init__()
        if not self.tokenizer_name_or_path:
            raise ValueError("--tokenizer_name_or_path is required: all tasks need the same one.")
        if parse_max_seq_length(self.max_seq_length)[0] is None:
            raise ValueError("max_seq_length must be a number: the whole text is not known.")

    @classmethod
    def unused(cls) -> list[str]:
        return [field.name for field in dataclasses.fields(cls) if field.name not in cls.USED]


@dataclass
class PreparationArguments:
    input_dir: str | None = option(
        None, "Directory of the text: local, or as fsspec names it, such as s3://bucket/text."
    )
    input_format: str = option(
        "jsonl",
        "Of its files, compressed or not. Of warc, the main text of the HTML pages is extracted.",
        choices=["jsonl", "parquet", "csv", "warc"],
    )
    glob_pattern: str | None = option(
        None, "Which files to read, such as '**/*.jsonl.gz'; * does not match /. Default: all, with subdirectories."
    )
    output_dir: str | None = option(None, "Directory for the examples, on a file system that all tasks share.")
    split: str = option(
        "train", "Whether the examples are to train or to evaluate on.", choices=["train", "validation"]
    )
    seed: int = option(42, "Of the pairs.", within="[0, 4294967296)")
    tasks: int = option(1, "Into how many tasks the files are divided.", within="[1, inf)")
    workers: int = option(-1, "How many tasks run at a time. Default: all.", within="[-1, inf)")
    executor: str = option("local", "What runs the tasks: one of datatrove's.", choices=["local", "slurm", "ray"])
    executor_options: str | None = option(
        None, """More options of the executor, as JSON: for Slurm, '{"partition": "cpu", "time": "10:00:00"}'."""
    )

    def __post_init__(self):
        for name in ("input_dir", "output_dir"):
            if not getattr(self, name):
                raise ValueError(f"--{name} is required.")
        check_ranges(self)
        if self.workers == 0:
            raise ValueError("workers must be at least 1, or -1 for as many as tasks.")
        try:
            self.executor_options = json.loads(self.executor_options or "{}")
        except ValueError as error:
            raise ValueError(f"executor_options must be JSON: {error}.") from None
        if not isinstance(self.executor_options, dict):
            raise ValueError("executor_options must be a JSON object.")


@dataclass
class EvaluationDataArguments(DataArguments):
    """The text to evaluate on: `validation_file` alone is all of it."""

    TOKENIZER: ClassVar = ("tokenizer_name_or_path", *TOKENIZER_TRAINING)
    UNSUPPORTED: ClassVar = (*TOKENIZER, "streaming", "stream_buffer", "single_segment_prob")

    mlm_probability: float = option(EVAL_MLM_PROBABILITY, "Share of the tokens to predict.", within="(0, 1]")

    def __post_init__(self):
        refuse(self, self.TOKENIZER, "in an evaluation, which uses the models' tokenizer")
        refuse(self, ["streaming"], "in an evaluation, which needs the same examples each time")
        refuse(
            self,
            ["single_segment_prob"],
            "in an evaluation: evaluate with --sentence_objective none for single segments",
        )
        super().__post_init__()
        if self.validation_file and not (self.train_file or self.dataset_name):
            self.train_file, self.validation_file, self.validation_share = self.validation_file, None, 0.0


@dataclass
class EvaluationArguments:
    model_name_or_path: list[str] | None = option(
        None, "The models to evaluate, of one tokenizer: directories or Hub repositories, scratch_bert or BERT."
    )
    trust_remote_code: bool = option(False, "Run the code of a custom-code model.")
    per_device_eval_batch_size: int = option(
        32, "Examples per step and device. The masks depend on it.", within="[1, inf)"
    )
    bf16: bool = option(False, "bf16 autocast instead of fp32.")
    seed: int = option(
        42,
        "Of the held-out documents, the pairs and the masks; default: that of pretraining.",
        within="[0, 4294967296)",
    )
    show_predictions: int = option(
        0, "Masked words, and pairs of segments, to show with each model's predictions.", within="[0, inf)"
    )
    output_file: str | None = option(None, "A JSON file to write the metrics to; it must not exist yet.")

    def __post_init__(self):
        if not self.model_name_or_path:
            raise ValueError("--model_name_or_path is required: the models to evaluate.")
        check_ranges(self)
        if self.output_file and Path(self.output_file).exists():
            raise ValueError(f"output_file {self.output_file} exists: choose another name.")
        if self.output_file and not Path(self.output_file).resolve().parent.is_dir():
            raise ValueError(f"The directory of output_file {self.output_file} does not exist: create it first.")


@dataclass
class InspectionArguments(PretrainingArguments):
    """The options of pretrain.py are accepted; of those of model and Trainer, only the seed and the names of the model to
    continue from and of its added tokens have an effect."""

    output_dir: str | None = option("", "Write the examples and the tokenizer to this new directory.")
    show: int = option(3, "Examples to show as text.", within="[0, inf)")
    sample: int = option(20_000, "Maximum number of examples to compute the statistics from.", within="[1, inf)")
    json: bool = option(False, "Print the statistics as JSON, and nothing else.")

    @staticmethod
    def without_effect() -> set[str]:
        """The options that are accepted, so that those of a run can be given as they are, but not used."""
        fields = (*dataclasses.fields(PretrainingArguments), *dataclasses.fields(ModelArguments))
        used = {"seed", "output_dir", "model_name_or_path", "add_tokens"}
        return {field.name for field in fields} - used
