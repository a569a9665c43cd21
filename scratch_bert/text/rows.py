"""Tables of any length in constant memory: read in chunks, and written as the chunks come."""

import json
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pyarrow.parquet

from .tables import TextError, read_errors, read_lines, suffix


CHUNK = 1000  # rows
STANDARD = "-"  # for a file: standard input or output
KINDS = (".csv", ".tsv", ".jsonl", ".parquet", ".txt")
OUTPUT_KINDS = (".csv", ".tsv", ".jsonl", ".parquet")


def read_rows(file: str, kind: str | None = None) -> Iterator[pandas.DataFrame]:
    """The rows of a table in chunks of `CHUNK`, or the lines of a text file as the column `text`. All values of CSV and
    TSV are strings. `kind` is the file's suffix, for standard input (`-`).

    Raises `TextError` for a file that can't be read.
    """
    kind = kind or suffix(Path(file))
    if kind not in KINDS:
        raise TextError(f"{file} must be of type {', '.join(KINDS)}, or standard input (-) with its type.")
    with read_errors(file):
        if kind == ".parquet":
            for batch in pyarrow.parquet.ParquetFile(file).iter_batches(CHUNK):
                yield batch.to_pandas()
        elif kind in (".csv", ".tsv"):
            separator = "\t" if kind == ".tsv" else ","
            yield from pandas.read_csv(
                sys.stdin if file == STANDARD else file,
                sep=separator,
                dtype=str,
                keep_default_na=False,
                index_col=False,
                chunksize=CHUNK,
            )
        else:
            lines = _lines(file)
            while chunk := list(islice(lines, CHUNK)):
                rows = [{"text": line} if kind == ".txt" else json.loads(line) for line in chunk]
                yield pandas.DataFrame(rows)


def _lines(file: str) -> Iterator[str]:
    lines = (line.rstrip("\r\n") for line in sys.stdin) if file == STANDARD else read_lines(Path(file))
    return (line for line in lines if line.strip())


@contextmanager
def write_rows(file: str, kind: str | None = None) -> Generator[Callable[[pandas.DataFrame], None]]:
    """A function that appends rows to a new file, or to standard output (`-`): what is written remains if the rest
    fails. In CSV and TSV, lists are JSON.

    Raises `ValueError` for a type that isn't written.
    """
    kind = kind or suffix(Path(file))
    if kind not in OUTPUT_KINDS or (file == STANDARD and kind == ".parquet"):
        raise ValueError(f"{file} must be of type {', '.join(OUTPUT_KINDS)}, or standard output (-) with its type.")
    if kind == ".parquet":
        writer: Any = None
        try:

            def append(rows: pandas.DataFrame) -> None:
                nonlocal writer
                table = pyarrow.Table.from_pandas(rows, preserve_index=False)
                writer = writer or pyarrow.parquet.ParquetWriter(file, table.schema)
                writer.write_table(table)

            yield append
        finally:
            if writer:
                writer.close()
        return
    with nullcontext(sys.stdout) if file == STANDARD else open(file, "w", encoding="utf-8", newline="") as out:
        is_first = True

        def append(rows: pandas.DataFrame) -> None:
            nonlocal is_first
            if kind == ".jsonl":
                rows.to_json(out, orient="records", lines=True, force_ascii=False)
            else:
                rows.map(_as_cell).to_csv(out, sep="\t" if kind == ".tsv" else ",", header=is_first, index=False)
            is_first = False
            out.flush()

        yield append


def _as_cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
