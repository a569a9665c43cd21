"""A file → its records: sentences of words and tags (CoNLL), and SQuAD's JSON."""

import json
import logging
from itertools import groupby
from pathlib import Path

from datasets import Dataset
from pydantic import BaseModel

from scratch_bert_options.schema import check

from ..text.tables import read_lines, suffix


logger = logging.getLogger("scratch_bert")


def read_conll(
    file: Path, word_column: int | None = None, tag_column: int | None = None, tagged: bool = True
) -> Dataset:
    """The sentences of a CoNLL file (a word per line, a blank line after each sentence): `text`, a list of words, and
    `label`, a list of their tags.

    Columns are counted from 1. By default, words are in the first and tags in the last; in CoNLL-U, they are FORM and
    UPOS. If the file is not `tagged`, sentences may have a single column, without tags.

    Raises `ValueError` for a line that lacks a column, or has more or fewer than the first line of its sentence.
    """
    if 0 in (word_column, tag_column):
        raise ValueError(f"{file}: columns are counted from 1.")
    is_conllu = suffix(file) == ".conllu"
    word, tag = (2, 4) if is_conllu else (1, 0)
    word, tag = (word_column or word) - 1, (tag_column or tag) - 1
    sentences, comments = [], []
    numbered = ((number, line, _split(line)) for number, line in enumerate(read_lines(file), 1))
    for separates, block in groupby(numbered, lambda entry: not any(entry[2]) or entry[2][0] == "-DOCSTART-"):
        lines = []
        for number, line, fields in block if not separates else ():
            if not lines and "\t" not in line and line.startswith(("# ", "#begin ", "#end ")):  # a # and a tab: a word
                comments.append(line)
            elif (
                not is_conllu or fields[0].isdecimal()
            ):  # 1-2 contracts the words 1 and 2, and the text leaves out 1.1
                lines.append((number, fields))
        if lines:
            sentences.append(_parse_sentence(lines, word, tag, tagged, file))
    if comments:
        logger.info(f"{file}: skipped {len(comments):,} comments, such as {comments[0]!r}")
    if not sentences:
        raise ValueError(f"{file} contains no examples.")
    return Dataset.from_list(sentences)


def _split(line: str) -> list[str]:
    return [field.strip() for field in (line.split("\t") if "\t" in line else line.split())]


def _parse_sentence(
    lines: list[tuple[int, list[str]]], word: int, tag: int, tagged: bool, file: Path
) -> dict[str, list[str]]:
    """Words and tags of a sentence, given by the numbers and the fields of its lines."""
    first, width = lines[0][0], len(lines[0][1])
    has_tags = tagged or width > 1
    needed = max(word + 1, tag + 1 or 2) if has_tags else word + 1
    if width < needed:
        raise ValueError(f"{file}: line {first} has {width} fields: there is no column {needed}.")
    for number, fields in lines:
        if len(fields) != width:
            raise ValueError(f"{file}: line {number} has {len(fields)} fields, the lines before it have {width}.")
    words = {"text": [fields[word] for _, fields in lines]}
    return {**words, "label": [fields[tag] for _, fields in lines]} if has_tags else words


class Answer(BaseModel, strict=True):
    text: str
    answer_start: int


class Question(BaseModel, strict=True):
    id: str | int
    question: str
    answers: list[Answer] | None = None


class Paragraph(BaseModel, strict=True):
    context: str
    qas: list[Question]


class Article(BaseModel, strict=True):
    paragraphs: list[Paragraph]


class SquadFile(BaseModel, strict=True):
    data: list[Article]


def read_squad(file: Path) -> Dataset | None:
    """The questions of a file in SQuAD's own format: `text` (the context), `text_pair` (the question), `label` (the
    answers; None in a file to predict) and `id`. None for any other JSON.

    Raises `ValueError` for a field that is missing or of another type.
    """
    try:
        content = json.loads("\n".join(read_lines(file)))
        if not all("paragraphs" in article for article in content["data"]):
            return None
    except (ValueError, TypeError, KeyError):  # JSON Lines, a table, or damaged: the table reader says which
        return None
    examples = []
    for article in check(SquadFile, content, str(file)).data:
        for paragraph in article.paragraphs:
            for question in paragraph.qas:
                answers = question.answers
                if answers is not None:
                    answers = {name: [getattr(answer, name) for answer in answers] for name in Answer.model_fields}
                texts = {"text": paragraph.context, "text_pair": question.question}
                examples.append({**texts, "label": answers, "id": str(question.id)})
    if not examples:
        raise ValueError(f"{file} contains no examples.")
    return Dataset.from_list(examples)
