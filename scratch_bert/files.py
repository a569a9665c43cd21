"""Readers of files and datasets that pretraining and fine-tuning share."""

import csv
import gzip
import logging
import zlib
from collections.abc import Iterable, Iterator
from glob import escape, glob
from itertools import chain, islice, repeat
from pathlib import Path

import datasets


logger = logging.getLogger("scratch_bert")

TABLES = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}  # → datasets' loader


def find_files(paths: Iterable[str | Path], types: Iterable[str] = (".txt", *TABLES)) -> list[Path]:
    """The files of `paths`: files, globs, or directories, which stand for all files of `types` below them, also
    gzipped. Sorted within each path; each file once.

    Raises `FileNotFoundError` for a path or glob without a file, and `ValueError` for a pipe or a device.
    """
    files: dict[Path, None] = {}
    for path in map(Path, paths):
        matches = [path] if path.exists() else sorted(map(Path, glob(str(path), recursive=True)))
        if not matches:
            raise FileNotFoundError(f"There is no file or directory {path}.")
        for match in matches:
            if not (match.is_dir() or match.is_file()):
                raise ValueError(
                    f"{match} is not a regular file, but files are read more than once: write its content to a file."
                )
            files |= dict.fromkeys(_files_below(match, types) if match.is_dir() else [match])
    return list(files)


def _files_below(directory: Path, types: Iterable[str]) -> list[Path]:
    all_files = [file for file in sorted(directory.rglob("*")) if file.is_file()]
    files = [file for file in all_files if suffix(file) in types]
    if not files:
        raise FileNotFoundError(f"The directory {directory} holds no file of type {', '.join(types)} or .gz.")
    if len(files) < len(all_files):
        others = ", ".join(sorted({file.suffix or "none" for file in set(all_files) - set(files)}))
        logger.warning(f"{directory}: left out {len(all_files) - len(files):,} files of other types ({others})")
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

    `options` are passed to the dataset's loader.
    """
    if TABLES[suffix(file)] == "csv":
        _check_width(file, has_header=options.get("header", 0) is not None)
        options = {
            "converters": dict.fromkeys(text_columns, str),
            "keep_default_na": False,
            "index_col": False,
        } | options
    if suffix(file) == ".tsv":
        options |= {"sep": "\t", "quoting": csv.QUOTE_NONE}
    name = escape(str(file))  # datasets treats file names as patterns
    return datasets.load_dataset(TABLES[suffix(file)], data_files=name, split="train", streaming=streaming, **options)


def read_fields(file: Path) -> Iterator[list[str]]:
    """The fields of each record of a CSV or TSV file. Raises `TextError` if it can't be parsed."""
    dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if suffix(file) == ".tsv" else {}
    csv.field_size_limit(2**31 - 1)
    try:
        yield from filter(None, csv.reader(read_lines(file), **dialect))
    except csv.Error as error:
        raise TextError(f"{file} cannot be read as a table: {error}") from error


def _check_width(file: Path, has_header: bool) -> None:
    """Raise `TextError` if the first record has more fields than the header, as pandas only reports later ones, and for
    a header with a name twice, of which it renames the second."""
    try:
        header, first = islice(chain(read_fields(file), repeat([])), 2)
    except TextError as error:
        if isinstance(error.__cause__, csv.Error):  # pandas may be able to parse it
            return
        raise
    repeated = [name for number, name in enumerate(header) if name and name in header[:number]]
    if has_header and repeated:
        raise TextError(f"{file} has two columns {repeated[0]!r}: rename one of them.")
    if any(first[len(header) :]):
        raise TextError(
            f"{file}: the first record has {len(first)} fields, the header {len(header)}. A text that contains the "
            "separator must be quoted."
        )


def open_dataset(
    name: str, config: str | None, streaming: bool = False
) -> datasets.DatasetDict | datasets.IterableDatasetDict:
    """The splits of a dataset on the Hub or in a local directory, also one written by `save_to_disk`."""
    directory = Path(name)
    if not any((directory / file).is_file() for file in ("state.json", "dataset_dict.json")):
        try:
            return datasets.load_dataset(name, config, streaming=streaming)
        except datasets.exceptions.DatasetGenerationError as error:
            raise TextError(f"The dataset {name} cannot be read: {error.__cause__}") from None
    saved = datasets.load_from_disk(directory)
    return saved if isinstance(saved, datasets.DatasetDict) else datasets.DatasetDict({"train": saved})


def read_lines(file: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, also gzipped, without line ends. Raises `TextError`, which names the bad line."""
    number = 0
    try:
        with gzip.open(file) if _is_gzipped(file) else file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                # -sig drops a byte-order mark
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        if error.object[:2] in (b"\xff\xfe", b"\xfe\xff") and number == 1:
            raise TextError(
                f"{file} is UTF-16 text. Convert it first: iconv -f utf-16 -t utf-8 {file} > new{suffix(file)}"
            ) from None
        raise TextError(
            f"{file} is not UTF-8 text: line {number} holds the byte 0x{error.object[error.start]:02x}. Convert it "
            f"first, for example with: iconv -f latin1 -t utf-8 {file} > new{suffix(file)}"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TextError(
            f"{file} cannot be decompressed after line {number}: {error}. Copy or download it again."
        ) from None
