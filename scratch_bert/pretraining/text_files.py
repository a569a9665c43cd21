"""Scores and vectors of the texts in a file of any length, in constant memory."""

import heapq
import os
from pathlib import Path

import numpy as np
import pyarrow

from scratch_bert_options.schema import check, check_range

from ..atomic import move_into_place
from ..checkpoints.open import open_pretrained
from ..corpus.tokenizer import load_tokenizer
from ..logs import logger, progress_bar
from ..objectives import OBJECTIVES
from ..text.rows import STANDARD, Row, column_types, extend_rows, read_rows, row_kinds, write_rows
from ..text.tables import describe_columns
from ..training.threads import to_accelerator
from .evaluation import open_with_objective
from .scoring import score_texts
from .text_vectors import encode_texts


TOKEN = pyarrow.struct(
    {"start": pyarrow.int64(), "end": pyarrow.int64(), "text": pyarrow.string(), "log_probability": pyarrow.float64()}
)
SCORES = pyarrow.schema(
    {
        "log_likelihood": pyarrow.float64(),
        **dict.fromkeys(("tokens", "characters", "windows"), pyarrow.int64()),
        **dict.fromkeys(("per_token", "per_character"), pyarrow.float64()),
        "surprising": pyarrow.list_(TOKEN),
    }
)


def score_file(
    name: str,
    file: str,
    output_file: str,
    kind: str | None = None,
    text_column: str = "text",
    fast: bool = False,
    surprising: int = 3,
    bf16: bool = False,
    trust_remote_code: bool = False,
) -> list[tuple[float, str]]:
    """Write the rows of `file` with the columns of `score_texts`, by the model in the directory or Hub repository
    `name`. For standard input (`-`), `kind` is its type; standard output is JSON lines. Returns the three most unusual
    texts, each after its `per_token`.

    Raises `ValueError` or `OSError` for files that can't be read or written, a column that is missing or in the way,
    and a model without an MLM head.
    """
    check_range("surprising", surprising, "[0, 1000000]")
    kind, output_kind = row_kinds(file, output_file, kind, "jsonl" if output_file == STANDARD else None)
    model, _ = open_with_objective(OBJECTIVES["none"], name, trust_remote_code)
    tokenizer = load_tokenizer(name, trust_remote_code, vocab_size=model.config.vocab_size)
    to_accelerator(model)
    unusual = []

    def score(rows: list[Row], number: int) -> pyarrow.Table:
        texts = _texts(rows, file, text_column)
        scores = score_texts(model, tokenizer, texts, fast=fast, surprising=surprising, bf16=bf16)
        found = [(row["per_token"], text) for row, text in zip(scores, texts, strict=True) if row["tokens"]]
        unusual[:] = heapq.nsmallest(3, [*unusual, *found])
        return pyarrow.Table.from_pylist(scores, SCORES)

    extended = extend_rows(read_rows(file, kind), score)
    write_rows(output_file, output_kind, extended, column_types(file, kind))
    return unusual


def encode_file(
    name: str,
    file: str,
    output_file: str,
    kind: str | None = None,
    text_column: str = "text",
    normalize: bool = False,
    bf16: bool = False,
    trust_remote_code: bool = False,
) -> None:
    """Write the vectors of `encode_texts` of the rows of `file`: to a .npy file, (N, H) float32, or to .parquet, with
    the rows' columns. Arguments and errors are those of `score_file`."""
    kind, output_kind = row_kinds(file, output_file, kind, output_kinds=(".npy", ".parquet"))
    if file == STANDARD and output_kind == ".npy":
        raise ValueError(
            "A .npy file begins with its number of rows, which is unknown for standard input: use .parquet."
        )
    total = sum(map(len, read_rows(file, kind))) if output_kind == ".npy" else 0
    model, _ = open_pretrained(name, with_nsp=False, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(name, trust_remote_code, vocab_size=model.config.vocab_size)
    to_accelerator(model)

    def encode(rows: list[Row]) -> np.ndarray:
        return encode_texts(model, tokenizer, _texts(rows, file, text_column), normalize=normalize, bf16=bf16)

    chunks = read_rows(file, kind)
    if output_kind == ".parquet":
        extended = extend_rows(chunks, lambda rows, _: pyarrow.table({"embedding": list(encode(rows))}))
        write_rows(output_file, output_kind, extended, column_types(file, kind))
        return
    new, done = Path(output_file).with_name(f".{Path(output_file).name}"), 0
    try:
        array = np.lib.format.open_memmap(new, "w+", np.float32, (total, model.config.hidden_size))
        if hasattr(os, "posix_fallocate"):  # or a full disk would end the process without a word (SIGBUS)
            with new.open("r+b") as file_of_array:
                os.posix_fallocate(file_of_array.fileno(), 0, new.stat().st_size)
        with progress_bar("Encoding", "rows", total) as advance:
            for rows in chunks:
                array[done : done + len(rows)] = encode(rows)
                done += len(rows)
                advance(len(rows))
        del array  # written; and Windows does not rename a file that is mapped
        move_into_place(new, Path(output_file))
        logger.info(f"Wrote {done:,} vectors to {output_file}")
    finally:
        new.unlink(missing_ok=True)


def _texts(rows: list[Row], file: str, column: str) -> list[str | None]:
    if not any(column in row for row in rows):
        raise ValueError(
            f"{file} has no column {column!r}, only {describe_columns(rows[0])}: choose its --text_column."
        )
    return check(list[str | None], [row.get(column) for row in rows], f"{file}, column {column}")
