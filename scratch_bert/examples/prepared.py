"""Preprocessed examples: parquet files, their tokenizer, and the options that they were made with."""

import json
import logging
import os
import tempfile
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets.exceptions import DatasetGenerationError
from huggingface_hub.dataclasses import strict, type_validator
from transformers import BatchEncoding, PreTrainedTokenizerBase

from scratch_bert_options.outputs import check_new_dir

from ..atomic import read_record
from ..corpus.encoder import mask_seed
from ..corpus.tokenizer import (
    copy_with_length,
    describe_vocabulary,
    gives_same_input,
    load_tokenizer,
    segment_ids,
    vocabulary_size,
)
from ..objectives import Objective, find_objective
from ..text.tables import TextError
from .dataset import EpochDataset, SentencePairDataset


logger = logging.getLogger("scratch_bert")

ABOUT = "examples.json"  # describes the examples, beside a directory per split


class ExampleCheck:
    """Checks that examples are such as the objective writes with this tokenizer, by the columns of a table, in which
    its messages call them `name`; the rows of a shuffled stream are not `numbered`. Without a check, a bad value ends
    the training, or changes it silently."""

    def __init__(
        self,
        objective: Objective,
        tokenizer: PreTrainedTokenizerBase,
        name: str = "The preprocessed examples",
        max_seq_length: int | None = None,
        numbered: bool = True,
    ):
        self.objective, self.name, self.features = objective, name, objective.features()
        self.max_seq_length, self.numbered = max_seq_length, numbered
        self.special_ids = [tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id]
        self.mask = tokenizer.mask_token_id
        a, b = segment_ids(tokenizer)
        self.first_segment = a
        self.maxima = {
            "input_ids": vocabulary_size(tokenizer) - 1,
            "token_type_ids": b if objective.has_pairs else a,
            "special_tokens_mask": 1,
            "attention_mask": 1,
            "seq_idx": 1,
        }

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise `TextError` for a column that is missing or has another type, of integers of any size."""
        if missing := [name for name in self.features if name not in schema.names]:
            raise self._error(f"have no column {', '.join(missing)}")
        if len(set(schema.names)) < len(schema.names):
            raise self._error("have two columns of the same name")
        for expected in self.features.arrow_schema:
            found = schema.field(expected.name).type
            if _is_list(found) != _is_list(expected.type) or not _holds_integers(found):
                raise self._error(f"have the type {found} in the column {expected.name}, not {expected.type}")

    def __call__(self, table: pa.Table) -> None:
        """Raise `TextError`, which names the first example of its kind, for values out of their range, rows whose
        columns differ in length, and examples without a token to predict or without any label."""
        self.check_schema(table.schema)
        if not table.num_rows:
            raise self._error("are empty")
        rows: dict[str, np.ndarray] = {}  # the lengths of the rows, by the beginning of the columns' names
        for name in self.features:
            column = table.column(name)
            values = pc.list_flatten(column) if _is_list(column.type) else column
            if column.null_count or values.null_count:
                raise self._error(f"hold null in the column {name}")
            if name == self.objective.label_column:
                self._check_labels(values)
                continue
            lengths = pc.list_value_length(column).to_numpy()
            prefix = "segment_" if name.startswith("segment_") else ""
            expected = rows.setdefault(prefix, lengths)
            if (lengths != expected).any():
                row = int(np.flatnonzero(lengths != expected)[0])
                raise self._error(
                    f"differ in the lengths of their columns: {name} has {lengths[row]} values, not {expected[row]}",
                    row,
                )
            if not lengths.all():
                raise self._error("have no token", int(np.flatnonzero(lengths == 0)[0]))
            self._check_values(name, values, lengths, self.maxima.get(name.removeprefix(prefix), rows[""].max() - 1))
        longest = int(rows[""].max())
        if self.max_seq_length and longest > self.max_seq_length:
            raise self._error(
                f"have {longest} tokens, more than their tokenizer's model_max_length of {self.max_seq_length}",
                int(rows[""].argmax()),
            )
        ids = pc.list_flatten(table.column("input_ids")).to_numpy()
        ends = rows[""].cumsum()
        cls, sep, _ = self.special_ids
        segments = pc.list_flatten(table.column("token_type_ids")).to_numpy()
        masked = pc.list_flatten(table.column("special_tokens_mask")).to_numpy() == 0
        special = np.isin(ids, self.special_ids)
        if not (masked & ~special).any():
            raise self._error("have only special tokens: there is none to predict")
        starts = ends - rows[""]
        for problem, wrong in (  # by example, or by token
            ("do not all begin with [CLS]", ids[starts] != cls),
            ("do not all end with [SEP]", ids[ends - 1] != sep),
            ("begin with the segment id of text B", segments[starts] != self.first_segment),
            ("hold [MASK], which is drawn in training", ids == self.mask),
            ("have a special_tokens_mask of 0 at a special token", masked & special),
        ):
            if wrong.any():
                first = int(np.flatnonzero(wrong)[0])
                row = first if len(wrong) == len(starts) else int(np.searchsorted(ends, first, side="right"))
                raise self._error(problem, row)
        if self.numbered and self.objective.has_pairs and segments.max() == self.first_segment:
            raise self._error("have one segment id throughout, but pairs have two")

    def _check_values(self, name: str, values: pa.ChunkedArray, lengths: np.ndarray, highest: int) -> None:
        found = pc.min_max(values).as_py()
        for value in (found["min"], found["max"]):
            if not 0 <= value <= highest:
                place = pc.index(values, value).as_py()
                row = int(np.searchsorted(lengths.cumsum(), place, side="right"))
                raise self._error(f"hold {name} {value}, which must be from 0 to {highest}", row)

    def _check_labels(self, values: pa.ChunkedArray) -> None:
        labels = pc.unique(values).to_pylist()
        highest = float("inf") if self.objective.num_labels is None else self.objective.num_labels - 1
        for label in labels:
            if label != -100 and not 0 <= label <= highest:
                allowed = f"from 0 to {highest}, or -100" if self.objective.num_labels else "0 or more, or -100"
                raise self._error(
                    f"hold {self.objective.label_column} {label}, which must be {allowed}",
                    pc.index(values, label).as_py(),
                )
        if self.numbered and labels == [-100]:  # a part of a stream may hold single segments
            raise self._error(f"have no label in {self.objective.label_column}, but -100 throughout")
        classes = set(labels) - {-100}
        if self.numbered and self.objective.num_labels and len(classes) == 1:
            logger.warning(
                f"{self.name} have the one {self.objective.label_column} {classes.pop()}: there is nothing to learn from it"
            )

    def _error(self, problem: str, row: int | None = None) -> TextError:
        place = "" if row is None or not self.numbered else f" (example {row + 1:,})"
        return TextError(f"{self.name} {problem}{place}: preprocess them again, for {self.objective.name}.")


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _holds_integers(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind.value_type if _is_list(kind) else kind)


class PreprocessedDataset(EpochDataset):
    """Preprocessed examples, with a new `mask_seed` in each epoch.

    Raises `TextError` for examples that do not fit the objective or the tokenizer, as `check` does, by default an
    `ExampleCheck`.
    """

    def __init__(
        self,
        examples: datasets.Dataset,
        tokenizer: PreTrainedTokenizerBase,
        objective: Objective,
        seed: int = 0,
        check: ExampleCheck | None = None,
    ):
        check = check or ExampleCheck(objective, tokenizer)
        check(examples.data.table)
        self.examples = examples.select_columns(list(objective.features())).with_format("numpy")
        self.tokenizer, self.seed, self.epoch = tokenizer, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def summary(self) -> str:
        return f"{len(self):,} examples of up to {self.lengths().max()} tokens"

    def lengths(self) -> np.ndarray:
        """Tokens of each example, with special tokens: (examples,) int64."""
        return np.concatenate([np.diff(chunk.offsets) for chunk in self.examples.data.column("input_ids").chunks])

    def token_counts(self, vocab_size: int) -> np.ndarray:
        """Count of each token id: (vocab_size,) int64."""
        counts = (np.bincount(ids, minlength=vocab_size) for ids in self._chunks())
        return sum(counts, start=np.zeros(vocab_size, dtype=np.int64))

    def checksum(self) -> int:
        """CRC-32 of all token ids, and of the examples' lengths, in order."""
        value = zlib.crc32(self.lengths().tobytes())
        for ids in self._chunks():
            value = zlib.crc32(np.ascontiguousarray(ids), value)
        return value

    def token_blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The token ids of all examples in blocks (tokens,), and the lengths of each block's examples (examples,)."""
        for chunk in self.examples.data.column("input_ids").chunks:
            if len(chunk):
                yield chunk.values.to_numpy(), np.diff(chunk.offsets)

    def _chunks(self) -> Iterator[np.ndarray]:
        return (chunk.values.to_numpy() for chunk in self.examples.data.column("input_ids").chunks if len(chunk))

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> BatchEncoding:
        # Not a dict: see `SentencePairDataset`.
        return BatchEncoding(self.examples[int(index)] | {"mask_seed": mask_seed(self.seed, self.epoch, int(index))})


def write_examples(directory: Path, splits: dict[str, SentencePairDataset]) -> None:
    """Write the first epoch's examples, a parquet file per split, and the tokenizer: all or nothing.

    Raises `ValueError` if `directory` is not empty or can't be written to.
    """
    check_new_dir("output_dir", directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    objective = splits["train"].objective
    columns = objective.features()
    if objective.has_pairs:
        columns |= {name: datasets.Value("int64") for name in ("document_a", "document_b")}

    def records(dataset: SentencePairDataset) -> Iterator[dict]:
        for index, (a, b) in enumerate(dataset.documents().tolist()):
            example = dataset[index]
            example |= {"document_a": a, "document_b": b}
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


@strict
@dataclass
class About:
    """What `ABOUT` says on the examples that a directory holds."""

    sentence_objective: str
    splits: dict[str, dict]
    """Split → its `files`: the names of parquet files, without their suffix, and more that prepare_data.py needs."""
    vocabulary: str | None = None
    """What `describe_tokenizer` says of the tokenizer; None in directories of earlier versions."""

    def validate_files(self):
        for split, source in self.splits.items():
            names = source.get("files")
            type_validator(f"{split}.files", names, list[str])
            if not names or any(".." in Path(name).parts or Path(name).is_absolute() for name in (split, *names)):
                raise ValueError(f"{split}.files must name files in the directory, got {names}")


class PreprocessedExamples(NamedTuple):
    """A directory of preprocessed examples."""

    directory: Path
    files: dict[str, list[Path]]
    """Split → parquet files."""
    tokenizer: PreTrainedTokenizerBase
    max_seq_length: int
    objective: Objective

    def check(self, split: str, numbered: bool = True) -> ExampleCheck:
        name = f"The preprocessed examples for {split} in {self.directory}"
        return ExampleCheck(self.objective, self.tokenizer, name, self.max_seq_length, numbered)

    def mapped(self, split: str, seed: int, cache_dir: str) -> PreprocessedDataset:
        """The examples of a split, mapped into memory: all processes of a machine share one copy in the cache."""
        files = [escape(str(file)) for file in self.files[split]]
        with self._explain_read_errors(split):
            examples = datasets.Dataset.from_parquet([*files], cache_dir=cache_dir)
        return PreprocessedDataset(examples, self.tokenizer, self.objective, seed, self.check(split))

    def streamed(self, split: str, seed: int, buffer: int) -> datasets.IterableDataset:
        """The examples of a split as an endless stream, without a copy. Files are shuffled, and examples among
        `buffer`; each pass has new masks."""
        files = [escape(str(file)) for file in self.files[split]]
        with self._explain_read_errors(split):
            examples = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        check, columns = self.check(split, numbered=False), list(self.objective.features())

        def add_mask_seeds(batch: dict[str, list]) -> dict[str, list[int]]:
            check(pa.table({name: batch[name] for name in columns}))
            start = zlib.crc32(repr(batch["input_ids"][0]).encode())
            return {"mask_seed": [mask_seed(seed, start, number) for number in range(len(batch["input_ids"]))]}

        # Reading several files at a time would take as many examples from a small one as from a large one.
        shuffled = examples.repeat(None).shuffle(seed=seed, buffer_size=buffer, max_buffer_input_shards=1)
        return shuffled.map(add_mask_seeds, batched=True)

    @contextmanager
    def _explain_read_errors(self, split: str) -> Generator[None]:
        """Turn what datasets raises for damaged files, and for damaged features in them, into a `TextError`."""
        kinds = (DatasetGenerationError, ValueError, TypeError, LookupError, AttributeError)
        try:
            yield
        except kinds as error:
            raise TextError(
                f"The examples in {self.directory / split} cannot be read: {error.__cause__ or error}"
            ) from None


def open_examples(directory: Path, tokenizer: PreTrainedTokenizerBase | None = None) -> PreprocessedExamples:
    """Open examples that inspect_data.py or prepare_data.py has written: the splits train and perhaps validation.

    Raises `FileNotFoundError` if `directory` lacks the examples or those of some files, and `ValueError` if they were
    made with another vocabulary or other segment ids than those of `tokenizer`, or are damaged.
    """
    remedy = "write them with inspect_data.py --output_dir or prepare_data.py."
    if not (directory / ABOUT).is_file():
        raise FileNotFoundError(f"{directory} holds no {ABOUT}: {remedy}")
    about, files = read_record(directory / ABOUT, About), {}
    for split, source in about.splits.items():
        files[split] = [parquet_file(directory, split, name) for name in source["files"]]
        if left_out := sorted(set((directory / split).rglob("*.parquet")) - set(files[split])):
            logger.warning(f"{ABOUT} does not name {len(left_out):,} of the files, such as {left_out[0]}: left out")
        missing = sum(not file.is_file() for file in files[split])
        if missing:
            raise FileNotFoundError(
                f"{directory} lacks the examples of {missing:,} of {len(files[split]):,} files for {split}: run "
                "prepare_data.py again to add them."
            )
    if "train" not in files:
        raise FileNotFoundError(f"{directory} holds no training examples: {remedy}")
    saved_tokenizer = load_tokenizer(str(directory))
    if about.vocabulary is None:
        logger.warning(
            f"{directory / ABOUT} is of an earlier version: it does not say which tokenizer made the examples"
        )
    elif about.vocabulary != describe_tokenizer(saved_tokenizer):
        raise ValueError(
            f"The tokenizer in {directory} has {describe_tokenizer(saved_tokenizer)}, but the examples were made with "
            f"{about.vocabulary}: restore it, or preprocess them again."
        )
    if tokenizer and not gives_same_input(tokenizer, saved_tokenizer):
        raise ValueError(
            f"The examples in {directory} were made with another vocabulary or other segment ids: preprocess them "
            "again, with the model's tokenizer as tokenizer_name_or_path."
        )
    try:
        objective = find_objective(about.sentence_objective)
    except ValueError as error:
        raise ValueError(f"{directory / ABOUT}: {error}") from None
    for split_files in files.values():
        _check_files(split_files, objective, saved_tokenizer)
    length = saved_tokenizer.model_max_length
    return PreprocessedExamples(directory, files, tokenizer or saved_tokenizer, length, objective)


def _check_files(files: Iterable[Path], objective: Objective, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `TextError` for a damaged file, for one with other columns, and if there is no example in all of them."""
    rows = 0
    for file in files:
        try:
            footer = pq.read_metadata(file)
        except (pa.ArrowException, OSError) as error:
            raise TextError(f"{file} cannot be read: {error}. Write it again.") from None
        ExampleCheck(objective, tokenizer, f"The examples in {file}").check_schema(footer.schema.to_arrow_schema())
        rows += footer.num_rows
    if not rows:
        raise TextError(f"{file} holds no example: preprocess more text.")
