"""Files, tables in memory or a dataset → the splits of a task, with the `origin` of each example."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pandas
import pyarrow
from datasets import Dataset, DatasetDict

from ..logs import logger
from ..text.files import TABLES, find_files, read_lines, suffix
from ..text.tables import describe_columns, open_dataset, read_table
from .glue import GlueTask
from .readers import read_conll, read_squad


SPLITS = ("train", "validation", "test")
FILE_TYPES = {None: (), "squad": (), "conll": (".conll", ".conllu", ".txt")}  # and tables


@dataclass
class Columns:
    """The columns of tables and datasets that a task's columns come from, and which other format its files may have.

    For example, `Columns({"text": ["ctx"], "choices": ["a", "b"], "label": ["answer"]})` takes the text from the
    column `ctx`, and two choices from `a` and `b`.
    """

    names: dict[str, list[str]]
    """Task's column → column of a table, or several columns that become a list."""
    glue: GlueTask | None = None
    file_format: str | None = None
    """`conll` or `squad`."""


def load_splits(
    columns: Columns, splits: dict[str, Any], dataset: tuple[str | None, str | None] = (None, None)
) -> dict[str, Dataset]:
    """The splits `train` and, if there are any, `validation` and `test`: from `splits`, or if these are empty from a
    dataset, given by its name and configuration.

    Args:
        splits: Each a list of files, a pandas DataFrame, a `Dataset` or a dict of lists.

    Raises:
        ValueError, OSError: For what cannot be read, lacks a column or contains no examples.
    """
    splits, place = as_splits(splits), ""
    if not splits:
        if not dataset[0]:
            raise ValueError("There are no training examples: pass --train_file or --dataset_name.")
        splits, place = as_splits(open_dataset(*dataset)), f"{dataset[0]}, "
    chosen = {split: name for split in SPLITS for name in (f"{split}_matched", split) if name in splits}  # as in MNLI
    if unused := sorted(splits.keys() - chosen.values()):
        logger.info(f"{place}unused splits: {', '.join(unused)}")
    return {split: _read_split(splits[name], columns, split, f"{place}{name}") for split, name in chosen.items()}


def as_splits(data: Any, **more: Any) -> dict[str, Any]:
    """The splits in `data`, a `DatasetDict` or a dict with a key `train`; anything else is the split `train` alone.

    `more` are further splits by name. None, [] and {} are left out. Raises `ValueError` if other splits are there
    without `train`.
    """
    has_splits = isinstance(data, DatasetDict) or (isinstance(data, dict) and "train" in data)
    splits = [*(data if has_splits else {"train": data}).items(), *more.items()]
    given = {name: part for name, part in splits if not isinstance(part, list | dict | None) or part}
    if given and "train" not in given:
        raise ValueError(f"There is no split 'train', only {', '.join(given)}.")
    return given


def _read_split(part: Any, columns: Columns, split: str, where: str) -> Dataset:
    paths = part if isinstance(part, list) else [part]
    if all(isinstance(path, str | Path) for path in paths):
        files = find_files(paths, (*TABLES, *FILE_TYPES[columns.file_format]))
        parts = [_add_origin(_read_file(file, columns, split), str(file)) for file in files]
        try:
            return Dataset(pyarrow.concat_tables([part.data.table for part in parts], promote_options="permissive"))
        except pyarrow.ArrowException as error:
            raise ValueError(
                f"{files[0]} and the other {split} files have columns of different types: {error}"
            ) from None
    try:
        if isinstance(part, dict):
            part = Dataset.from_dict(part)
        elif isinstance(part, pandas.DataFrame):
            part = Dataset.from_pandas(part, preserve_index=False)
    except (TypeError, OverflowError) as error:  # of pyarrow, for a column of several types
        raise ValueError(f"{where} cannot be read as a table: {error}") from None
    if not isinstance(part, Dataset):
        raise ValueError(f"{where} must be files, a DataFrame, a Dataset or a dict, not {type(part).__name__}.")
    if len(part) == 0:
        raise ValueError(f"{where} contains no examples.")
    return _add_origin(_choose_columns(part.with_format(None), columns, split, where), where)


def _read_file(file: Path, columns: Columns, split: str) -> Dataset:
    known = {*chain(*columns.names.values()), *(columns.glue.file_columns.values() if columns.glue else ())}
    is_table = suffix(file) in TABLES
    if columns.file_format == "conll" and suffix(file) == ".tsv":  # words and tags, unless it has a header
        is_table = not known.isdisjoint(next(read_lines(file), "").split("\t"))
    if not is_table:
        if columns.file_format != "conll":
            raise ValueError(f"{file} is not a table: give a file of type {', '.join(TABLES)}, gzipped or not.")
        names = [*columns.names["text"], *columns.names["label"]]
        if other := [name for name in names if not name.isdecimal() and name not in ("tokens", "ner_tags")]:
            raise ValueError(f"{file} has no column {other[0]!r}: the columns of CoNLL are numbered from 1.")
        numbers = [int(name) if name.isdecimal() else None for name in names]
        return read_conll(file, *numbers, tagged=split != "test")
    if columns.file_format == "squad" and suffix(file) == ".json" and (questions := read_squad(file)):
        return questions
    records, present = read_table(file, known, columns.glue and columns.glue.header)
    return _choose_columns(records, columns, split, str(file), present)


def _choose_columns(
    records: Dataset, columns: Columns, split: str, where: str, present: Sequence[str] | None = None
) -> Dataset:
    """The task's columns only, under the task's names. Test sets need no label. `present` are the columns to choose
    from, if the records have some of them only."""
    present, chosen = present or records.column_names, {}
    own = columns.glue.file_columns if columns.glue else {}  # GLUE's files name some columns differently from the Hub
    for column, names in columns.names.items():
        names = [name if name in present else own.get(name, name) for name in names]
        if missing := [name for name in names if name not in present]:
            if column == "id" or (column, split) == ("label", "test"):
                continue
            have = describe_columns(present)
            raise ValueError(
                f"{where} has no column {missing[0]!r}, only {have}. Name the right one: --{column}_column."
            )
        if len(names) > 1:
            records = records.map(lambda record, names=names: {names[0]: [record[name] for name in names]})
        chosen[column] = names[0]
    records = records.select_columns(list(chosen.values()))
    return records.rename_columns({name: column for column, name in chosen.items() if name != column})


def _add_origin(examples: Dataset, where: str) -> Dataset:
    return examples.add_column("origin", [f"{where}, example {number}" for number in range(1, len(examples) + 1)])
