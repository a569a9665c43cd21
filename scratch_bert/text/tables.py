"""Readers of files and datasets that pretraining and fine-tuning share."""

import csv
import gzip
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from glob import escape, glob
from io import BufferedReader
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet
from datasets.exceptions import DatasetGenerationError

from scratch_bert_options.errors import explain_limit, is_lack_of_space

from ..repository import one_line


logger = logging.getLogger("scratch_bert")

# Suffix → datasets' loader.
TABLES = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
TSV: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}  # how csv reads it


class TextError(ValueError):
    """Text that can't be read: not UTF-8, damaged, or without the requested column."""


@contextmanager
def read_errors(source: Path | str, place: Callable[[], str] = str) -> Generator[None]:
    """Turn what is raised within `with` by one of the many libraries that read `source` into a `TextError`, which names
    it and the `place` in it."""
    try:
        yield
    except (TextError, MemoryError):
        raise
    except Exception as error:
        if is_lack_of_space(error) or explain_limit(error):
            raise
        reason = (isinstance(error, DatasetGenerationError) and error.__cause__) or error
        if isinstance(reason, UnicodeDecodeError):
            raise TextError(
                f"{source} is not UTF-8 text: {place() or 'it'} holds the byte 0x{reason.object[reason.start]:02x}. "
                "If it is text in another encoding, convert it, as with iconv -f cp1252 -t utf-8"
            ) from error
        at = place() and f" at {place()}"
        what = one_line(reason) or type(reason).__name__
        if isinstance(
            reason, LookupError | TypeError | AttributeError
        ):  # of a library that met what it did not expect
            what = f"it is empty or damaged ({type(reason).__name__}: {what})"
        raise TextError(f"{source} cannot be read{at}: {what}") from error


# ----------------------------------------------------------------------------------------------------------- files


def find_files(paths: Iterable[str | Path], types: Iterable[str] = (".txt", *TABLES)) -> list[Path]:
    """The files of `paths`: files, globs, or directories, which stand for all files of `types` below them, also
    gzipped. Sorted within each path; each file once.

    Raises `FileNotFoundError` for a path or glob without a file, and `ValueError` for a pipe, a device or an empty
    name.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if not str(path):
            raise ValueError("The name of a file is empty.")  # to pathlib, it is the current directory
        path = Path(path)
        matches = [path] if path.exists() else sorted(map(Path, glob(str(path), recursive=True)))
        if not matches:
            raise FileNotFoundError(f"There is no file or directory {path}.")
        for match in matches:
            files |= dict.fromkeys(_files_below(match, types) if match.is_dir() else [match])
    for file in files:
        if not file.is_file():
            raise ValueError(f"{file} is not a regular file, but files are read more than once.")
    return list(files)


def _files_below(directory: Path, types: Iterable[str]) -> list[Path]:
    """The files of `types`. Others are left out with a warning: also hidden ones, which other tools make."""
    files, left_out = [], []
    for file in sorted(directory.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(directory).parts)
        if suffix(file) in types and file.is_file() and not hidden:
            files.append(file)
        elif not file.is_dir():
            left_out.append(file)
    if not files:
        raise FileNotFoundError(f"The directory {directory} holds no file of type {', '.join(types)} or .gz.")
    if left_out:
        logger.warning(
            f"{directory}: left out {len(left_out):,} files, such as {left_out[0].relative_to(directory)}, which are "
            "hidden, of other types, or links to nothing"
        )
    return files


def _is_gzipped(file: Path) -> bool:
    return file.suffix.lower() == ".gz"


def suffix(file: Path) -> str:
    """Lower-case suffix of a file, without `.gz`: `.csv` for both `text.csv` and `text.CSV.gz`. JSON Lines have two."""
    found = (file.with_suffix("") if _is_gzipped(file) else file).suffix.lower()
    return ".jsonl" if found == ".ndjson" else found


def open_binary(file: Path) -> BufferedReader | gzip.GzipFile:
    return gzip.open(file) if _is_gzipped(file) else file.open("rb")


def read_lines(file: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, also gzipped, without line ends, which may be those of old Macs (CR alone).

    Raises `TextError`, which names the line, for what is not text.
    """
    number = 1
    with read_errors(file, lambda: f"line {number}"), open_binary(file) as lines:
        for number, line in enumerate(lines, 1):
            if b"\0" in line:
                raise TextError(f"{file} is not text: line {number} holds a NUL byte, as binary data and UTF-16 do.")
            if number == 1 and line.startswith(b"version https://git-lfs.github.com/spec/"):
                raise TextError(f"{file} is a Git LFS pointer: fetch the file with git lfs pull.")
            if number == 1 and line.startswith((b"{\\rtf", b"%PDF-")):  # which may be ASCII
                raise TextError(f"{file} is RTF or PDF: extract its text, as with pandoc or pdftotext.")
            # -sig drops a byte-order mark
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            if number == 1 and "\r" in text and not line.endswith(b"\n"):  # no LF in the file
                yield from text.split("\r")
            else:
                yield text


# ---------------------------------------------------------------------------------------------------------- tables


def open_table(file: Path, text_columns: Iterable[str], streaming: bool = True, **options):
    """Open a table as a dataset. Values of `text_columns` in a CSV or TSV file stay strings, such as "007" and "NA".

    `options` are passed to the dataset's loader. Raises `TextError` for a file of another kind.
    """
    kind = TABLES[suffix(file)]
    if kind == "json":
        with read_errors(file), open_binary(file) as content:
            # The parser of datasets ends the process at a lone null or number.
            if content.peek(64).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] not in (b"{", b"[", b""):
                raise TextError(f'{file} does not hold JSON objects, such as {{"text": "A text."}}.')
    if kind == "csv":
        _check_header(file, has_header=options.get("header", 0) is not None)
        options: dict[str, Any] = {
            "converters": dict.fromkeys(text_columns, str),
            "keep_default_na": False,
            "index_col": False,
        } | options
    if suffix(file) == ".tsv":
        options |= {"sep": "\t", "quoting": csv.QUOTE_NONE}
    name = escape(str(file))  # datasets treats file names as patterns
    return datasets.load_dataset(kind, data_files=name, split="train", streaming=streaming, **options)


def _check_header(file: Path, has_header: bool) -> None:
    """Raise `TextError` for what pandas accepts in silence: a first record with more fields than the header, which it
    drops, and a column's name that occurs twice, of which it renames the second."""
    header, first = islice(chain(read_fields(file), repeat([])), 2)
    if has_header and (repeated := [name for i, name in enumerate(header) if name and name in header[:i]]):
        raise TextError(f"{file} has two columns {repeated[0]!r}: rename one of them.")
    if any(first[len(header) :]):
        raise TextError(
            f"{file}: the first record has {len(first)} fields, the header {len(header)}. A text that contains the "
            "separator must be quoted."
        )


def read_table(file: Path, columns: set[str], header: Sequence[str] | None = None) -> datasets.Dataset:
    """The records of a file of a type of `TABLES`, gzipped or not. All values of CSV and TSV are strings.

    `header` names the columns of a CSV or TSV file whose first line contains none of the names in `columns`.

    Raises `TextError` if the file is empty or damaged.
    """
    if file.stat().st_size == 0:
        raise TextError(f"{file} is empty.")
    options: dict = {}
    names: Sequence[str] = ()
    if TABLES[suffix(file)] == "csv":
        names = next(read_fields(file), [])
        options = {"index_col": False}
        if header and columns.isdisjoint(names):
            names = header
            options |= {"header": None, "names": list(header)}
    with read_errors(file):
        try:
            return open_table(file, {*columns, *names}, streaming=False, **options)
        except ValueError as error:
            if "corresponds to no data" in str(error):
                raise TextError(f"{file} contains no records.") from None
            raise


def describe_columns(names: Iterable[str]) -> str:
    """The columns of a table for the message that one is missing."""
    names = list(names)
    separator = next((mark for mark in (";", "\t", "|") if len(names) == 1 and mark in names[0]), None)
    hint = f" (its separator is {separator!r}: write the file with commas, or as .tsv)" if separator else ""
    return ", ".join(name if name == name.strip() else repr(name) for name in names) + hint


def read_fields(file: Path) -> Iterator[list[str]]:
    """The fields of each record of a CSV or TSV file. Raises `TextError` if it can't be parsed."""
    dialect = TSV if suffix(file) == ".tsv" else {}
    csv.field_size_limit(2**31 - 1)
    with read_errors(file):
        yield from filter(None, csv.reader(read_lines(file), **dialect))


def has_records(file: Path) -> bool:
    """Whether a table has any, as far as it tells without being read. Empty files have none; datasets reads neither
    them nor parquet files without rows."""
    if TABLES[suffix(file)] != "parquet" or file.stat().st_size == 0:
        return file.stat().st_size > 0
    return pyarrow.parquet.read_metadata(file).num_rows > 0


def open_dataset(
    name: str, config: str | None, streaming: bool = False
) -> datasets.DatasetDict | datasets.IterableDatasetDict:
    """The splits of a dataset on the Hub or in a local directory, also one written by `save_to_disk`.

    Raises `TextError` or `OSError` for what is no dataset, or can't be read.
    """
    directory = Path(name)
    is_saved = any((directory / file).is_file() for file in ("state.json", "dataset_dict.json"))
    try:
        with read_errors(name) if directory.exists() else nullcontext():
            found = (
                datasets.load_from_disk(name) if is_saved else datasets.load_dataset(name, config, streaming=streaming)
            )
    except (DatasetGenerationError, RuntimeError) as error:  # RuntimeError for a loading script
        raise TextError(f"The dataset {name} cannot be read: {one_line(error.__cause__ or error)}") from error
    if isinstance(found, datasets.Dataset):
        found = datasets.DatasetDict({"train": found})
    for split, rows in found.items():
        if isinstance(rows, datasets.Dataset) and not len(rows):
            raise TextError(f"The split {split} of {name} has no rows.")
    return found
