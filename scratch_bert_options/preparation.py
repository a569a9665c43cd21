"""The options of preprocessing: a tokenizer, examples, and a look at them."""

from pathlib import Path
from typing import ClassVar

from pydantic import Json

from .data import (
    DocumentOptions,
    ExampleOptions,
    SegmentOptions,
    TextOptions,
    TokenizerTrainingOptions,
    TrainingTextOptions,
    check_splitting,
)
from .declare import OptionGroup, option, options
from .outputs import check_new_dir, check_output_dir


@options
class TokenizerPreparationOptions(TokenizerTrainingOptions, DocumentOptions, TrainingTextOptions, group="Sample"):
    """A tokenizer that is trained on a sample of the text, before any run."""

    sentence_splitter: ClassVar = "sentencex"
    language: ClassVar = None
    validation_file: ClassVar = None

    output_dir: str | None = option(None, "New directory for the tokenizer. Required.")
    sample_mb: float = option(
        100, "Megabytes of text to train on, a random sample of the paragraphs of all files.", within="(0, 1e6]"
    )
    streaming: bool = option(
        False, "Read only the beginning of each file of the dataset, without copying it.", requires="dataset_name"
    )
    seed: int = option(42, "Random seed of the sample.", within="[0, 4294967296)")

    def __post_init__(self):
        if not self.output_dir:
            raise ValueError("--output_dir is required.")
        super().__post_init__()
        check_splitting(self.sentence_splitter, self.language, self.text_format)
        check_new_dir("output_dir", Path(self.output_dir))


@options
class PreparationDataOptions(SegmentOptions, ExampleOptions, TextOptions, group="Tokenizer"):
    """From the documents that datatrove reads to examples."""

    max_seq_length: int | str | None = option(128, "Maximum number of tokens in a sequence.")
    tokenizer_name_or_path: str | None = option(
        None, "Tokenizer of the examples: a local directory or a Hub repository. Required.", path=True
    )

    def __post_init__(self):
        super().__post_init__()
        if not self.tokenizer_name_or_path:
            raise ValueError("--tokenizer_name_or_path is required: all tasks need the same tokenizer.")
        if isinstance(self.max_seq_length, str):
            raise ValueError("max_seq_length must be a number: the sentences' lengths are not known.")


@options
class PreparationOptions(OptionGroup, group="Tasks"):
    input_dir: str | None = option(
        None,
        "Directory of the text: local, or an fsspec URL such as s3://bucket/text. Required.",
        path=True,
        remote=True,
    )
    input_format: str = option(
        "jsonl",
        "Input file format; files may be compressed. For warc, the main text of the HTML pages is extracted.",
        choices=["jsonl", "parquet", "csv", "warc"],
    )
    glob_pattern: str | None = option(
        None, "Files to read, such as '**/*.jsonl.gz'; * does not match /. Default: all, including subdirectories."
    )
    output_dir: str | None = option(
        None, "Directory for the examples, on a file system that all tasks share. Required."
    )
    split: str = option("train", "Split that the examples are for.", choices=["train", "validation"])
    seed: int = option(42, "Random seed for sentence pairs.", within="[0, 4294967296)")
    tasks: int = option(1, "Number of tasks that the files are divided among.", within="[1, 1000000]")
    workers: int = option(-1, "Number of tasks to run concurrently; -1 for all.", within="[-1, 1000]")
    executor: str = option("local", "The datatrove executor that runs the tasks.", choices=["local", "slurm", "ray"])
    executor_options: Json | None = option(
        None, """Further executor options, as JSON; for Slurm, '{"partition": "cpu", "time": "10:00:00"}'."""
    )

    def __post_init__(self):
        for name in ("input_dir", "output_dir"):
            if not getattr(self, name):
                raise ValueError(f"--{name} is required.")
        super().__post_init__()
        check_output_dir("output_dir", Path(self.output_dir))
        if self.workers == 0:
            raise ValueError("workers must be at least 1, or -1 to run all tasks at once.")


@options
class InspectionOptions(OptionGroup, group="Inspection"):
    output_dir: str | None = option(None, "Write the examples and the tokenizer to this new directory.")
    show: int = option(3, "Number of examples to show as text.", within="[0, 1000000]")
    sample: int = option(20_000, "Maximum number of examples to compute the statistics from.", within="[1, 1e9]")
    json: bool = option(False, "Print the statistics as JSON, and nothing else.")
    seed: int = option(42, "Random seed for held-out text, pairs and masks.", within="[0, 4294967296)")

    def __post_init__(self):
        super().__post_init__()
        if self.output_dir:
            check_new_dir("output_dir", Path(self.output_dir))
