"""Readers of text in any form: its documents, paragraphs and sentences."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import sentencex

from scratch_bert_options.data import SPLITTERS, check_splitting
from scratch_bert_options.text_formats import FORMATS, TextFormat

from . import MAX_PIECE, MAX_WORD, UNK_TOKEN, pieces
from .files import TABLES, TextError, read_errors, read_lines, suffix
from .tables import CHUNK, as_columns, describe_columns, read_chunks
from .tables import VERSION as TABLES_VERSION


LONG_SENTENCE = 150  # tokens on average; of prose, a sentence has 20 to 40
MAX_SENTENCE = 1_000_000  # characters; a longer line is cut, to bound memory
_LINE_END = re.compile(r"\r\n?|\n")  # those of files; str.splitlines also splits at page breaks, U+0085 and U+2028
_SEPARATORS = dict.fromkeys(map(ord, "\v\f\x1c\x1d\x1e\x1f\x85"), " ")  # which BERT's normalizer would delete
_WEB_PAGE = re.compile(r"\s*<(!doctype html|html)\b", re.IGNORECASE)
WITHOUT_MARKS = (
    "sentencex looks for punctuation marks; where sentences end without one, as in Thai, sentence_splitter ' ' splits "
    "at spaces, and line at line ends"
)
SENTENCES = TextFormat("a document is a list of its sentences", lambda sentences: filter(None, [sentences]))

# ------------------------------------------------------------------------------------------------------- sentences


def sentence_splitter(name: str = "sentencex", language: str = "en") -> Callable[[str], list[str]]:
    """A function that splits a paragraph into sentences.

    `sentencex`: by the rules and abbreviations of `language` (an ISO 639 code), where line breaks count as spaces;
    `line`: each line is a sentence; any other `name` is a delimiter.
    """

    def split(paragraph: str) -> list[str]:
        if name == "line":
            parts = _LINE_END.split(paragraph)
        elif name.isspace() and name != " ":  # such as a tab
            parts = (" ".join(part.split()) for part in paragraph.split(name))
        else:
            paragraph = " ".join(paragraph.split())
            parts = _segment(language, paragraph) if name == "sentencex" else paragraph.split(name)
        return [sentence for part in parts for piece in pieces(part, MAX_SENTENCE) if (sentence := piece.strip())]

    return split


def _segment(language: str, paragraph: str) -> Iterator[str]:
    """The sentences of a paragraph. A long paragraph is segmented part by part, as the time grows faster than the
    length; a sentence that is cut off is segmented again with the next part."""
    start = 0
    while len(paragraph) - start > MAX_PIECE:
        end = paragraph.rfind(" ", start + 1, start + MAX_PIECE) + 1 or start + MAX_PIECE
        *complete, last = sentencex.segment(language, paragraph[start:end])
        yield from complete
        last_start = paragraph.rfind(last, start, end) if complete else -1
        if last_start < 0:
            yield last
        start = end if last_start < 0 else last_start
    yield from sentencex.segment(language, paragraph[start:])


# --------------------------------------------------------------------------------------------------- encoded data

# Base64 and the like: in one piece, or in lines of at least 60 characters.
_UNBROKEN = re.compile(
    rf"[A-Za-z0-9+/=_-]{{{MAX_WORD + 1},}}"
    r"|[A-Za-z0-9+/]{60,}(?:\s+[A-Za-z0-9+/]{60,})+(?:\s+[A-Za-z0-9+/]+={1,2})?"
)
ENCODED = f"stretches of encoded data, such as images in base64, read as {UNK_TOKEN}"
REPLACEMENT = "characters U+FFFD, left by a program that read the text in another encoding than its own"
_DIGIT_IN_WORD = re.compile(r"[A-Za-z][0-9]")


def replace_encoded(paragraph: str) -> tuple[str, int]:
    """The paragraph with an unknown word in place of encoded data, and the number of replacements.

    Encoded data would give more tokens than the text around it, and there is nothing to learn from them.
    """
    count = 0

    def replace(match: re.Match) -> str:
        nonlocal count
        longest = max(map(len, re.split("[/_=-]", match[0])))  # not that of a path or a URL
        many_digits = len(_DIGIT_IN_WORD.findall(match[0])) > len(match[0]) / 20  # in base64, 1 in 8
        if longest > 30 and many_digits:
            count += 1
            return UNK_TOKEN
        return match[0]

    return _UNBROKEN.sub(replace, paragraph), count


# --------------------------------------------------------------------------------------------------------- sources


@dataclass(eq=False)
class TextSource:
    """Text to pretrain on: files, the records of a dataset, or texts in memory. Each iteration reads it again.

    `shards` are paths, `datasets` (also streamed), or iterables of texts, or of documents as lists of their sentences.
    `text_format` names an entry of `FORMATS`; by default a blank line ends a document in plain text, and a record of a
    table, or a text in memory, is a document. Reading raises `TextError` for a file that is not UTF-8, cannot be
    decompressed or parsed, or lacks `text_column`, and for a record that is not text.
    """

    shards: Sequence[Path | datasets.Dataset | datasets.IterableDataset | Iterable[str] | Iterable[list[str]]]
    text_format: str | None = None
    text_column: str = "text"
    splitter: str = "sentencex"
    language: str = "en"

    def __post_init__(self):
        check_splitting(self.splitter, self.language, self.text_format)
        self.shards = list(self.shards)

    @property
    def has_columns(self) -> bool:
        """Whether some of the text may be in columns: whether not all of it is in files of plain text."""
        return any(not isinstance(shard, Path) or suffix(shard) in TABLES for shard in self.shards)

    @classmethod
    def from_texts(cls, texts: Iterable, text_column: str | None = None, **settings: Any) -> "TextSource":
        """Texts in memory: any iterable of strings, or of lists of sentences; or a `Dataset`, `IterableDataset`,
        DataFrame or dict of lists with the text in `text_column`, by default `text`, or the only column. `settings`
        are the other fields."""
        if isinstance(texts, str | bytes | Path) or not (hasattr(texts, "__iter__") or hasattr(texts, "__getitem__")):
            raise ValueError(
                f"A list of texts is needed, one for each document, not {type(texts).__name__} {texts!r:.80}."
            )
        is_dataset = isinstance(texts, datasets.Dataset | datasets.IterableDataset)
        if not is_dataset and not isinstance(texts, dict | pandas.DataFrame):
            if text_column is not None:
                raise ValueError(f"text_column is for a dataset or DataFrame, not for a {type(texts).__name__}.")
            return cls([texts], **settings)
        # Names of columns may be numbers; a stream may not know its own.
        columns: dict[str, Any] = (
            dict.fromkeys(texts.column_names or []) if is_dataset else {str(name): texts[name] for name in texts}
        )
        if not is_dataset and len(columns) < len(texts.keys()):
            raise TextError("Several columns have the same name: rename them.")
        if text_column is None:
            text_column = next(iter(columns)) if len(columns) == 1 else "text"
        if str(text_column) not in columns and (columns or not is_dataset):
            raise TextError(f"There is no column {text_column!r}, only {', '.join(columns)}: set text_column.")
        if is_dataset:
            return cls([texts], text_column=text_column, **settings)
        return cls.from_texts(columns[str(text_column)], **settings)

    def document_hint(self, documents: int, sentences: int, tokens: int = 0) -> str:
        """What to check if the text gives numbers of documents, sentences or tokens that look wrong; otherwise
        empty."""
        if self.splitter not in SPLITTERS and sentences <= documents:
            return f"the delimiter {self.splitter!r} is in no document: set sentence_splitter"
        if self.splitter == "sentencex" and not self.text_format and tokens > LONG_SENTENCE * sentences:
            return f"a sentence has {tokens / sentences:.0f} tokens on average: {WITHOUT_MARKS}"
        files = [shard for shard in self.shards if isinstance(shard, Path) and suffix(shard) not in TABLES]
        if self.text_format or not files or len(files) < len(self.shards):
            return ""
        found = f"{documents:,} documents from {len(files):,} files: a blank line ends a document"
        beginning = list(islice(read_lines(files[0]), 1000))
        if any(map(_WEB_PAGE.match, beginning)):
            return f"{files[0]} is a web page, whose tags are read as text: extract its text, e.g. with trafilatura"
        for name, text_format in FORMATS.items():
            if text_format.mark and any(map(text_format.mark.match, beginning)):
                return f"{found}, but {files[0]} looks like text_format={name} ({text_format.description})"
        if documents >= 100 * len(files) and sentences < 10 * documents:
            return f"{found}. If each file is one document, set text_format=file; otherwise, this is right"
        if documents <= len(files) < 20 and sentences >= 100 * len(files):
            return f"{found}, and there are none. If each line is a document, put a blank line after it, as sed G does"
        return ""

    def paragraphs(self, skipped: Counter | None = None) -> Iterator[str | list[str] | None]:
        """Every paragraph, as a text or as a list of its sentences, and `None` where a document ends. Counts the files
        and records without text, and what `replace_encoded` replaces, in `skipped`."""
        skipped = Counter() if skipped is None else skipped
        for shard in self.shards:
            for kind, text_format, lines in self._texts(shard):
                has_text = False
                for paragraph in text_format.read(lines):
                    has_text = has_text or paragraph is not None
                    if isinstance(paragraph, str):
                        paragraph = paragraph.translate(_SEPARATORS)
                        paragraph, replaced = replace_encoded(paragraph)
                        skipped[ENCODED] += replaced
                        skipped[REPLACEMENT] += paragraph.count("\ufffd")
                    yield paragraph
                yield None
                skipped[f"{kind} without text"] += not has_text

    def __iter__(self) -> Iterator[str]:
        for paragraph in self.paragraphs():
            if paragraph is not None:
                yield from [paragraph] if isinstance(paragraph, str) else paragraph

    def unsplit_documents(self) -> Iterator[list[str]]:
        """Every document as a list of its paragraphs or, where it is given as a list of sentences, of these."""
        return _group([part] if isinstance(part, str) else part for part in self.paragraphs())

    def sentences(self, skipped: Counter | None = None) -> Iterator[list[str] | None]:
        """The sentences of every paragraph, and `None` where a document with a sentence ends.

        `skipped` also counts the documents without a sentence.
        """
        skipped = Counter() if skipped is None else skipped
        split = sentence_splitter(self.splitter, self.language)
        has_text = has_sentence = False
        for paragraph in self.paragraphs(skipped):
            if paragraph is not None:
                has_text = True
                if sentences := split(paragraph) if isinstance(paragraph, str) else paragraph:
                    has_sentence = True
                    yield sentences
                continue
            if has_sentence:
                yield None
            skipped["documents without a sentence"] += has_text and not has_sentence
            has_text = has_sentence = False

    def documents(self) -> Iterator[list[str]]:
        """Every document as a list of its sentences. The longest document must fit into memory."""
        return _group(self.sentences())

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the text and of the settings that it is read with."""
        settings: list[Any] = [self.text_format, self.text_column, self.splitter, self.language]
        settings += [metadata.version("sentencex"), TABLES_VERSION, _LINE_END.pattern]
        formats = [self.text_format] if self.text_format else ["blank_line", "file"]
        settings += [FORMATS[name].version for name in formats]
        digest = hashlib.blake2b(repr(settings).encode(), digest_size=16)
        for shard in self.shards:
            if isinstance(shard, Path):
                with shard.open("rb") as file:
                    while part := file.read(1 << 20):
                        digest.update(part)
                digest.update(suffix(shard).encode())
            elif isinstance(shard, datasets.Dataset):
                digest.update(shard._fingerprint.encode())
            else:
                for text in self._records(shard):
                    digest.update(repr(text).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def _texts(self, shard) -> Iterator[tuple[str, TextFormat, Iterable]]:
        """The texts of a shard: (kind of text, format, lines)."""
        if isinstance(shard, Path) and suffix(shard) not in TABLES:
            yield "files", FORMATS[self.text_format or "blank_line"], read_lines(shard)
            return
        text_format = FORMATS[self.text_format or "file"]
        if text_format.records_are_lines:
            yield "tables", text_format, self._records(shard)
            return
        for record in self._records(shard):
            split = isinstance(record, list)
            yield "records", SENTENCES if split else text_format, record if split else _LINE_END.split(record)

    def _records(self, shard) -> Iterator[str | list[str]]:
        if not isinstance(shard, Path | datasets.Dataset | datasets.IterableDataset):
            for number, text in enumerate(shard, 1):
                if self.text_format and isinstance(text, list):
                    raise TextError("text_format has no effect on lists of sentences: leave it out.")
                yield _check_record(text, "The texts", number)
            return
        name, number = str(shard) if isinstance(shard, Path) else "The dataset", 0
        with read_errors(name, lambda: f"record {number + 1} or a later one"):
            if not isinstance(shard, Path):
                batches = shard.iter(CHUNK)
            elif shard.stat().st_size:
                batches = map(as_columns, read_chunks(shard, columns=[self.text_column], skips=True))
            else:
                batches = iter([{self.text_column: [""]}])
            for batch in batches:
                if self.text_column not in batch:
                    raise TextError(
                        f"{name} has no column {self.text_column!r}, only {describe_columns(batch)}: set text_column."
                    )
                for text in batch[self.text_column]:
                    number += 1
                    yield _check_record(text, name, number)


def _check_record(text: Any, name: str, number: int) -> str | list[str]:
    """A text, or a list of sentences without empty ones. A missing value is an empty text. Raises `TextError`."""
    if isinstance(text, str):
        return text
    if isinstance(text, list | tuple | np.ndarray) and all(isinstance(sentence, str) for sentence in text):
        return [sentence for sentence in map(str.strip, text) if sentence]
    if pandas.api.types.is_scalar(text) and pandas.isna(text):
        return ""
    raise TextError(f"{name}: record {number} is {type(text).__name__}, not text.")


def _group(parts: Iterable[list[str] | None]) -> Iterator[list[str]]:
    """The documents of parts, of which each document ends with `None`."""
    document: list[str] = []
    for part in parts:
        if part is not None:
            document += part
        else:
            yield document
            document = []
