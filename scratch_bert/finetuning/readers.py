"""A file → its records: sentences of words and tags (CoNLL), and SQuAD's JSON."""

import json
import re
from pathlib import Path

from datasets import Dataset

from ..text.files import read_lines, suffix


_COMMENT = re.compile(r"#(begin|end)? ")  # a # with a tab after it is a word
_TAG = re.compile(r"[A-Z]+(-\S+)?")  # in a line that has as many fields as others, the # before it is a word, too


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
    width = 2  # of the sentence before
    for number, line in enumerate(read_lines(file), 1):
        fields = [field.strip() for field in (line.split("\t") if "\t" in line else line.split())]
        if not any(fields) or fields[0] == "-DOCSTART-":
            sentences.append([])
        elif not sentences[-1] and _COMMENT.match(line) and not (len(fields) == width and _TAG.fullmatch(fields[tag])):
            continue
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


def read_squad(file: Path) -> Dataset | None:
    """The questions of a file in SQuAD's own format: `text` (the context), `text_pair` (the question), `label` (the
    answers; None in a file to predict) and `id`. None for any other JSON.

    Raises `ValueError` for a field that is missing.
    """
    try:
        articles = json.loads("\n".join(read_lines(file)))["data"]
        if not all("paragraphs" in article for article in articles):
            return None
    except (ValueError, TypeError, KeyError):  # JSON Lines, a table, or damaged: the table reader says which
        return None
    try:
        examples = [
            {
                "text": paragraph["context"],
                "text_pair": question["question"],
                "label": _answers(question),
                "id": str(question["id"]),
            }
            for article in articles
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file} is not in SQuAD's format: {type(error).__name__}: {error}") from None
    if not examples:
        raise ValueError(f"{file} contains no examples.")
    return Dataset.from_list(examples)


def _answers(question: dict) -> dict[str, list] | None:
    """As in SQuAD's dataset on the Hub."""
    answers = question.get("answers")
    if answers and question.get("is_impossible"):
        raise ValueError(f"The question {question['id']} has answers, but is_impossible is true.")
    return None if answers is None else {name: [one[name] for one in answers] for name in ("text", "answer_start")}
