"""Readers of files and datasets that pretraining and fine-tuning share."""

import csv
import gzip
import logging
import re
import shlex
import zlib
from collections.abc import Iterable, Iterator, Sequence
from glob import escape, glob
from io import BufferedReader
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet

from ..repository import one_line
from .content import complaint, narrow_encoding


logger = logging.getLogger("scratch_bert")

TABLES = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}  # → datasets' loader


def find_files(paths: Iterable[str | Path], types: Iterable[str] = (".txt", *TABLES)) -> list[Path]:
    """The files of `paths`: files, globs, or directories, which stand for all files of `types` below them, also
    gzipped. Sorted within each path; each file once.

    Raises `FileNotFoundError` for a path or glob without a file, and `ValueError` for a pipe, a device or an empty name.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if not str(path):
            raise ValueError("The name of a file is empty: leave it out, or set the variable that it is from.")
        if "://" in str(path):
            raise ValueError(f"{path} is a URL, not a file: download it first.")
        path = Path(path)
        try:
            path.stat()
            matches = [path]
        except (FileNotFoundError, NotADirectoryError):
            matches = sorted(map(Path, glob(str(path), recursive=True)))
        except OSError as error:  # the directory can't be entered, the name is too long
            raise OSError(error.errno, error.strerror, f"{str(path):.200}") from None
        if not matches:
            raise FileNotFoundError(f"There is no file or directory {str(path):.200}.")
        for match in matches:
            if not (match.is_dir() or match.is_file()):
                raise ValueError(
                    f"{match} is not a regular file, but files are read more than once: write its content to a file."
                )
            files |= dict.fromkeys(_files_below(match, types) if match.is_dir() else [match])
    return list(files)


def _files_below(directory: Path, types: Iterable[str]) -> list[Path]:
    """The files of `types`. Others are left out with a warning: also hidden ones, as other tools put them beside files, and
    what is no regular file, such as a link to nothing."""
    all_files = [file for file in sorted(directory.rglob("*")) if not file.is_dir()]
    files = [
        file
        for file in all_files
        if suffix(file) in types
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(directory).parts)
    ]
    if not files:
        raise FileNotFoundError(f"The directory {directory} holds no file of type {', '.join(types)} or .gz.")
    if left_out := sorted(set(all_files) - set(files)):
        names = ", ".join(str(file.relative_to(directory)) for file in left_out[:3])
        more = f" and {len(left_out) - 3:,} more" if len(left_out) > 3 else ""
        logger.warning(f"{directory}: left out {names}{more}, which are hidden, of other types, or links to nothing")
    return files


def _is_gzipped(file: Path) -> bool:
    return file.suffix.lower() == ".gz"


def suffix(file: Path) -> str:
    """Lower-case suffix of a file, without `.gz`: `.csv` for both `text.csv` and `text.CSV.gz`."""
    return (file.with_suffix("") if _is_gzipped(file) else file).suffix.lower()


class TextError(ValueError):
    """Text that can't be read: not UTF-8, damaged, or without the requested column."""


def open_table(file: Path, text_columns: Iterable[str], streaming: bool = True, **options):
    """Open a table as a dataset. Values of `text_columns` in a CSV or TSV file stay strings, such as "007" and "NA".

    `options` are passed to the dataset's loader. Raises `TextError` for a file of another kind.
    """
    _check_table(file)
    if TABLES[suffix(file)] == "csv":
        _check_width(file, has_header=options.get("header", 0) is not None)
        options: dict[str, Any] = {
            "converters": dict.fromkeys(text_columns, str),
            "keep_default_na": False,
            "index_col": False,
        } | options
    if suffix(file) == ".tsv":
        options |= {"sep": "\t", "quoting": csv.QUOTE_NONE}
    name = escape(str(file))  # datasets treats file names as patterns
    return datasets.load_dataset(TABLES[suffix(file)], data_files=name, split="train", streaming=streaming, **options)


def read_table(file: Path, columns: set[str], header: Sequence[str] | None = None) -> datasets.Dataset:
    """The records of a .csv, .tsv, .json, .jsonl or .parquet file, gzipped or not. All values of CSV and TSV are strings.

    `header` names the columns of a CSV or TSV file whose first line contains none of the names in `columns`.

    Raises `ValueError` if the file is empty or damaged.
    """
    if file.stat().st_size == 0:
        raise ValueError(f"{file} is empty.")
    options: dict = {}
    names: Sequence[str] = ()
    if TABLES[suffix(file)] == "csv":
        names = next(read_fields(file), [])
        options = {"index_col": False}
        if header and columns.isdisjoint(names):
            names = header
            options |= {"header": None, "names": list(header)}
    try:
        return open_table(file, {*columns, *names}, streaming=False, **options)
    except TextError:
        raise
    except UnicodeDecodeError as error:
        raise not_utf8(file, f"a record that begins {error.object[:20]!r}", error) from None
    except datasets.exceptions.DatasetGenerationError as error:
        raise TextError(f"{file} cannot be read as a table: {error.__cause__}") from None
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        reason = "contains no records" if "corresponds to no data" in str(error) else "cannot be read as a table"
        raise TextError(f"{file} {reason}: {error}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TextError(f"{file} cannot be decompressed: {error}. Copy or download it again.") from None


def read_fields(file: Path) -> Iterator[list[str]]:
    """The fields of each record of a CSV or TSV file. Raises `TextError` if it can't be parsed."""
    dialect: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if suffix(file) == ".tsv" else {}
    csv.field_size_limit(2**31 - 1)
    try:
        yield from filter(None, csv.reader(read_lines(file), **dialect))
    except csv.Error as error:
        raise TextError(f"{file} cannot be read as a table: {error}") from error


def has_records(file: Path) -> bool:
    """Whether a table has any, as far as it tells without being read. Empty files have none; datasets reads neither
    them nor parquet files without rows."""
    if file.stat().st_size == 0:
        return False
    _check_table(file)
    if TABLES[suffix(file)] != "parquet":
        return True
    try:
        return pyarrow.parquet.read_metadata(file).num_rows > 0
    except pyarrow.ArrowException as error:
        raise TextError(f"{file} cannot be read as a parquet file: {error} Copy or download it again.") from None


_DEEP = re.compile(rb'[:,]\s*(?:[\[{]\s*(?:"[^"]*"\s*:\s*)?){1000}')  # Arrow's JSON reader crashes at some depth
_JSON_OBJECT = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\[\s*)?(?:\{|\]\s*$|$)")


def _check_table(file: Path) -> None:
    """Raise `TextError` for a file whose first bytes are not those of the kind of table that its name promises."""
    try:
        with _open(file) as content:
            head = content.peek(4096)[:4096]
            if TABLES[suffix(file)] == "parquet" and head.startswith(b"PAR1"):
                if _is_gzipped(file):
                    raise TextError(
                        f"{file}: parquet files are not read compressed. Decompress it first: gunzip {shlex.quote(str(file))}"
                    )
                return
            _check_head(file, content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TextError(f"{file} cannot be decompressed: {error}. Copy or download it again.") from None
    if TABLES[suffix(file)] == "parquet":
        raise TextError(f"{file} is not a parquet file: rename it to end in what it is, such as .csv, .jsonl or .txt.")
    if TABLES[suffix(file)] == "json" and _DEEP.search(head):
        raise TextError(f"{file} holds JSON that is nested 1,000 levels deep or more: correct it.")
    if TABLES[suffix(file)] == "json" and not _JSON_OBJECT.match(head):
        raise TextError(
            f'{file} does not hold JSON objects, such as {{"text": "A text."}}, but begins with {head[:20].decode(errors="replace")!r}.'
        )


def _check_width(file: Path, has_header: bool) -> None:
    """Raise `TextError` if the first record has more fields than the header, as pandas only reports later ones, for a
    header with a name twice, of which it renames the second, and for other separators."""
    try:
        header, first = islice(chain(read_fields(file), repeat([])), 2)
    except TextError as error:
        if isinstance(error.__cause__, csv.Error):  # pandas may be able to parse it
            return
        raise
    if has_header and header and header[0].startswith("sep="):
        raise TextError(f"{file} begins with {','.join(header)!r}, as Excel writes it: delete that line.")
    if has_header and len(header) == 1 and (separator := _separator_of(next(read_lines(file)))):
        right = "tabs" if suffix(file) == ".tsv" else "commas, or with tabs as a .tsv file"
        raise TextError(f"{file} has its columns separated by {separator!r}: save it with {right}.")
    repeated = [name for number, name in enumerate(header) if name and name in header[:number]]
    if has_header and repeated:
        raise TextError(f"{file} has two columns {repeated[0]!r}: rename one of them.")
    if any(first[len(header) :]):
        raise TextError(
            f"{file}: the first record has {len(first)} fields, the header {len(header)}. A text that contains the "
            "separator must be quoted."
        )


def _separator_of(header: str) -> str | None:
    """What separates the columns of this header, if it isn't what it should be."""
    field = r'("[^"]*"|[\w][^";|\t,]*)'
    match = re.fullmatch(rf"{field}([;|\t]){field}(\2{field})*", header.strip())
    return match[2] if match else None


def open_dataset(
    name: str, config: str | None, streaming: bool = False
) -> datasets.DatasetDict | datasets.IterableDatasetDict:
    """The splits of a dataset on the Hub or in a local directory, also one written by `save_to_disk`.

    Raises `TextError` or `OSError` for what is no dataset, or can't be read.
    """
    directory = Path(name)
    if directory.is_file():
        raise TextError(f"The dataset {name} is a file: give it as train_file.")
    if not any((directory / file).is_file() for file in ("state.json", "dataset_dict.json")):
        try:
            return datasets.load_dataset(name, config, streaming=streaming)
        except datasets.exceptions.DatasetGenerationError as error:
            reason = error.__cause__ or error.__context__ or error
            raise TextError(f"The dataset {name} cannot be read: {one_line(reason)}") from None
        except RuntimeError as error:  # a loading script
            raise TextError(
                f"The dataset {name} cannot be read: {error}. Give the files of its text as train_file, or a copy of it as parquet files."
            ) from None
    saved = datasets.load_from_disk(directory)
    return saved if isinstance(saved, datasets.DatasetDict) else datasets.DatasetDict({"train": saved})


def read_lines(file: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, also gzipped, without line ends, which may be those of old Macs (CR alone).

    Raises `TextError`, which says what a file is that is not text, or names the bad line.
    """
    number = 0
    try:
        with _open(file) as lines:
            _check_head(file, lines)
            for number, line in enumerate(lines, 1):
                if b"\0" in line:
                    raise TextError(
                        f"{file} is not text: line {number} holds a NUL byte. To remove such bytes: "
                        f"{'gunzip --stdout' if _is_gzipped(file) else 'cat'} {shlex.quote(str(file))} | tr -d '\\000' > "
                        f"new{suffix(file)}"
                    )
                # -sig drops a byte-order mark
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if number == 1 and "\r" in text and not line.endswith(b"\n"):  # no LF in the file
                    yield from text.split("\r")
                else:
                    yield text
    except UnicodeDecodeError as error:
        raise not_utf8(file, f"line {number}", error) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TextError(
            f"{file} cannot be decompressed after line {number}: {error}. Copy or download it again."
        ) from None


def not_utf8(file: Path, place: str, error: UnicodeDecodeError) -> TextError:
    """The error for bytes at this place in a file, with the command for their probable encoding."""
    encoding = narrow_encoding(error.object[max(error.start - 5000, 0) : error.start + 5000])
    return TextError(
        f"{file} is not UTF-8 text: {place} holds the byte 0x{error.object[error.start]:02x}. Convert it first; if its "
        f"encoding is {encoding}, with: iconv -f {encoding} -t utf-8 {shlex.quote(str(file))} > new{suffix(file)}"
    )


def _open(file: Path) -> BufferedReader | gzip.GzipFile:
    return gzip.open(file) if _is_gzipped(file) else file.open("rb")


def _check_head(file: Path, content: BufferedReader | gzip.GzipFile) -> None:
    """Raise `TextError` for the content of a file that is not text, by its first bytes."""
    ending = suffix(file) if suffix(file) in (".txt", *TABLES) else ".txt"
    if message := complaint(file, content.peek(4096)[:4096], ending, _is_gzipped(file)):
        raise TextError(message)
