"""Tables of any length in constant memory: read in chunks of rows, and written as the chunks come."""

import csv
import io
import json
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet

from .tables import TSV, TextError, open_binary, read_errors, suffix


CHUNK = 1000  # rows
STANDARD = "-"  # for a file: standard input or output
KINDS = (".csv", ".tsv", ".jsonl", ".parquet", ".txt")
OUTPUT_KINDS = KINDS[:-1]

Row = dict[str, Any]


def row_kind(file: str, kind: str | None, kinds: Iterable[str] = KINDS) -> str:
    """The type of a file of rows, as its suffix: `kind`, which has no dot, or else the file's own.

    Raises `ValueError` for one that is none of `kinds`.
    """
    found = f".{kind}" if kind else suffix(Path(file))
    if found not in kinds or (file == STANDARD and found == ".parquet"):
        name = "standard input or output" if file == STANDARD else file
        raise ValueError(f"The format of {name} must be one of {', '.join(kinds)}: pass it as --format csv.")
    return found


def read_rows(file: str, kind: str, blank_lines: bool = False) -> Iterator[list[Row]]:
    """The rows of a table, gzipped or not, or the lines of a text file as the column `text`, in chunks of `CHUNK`.
    All values of CSV and TSV are strings; blank lines are left out, but of text files with `blank_lines`. `kind` is
    one of `KINDS`.

    Raises `TextError` for a file that can't be read.
    """
    with read_errors(file, lambda: ""):
        if kind == ".parquet":
            with pyarrow.parquet.ParquetFile(file) as table:
                yield from (batch.to_pylist() for batch in table.iter_batches(CHUNK))
            return
        with nullcontext(sys.stdin.buffer) if file == STANDARD else open_binary(Path(file)) as binary:
            rows = _parse(io.TextIOWrapper(binary, encoding="utf-8-sig", newline=""), kind, file, blank_lines)
            while chunk := list(islice(rows, CHUNK)):
                yield chunk


def _parse(lines: Iterable[str], kind: str, file: str, blank_lines: bool) -> Iterator[Row]:
    if kind == ".txt":
        yield from ({"text": line.rstrip("\r\n")} for line in lines if blank_lines or line.strip())
    elif kind == ".jsonl":
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield dict(json.loads(line))
                except (ValueError, TypeError) as error:
                    raise TextError(f"{file}: line {number:,} is not a JSON object: {error}") from None
    else:
        csv.field_size_limit(2**31 - 1)
        reader = csv.DictReader(lines, restkey="", restval="", strict=True, **(TSV if kind == ".tsv" else {}))
        header = reader.fieldnames or []
        if repeated := [name for name in header if header.count(name) > 1]:
            raise TextError(f"{file} has two columns {repeated[0]!r}: rename one of them.")
        for row in reader:
            if len(row) > len(header):
                raise TextError(f"{file}: line {reader.line_num:,} has more fields than the header.")
            yield row


@contextmanager
def write_rows(file: str, kind: str, types: Mapping[str, pyarrow.DataType]) -> Generator[Callable[[list[Row]], None]]:
    """A function that appends rows to a new file, or to standard output (`-`). What is written remains if the rest
    fails. In CSV and TSV, lists and objects are JSON.

    `kind` is one of `OUTPUT_KINDS`. `types` are those of Parquet's columns, for those that the first rows do not tell.
    """
    names: list[str] = []  # the columns, those of the first rows

    def check(rows: list[Row]) -> None:
        names.extend([] if names else dict.fromkeys(name for row in rows for name in row))
        if more := {name for row in rows for name in row} - {*names}:
            raise ValueError(f"The column {min(more)!r} is not in the first rows: write JSON Lines.")

    if kind == ".parquet":
        writer: Any = None

        def append_to_parquet(rows: list[Row]) -> None:
            nonlocal writer
            check(rows)
            if writer is None:
                columns = {name: [row.get(name) for row in rows] for name in names}
                found = {name: types.get(name) or pyarrow.array(values).type for name, values in columns.items()}
                writer = pyarrow.parquet.ParquetWriter(file, pyarrow.schema(list(found.items())))
            writer.write_table(pyarrow.Table.from_pylist(rows, writer.schema))

        try:
            yield append_to_parquet
        finally:
            if writer:
                writer.close()
        return
    dialect: dict[str, Any] = {**TSV, "quotechar": None} if kind == ".tsv" else {}
    with nullcontext(sys.stdout) if file == STANDARD else open(file, "w", encoding="utf-8", newline="") as out:
        table = csv.writer(out, lineterminator="\n", **dialect)

        def append(rows: list[Row]) -> None:
            if kind == ".jsonl":
                out.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
            else:
                header = [] if names else [names]
                check(rows)
                try:
                    table.writerows([*header, *([_as_cell(row.get(name)) for name in names] for row in rows)])
                except csv.Error as error:
                    raise ValueError(f"A value does not fit into TSV ({error}): write CSV or JSON Lines.") from None
            out.flush()

        yield append


def _as_cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value
