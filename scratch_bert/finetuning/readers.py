"""A file → its records: sentences of words and tags (CoNLL), and SQuAD's JSON."""

import json
from pathlib import Path
from typing import Annotated

from datasets import Dataset
from pydantic import BaseModel, Field, NonNegativeInt

from scratch_bert_options.schema import check

from ..text.tables import read_lines, suffix


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
    word, tag = (word_column or (2 if is_conllu else 1)) - 1, (tag_column or (4 if is_conllu else 0)) - 1
    sentences: list[list[list[str]]] = [[]]
    for number, line in enumerate(read_lines(file), 1):
        fields = [field.strip() for field in (line.split("\t") if "\t" in line else line.split())]
        if not any(fields) or fields[0] == "-DOCSTART-":
            sentences.append([])
        elif not sentences[-1] and "\t" not in line and line.startswith(("# ", "#begin ", "#end ")):
            continue  # a comment; a # with a tab after it is a word
        elif not is_conllu or fields[0].isdecimal():  # 1-2 contracts the words 1 and 2, and the text leaves out 1.1
            width = len(sentences[-1][0] if sentences[-1] else fields)
            needed = max(word + 1, tag + 1, 2) if tagged or width > 1 else word + 1
            if len(fields) != width or width < needed:
                raise ValueError(f"{file}: line {number} has {len(fields)} fields, not {max(width, needed)}.")
            sentences[-1].append(fields)
    examples = []
    for sentence in filter(None, sentences):
        tags = {"label": [fields[tag] for fields in sentence]} if tagged or len(sentence[0]) > 1 else {}
        examples.append({"text": [fields[word] for fields in sentence], **tags})
    if not examples:
        raise ValueError(f"{file} contains no examples.")
    return Dataset.from_list(examples)


NonBlank = Annotated[str, Field(pattern=r"\S")]


class Answer(BaseModel, strict=True):
    text: NonBlank
    answer_start: NonNegativeInt


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
    examples = [
        {
            "text": paragraph.context,
            "text_pair": question.question,
            "label": question.answers
            if question.answers is None
            else {name: [getattr(answer, name) for answer in question.answers] for name in Answer.model_fields},
            "id": str(question.id),
        }
        for article in check(SquadFile, content, str(file)).data
        for paragraph in article.paragraphs
        for question in paragraph.qas
    ]
    if not examples:
        raise ValueError(f"{file} contains no examples.")
    return Dataset.from_list(examples)
