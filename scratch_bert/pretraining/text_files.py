"""Scores and vectors of the texts in a file of any length, in constant memory."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from scratch_bert_options.outputs import check_new_file
from scratch_bert_options.schema import check

from ..atomic import move_into_place
from ..checkpoints.open import open_pretrained
from ..corpus.tokenizer import check_vocabulary, load_tokenizer
from ..objectives import OBJECTIVES
from ..text.rows import OUTPUT_KINDS, STANDARD, Row, read_rows, row_kind, write_rows
from ..text.tables import describe_columns
from ..training.threads import to_accelerator
from .evaluation import open_with_objective
from .scoring import score_texts
from .text_vectors import encode_texts


TOKEN = pyarrow.struct(
    {"start": pyarrow.int64(), "end": pyarrow.int64(), "text": pyarrow.string(), "log_probability": pyarrow.float64()}
)
SCORES = {
    **{name: pyarrow.float64() for name in ("log_likelihood", "per_token", "per_character")},
    "surprising": pyarrow.list_(TOKEN),
}


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
) -> None:
    """Write the rows of `file` with the columns of `score_texts`, by the model in the directory or Hub repository
    `name`. For standard input (`-`), `kind` is its type; standard output is JSON lines.

    Raises `ValueError` or `OSError` for files that can't be read or written, a column that is missing or in the way,
    and a model without an MLM head.
    """
    kind = row_kind(file, kind)
    output_kind = row_kind(output_file, "jsonl" if output_file == STANDARD else None, OUTPUT_KINDS)
    if output_file != STANDARD:
        check_new_file("output_file", Path(output_file))
    model, _ = open_with_objective(OBJECTIVES["none"], name, trust_remote_code)
    tokenizer = _prepare(model, name, trust_remote_code)
    done = 0
    with write_rows(output_file, output_kind, SCORES) as write:
        for rows, texts in _read_texts(file, kind, text_column):
            description = f"rows {done + 1:,}–{done + len(rows):,}"
            scores = score_texts(
                model, tokenizer, texts, fast=fast, surprising=surprising, bf16=bf16, description=description
            )
            if both := rows[0].keys() & scores[0].keys():
                raise ValueError(f"{file} has a column {min(both)!r}, as the scores have: rename it.")
            write([row | score for row, score in zip(rows, scores, strict=True)])
            done += len(rows)


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
    kind, output_kind = row_kind(file, kind), row_kind(output_file, None, (".npy", ".parquet"))
    check_new_file("output_file", Path(output_file))
    if file == STANDARD and output_kind == ".npy":
        raise ValueError(
            "A .npy file begins with its number of rows, which standard input does not tell: use .parquet."
        )
    total = None if file == STANDARD else sum(len(rows) for rows, _ in _read_texts(file, kind, text_column))
    model, _ = open_pretrained(name, with_nsp=False, trust_remote_code=trust_remote_code)
    tokenizer = _prepare(model, name, trust_remote_code)

    def encode() -> Iterator[tuple[list[Row], np.ndarray]]:
        with tqdm(total=total, unit=" rows", leave=False, disable=None, dynamic_ncols=True) as progress:
            for rows, texts in _read_texts(file, kind, text_column):
                yield rows, encode_texts(model, tokenizer, texts, normalize=normalize, bf16=bf16)
                progress.update(len(rows))

    if output_kind == ".npy":
        new = Path(output_file).with_name(f".{Path(output_file).name}")
        array = np.lib.format.open_memmap(new, "w+", np.float32, (total, model.config.hidden_size))
        done = 0
        for rows, vectors in encode():
            array[done : done + len(rows)] = vectors
            done += len(rows)
        array.flush()
        move_into_place(new, Path(output_file))
        return
    with write_rows(output_file, output_kind, {"embedding": pyarrow.list_(pyarrow.float32())}) as write:
        for rows, vectors in encode():
            write([row | {"embedding": vector} for row, vector in zip(rows, vectors.tolist(), strict=True)])


def _prepare(model: PreTrainedModel, name: str, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """Move the model to the accelerator, if there is one, and open its tokenizer."""
    tokenizer = load_tokenizer(name, trust_remote_code=trust_remote_code)
    check_vocabulary(tokenizer, model.config.vocab_size, name)
    to_accelerator(model)
    return tokenizer


def _read_texts(file: str, kind: str, column: str) -> Iterator[tuple[list[Row], list[str | None]]]:
    """The rows of a file in chunks, with their texts."""
    for rows in read_rows(file, kind, blank_lines=True):
        if column not in rows[0]:
            raise ValueError(
                f"{file} has no column {column!r}, but {describe_columns(rows[0])}: choose its --text_column."
            )
        yield rows, check(list[str | None], [row.get(column) for row in rows], f"{file}, column {column}")
