"""Predictions of a fine-tuned model for new rows: from memory, or for files of any length."""

import re
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import torch
from datasets import Dataset

from scratch_bert_options.finetuning import TASKS, TaskOptions

from ..checkpoints.open import load_config, named_head, open_checkpoint
from ..logs import logger
from ..text.rows import CHUNK, Row, column_types, extend_rows, read_rows, row_kinds, write_rows
from ..text.tables import as_array, describe_columns
from ..training.threads import to_accelerator
from .load import find_columns, open_task
from .tasks.problems import TwoClasses


ROWS = "rows"  # the split of a task that holds the rows to predict


class Predictor:
    """A fine-tuned model and its task, opened once: a function from rows, dicts, to the same rows with predictions.

    Args:
        model: A directory or a Hub repository.
        text_column, text_pair_column, choices_column: Columns, by default those of fine-tuning.
        max_seq_length: Default: that of fine-tuning, the model's limit or 384 for question answering.
        threshold: Of two classes, the config's `positive_label`, by default the second, is predicted from this
            probability on. Default: the config's `decision_threshold`, or else 0.5.

    Raises:
        ValueError, OSError: For a model that can't be used, or has no fine-tuned head.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        text_column: str | None = None,
        text_pair_column: str | None = None,
        choices_column: str | list[str] | None = None,
        max_seq_length: int | None = None,
        threshold: float | None = None,
        batch_size: int = 32,
        bf16: bool = False,
        trust_remote_code: bool = False,
    ):
        name = str(model)
        config = load_config(name, trust_remote_code=trust_remote_code)
        given = {"text_column": text_column, "text_pair_column": text_pair_column, "choices_column": choices_column}
        columns = {
            column: getattr(config, column, None) if value is None else value for column, value in given.items()
        }
        self.options, self.default_columns = TaskOptions(model_name_or_path=name, **columns), text_column is None
        head = named_head(config).removeprefix("For")
        task_name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", head).lower()
        if task_name not in TASKS:
            raise ValueError(f"{name} has no task head ({', '.join(TASKS[:4])}), only {head}: fine-tune it first.")
        max_seq_length = max_seq_length or getattr(config, "max_seq_length", None)
        self.task = open_task(task_name, name, config, max_seq_length, trust_remote_code)
        self.task.read_config(config)
        if threshold is not None:
            problem = getattr(self.task, "problem", None)
            if not isinstance(problem, TwoClasses):
                raise ValueError("A threshold is for two classes, which this model does not have.")
            if not 0 <= threshold <= 1:
                raise ValueError(f"threshold must be a probability, got {threshold}.")
            problem.threshold = threshold
        options = {"trust_remote_code": trust_remote_code}
        self.model, _ = open_checkpoint(self.task.auto_class, name, config, new_heads=(), **options)
        self.device = to_accelerator(self.model)
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, got {batch_size}.")
        self.batch_size, self.bf16 = batch_size, bf16
        self.without_text = 0  # rows
        self.truncated = 0  # rows; long lists of words and contexts are split into windows instead

    def __call__(self, rows: list[Row], first: int = 1) -> pyarrow.Table:
        """The predictions for these rows, the first of which is row number `first`. Raises `ValueError` for rows that
        lack a column of the task."""
        self.read(rows, first)
        return pyarrow.table(self.task.predict(ROWS, self.logits(self.task.encode(ROWS))))

    def read(self, rows: list[Row], first: int) -> None:
        """Check these rows, and give them to the task."""
        present = list(dict.fromkeys(name for row in rows for name in row))
        columns = find_columns(self.task.name, self.options).names
        if self.default_columns and columns["text"][0] not in present and "text" in present:
            columns["text"] = ["text"]  # in a .txt file, and in tables for a task on words
        origins = [f"row {number:,}" for number in range(first, first + len(rows))]
        examples: dict[str, list] = {"origin": origins}
        for column in columns.keys() - {"label", "id"}:
            names = columns[column]
            if missing := [name for name in names if name not in present]:
                raise ValueError(
                    f"The rows have no column {missing[0]!r}, only {describe_columns(present)}. "
                    f"Name the right one: --{column}_column."
                )
            values = [[row.get(name) for name in names] for row in rows]
            examples[column] = values if len(names) > 1 else [value for (value,) in values]
        table = {column: as_array("The rows", column, values) for column, values in examples.items()}
        self.task.splits[ROWS] = Dataset(pyarrow.table(table))
        for row in self.task.parse_rows(ROWS, self.task.row.model_validate):  # it raises the errors
            self.without_text += not "".join(row.text).strip()

    @torch.inference_mode()
    def logits(self, features: Dataset) -> tuple[torch.Tensor, ...]:
        """The model's logits for these features, in fp32 on the CPU, from batches of similar lengths."""
        collate, rows = self.task.collator_class(self.task.tokenizer), features.to_list()
        ids = [row["input_ids"] for row in rows]  # lists of them, one for each choice, in multiple choice
        lengths = [max(map(len, one)) if isinstance(one[0], list) else len(one) for one in ids]
        if not self.task.predicts_tokens:
            self.truncated += lengths.count(self.task.max_seq_length)
        batches: list[list[torch.Tensor]] = []
        order = sorted(range(len(rows)), key=lengths.__getitem__)
        for start in range(0, len(rows), self.batch_size):
            batch = collate([rows[number] for number in order[start : start + self.batch_size]])
            # The collator of multiple choice wants labels.
            batch = {name: values.to(self.device) for name, values in batch.items() if name != "labels"}
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
                outputs = self.model(**batch)
            parts = [part.float() for name, part in outputs.items() if name.endswith("logits")]
            if self.task.predicts_tokens:
                parts = [pad(part, batch["attention_mask"], max(lengths)) for part in parts]
            batches.append([part.cpu() for part in parts])
        places = torch.tensor(order).argsort()
        return tuple(torch.cat(parts)[places] for parts in zip(*batches, strict=True))


def pad(logits: torch.Tensor, mask: torch.Tensor, length: int) -> torch.Tensor:
    """Logits (B, S, …) as (B, length, …), with -inf at padding, where they are undefined."""
    padded = logits.new_full((len(logits), length, *logits.shape[2:]), -torch.inf)
    padded[:, : mask.shape[1]][mask.bool()] = logits[mask.bool()]
    return padded


def predict(model: str | Path, data: Any, **options: Any) -> pandas.DataFrame:
    """The rows of `data` with the predictions of a fine-tuned model as new columns. For example,

        predict("runs/reviews", ["a good film", "a bad film"])["prediction"]

    Args:
        data: A DataFrame, a dict of lists, or texts: a list, a Series, or any other iterable.
        options: Those of `Predictor`, which has the errors, too.
    """
    if isinstance(data, str):
        raise ValueError(f"A list of texts is needed, not the text {data!r:.60}.")
    is_table = isinstance(data, pandas.DataFrame | Mapping)
    frame = pandas.DataFrame(data if is_table else {"text": list(data)}).rename(columns=str)
    predictor = Predictor(model, **options)
    chunks = (frame[start : start + CHUNK].to_dict("records") for start in range(0, len(frame), CHUNK))
    found = [pandas.DataFrame(new.to_pylist()) for _, new in extend_rows(chunks, predictor)]
    return pandas.concat([frame, *([pandas.concat(found).set_axis(frame.index)] if found else [])], axis=1)


def predict_file(model: str | Path, file: str, output_file: str, *, kind: str | None = None, **options: Any) -> int:
    """Write the rows of a table, or the lines of a text file, with predictions as new columns to another file. Memory
    use does not depend on their number. Returns the number of rows.

    Args:
        file, output_file: CSV, TSV, JSON Lines or Parquet by their suffixes; `file` may also be .txt, and - is standard
            input or output.
        kind: The type of standard input and output, such as csv.
        options: Those of `Predictor`.

    Raises:
        ValueError, OSError: For files, rows and models that can't be used, and an `output_file` that exists.
    """
    kind, output_kind = row_kinds(file, output_file, kind, kind)
    chunks = read_rows(file, kind)
    first = next(chunks)  # an error in the file is found before the model is opened
    predictor = Predictor(model, **options)
    extended = extend_rows(chain([first], chunks), predictor)
    count = write_rows(output_file, output_kind, extended, column_types(file, kind))
    if predictor.without_text:
        logger.warning(f"{predictor.without_text:,} of {count:,} rows have no text: their predictions mean nothing")
    if predictor.truncated:
        limit = f"{predictor.task.max_seq_length} tokens, or have exactly that many"
        logger.info(f"{predictor.truncated:,} of {count:,} rows are truncated to {limit}")
    return count
