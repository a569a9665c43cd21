"""Preprocessed examples: parquet files, their tokenizer, and the options that they were made with."""

import json
import os
import tempfile
import zlib
from collections.abc import Iterator
from glob import escape
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
from transformers import BatchEncoding, PreTrainedTokenizerBase

from ...tokenizer import copy_with_length, gives_same_input, load_tokenizer, vocabulary_size
from ..objectives import Objective, find_objective
from .encoder import mask_seed
from .examples import EpochDataset, SentencePairDataset


ABOUT = "examples.json"  # describes the examples, beside a directory per split


class PreprocessedDataset(EpochDataset):
    """Preprocessed examples, with a new `mask_seed` in each epoch.

    Raises `ValueError` for a token id that the tokenizer lacks, and for missing columns.
    """

    def __init__(
        self, examples: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, objective: Objective, seed: int = 0
    ):
        columns = list(objective.features())
        missing = [name for name in columns if name not in examples.column_names]
        if missing:
            raise ValueError(f"The preprocessed examples have no column {', '.join(missing)}: preprocess them again.")
        self.examples = examples.select_columns(columns).with_format("numpy")
        self.tokenizer, self.seed, self.epoch = tokenizer, seed, 0
        highest = max((int(ids.max()) for ids in self._chunks()), default=0)
        if highest >= vocabulary_size(tokenizer):
            raise ValueError(
                f"The preprocessed examples hold the token id {highest}, but the tokenizer has "
                f"{vocabulary_size(tokenizer)} entries. Use the tokenizer in their directory."
            )

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def summary(self) -> str:
        return f"{len(self):,} examples of up to {self.lengths().max()} tokens"

    def lengths(self) -> np.ndarray:
        """Tokens of each example, with special tokens: (examples,) int64."""
        return np.concatenate([np.diff(chunk.offsets) for chunk in self.examples.data.column("input_ids").chunks])

    def token_counts(self, vocab_size: int) -> np.ndarray:
        """Count of each token id: (vocab_size,) int64."""
        return sum(np.bincount(ids, minlength=vocab_size) for ids in self._chunks())

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

    Raises `ValueError` if `directory` is not empty.
    """
    if directory.exists() and any(directory.iterdir()):
        raise ValueError(f"The output directory {directory} is not empty. Choose another one.")
    directory.parent.mkdir(parents=True, exist_ok=True)
    objective = splits["train"].objective
    columns = objective.features()
    if objective.has_pairs:
        columns |= {name: datasets.Value("int64") for name in ("document_a", "document_b")}

    def records(dataset: SentencePairDataset) -> Iterator[dict]:
        for example, (a, b) in zip(dataset, dataset.documents().tolist(), strict=True):
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
        (new / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
        os.replace(new, directory)


def parquet_file(directory: Path, split: str, name: str) -> Path:
    """The file with the examples of the text file of this name."""
    return directory / split / f"{name}.parquet"


class PreprocessedExamples(NamedTuple):
    """A directory of preprocessed examples."""

    files: dict[str, list[Path]]
    """Split → parquet files."""
    tokenizer: PreTrainedTokenizerBase
    max_seq_length: int
    objective: Objective

    def mapped(self, split: str, seed: int, cache_dir: str) -> PreprocessedDataset:
        """The examples of a split, mapped into memory: all processes of a machine share one copy in the cache."""
        files = [escape(str(file)) for file in self.files[split]]
        examples = datasets.Dataset.from_parquet(files, cache_dir=cache_dir)
        return PreprocessedDataset(examples, self.tokenizer, self.objective, seed)

    def streamed(self, split: str, seed: int, buffer: int) -> datasets.IterableDataset:
        """The examples of a split as an endless stream, without a copy. Files are shuffled, and examples among
        `buffer`; each pass has new masks."""
        files = [escape(str(file)) for file in self.files[split]]
        examples = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)

        def add_mask_seeds(batch: dict[str, list]) -> dict[str, list[int]]:
            start = zlib.crc32(repr(batch["input_ids"][0]).encode())
            return {"mask_seed": [mask_seed(seed, start, number) for number in range(len(batch["input_ids"]))]}

        # Reading several files at a time would take as many examples from a small one as from a large one.
        shuffled = examples.repeat(None).shuffle(seed=seed, buffer_size=buffer, max_buffer_input_shards=1)
        return shuffled.map(add_mask_seeds, batched=True)


def open_examples(directory: Path, tokenizer: PreTrainedTokenizerBase | None = None) -> PreprocessedExamples:
    """Open examples that inspect_data.py or prepare_data.py has written: the splits train and perhaps validation.

    Raises `FileNotFoundError` if `directory` lacks the examples or those of some files, and `ValueError` if they were
    made with another vocabulary or other segment ids than those of `tokenizer`.
    """
    about = json.loads((directory / ABOUT).read_text()) if (directory / ABOUT).is_file() else {}
    files = {}
    for split, source in about.get("splits", {}).items():
        files[split] = [parquet_file(directory, split, name) for name in source["files"]]
        missing = sum(not file.is_file() for file in files[split])
        if missing:
            raise FileNotFoundError(
                f"{directory} lacks the examples of {missing:,} of {len(files[split]):,} files for {split}: run "
                "prepare_data.py again to add them."
            )
    for name, found in ((ABOUT, about), ("training examples", "train" in files)):
        if not found:
            raise FileNotFoundError(
                f"{directory} holds no {name}: write them with inspect_data.py --output_dir or prepare_data.py."
            )
    saved_tokenizer = load_tokenizer(str(directory))
    if tokenizer and not gives_same_input(tokenizer, saved_tokenizer):
        raise ValueError(
            f"The examples in {directory} were made with another vocabulary or other segment ids: preprocess them "
            "again, with the model's tokenizer as tokenizer_name_or_path."
        )
    objective = find_objective(about["sentence_objective"])
    return PreprocessedExamples(files, tokenizer or saved_tokenizer, saved_tokenizer.model_max_length, objective)
