"""Tables: CSV, TSV, JSON and Parquet as chunks of rows or as columns, and datasets."""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet
from datasets.exceptions import DatasetGenerationError

from ..logs import logger
from ..repository import one_line
from .files import STANDARD, TextError, read_errors, read_lines, suffix


VERSION = 3  # raise it when the records of a table change: stale caches are then rebuilt
TSV: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}  # how csv reads it
CHUNK = 1000  # rows
MAX_MALFORMED = 0.01  # of the records of a table, to leave out

warn_once = cache(logger.warning)

Row = dict[str, Any]


def read_chunks(
    file: str | Path,
    kind: str | None = None,
    columns: Iterable[str] | None = None,
    header: Sequence[str] | None = None,
    skips: bool = False,
) -> Iterator[list[Row]]:
    """The rows of a table in chunks of `CHUNK`. All values of CSV and TSV are strings.

    Args:
        file: Gzipped or not; - is standard input.
        kind: One of `TABLES`. Default: the suffix of the file.
        columns: The columns that are needed: of Parquet, others are not read.
        header: The names of the columns of CSV or TSV whose first line contains none of `columns`.
        skips: Whether to leave out, with a warning, up to `MAX_MALFORMED` of the records: those of CSV and TSV with
            more or fewer fields than the header, and lines of JSON Lines that are not objects.

    Raises:
        TextError: For a file that is not UTF-8, damaged or of another kind; it names the line.
    """
    file, kind = Path(file), kind or suffix(Path(file))
    with read_errors(file):
        if kind == ".parquet":
            with pyarrow.parquet.ParquetFile(file) as table:
                names = _check_names(file, table.schema_arrow.names)
                needed = [name for name in names if name in columns] if columns else []
                yield from (batch.to_pylist() for batch in table.iter_batches(CHUNK, columns=needed or None))
            return
        delimited = kind in (".csv", ".tsv")
        rows = _read_delimited(file, kind, columns, header, skips) if delimited else _read_json(file, kind, skips)
        while chunk := list(islice(rows, CHUNK)):
            yield chunk


def _check_names(file: Path, names: Sequence[str]) -> Sequence[str]:
    if repeated := next((name for name in names if name and names.count(name) > 1), None):
        raise TextError(f"{file} has two columns {repeated!r}: rename one of them.")
    return names


def _each_name_once(pairs: list[tuple[str, Any]]) -> Row:
    if len(row := dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"two columns {next(name for name in names if names.count(name) > 1)!r}")
    return row


def _read_json(file: Path, kind: str, skips: bool) -> Iterator[Row]:
    """JSON Lines; in a file .json also what pandas writes: a list of objects, or an object of columns."""
    if kind == ".json":
        first, second = islice(chain(map(str.strip, filter(str.strip, read_lines(file))), ["", ""]), 2)
        if not (second and first.startswith("{") and first.endswith("}")):
            content = _parse_json("\n".join(read_lines(file)))
            values = content.values() if isinstance(content, dict) else ()
            lengths = {len(part) if isinstance(part, dict | list) else -1 for part in values}
            if len(lengths) == 1 and -1 not in lengths:
                columns = (part.values() if isinstance(part, dict) else part for part in values)
                content = [dict(zip(content, row, strict=True)) for row in zip(*columns, strict=True)]
            rows = content if isinstance(content, list) else [content]
            if not all(isinstance(row, dict) for row in rows):
                raise TextError(f'{file} does not hold JSON objects, such as {{"text": "A text."}}.')
            yield from rows
            return
    count, malformed, where = 0, 0, ""
    for number, line in enumerate(read_lines(file), 1):
        if line.strip():
            count += 1
            try:
                row = _parse_json(line)
                if not isinstance(row, dict):
                    raise ValueError(f"{line.strip():.80}")
            except ValueError as error:
                malformed, where = malformed + 1, where or f"line {number:,} is not a JSON object: {error}"
                if not skips:
                    break
                continue
            yield row
    _report_malformed(file, malformed, count, where, skips)


def _parse_json(text: str) -> Any:
    """Raises `ValueError` for what is not JSON, or has a column twice."""
    content = json.loads(text, object_pairs_hook=_each_name_once)
    if "\\ud" in text.lower():  # perhaps half of a surrogate pair, which no encoding has
        text = json.dumps(content, ensure_ascii=False)
        content = json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return content


def _read_delimited(
    file: Path, kind: str, columns: Iterable[str] | None, header: Sequence[str] | None, skips: bool
) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)
    delimiter = "," if kind == ".csv" else "\t"
    dialect: dict[str, Any] = {"delimiter": delimiter} if kind == ".csv" or _is_quoted_tsv(file) else TSV
    reader = csv.reader(read_lines(file, ends=True), **dialect, strict=True)
    count, malformed, where = 0, 0, ""
    try:
        records = filter(None, reader)
        first = next(records, [])
        if has_header := not header or not {*(columns or ())}.isdisjoint(first):
            header = _check_names(file, first)
        if len(header) == 1 and header[0] not in (columns or ()) and _separator_hint(header):
            raise TextError(f"{file} has one column, {describe_columns(header)}.")
        for fields in records if has_header else chain([first], records):
            count += 1
            if len(fields) > len(header) and not any(fields[len(header) :]):
                fields = fields[: len(header)]
            if len(fields) == len(header) and fields != header:
                yield dict(zip(header, fields, strict=True))
                continue
            malformed += 1
            what = "repeats the header" if fields == header else f"has {len(fields)} fields, the header {len(header)}"
            where = where or f"line {reader.line_num:,} {what}"
            if not skips:
                break
    except csv.Error as error:
        raise TextError(
            f"{file}: the quotes of the record that ends in line {reader.line_num:,} don't match ({error}). A field "
            "that contains quotes must be in quotes itself, with those inside doubled."
        ) from None
    remedy = ". A text that contains the separator or a line break must be in quotes."
    _report_malformed(file, malformed, count, where, skips, remedy)


def _report_malformed(file: Path, malformed: int, count: int, where: str, skips: bool, remedy: str = "") -> None:
    if malformed > (MAX_MALFORMED * count if skips else 0):
        raise TextError(f"{file}: {where}{remedy}")
    if malformed:
        warn_once(f"{file}: left out {malformed:,} of {count:,} records: {where}")


def _is_quoted_tsv(file: Path) -> bool:
    """Whether TSV has fields in quotes, as pandas writes them; otherwise quotes are text, as in the files of GLUE. Of
    standard input, they are text, as it can't be read twice."""
    if str(file) == STANDARD:
        return False
    reader = csv.reader(read_lines(file, ends=True), delimiter="\t", strict=True)
    try:
        widths = Counter(map(len, reader))  # of records; of blank lines, 0
    except csv.Error:
        return False
    first, spans_lines = next(read_lines(file), ""), reader.line_num > widths.total()
    del widths[0]
    width = max(widths, key=widths.__getitem__, default=0)
    if widths.total() - widths[width] > MAX_MALFORMED * widths.total():
        return False
    quoted = (line for line in read_lines(file) if '"' in line)
    return (
        spans_lines
        or first.startswith('"')
        or any('""' in line or "\r" in line or line.count("\t") + 1 != width for line in quoted)
    )


def as_columns(rows: Sequence[Row]) -> dict[str, list]:
    """Values by column, None where a row has none."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def read_table(
    file: Path, columns: set[str], header: Sequence[str] | None = None
) -> tuple[datasets.Dataset, Sequence[str]]:
    """Those of the `columns` that the file has, and the names of all its columns; see `read_chunks`.

    Raises `TextError` if the file is empty or damaged, or a column holds values of several types.
    """
    if file.stat().st_size == 0:
        raise TextError(f"{file} is empty.")
    if suffix(file) == ".parquet":
        with read_errors(file), pyarrow.parquet.ParquetFile(file) as content:
            names, count = _check_names(file, content.schema_arrow.names), content.metadata.num_rows
            table = content.read([name for name in names if name in columns])
    else:
        count, values = 0, dict[str, list]()
        for chunk in read_chunks(file, columns=columns, header=header, skips=True):
            batch = as_columns(chunk)
            for name in {**values, **batch}:
                found = batch.get(name, [None] * len(chunk)) if name in columns else []  # others are not kept
                values.setdefault(name, [None] * count).extend(found)
            count += len(chunk)
        names = [*values]
        table = pyarrow.table({name: as_array(file, name, values[name]) for name in names if name in columns})
    if not count:
        raise TextError(f"{file} contains no records.")
    return datasets.Dataset(table), names


def as_array(where: str | Path, name: str, values: list) -> pyarrow.Array:
    """A column. Raises `TextError` if it holds values of several types."""
    try:
        return pyarrow.array(values, from_pandas=True)  # NaN is a missing value
    except (pyarrow.ArrowException, OverflowError) as error:
        raise TextError(f"{where}: the column {name!r} has values of several types: {error}") from None


def describe_columns(names: Iterable[str]) -> str:
    """The columns of a table for the message that one is missing."""
    names = list(names)
    more = ", …" if len(names) > 20 else ""
    shown = (name if name == str(name).strip() else repr(name) for name in names[:20])
    return ", ".join(shown) + more + _separator_hint(names)


def _separator_hint(names: Sequence[str]) -> str:
    separator = next((mark for mark in (";", "\t", "|") if len(names) == 1 and mark in names[0]), None)
    return f" (its separator is {separator!r}: write the file with commas, or as .tsv)" if separator else ""


def open_dataset(
    name: str, config: str | None, streaming: bool = False
) -> datasets.DatasetDict | datasets.IterableDatasetDict:
    """The splits of a dataset on the Hub or in a local directory, also one written by `save_to_disk`.

    Raises `TextError` or `OSError` for what is not a dataset, or can't be read.
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
    except ConnectionError as error:
        raise OSError(f"{one_line(error)}. Files on this machine can be read by train_file") from error
    if isinstance(found, datasets.Dataset):
        found = datasets.DatasetDict({"train": found})
    for split, rows in found.items():
        if isinstance(rows, datasets.Dataset) and not len(rows):
            raise TextError(f"The split {split} of {name} has no rows.")
    return found
