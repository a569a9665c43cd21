"""Labelled rows from files or a data set: the columns that a task reads, as `text`, `text_pair`, `label`, `choices`; and
`row`, which says where each comes from."""

import csv
import gzip
import json
import logging
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import datasets
from datasets import Dataset

from ..files import TABLES, TextError, find_files, open_dataset, open_table, read_lines, suffix
from .glue import GlueTask


logger = logging.getLogger("scratch_bert")

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
) -> dict[str, Dataset]:
    """The rows of `train` and, if there are any, of `validation` and `test`, from `files` of each split or else from a
    data set (its name and configuration). The column `row` names a row by its file or split and its number there, from 1.

    Raises `ValueError` or `OSError`, which name the file and the remedy, for what cannot be read, lacks a column, or
    holds no rows.
    """
    name, config = dataset
    if files["train"]:
        splits = {split: _read_files(paths, columns, split) for split, paths in files.items() if paths}
    elif name:
        found = open_dataset(name, config)
        own_names = {split: split if split in found else f"{split}_matched" for split in SPLITS}  # MNLI's
        splits = {
            split: _choose(found[own], columns, split, f"{name}, {own}")
            for split, own in own_names.items()
            if own in found
        }
        if "train" not in splits:
            raise ValueError(f"The data set {name} has no split 'train', but {', '.join(found)}.")
        if unused := sorted(set(found) - set(own_names.values())):
            logger.info(f"{name}: left out {', '.join(unused)}")
    else:
        raise ValueError("There are no rows to train on: pass --train_file or --dataset_name.")
    for split, rows in splits.items():
        if len(rows) == 0:
            where = ", ".join(files[split] or []) or name
            raise ValueError(f"{where} holds no rows for {split}: give another file or split.")
    return splits


def hold_out(rows: Dataset, share: float, seed: int) -> dict[str, Dataset]:
    """`train` and `validation`: a share of the rows, drawn by `seed`. Raises `ValueError` if that is none."""
    if len(rows) * share < 1:
        raise ValueError("No row is left to evaluate on: pass --validation_file, or a larger --validation_share.")
    parts = rows.train_test_split(share, seed=seed)
    return {"train": parts["train"], "validation": parts["test"]}


def _read_files(paths: list[str], columns: Columns, split: str) -> Dataset:
    files = find_files(paths, (*TABLES, ".conll", ".conllu", ".txt") if columns.from_conll else TABLES)
    rows = [_choose(_read_file(file, columns, split), columns, split, str(file)) for file in files]
    try:
        return datasets.concatenate_datasets(rows)
    except ValueError as error:
        raise ValueError(f"{', '.join(map(str, files))} differ in the types of their columns: {error}") from None


def _read_file(file: Path, columns: Columns, split: str) -> Dataset:
    if columns.from_conll and suffix(file) not in TABLES:
        return _from_rows(_conll_sentences(file, columns.names, tagged=split != "test"), file)
    if suffix(file) not in TABLES:
        raise ValueError(f"{file} is no table: give a file of type {', '.join(TABLES)}, gzipped or not.")
    if file.stat().st_size == 0:
        raise ValueError(f"{file} is empty.")
    if columns.from_squad and suffix(file) == ".json":
        articles = _squad_articles(file)
        if articles is not None:
            return _from_rows(_squad_questions(articles, columns.names, file), file)
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
    except ValueError as error:
        no_rows = "holds no rows" if "corresponds to no data" in str(error) else "cannot be read as a table"
        raise TextError(f"{file} {no_rows}: {error}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TextError(f"{file} cannot be unpacked: {error}. Copy or download it anew.") from None


def _from_rows(rows: Iterator[dict], file: Path) -> Dataset:
    rows = list(rows)
    if not rows:
        raise ValueError(f"{file} holds no rows.")
    return Dataset.from_list(rows)


def _conll_sentences(file: Path, names: dict[str, list[str]], tagged: bool) -> Iterator[dict[str, list[str]]]:
    """Words and their tags: the first and the last field of a line, in CoNLL-U the form and its part of speech; or those
    whose numbers, from 1, stand for names. A blank line ends a sentence; files that are not `tagged` may hold words alone.
    """
    (text,), (label,) = names["text"], names["label"]
    if "0" in (text, label):
        raise ValueError(f"{file}: columns are counted from 1.")
    in_conllu = suffix(file) == ".conllu"
    usual = (1, 3) if in_conllu else (0, -1)
    word_field, tag_field = (
        int(name) - 1 if name.isdecimal() else field for name, field in zip((text, label), usual, strict=True)
    )
    words: list[str] = []
    tags: list[str] = []
    width = None
    comments = []
    for number, line in enumerate(chain(read_lines(file), [""]), 1):
        fields = [field.strip() for field in (line.split("\t") if "\t" in line else line.split())]
        if not any(fields) or fields[0] == "-DOCSTART-":
            if words:
                yield {text: words, **({label: tags} if width > 1 else {})}
            words, tags, width = [], [], None
        elif not words and "\t" not in line and line.startswith(("# ", "#begin ", "#end ")):
            comments.append(line)  # as CoNLL-U and CoNLL-2012 have them
        elif in_conllu and not fields[0].isdecimal():
            pass  # 1-2 stands for both of the words 1 and 2, and 1.1 for one that is left out
        else:
            width = width or len(fields)
            if len(fields) != width:
                raise ValueError(f"{file}: line {number} has {len(fields)} fields, those before it have {width}.")
            if width == 1 and tagged:
                raise ValueError(f"{file}: line {number} holds no tag, but only {fields[0]!r}.")
            if word_field >= width or (width > 1 and tag_field >= width):
                raise ValueError(
                    f"{file}: line {number} has {width} fields: there is none to take for {text}, {label}."
                )
            words.append(fields[word_field])
            if width > 1:
                tags.append(fields[tag_field])
    if comments:
        logger.info(f"{file}: left out {len(comments):,} comments, such as {comments[0]!r}")


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


def _squad_questions(articles: list[dict], names: dict[str, list[str]], file: Path) -> Iterator[dict]:
    try:
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    answers = question.get("answers")  # none at all in files to predict
                    yield {
                        names["id"][0]: str(question["id"]),
                        names["text"][0]: paragraph["context"],
                        names["text_pair"][0]: question["question"],
                        names["label"][0]: None
                        if answers is None
                        else {name: [answer[name] for answer in answers] for name in ("text", "answer_start")},
                    }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} is not as SQuAD's files are: {error!r} in the article {article.get('title')!r}."
        ) from None


def _choose(rows: Dataset, columns: Columns, split: str, where: str) -> Dataset:
    """The task's columns alone, under our names, and `row`. Of several columns for one name, a list is made."""
    if columns.glue:
        rows = rows.rename_columns(
            {
                own: name
                for name, own in columns.glue.file_columns.items()
                if own in rows.column_names and name not in rows.column_names and [name] in columns.names.values()
            }
        )
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
    rows = rows.rename_columns({names[0]: ours for ours, names in chosen.items() if names[0] != ours})
    return rows.add_column("row", [f"{where}, row {number}" for number in range(1, len(rows) + 1)])
