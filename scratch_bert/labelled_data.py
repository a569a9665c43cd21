"""Labelled rows from files or a data set: the columns that a task reads, as `text`, `text_pair`, `label`, `choices`."""

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import datasets
from datasets import Dataset

from .corpus import TABLES, TextError, find_files, open_dataset, open_table, read_lines, suffix
from .glue import GlueTask


SPLITS = ("train", "validation", "test")


@dataclass
class Columns:
    """Where a task's rows come from: our name → the column's, or those of several that make a list; and how the files are
    to be read."""

    names: dict[str, list[str]]
    glue: GlueTask | None = None
    from_conll: bool = False  # files that are no tables hold words and tags
    from_squad: bool = False  # JSON files may be SQuAD's

    @property
    def all_names(self) -> set[str]:
        return {*chain(*self.names.values()), *(self.glue.file_columns.values() if self.glue else ())}


def load_splits(
    columns: Columns,
    files: dict[str, list[str] | None],
    dataset: tuple[str | None, str | None] = (None, None),
    validation_share: float = 0.1,
    seed: int = 0,
) -> dict[str, Dataset]:
    """The rows of `train`, `validation` and, if there is one, `test`, from `files` of each split or else from a data
    set (its name and configuration). Without a split `validation`, `validation_share` of the training rows, drawn by
    `seed`, are held out.

    Raises `ValueError` or `OSError`, which name the file and the remedy, for what cannot be read, lacks a column, or
    holds no rows.
    """
    name, config = dataset
    if files["train"]:
        splits = {split: _read_files(paths, columns, split) for split, paths in files.items() if paths}
    elif name:
        found = open_dataset(name, config)
        if "validation" not in found and "validation_matched" in found:  # of MNLI
            found["validation"] = found["validation_matched"]
        splits = {
            split: _choose(found[split], columns, split, f"{name}, {split}") for split in SPLITS if split in found
        }
        if "train" not in splits:
            raise ValueError(f"The data set {name} has no split 'train', but {', '.join(found)}.")
    else:
        raise ValueError("There are no rows to train on: pass --train_file or --dataset_name.")
    for split, rows in splits.items():
        if len(rows) == 0:
            where = ", ".join(files[split] or []) or name
            raise ValueError(f"{where} holds no rows for {split}: give another file or split.")
    if "validation" not in splits:
        if len(splits["train"]) * validation_share < 1:
            raise ValueError("No row is left to evaluate on: pass --validation_file, or a larger --validation_share.")
        parts = splits["train"].train_test_split(validation_share, seed=seed)
        splits |= {"train": parts["train"], "validation": parts["test"]}
    return splits


def _read_files(paths: list[str], columns: Columns, split: str) -> Dataset:
    return datasets.concatenate_datasets(
        [_choose(_read_file(file, columns), columns, split, str(file)) for file in find_files(paths)]
    )


def _read_file(file: Path, columns: Columns) -> Dataset:
    if columns.from_conll and suffix(file) not in TABLES:
        return _from_rows(_conll_sentences(file, columns.names), file)
    if suffix(file) not in TABLES:
        raise ValueError(f"{file} is no table: give a file of type {', '.join(TABLES)}, gzipped or not.")
    if file.stat().st_size == 0:
        raise ValueError(f"{file} is empty.")
    if columns.from_squad and suffix(file) == ".json":
        articles = _squad_articles(file)
        if articles is not None:
            return _from_rows(_squad_questions(articles, columns.names), file)
    options: dict = {}
    header: Iterable[str] = ()
    if TABLES[suffix(file)] == "csv":
        separator = "\t" if suffix(file) == ".tsv" else ","
        header = next(csv.reader([next(read_lines(file), "")], delimiter=separator))
        options = {"index_col": False}
        if columns.glue and columns.glue.header and columns.all_names.isdisjoint(header):
            header = columns.glue.header
            options |= {"header": None, "names": list(header)}
    try:
        return open_table(file, {*columns.all_names, *header}, streaming=False, **options)
    except UnicodeDecodeError as error:
        raise TextError(f"{file} is not UTF-8 text: {error}. Convert it with iconv.") from None
    except datasets.exceptions.DatasetGenerationError as error:
        raise TextError(f"{file} cannot be read as a table: {error.__cause__}") from None
    except ValueError as error:  # what datasets says of a table without rows
        raise TextError(f"{file} holds no rows: {error}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TextError(f"{file} cannot be unpacked: {error}. Copy or download it anew.") from None


def _from_rows(rows: Iterator[dict], file: Path) -> Dataset:
    rows = list(rows)
    if not rows:
        raise ValueError(f"{file} holds no rows.")
    return Dataset.from_list(rows)


def _conll_sentences(file: Path, names: dict[str, list[str]]) -> Iterator[dict[str, list[str]]]:
    """Words and their tags: the first and the last field of a line; a blank line ends a sentence."""
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate(chain(read_lines(file), [""]), 1):
        fields = line.split("\t") if "\t" in line else line.split()
        if len(fields) == 1 and fields[0].strip():
            raise ValueError(f"{file}: line {number} holds no tag, but only {line.strip()!r}.")
        if line.strip() and fields[0] != "-DOCSTART-":
            words.append(fields[0])
            tags.append(fields[-1].strip())
        elif words:
            yield {names["text"][0]: words, names["label"][0]: tags}
            words, tags = [], []


def _squad_articles(file: Path) -> list[dict] | None:
    """What a file in SQuAD's own form holds; None for any other JSON."""
    try:
        content = json.loads("\n".join(read_lines(file)))
    except ValueError:  # several objects, a line each
        return None
    articles = content.get("data") if isinstance(content, dict) else None
    nested = isinstance(articles, list) and all(
        isinstance(article, dict) and "paragraphs" in article for article in articles
    )
    return articles if nested else None


def _squad_questions(articles: list[dict], names: dict[str, list[str]]) -> Iterator[dict]:
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = question.get("answers", [])
                yield {
                    names["id"][0]: str(question["id"]),
                    names["text"][0]: paragraph["context"],
                    names["text_pair"][0]: question["question"],
                    names["label"][0]: {
                        name: [answer[name] for answer in answers] for name in ("text", "answer_start")
                    },
                }


def _choose(rows: Dataset, columns: Columns, split: str, where: str) -> Dataset:
    """The task's columns alone, under our names. Of several columns for one name, a list is made."""
    if columns.glue:
        in_file = {own: name for name, own in columns.glue.file_columns.items() if own in rows.column_names}
        rows = rows.rename_columns({own: name for own, name in in_file.items() if name not in rows.column_names})
    chosen = dict(columns.names)
    for ours, names in columns.names.items():
        missing = [name for name in names if name not in rows.column_names]
        if missing and ours != "id" and (ours, split) != ("label", "test"):
            raise ValueError(
                f"{where} has no column {missing[0]!r}, but {', '.join(rows.column_names)}. Say with --{ours}_column which "
                "it is."
            )
        if missing:
            del chosen[ours]
    for names in chosen.values():
        if len(names) > 1:
            rows = rows.map(lambda row, names=names: {names[0]: [row[name] for name in names]}, desc="Joining columns")
    rows = rows.select_columns([names[0] for names in chosen.values()])
    return rows.rename_columns({names[0]: ours for ours, names in chosen.items() if names[0] != ours})
