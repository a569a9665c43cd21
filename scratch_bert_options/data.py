"""The options from text to masked examples."""

import os
import re
from pathlib import Path
from typing import Any, ClassVar

from .declare import OptionGroup, option, options, reject_non_default, similar
from .text_formats import FORMATS


# As in huggingface_hub, which can't be imported if its variables hold junk.
HF_HOME = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface"))


@options
class TrainingTextOptions(OptionGroup, group="Source"):
    """The text to train on: files or a dataset; without either, the built-in corpus."""

    train_file: list[str] | None = option(
        None,
        "Text: files, globs or directories of UTF-8 text, .csv, .tsv, .json, .jsonl or .ndjson, gzipped or not, or "
        ".parquet. Default: the built-in corpus, Python's help texts.",
        path=True,
    )
    dataset_name: str | None = option(
        None,
        "Dataset on the Hub, or a directory for datasets.load_dataset, with splits train and validation.",
        path=True,
    )
    dataset_config: str | None = option(None, "Configuration of the dataset.", requires="dataset_name")

    def __post_init__(self):
        super().__post_init__()
        if len(self.sources) > 1:
            raise ValueError(f"Give one of {' and '.join(self.sources)}, not both.")

    @property
    def sources(self) -> list[str]:
        """The options that name the training text, one at most."""
        return [name for name in ("train_file", "dataset_name", "prepared_data") if getattr(self, name, None)]


@options
class SourceOptions(TrainingTextOptions, group="Source"):
    """The text to train and to evaluate on, or preprocessed examples."""

    part_kind: ClassVar[str] = "held-out"
    """What the validation text is called in messages."""

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
    prepared_data: str | None = option(
        None, "Preprocessed examples from inspect_data.py --output_dir or prepare_data.py.", path=True
    )
    cache_dir: str = option(
        str(Path(os.environ.get("HF_DATASETS_CACHE", HF_HOME / "datasets"), "scratch_bert").expanduser()),
        "Directory for token ids and trained tokenizers.",
    )


@options
class StreamOptions(OptionGroup, group="Source"):
    streaming: bool = option(
        False, "Read the text during training. Examples then depend on the number of workers and machines."
    )
    stream_buffer: int = option(
        1000, "Documents to draw pairs from, or examples to shuffle.", within="[2, 1e9]", requires="streaming"
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


def check_splitting(sentence_splitter: str, language: str | None, text_format: str | None = None) -> None:
    """Raise `ValueError` for an empty or misspelt splitter, for a language that is not an ISO 639 code (any three
    letters pass), and for an unknown format."""
    if text_format is not None and text_format not in FORMATS:
        raise ValueError(f"text_format must be one of {', '.join(FORMATS)}; got {text_format!r}.")
    if language and language not in LANGUAGES.split() and not re.fullmatch(r"[a-z]{3}", language):
        raise ValueError(f"language must be an ISO 639 code, such as en, got {language}.")
    if not sentence_splitter:
        raise ValueError("sentence_splitter must not be empty.")
    typo = similar(sentence_splitter, SPLITTERS) if sentence_splitter not in SPLITTERS else ""
    if typo:
        raise ValueError(f"There is no sentence_splitter {sentence_splitter}.{typo}")


@options
class DocumentOptions(OptionGroup, group="Text", unless="prepared_data"):
    """How text is read and split into documents."""

    text_column: str = option("text", "Column that holds the text of a table or dataset.")
    text_format: str | None = option(
        None,
        "How text is split into documents. Default: blank_line for text files, file for tables. "
        + "; ".join(f"{name}: {text_format.description}" for name, text_format in FORMATS.items())
        + ".",
    )


@options
class TextOptions(DocumentOptions, group="Text", unless="prepared_data"):
    """How text is split into documents and sentences."""

    sentence_splitter: str = option(
        "sentencex",
        "How to split text into sentences. sentencex: by the language's rules; line: at line ends; other: a delimiter.",
    )
    language: str | None = option(
        None, "ISO 639 code of the language, for sentencex (default: en) and the model card."
    )

    def __post_init__(self):
        super().__post_init__()
        check_splitting(self.sentence_splitter, self.language, self.text_format)


TOKENIZER_TYPES = {
    "wordpiece": "BERT's, words and parts of words",
    "wordlevel": "complete words",
    "character": "characters, as for proteins and SMILES",
    **{f"{k}-mer": f"runs of {k} characters, as for DNA" for k in (3, 4, 5, 6)},
}


@options
class TokenizerTrainingOptions(OptionGroup, group="Tokenizer", unless="prepared_data tokenizer_name_or_path"):
    tokenizer_type: str = option("wordpiece", "Tokenizer to train.", choices=TOKENIZER_TYPES)
    vocab_size: int | None = option(
        None, "Maximum vocabulary size. Default: 30528, or 2048 for the built-in corpus.", within="[6, 100000000]"
    )
    min_frequency: int = option(2, "Minimum frequency of a word or word piece.", within="[0, 4294967296)")
    lowercase: bool | None = option(None, "Lowercase the text. auto: for wordpiece and wordlevel.")
    strip_accents: bool | None = option(
        None,
        "Remove accents (é → e), like uncased BERT. auto: if text is lowercased and they are as rare as in English; "
        "in other languages they are part of the spelling.",
    )
    first_segment_id: int = option(
        0, "Segment id of text A; B's is one higher. BERT uses 0; with 1, only padding has id 0.", choices=[0, 1]
    )

    @property
    def lowercases(self) -> bool:
        return self.tokenizer_type in ("wordpiece", "wordlevel") if self.lowercase is None else self.lowercase

    def tokenizer_options(self) -> dict[str, Any]:
        """The arguments of `train_tokenizer`, defaults resolved."""
        vocab_size = 30528 if self.sources else 2048  # 30522 is BERT's, but GPUs prefer multiples of 64
        options = {name: getattr(self, name) for name in TOKENIZER_TRAINING}
        return options | {"vocab_size": self.vocab_size or vocab_size, "lowercase": self.lowercases}


TOKENIZER_TRAINING = tuple(TokenizerTrainingOptions.__dataclass_fields__)


@options
class TokenizerOptions(TokenizerTrainingOptions, group="Tokenizer"):
    tokenizer_name_or_path: str | None = option(
        None, "Tokenizer to use instead of training one: a directory or Hub repository.", path=True
    )


@options
class ExampleOptions(OptionGroup, group="Examples", unless="prepared_data"):
    """How sequences are built."""

    fits_models: ClassVar[bool] = False
    """Whether sequences are shortened to the length that the evaluated models take."""

    sentence_objective: str = option(
        "nsp",
        "Objective of the second head. nsp: next-sentence prediction, as in BERT; sop: sentence order, as in ALBERT; "
        "none: masked language modelling alone; or one that your own code registers.",
    )
    max_seq_length: int | str | None = option(
        None,
        "Maximum number of tokens in a sequence; or auto:70, to fit two sentences at the 70th percentile of length. "
        "Default: 128; built-in corpus: 64.",
    )
    short_seq_prob: float = option(0.1, "Probability that an example is cut to a random length.", within="[0, 1]")

    def __post_init__(self):
        super().__post_init__()
        if self.max_seq_length is None:
            self.max_seq_length = 128 if self.sources else 64
        match = re.fullmatch(r"([0-9]+)|auto:0*([1-9][0-9]?|100)", str(self.max_seq_length))
        if not match or int(match[1] or 0) > 1_000_000:
            raise ValueError(
                f"max_seq_length must be a number up to 1000000 or auto:1 to auto:100, got {self.max_seq_length}."
            )
        self.max_seq_length = int(match[1]) if match[1] else match[0]


@options
class SegmentOptions(OptionGroup, group="Examples", unless="prepared_data"):
    single_segment_prob: float = option(
        0.0,
        "Probability that a training example is a single segment, for MLM only, to learn to read single texts.",
        within="[0, 1)",
    )


@options
class MaskingOptions(OptionGroup, group="Masking"):
    mlm_probability: float = option(
        0.3, "Fraction of tokens to predict in training; evaluation uses BERT's 0.15.", within="(0, 1]"
    )
    mask_replace_prob: float = option(0.8, "Fraction of the selected tokens to replace with [MASK].", within="[0, 1]")
    random_replace_prob: float = option(
        0.1, "Fraction of the selected tokens to replace with random ones; the rest stay.", within="[0, 1]"
    )
    whole_word_mask: bool = option(False, "Whole-word masking: select all pieces of a word together.")
    max_predictions_per_seq: int | None = option(
        None, "Maximum number of tokens to predict in a sequence.", within="[1, 1000000]"
    )

    def __post_init__(self):
        super().__post_init__()
        total = self.mask_replace_prob + self.random_replace_prob
        if total > 1 + 1e-9:
            raise ValueError(f"mask_replace_prob and random_replace_prob must not exceed 1 in total, got {total:g}.")
        if total == 0:
            raise ValueError("mask_replace_prob and random_replace_prob are 0: the model would see what it predicts.")


@options
class DataOptions(
    MaskingOptions,
    SegmentOptions,
    ExampleOptions,
    TokenizerOptions,
    TextOptions,
    StreamOptions,
    SourceOptions,
    group="Examples",
):
    """The options of all steps from the text to masked examples."""

    split_seed: int = option(
        42,
        "Random seed of the held-out text, its pairs and masks, which runs with different seeds share.",
        within="[0, 4294967296)",
    )
    static_pairs: bool = option(
        False, "Keep the first epoch's pairs, instead of drawing new ones.", unless="prepared_data streaming"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.sentence_objective == "none":
            reject_non_default(self, ["single_segment_prob"], "with sentence_objective none")
        if self.streaming and not self.sources:
            raise ValueError("streaming needs a train_file, a dataset_name or prepared_data.")


@options
class InMemoryDataOptions(DataOptions):
    """The options for texts in memory, which no option names."""

    @property
    def sources(self) -> list[str]:
        return ["texts in memory", *super().sources]
