"""Preprocessed examples: parquet files, their tokenizer, and the options that they were made with."""

import json
import os
import tempfile
import zlib
from collections.abc import Iterator
from glob import escape
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, Field
from transformers import BatchEncoding, PreTrainedTokenizerBase

from scratch_bert_options.schema import check

from ..corpus.corpus import Block, Tokens
from ..corpus.encoder import mask_seed
from ..corpus.tokenizer import (
    copy_with_length,
    describe_vocabulary,
    gives_same_input,
    load_tokenizer,
    segment_ids,
    vocabulary_size,
)
from ..logs import logger
from ..objectives import Objective, find_objective
from ..repository import read_json
from ..text.files import TextError, read_errors
from .dataset import EpochDataset, SentencePairDataset


ABOUT = "examples.json"  # describes the examples, beside a directory per split


def check_values(table: pa.Table, objective: Objective, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Raise `TextError`, with this `name` of the examples and the column, for null, and for ids, segments, masks and
    labels out of their range, with which a model would train on something else, or fail in the middle of training."""
    highest = {
        "input_ids": vocabulary_size(tokenizer) - 1,
        "token_type_ids": max(segment_ids(tokenizer)),
        "special_tokens_mask": 1,
    }
    if objective.num_labels:
        highest[objective.label_column] = objective.num_labels - 1
    for column in objective.features():
        values = table.column(column)
        nulls = values.null_count
        if pa.types.is_list(values.type):
            values = pc.list_flatten(values)
        if nulls or values.null_count:
            raise TextError(f"{name}: the column {column} holds null.")
        if column == objective.label_column:
            values = values.filter(pc.not_equal(values, -100))
        found = pc.min_max(values).as_py()
        for value in filter(None, found.values()):
            if not 0 <= value <= highest.get(column, value):
                raise TextError(f"{name}: the column {column} holds {value}, outside 0 to {highest.get(column)}.")


class PreprocessedDataset(EpochDataset, Tokens):
    """Preprocessed examples, with a new `mask_seed` in each epoch.

    Raises `TextError`, with their `name`, for examples that do not fit the objective or the tokenizer.
    """

    def __init__(
        self,
        examples: datasets.Dataset,
        tokenizer: PreTrainedTokenizerBase,
        objective: Objective,
        seed: int = 0,
        name: str = "The preprocessed examples",
    ):
        check_values(examples.data.table, objective, tokenizer, name)
        self.examples = examples.select_columns(list(objective.features())).with_format("numpy")
        self.tokenizer, self.seed = tokenizer, seed

    def summary(self) -> str:
        return f"{len(self):,} examples of up to {self.lengths().max()} tokens"

    def lengths(self) -> np.ndarray:
        """Tokens of each example, with special tokens: (examples,) int64."""
        return np.concatenate([np.diff(chunk.offsets) for chunk in self.examples.data.column("input_ids").chunks])

    def token_blocks(self) -> Iterator[Block]:
        for chunk in self.examples.data.column("input_ids").chunks:
            if len(chunk):
                yield chunk.values.to_numpy(), np.diff(chunk.offsets)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> BatchEncoding:
        # Not a dict: see `SentencePairDataset`.
        return BatchEncoding(self.examples[int(index)] | {"mask_seed": mask_seed(self.seed, self.epoch, int(index))})


def write_examples(directory: Path, splits: dict[str, SentencePairDataset]) -> None:
    """Write the first epoch's examples, a parquet file per split, and the tokenizer: all or nothing.

    Raises `FileExistsError` if `directory` is not empty.
    """
    if directory.exists() and any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty.")
    directory.parent.mkdir(parents=True, exist_ok=True)
    objective = splits["train"].objective
    columns = objective.features()

    def records(dataset: SentencePairDataset) -> Iterator[dict]:
        for index in range(len(dataset)):
            example = dataset[index]
            yield {name: example[name] for name in columns}

    with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        new = Path(scratch, "new")
        for split, dataset in splits.items():
            examples = datasets.Dataset.from_generator(
                records,
                gen_kwargs={"dataset": dataset},
                features=columns,
                cache_dir=scratch,
                fingerprint=split,
            )
            file = parquet_file(new, split, "examples")
            file.parent.mkdir(parents=True)
            examples.to_parquet(str(file))
        copy_with_length(splits["train"].tokenizer, splits["train"].max_seq_length).save_pretrained(new)
        about = {"sentence_objective": objective.name, "splits": {split: {"files": ["examples"]} for split in splits}}
        about["vocabulary"] = describe_tokenizer(splits["train"].tokenizer)
        (new / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
        os.replace(new, directory)


def describe_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """The vocabulary of a tokenizer, and a checksum of the way that it normalizes text, such as to lower case."""
    normalizer = json.dumps(json.loads(tokenizer.backend_tokenizer.to_str())["normalizer"], sort_keys=True)
    return f"{describe_vocabulary(tokenizer)}, of the normalizer {zlib.crc32(normalizer.encode()):08x}"


def parquet_file(directory: Path, split: str, name: str) -> Path:
    """The file with the examples of the text file of this name."""
    return directory / split / f"{name}.parquet"


class SplitSource(BaseModel):
    files: Annotated[list[str], Field(min_length=1)]
    """The names of parquet files, without their suffix."""


class About(BaseModel):
    """What `ABOUT` says on the examples that a directory holds; there is more that prepare_data.py needs."""

    sentence_objective: str
    splits: dict[str, SplitSource]
    vocabulary: str | None = None
    """What `describe_tokenizer` says of the tokenizer; None in directories of earlier versions."""


class PreprocessedExamples(NamedTuple):
    """A directory of preprocessed examples."""

    directory: Path
    files: dict[str, list[Path]]
    """Split → parquet files."""
    tokenizer: PreTrainedTokenizerBase
    max_seq_length: int
    objective: Objective

    def mapped(self, split: str, seed: int, cache_dir: str) -> PreprocessedDataset:
        """The examples of a split, mapped into memory: all processes of a machine share one copy in the cache."""
        with read_errors(self.directory / split):
            examples = datasets.Dataset.from_parquet(**self._files(split), cache_dir=cache_dir)
        return PreprocessedDataset(examples, self.tokenizer, self.objective, seed, str(self.directory / split))

    def streamed(self, split: str, seed: int, buffer: int) -> datasets.IterableDataset:
        """The examples of a split as an endless stream, without a copy. Files are shuffled, and examples among
        `buffer`; each pass has new masks."""
        with read_errors(self.directory / split):
            examples = datasets.IterableDataset.from_parquet(**self._files(split))
        features = self.objective.features()

        def add_mask_seeds(batch: dict[str, list]) -> dict[str, list[int]]:
            table = pa.table({name: batch[name] for name in features}, features.arrow_schema)
            check_values(table, self.objective, self.tokenizer, str(self.directory / split))
            start = zlib.crc32(repr(batch["input_ids"][0]).encode())
            return {"mask_seed": [mask_seed(seed, start, number) for number in range(len(batch["input_ids"]))]}

        # Reading several files at a time would take as many examples from a small one as from a large one.
        shuffled = examples.repeat(None).shuffle(seed=seed, buffer_size=buffer, max_buffer_input_shards=1)
        return shuffled.map(add_mask_seeds, batched=True)

    def _files(self, split: str) -> dict[str, Any]:
        """What datasets needs to read a split, with the columns and types of the objective."""
        features = self.objective.features()
        files = [escape(str(file)) for file in self.files[split]]
        return {"path_or_paths": files, "features": features, "columns": list(features)}


def open_examples(directory: Path, tokenizer: PreTrainedTokenizerBase | None = None) -> PreprocessedExamples:
    """Open examples that inspect_data.py or prepare_data.py has written: the splits train and perhaps validation.

    Raises `FileNotFoundError` if `directory` lacks the examples or those of some files, and `ValueError` if they were
    made with another vocabulary or other segment ids than those of `tokenizer`, or are damaged.
    """
    about, files = check(About, read_json(directory / ABOUT), str(directory / ABOUT)), {}
    for split, source in about.splits.items():
        files[split] = [parquet_file(directory, split, name) for name in source.files]
        if left_out := sorted(set((directory / split).rglob("*.parquet")) - set(files[split])):
            logger.warning(f"{ABOUT} does not name {len(left_out):,} of the files, such as {left_out[0]}: left out")
        missing = sum(not file.is_file() for file in files[split])
        if missing:
            raise FileNotFoundError(
                f"{directory} lacks the examples of {missing:,} of {len(files[split]):,} files for {split}: run "
                "prepare_data.py again to add them."
            )
    if "train" not in files:
        raise ValueError(f"{directory} holds no training examples.")
    saved_tokenizer = load_tokenizer(str(directory))
    if about.vocabulary not in (None, describe_tokenizer(saved_tokenizer)):
        raise ValueError(f"The tokenizer in {directory} is not that of the examples: restore it.")
    if tokenizer and not gives_same_input(tokenizer, saved_tokenizer):
        raise ValueError(
            f"The examples in {directory} were made with another vocabulary or other segment ids: preprocess them "
            "again, with the model's tokenizer as tokenizer_name_or_path."
        )
    objective = find_objective(about.sentence_objective)
    schema = objective.features().arrow_schema
    for split, split_files in files.items():
        rows = 0
        for file in split_files:
            with read_errors(file):  # for a column that is missing or has another type, too
                footer = pq.read_metadata(file)
                footer.schema.to_arrow_schema().empty_table().select(schema.names).cast(schema)
            rows += footer.num_rows
        if not rows:
            raise TextError(f"{directory / split} holds no example: preprocess more text.")
    length = saved_tokenizer.model_max_length
    return PreprocessedExamples(directory, files, tokenizer or saved_tokenizer, length, objective)
