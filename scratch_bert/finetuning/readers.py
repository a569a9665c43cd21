"""A file → its records: sentences of words and tags (CoNLL), and SQuAD's JSON."""

import json
import logging
from collections.abc import Iterator
from itertools import dropwhile, groupby, takewhile
from pathlib import Path

from datasets import Dataset

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
    word, tag = (1, 3) if is_conllu else (0, -1)
    word = word_column - 1 if word_column else word
    tag = tag_column - 1 if tag_column else tag
    sentences, comments = [], []
    for block in _blocks(file):
        comments += [line for _, line in takewhile(_is_comment, block)]
        lines = [(number, _split(line)) for number, line in dropwhile(_is_comment, block)]
        if is_conllu:  # 1-2 is a contraction of the words 1 and 2, and 1.1 a word that the text leaves out
            lines = [(number, fields) for number, fields in lines if fields[0].isdecimal()]
        if lines:
            sentences.append(_parse_sentence(lines, word, tag, tagged, file))
    if comments:
        logger.info(f"{file}: skipped {len(comments):,} comments, such as {comments[0]!r}")
    return _to_dataset(sentences, file)


def _blocks(file: Path) -> Iterator[list[tuple[int, str]]]:
    """The lines between blank or -DOCSTART- lines, with their numbers in the file."""
    numbered = enumerate(read_lines(file), 1)
    for is_separator, lines in groupby(
        numbered, lambda line: not line[1].strip() or _split(line[1])[0] == "-DOCSTART-"
    ):
        if not is_separator:
            yield list(lines)


def _split(line: str) -> list[str]:
    return [field.strip() for field in (line.split("\t") if "\t" in line else line.split())]


def _is_comment(line: tuple[int, str]) -> bool:
    """Whether a line is a comment, as in CoNLL-U and CoNLL-2012; a # with a tab after it is a word."""
    return "\t" not in line[1] and line[1].startswith(("# ", "#begin ", "#end "))


def _parse_sentence(
    lines: list[tuple[int, list[str]]], word: int, tag: int, tagged: bool, file: Path
) -> dict[str, list[str]]:
    """Words and tags of a sentence, given by the numbers and the fields of its lines."""
    first, width = lines[0][0], len(lines[0][1])
    if width == 1 and tagged:
        raise ValueError(f"{file}: line {first} has no tag, but only {lines[0][1][0]!r}.")
    last_column = max(word, tag) if width > 1 else word
    if last_column >= width:
        raise ValueError(f"{file}: line {first} has {width} fields: there is no column {last_column + 1}.")
    for number, fields in lines:
        if len(fields) != width:
            raise ValueError(f"{file}: line {number} has {len(fields)} fields, the lines before it have {width}.")
    words = {"text": [fields[word] for _, fields in lines]}
    return words if width == 1 else {**words, "label": [fields[tag] for _, fields in lines]}


def read_squad(file: Path) -> Dataset | None:
    """The questions of a file in SQuAD's own format: `text` (the context), `text_pair` (the question), `label` (the
    answers; None in a file to predict) and `id`. None for any other JSON.

    Raises `ValueError` for an article that lacks a field.
    """
    try:
        content = json.loads("\n".join(read_lines(file)))
    except ValueError:  # JSON Lines, or damaged: the table reader says which
        return None
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list):
        return None
    if not all(isinstance(article, dict) and "paragraphs" in article for article in articles):
        return None
    questions: list[dict] = []
    for number, article in enumerate(articles, 1):
        try:
            questions += _squad_questions(article)
        except (AttributeError, KeyError, TypeError) as error:
            problem = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{file} is not in SQuAD's format: in article {number}, {problem}.") from None
    return _to_dataset(questions, file)


def _squad_questions(article: dict) -> Iterator[dict]:
    for paragraph in article["paragraphs"]:
        for question in paragraph["qas"]:
            answers = question.get("answers")
            if answers is not None:
                answers = {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}
            texts = {"text": paragraph["context"], "text_pair": question["question"]}
            yield {**texts, "label": answers, "id": str(question["id"])}


def _to_dataset(examples: list[dict], file: Path) -> Dataset:
    if not examples:
        raise ValueError(f"{file} contains no examples.")
    try:
        return Dataset.from_list(examples)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{file}: a field of its examples has several types: {error}") from None
