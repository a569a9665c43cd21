"""The options of pretraining, of evaluating a pretrained model, and of inspecting and preprocessing its data."""

import json
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import ClassVar

from huggingface_hub.constants import HF_HOME

from .declare import OptionGroup, option, options, reject_non_default, similar
from .outputs import check_new_dir, check_new_file, check_output_dir
from .training import EVALUATION, INTERVALS, CommonOptions


EVAL_MLM_PROBABILITY = 0.15  # BERT's (paper, section 3.1), whatever the value in training


@options
class ContinuationArguments(OptionGroup, group="Model"):
    model_name_or_path: str | None = option(
        None,
        "Continue from this scratch_bert or BERT, a directory or Hub repository. New heads are randomly initialised.",
        path=True,
    )
    add_tokens: str | None = option(
        None,
        "File of words or ##continuations to add to its vocabulary, one per line; each starts as the mean of its "
        "pieces.",
        path=True,
        requires="model_name_or_path",
    )


@options
class ArchitectureArguments(OptionGroup, group="Model"):
    preset: str = option(
        "micro",
        "Size of the model, as published for BERT: tiny, mini, small, medium, base or large; micro is tiny with four "
        "heads.",
        unless="model_name_or_path",
    )
    config_overrides: str | None = option(
        None, "Config fields to change, such as norm_first=true,head_dim=32.", unless="model_name_or_path"
    )
    max_position_embeddings: int | None = option(
        None,
        "Maximum sequence length of the model; beyond a pretrained model's, position embeddings are repeated. "
        "Default: max_seq_length.",
        within="[1, 1000000]",
    )
    token_embedding_init: str = option(
        "lsa",
        "Initial token embeddings: latent semantic analysis of the text, or random as in BERT.",
        choices=["lsa", "normal"],
        unless="model_name_or_path",
    )
    dropout: float = option(
        0.0, "Dropout for hidden states and attention. BERT has 0.1, for many passes over the text.", within="[0, 1)"
    )


@options
class ModelOptions(ContinuationArguments, ArchitectureArguments):
    """The model to start from."""


@options
class SourceArguments(OptionGroup, group="Source"):
    """The source of the text: files or a dataset; without either, the built-in corpus."""

    part_kind: ClassVar[str] = "held-out"
    """What the validation text is called in messages."""

    train_file: list[str] | None = option(
        None,
        "Text: files, globs or directories of UTF-8 text, .csv, .tsv, .json or .jsonl, gzipped or not, or .parquet. "
        "Default: the built-in corpus, Python's help texts and docstrings.",
        path=True,
    )
    validation_file: list[str] | None = option(
        None,
        "Text to evaluate on. Default: a part of the training text is held out.",
        unless="prepared_data",
        path=True,
    )
    validation_share: float = option(
        0.1,
        "Approximate fraction of the text to hold out: documents drawn at random, or the ends of long ones; 0 for "
        "none.",
        within="[0, 1)",
        unless="prepared_data streaming",
    )
    dataset_name: str | None = option(
        None,
        "Dataset on the Hub, or a directory for datasets.load_dataset: its splits train and validation.",
        path=True,
    )
    dataset_config: str | None = option(None, "Configuration of the dataset.", requires="dataset_name")
    prepared_data: str | None = option(
        None, "Directory of preprocessed examples, by inspect_data.py --output_dir or prepare_data.py.", path=True
    )
    cache_dir: str = option(
        str(Path(os.environ.get("HF_DATASETS_CACHE", Path(HF_HOME, "datasets")), "scratch_bert")),
        "Directory for token ids and trained tokenizers.",
    )

    def __post_init__(self):
        super().__post_init__()
        if len(self.sources) > 1:
            raise ValueError(f"Give one of {' and '.join(self.sources)}, not both.")

    @property
    def sources(self) -> list[str]:
        """The options that name the training text, one at most."""
        return [name for name in ("train_file", "dataset_name", "prepared_data") if getattr(self, name)]


@options
class StreamArguments(OptionGroup, group="Source"):
    streaming: bool = option(
        False, "Read the text during training. Examples then depend on the number of workers and machines."
    )
    stream_buffer: int = option(
        1000, "Documents to draw pairs among, or examples to shuffle.", within="[2, 1e9]", requires="streaming"
    )


SPLITTERS = ("sentencex", "line")
LANGUAGES = (  # ISO 639-1
    "aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el "
    "en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it "
    "iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt "
    "my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk "
    "sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi "
    "yo za zh zu"
)


def check_splitting(sentence_splitter: str, language: str | None) -> None:
    """Raise `ValueError` for an empty or misspelt splitter, and for a language that is not an ISO 639 code (any three
    letters pass)."""
    if language and language not in LANGUAGES.split() and not re.fullmatch(r"[a-z]{3}", language):
        raise ValueError(f"language must be an ISO 639 code, such as en, got {language}.")
    if not sentence_splitter:
        raise ValueError("sentence_splitter must not be empty.")
    typo = similar(sentence_splitter, SPLITTERS) if sentence_splitter not in SPLITTERS else ""
    if typo:
        raise ValueError(f"There is no sentence_splitter {sentence_splitter}.{typo}")


@options
class TextArguments(OptionGroup, group="Text", unless="prepared_data"):
    """How text is split into documents and sentences."""

    text_column: str = option("text", "Column that holds the text of a table or dataset.")
    text_format: str | None = option(
        None,
        "How text is split into documents. Default: blank_line for text files, file for tables. blank_line: a blank "
        "line ends a document; file: a file, or a record of a table, is a document, and blank lines separate its "
        "paragraphs; wikitext: ' = Title = ' begins a document; gutenberg: a file is a book, without Project "
        "Gutenberg's licence; html: as file, with <br> tags for line breaks and entities such as &amp;.",
    )
    sentence_splitter: str = option(
        "sentencex",
        "How to split text into sentences. sentencex: by the language's rules; line: at line ends; else: a delimiter.",
    )
    language: str | None = option(
        None, "ISO 639 code of the language, for sentencex (default: en) and the model card."
    )

    def __post_init__(self):
        super().__post_init__()
        check_splitting(self.sentence_splitter, self.language)


@options
class TokenizerTrainingArguments(OptionGroup, group="Tokenizer", unless="prepared_data tokenizer_name_or_path"):
    tokenizer_type: str = option(
        "wordpiece", "Tokenizer to train: BERT's WordPiece, or complete words.", choices=["wordpiece", "wordlevel"]
    )
    vocab_size: int | None = option(
        None, "Maximum vocabulary size. Default: 30528, or 2048 for the built-in corpus.", within="[6, 100000000]"
    )
    min_frequency: int = option(2, "Minimum frequency of a word or word piece.", within="[0, 4294967296)")
    lowercase: bool = option(True, "Lower-case the text and strip its accents, as uncased BERT.")
    first_segment_id: int = option(
        0, "Segment id of segment A; B's is one more. 0 is BERT's; with 1, padding has its own id, 0.", choices=[0, 1]
    )

    def max_vocab_size(self) -> int:
        """The size limit of a tokenizer that is trained on the text."""
        return self.vocab_size or (30528 if self.sources else 2048)  # 30522 is BERT's, but GPUs prefer multiples of 64


TOKENIZER_TRAINING = tuple(TokenizerTrainingArguments.__dataclass_fields__)


@options
class TokenizerArguments(TokenizerTrainingArguments, group="Tokenizer"):
    tokenizer_name_or_path: str | None = option(
        None, "Tokenizer to use instead of training one: a directory or Hub repository.", path=True
    )


@options
class ExampleArguments(OptionGroup, group="Examples", unless="prepared_data"):
    """How sequences are built."""

    fits_models: ClassVar[bool] = False
    """Whether sequences are shortened to the length that the evaluated models take."""

    sentence_objective: str = option(
        "nsp",
        "Objective of the second head. nsp: next-sentence prediction, as in BERT; sop: sentence order, as in ALBERT; "
        "none: masked language modelling alone; or one that your own code registers.",
    )
    max_seq_length: str | None = option(
        None,
        "Maximum number of tokens in a sequence; or auto:70, to fit two sentences of the 70th percentile of length. "
        "Default: 128; built-in corpus: 64.",
    )
    short_seq_prob: float = option(0.1, "Probability that an example is cut to a random length.", within="[0, 1]")

    def __post_init__(self):
        super().__post_init__()
        if self.max_seq_length is None:
            self.max_seq_length = "128" if self.sources else "64"
        self.max_tokens, self.length_percentile = parse_max_seq_length(self.max_seq_length)  # one of them is None


@options
class SegmentArguments(OptionGroup, group="Examples", unless="prepared_data"):
    single_segment_prob: float = option(
        0.0,
        "Probability that a training example is one segment, for MLM alone, to learn to read single texts.",
        within="[0, 1)",
    )


@options
class MaskingArguments(OptionGroup, group="Masking"):
    mlm_probability: float = option(
        0.3, "Fraction of the tokens to predict in training; evaluation uses BERT's 0.15.", within="(0, 1]"
    )
    mask_replace_prob: float = option(0.8, "Fraction of the selected tokens that [MASK] replaces.", within="[0, 1]")
    random_replace_prob: float = option(
        0.1, "Fraction of the selected tokens that a random token replaces; the others stay.", within="[0, 1]"
    )
    whole_word_mask: bool = option(False, "Whole-word masking: select all pieces of a word together.")
    max_predictions_per_seq: int | None = option(
        None, "Maximum number of tokens to predict in a sequence.", within="[1, 1000000]"
    )

    def __post_init__(self):
        super().__post_init__()
        total = self.mask_replace_prob + self.random_replace_prob
        if total > 1 + 1e-9:
            raise ValueError(f"mask_replace_prob and random_replace_prob must add up to 1 at most, got {total:g}.")


@options
class DataArguments(
    MaskingArguments,
    SegmentArguments,
    ExampleArguments,
    TokenizerArguments,
    TextArguments,
    StreamArguments,
    SourceArguments,
    group="Examples",
):
    """The options of all steps from the text to masked examples."""

    static_pairs: bool = option(
        False, "Keep the first epoch's pairs, instead of drawing new ones.", unless="prepared_data streaming"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.streaming and not self.sources:
            raise ValueError("streaming needs a train_file, a dataset_name or prepared_data.")


@options
class InMemoryDataOptions(DataArguments):
    """The options for texts in memory, which no option names."""

    @property
    def sources(self) -> list[str]:
        return ["texts in memory", *super().sources]


def parse_max_seq_length(text: str | int) -> tuple[int | None, int | None]:
    """Parse `"128"` to (128, None), tokens, or `"auto:70"` to (None, 70), a percentile of the sentences' lengths."""
    match = re.fullmatch(r"(\d+)|auto:0*([1-9]\d?|100)", str(text))
    if not match:
        raise ValueError(f"max_seq_length must be a number or auto:1 to auto:100, got {text}.")
    tokens, percentile = (int(group) if group else None for group in match.groups())
    if tokens and tokens > 1_000_000:
        raise ValueError(f"max_seq_length must be at most 1,000,000, got {tokens}.")
    return tokens, percentile


@options
class PretrainingOptions(CommonOptions, group="Training"):
    """The options of training, with the defaults of a short run on the built-in corpus."""

    numbered: ClassVar = "runs/pretrain"

    output_dir: str | None = option(
        None,
        "Directory for checkpoints, the model, its card and its metrics. Default: runs/pretrain-1, or the next free "
        "number; to resume, the newest.",
    )
    num_train_epochs: float = option(6, "Passes over the corpus, each with newly drawn pairs.", within="(0, 1e9]")
    per_device_train_batch_size: int = option(16, "Examples per step and device.", within="[1, 1000000]")
    learning_rate: float = option(1e-3, "Peak learning rate. BERT base has 1e-4.", within="[0, 10]")
    optim: str = option(
        "muon",
        "muon: Muon (Jordan 2024) for the encoder's matrices, AdamW otherwise; or one of Trainer's, as adamw_torch.",
    )
    muon_learning_rate: float = option(0.02, "Peak learning rate for Muon; AdamW has learning_rate.", within="(0, 10]")
    weight_decay: float = option(
        0.1,
        "Decoupled weight decay, excluding biases and LayerNorms. With BERT's 0.01, attention collapses in long runs "
        "with Muon.",
        within="[0, 10]",
    )
    pack_sequences: bool = option(
        False,
        "Pack a batch into fewer sequences. For torch_compile, and for GPUs in fp32 or with attention dropout.",
    )
    final_max_seq_length: int | None = option(
        None,
        "Sequence length of the final phase. Needs max_steps or max_minutes.",
        within="[5, 1000000]",
    )
    final_mlm_probability: float | None = option(
        None,
        "Fraction of tokens to predict in the final phase. Needs max_steps or max_minutes.",
        within="(0, 1]",
    )
    final_share: float = option(0.1, "Fraction of the steps, or of the time, in the final phase.", within="(0, 1)")
    eval_strategy: str = option("steps", "When to evaluate.", choices=INTERVALS)
    eval_steps: float | None = option(250, "Steps between evaluations.", within="(0, 1e9]")
    save_total_limit: int | None = option(2, "Number of checkpoints to keep.", within="[1, 1e9]")
    logging_steps: float = option(
        100, "Steps between log lines; with max_minutes, also every 30 s.", within="(0, 1e9]"
    )
    max_eval_examples: int = option(
        4000,
        "Maximum number of examples, evenly spread, to evaluate on in and after training; 0 for all.",
        within="[0, 1e9]",
        group=EVALUATION,
    )
    show_predictions: int = option(
        4, "Masked words and pairs to show with predictions at the end.", within="[0, 1000000]", group=EVALUATION
    )
    snapshots: int | None = option(
        None,
        "Models to keep for the page of demo.py. Default: 20, or 0 for more than 25 M parameters.",
        within="[0, 1000]",
        group=EVALUATION,
    )
    tensorboard_graph: bool = option(False, "Show the model's graph in TensorBoard.", group=EVALUATION)

    def __post_init__(self):
        super().__post_init__()
        if self.optim != "muon":
            reject_non_default(self, ["muon_learning_rate"], "without optim muon")
        if "tensorboard" not in (self.report_to or ()):
            reject_non_default(self, ["tensorboard_graph"], "without report_to tensorboard")
        if not self.has_final_phase and self.final_share != type(self).final_share:
            raise ValueError("final_share has no effect without final_max_seq_length or final_mlm_probability.")
        if self.has_final_phase and not (self.max_minutes or 0 < self.final_phase_start() < 1):
            raise ValueError(
                f"{'final_max_seq_length' if self.final_max_seq_length else 'final_mlm_probability'} needs max_steps "
                "or max_minutes, and a final_share that leaves steps for both phases."
            )

    @property
    def has_final_phase(self) -> bool:
        return self.final_max_seq_length is not None or self.final_mlm_probability is not None

    def final_phase_start(self) -> float:
        """The fraction of the steps, or of the time, after which the final phase begins."""
        if self.max_minutes:
            return 1 - self.final_share
        return (self.max_steps - round(self.max_steps * self.final_share)) / self.max_steps


@options
class PreparationDataArguments(SegmentArguments, ExampleArguments, TextArguments, group="Tokenizer"):
    """From the documents that datatrove reads to examples."""

    max_seq_length: str | None = option("128", "Maximum number of tokens in a sequence.")
    tokenizer_name_or_path: str | None = option(
        None, "Tokenizer of the examples: a local directory or a Hub repository. Required.", path=True
    )

    def __post_init__(self):
        super().__post_init__()
        if not self.tokenizer_name_or_path:
            raise ValueError("--tokenizer_name_or_path is required: all tasks need the same tokenizer.")
        if self.max_tokens is None:
            raise ValueError("max_seq_length must be a number: the sentences' lengths are not known.")


@options
class PreparationArguments(OptionGroup, group="Tasks"):
    input_dir: str | None = option(
        None, "Directory of the text: local, or as fsspec names it, such as s3://bucket/text. Required.", path=True
    )
    input_format: str = option(
        "jsonl",
        "Input file format; files may be compressed. For warc, the main text of the HTML pages is extracted.",
        choices=["jsonl", "parquet", "csv", "warc"],
    )
    glob_pattern: str | None = option(
        None, "Files to read, such as '**/*.jsonl.gz'; * does not match /. Default: all, with subdirectories."
    )
    output_dir: str | None = option(
        None, "Directory for the examples, on a file system that all tasks share. Required."
    )
    split: str = option("train", "Split that the examples are for.", choices=["train", "validation"])
    seed: int = option(42, "Random seed for sentence pairs.", within="[0, 4294967296)")
    tasks: int = option(1, "Number of tasks that the files are divided among.", within="[1, 1000000]")
    workers: int = option(-1, "Number of tasks that run at a time; -1 for all.", within="[-1, 1000]")
    executor: str = option(
        "local", "What runs the tasks: one of datatrove's executors.", choices=["local", "slurm", "ray"]
    )
    executor_options: str | None = option(
        None, """More options of the executor, as JSON; for Slurm, '{"partition": "cpu", "time": "10:00:00"}'."""
    )

    def __post_init__(self):
        for name in ("input_dir", "output_dir"):
            if not getattr(self, name):
                raise ValueError(f"--{name} is required.")
        super().__post_init__()
        check_output_dir("output_dir", Path(self.output_dir))
        if self.workers == 0:
            raise ValueError("workers must be at least 1, or -1 for all tasks at a time.")
        try:
            self.executor_options = json.loads(self.executor_options or "{}")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"executor_options must be JSON: {error}.") from None
        if not isinstance(self.executor_options, dict):
            raise ValueError("executor_options must be a JSON object.")


@options
class SuiteArguments(OptionGroup, group="Evaluation"):
    suite: str | None = option(
        None,
        "Evaluate on minimal pairs instead of text. blimp: how often the model prefers the grammatical sentence of a "
        "pair, by pseudo-log-likelihood and for each phenomenon. Options of text, examples and masks then have no "
        "effect.",
        choices=["blimp"],
    )
    suite_data: str | None = option(
        None,
        "The suite's pairs: a file of JSON lines, a directory of such files, or a dataset on the Hub. "
        "Default: nyu-mll/blimp.",
        path=True,
        requires="suite",
    )
    add_to_card: bool = option(
        False, "Add the suite's results to README.md and metrics.json of local models.", requires="suite"
    )


@options
class EvaluationDataArguments(MaskingArguments, ExampleArguments, TextArguments, SourceArguments, SuiteArguments):
    """The text to evaluate on: all of `validation_file`, if given alone. The models provide the tokenizer."""

    part_kind: ClassVar = "evaluated"
    streaming: ClassVar = False
    static_pairs: ClassVar = False
    single_segment_prob: ClassVar = 0.0
    tokenizer_name_or_path: ClassVar = None

    mlm_probability: float = option(EVAL_MLM_PROBABILITY, "Fraction of the tokens to predict.", within="(0, 1]")

    def __post_init__(self):
        if self.suite:
            of_text = [
                option.name for option in fields(self) if option.name not in SuiteArguments.__dataclass_fields__
            ]
            reject_non_default(self, of_text, "with suite")
        if self.validation_file and not self.sources:
            self.train_file, self.validation_file, self.validation_share = self.validation_file, None, 0.0
        self.fits_models = self.max_seq_length is None
        super().__post_init__()  # which chooses max_seq_length by the text


@options
class EvaluationArguments(SuiteArguments, group="Evaluation"):
    model_name_or_path: list[str] | None = option(
        None,
        "Models to evaluate: directories or Hub repositories, scratch_bert or BERT; on text, with the same tokenizer. "
        "Required.",
        path=True,
    )
    trust_remote_code: bool = option(False, "Run the code of a custom-code model.")
    per_device_eval_batch_size: int = option(
        32, "Examples per step and device. The masks depend on it.", within="[1, 1000000]", unless="suite"
    )
    bf16: bool = option(False, "bf16 autocast instead of fp32.")
    seed: int = option(
        42,
        "Random seed for held-out text, pairs and masks. Default: that of pretraining.",
        within="[0, 4294967296)",
        unless="suite",
    )
    show_predictions: int = option(
        0, "Masked words and pairs to show with predictions.", within="[0, 1000000]", unless="suite"
    )
    output_file: str | None = option(None, "JSON file to write the metrics to; it must not exist yet.")

    def __post_init__(self):
        if not self.model_name_or_path:
            raise ValueError("--model_name_or_path is required: the models to evaluate.")
        super().__post_init__()
        if self.output_file:
            check_new_file("output_file", Path(self.output_file))


@options
class InspectionArguments(OptionGroup, group="Inspection"):
    output_dir: str | None = option(None, "Write the examples and the tokenizer to this new directory.")
    show: int = option(3, "Number of examples to show as text.", within="[0, 1000000]")
    sample: int = option(20_000, "Maximum number of examples to compute the statistics from.", within="[1, 1e9]")
    json: bool = option(False, "Print the statistics as JSON, and nothing else.")
    seed: int = option(42, "Random seed for held-out text, pairs and masks.", within="[0, 4294967296)")

    def __post_init__(self):
        super().__post_init__()
        if self.output_dir:
            check_new_dir("output_dir", Path(self.output_dir))
