"""Tables of any length in constant memory: read in chunks of rows, and written as the chunks come."""

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow.parquet

from scratch_bert_options.outputs import check_new_file

from ..logs import logger, progress_bar
from .files import STANDARD, TABLES, TextError, read_lines, suffix
from .tables import CHUNK, Row, read_chunks


KINDS = (*TABLES, ".txt")
OUTPUT_KINDS = (".csv", ".tsv", ".jsonl", ".parquet")


def row_kinds(
    file: str,
    output_file: str,
    kind: str | None = None,
    output_kind: str | None = None,
    output_kinds: Iterable[str] = OUTPUT_KINDS,
) -> tuple[str, str]:
    """The types of a file of rows and of a new one, as suffixes: their own, or else `kind` and `output_kind`, which
    have no dot.

    Raises `ValueError` for types that are none of `KINDS` and `output_kinds`, and for an output that exists.
    """
    kinds = _kind(file, kind, KINDS), _kind(output_file, output_kind, output_kinds)
    if output_file.endswith(".gz"):
        raise ValueError(f"{output_file} would not be compressed: leave out .gz, and compress it afterwards.")
    if output_file != STANDARD:
        check_new_file("output_file", Path(output_file))
    return kinds


def _kind(file: str, kind: str | None, kinds: Iterable[str]) -> str:
    own = suffix(Path(file))
    found = f".{kind}" if kind and own not in KINDS else own
    if found not in kinds or (file == STANDARD and found == ".parquet"):
        name = "standard input or output" if file == STANDARD else file
        hint = ": pass it as --format csv" if own not in KINDS and ".csv" in kinds else ""
        raise ValueError(f"The format of {name} must be one of {', '.join(kinds)}{hint}.")
    return found


def read_rows(file: str, kind: str) -> Iterator[list[Row]]:
    """The rows of a table, gzipped or not, or the lines of a text file as the column `text`, in chunks of `CHUNK`.
    All values of CSV and TSV are strings. `kind` is one of `KINDS`.

    Raises `TextError` for a file that can't be read or has no rows.
    """
    if kind == ".txt":
        rows = ({"text": line} for line in read_lines(Path(file)))
        chunks = iter(lambda: list(islice(rows, CHUNK)), [])
    else:
        chunks = read_chunks(file, kind)
    first = next(chunks, None)
    if first is None:
        raise TextError(f"{file} has no rows.")
    yield from chain([first], chunks)


def column_types(file: str, kind: str) -> dict[str, pyarrow.DataType]:
    """The types that a Parquet file declares; empty for others."""
    if kind != ".parquet":
        return {}
    schema = pyarrow.parquet.read_schema(file)
    return dict(zip(schema.names, schema.types, strict=True))


def extend_rows(
    chunks: Iterable[list[Row]], add: Callable[[list[Row], int], pyarrow.Table]
) -> Iterator[tuple[list[Row], pyarrow.Table]]:
    """Each chunk with its new columns, which `add` returns for the rows and the number, from 1, of the first one.
    Raises `ValueError` for rows that have such a column already."""
    number = 1
    for rows in chunks:
        new = add(rows, number)
        if taken := {name for row in rows for name in row} & {*new.column_names}:
            raise ValueError(f"There is a column {min(taken)!r} already: rename it, as it would be replaced.")
        yield rows, new
        number += len(rows)


def write_rows(
    file: str,
    kind: str,
    chunks: Iterator[tuple[list[Row], pyarrow.Table]],
    types: Mapping[str, pyarrow.DataType],
) -> int:
    """Write rows and their new columns to a new file, or to standard output (`-`), as they come: until all are written,
    the name of the file ends in .part. In CSV and TSV, lists and objects are JSON. Returns the number of rows.

    `kind` is one of `OUTPUT_KINDS`. `types` are those of the rows' columns, if the first rows do not tell them.
    """
    first, new = next(chunks)  # if this fails, there is no file
    names, count = [*dict.fromkeys(name for row in first for name in row), *new.column_names], 0
    part = f"{file}.part"
    with ExitStack() as stack:
        if kind == ".parquet":
            types = {**types, **dict(zip(new.schema.names, new.schema.types, strict=True))}
            found = [(name, types.get(name) or pyarrow.array([row.get(name) for row in first]).type) for name in names]
            schema = pyarrow.schema(found)
            table = stack.enter_context(pyarrow.parquet.ParquetWriter(part, schema))
        else:
            out = sys.stdout
            if file == STANDARD and isinstance(out, io.TextIOWrapper):
                out.reconfigure(encoding="utf-8", errors="strict", newline="")  # whatever the terminal's is
            elif file != STANDARD:
                out = stack.enter_context(open(part, "w", encoding="utf-8", newline=""))
            layout: dict[str, Any] = {"delimiter": "\t" if kind == ".tsv" else ",", "lineterminator": "\n"}
            cells, quoted = csv.writer(out, **layout), csv.writer(out, **layout, quoting=csv.QUOTE_ALL)
            if kind != ".jsonl":
                cells.writerow(names)
        advance = stack.enter_context(progress_bar("Writing", "rows"))
        for rows, columns in chain([(first, new)], chunks):
            rows = [row | added for row, added in zip(rows, columns.to_pylist(), strict=True)]
            if kind == ".jsonl":
                out.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
                out.flush()
            elif more := {name for row in rows for name in row} - {*names}:
                raise ValueError(f"The column {min(more)!r} is not in the first rows: write JSON Lines.")
            elif kind == ".parquet":
                table.write_table(pyarrow.Table.from_pylist(rows, schema))
            else:
                for row in ([_as_cell(row.get(name)) for name in names] for row in rows):
                    has_cr = any(isinstance(cell, str) and "\r" in cell for cell in row)  # which csv does not quote
                    (quoted if has_cr else cells).writerow(row)
                out.flush()
            count += len(rows)
            advance(len(rows))
    if file != STANDARD:
        os.replace(part, file)
        logger.info(f"Wrote {count:,} rows to {file}")
    return count


def _as_cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value
