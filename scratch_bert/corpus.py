"""Text in, documents of sentences out."""

import pydoc_data.topics
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np


Document = list[str]  # its sentences, in order

DOCUMENT_BOUNDARIES = ("blank_line", "file")
SENTENCE_BOUNDARIES = ("punctuation", "line")

# A sentence ends at . ! or ? (and a closing quote or bracket) before a space and a capital, a digit or an opening mark.
_SENTENCE_END = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["'”’)\]]))\s+(?=["'“‘(\[]?[^\W_a-z])""")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
# In Python's help: the line below or above a heading, and how prose opens, which code and signatures do not.
_UNDERLINE = re.compile(r"^([=*\-~^])\1{2,}$", re.MULTILINE)
_PROSE = re.compile(r"(\* |\d+\. |\[\d+\] )?[“‘\"'*(]*[A-Z][^\W_]*[\s,.:’\"'*]")


def split_sentences(paragraph: str, boundary: str = "punctuation") -> Document:
    """The sentences of one paragraph. They end at `punctuation`, and line breaks count as spaces; or each `line` is
    one, as in logs, verse and the input of Google's BERT scripts."""
    if boundary not in SENTENCE_BOUNDARIES:
        raise ValueError(f"The sentence boundary must be one of {', '.join(SENTENCE_BOUNDARIES)}; got {boundary!r}.")
    parts = paragraph.splitlines() if boundary == "line" else _SENTENCE_END.split(" ".join(paragraph.split()))
    return [" ".join(part.split()) for part in parts if part.strip()]


def text_files(paths: Iterable[str | Path]) -> list[Path]:
    """The files that `paths` name: each a file, or a directory, which stands for the .txt files below it, sorted.

    Raises `FileNotFoundError` for a path that does not exist and for a directory without .txt files.
    """
    files = []
    for path in map(Path, paths):
        if path.is_dir():
            found = sorted(path.rglob("*.txt"))
            if not found:
                raise FileNotFoundError(f"The directory {path} holds no .txt file.")
            files += found
        elif path.exists():
            files.append(path)
        else:
            raise FileNotFoundError(f"There is no file or directory {path}.")
    return files


def read_documents(
    files: Iterable[Path], document_boundary: str = "blank_line", sentence_boundary: str = "punctuation"
) -> Iterator[Document]:
    """The documents of UTF-8 text files.

    A document ends at a `blank_line`, or with its `file`, whose blank lines then only part paragraphs. Raises
    `ValueError` for a file that is not UTF-8 or holds no text.
    """
    if document_boundary not in DOCUMENT_BOUNDARIES:
        names = ", ".join(DOCUMENT_BOUNDARIES)
        raise ValueError(f"The document boundary must be one of {names}; got {document_boundary!r}.")
    for file in files:
        try:
            text = file.read_text(encoding="utf-8-sig")  # -sig: drops a byte-order mark
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{file} is not UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x}). "
                f"Convert it first, for example with: iconv -f latin1 -t utf-8 {file.name}"
            ) from None
        paragraphs = [split_sentences(part, sentence_boundary) for part in _BLANK_LINE.split(text) if part.strip()]
        if not paragraphs:
            raise ValueError(f"{file} holds no text. Leave it out of the training files.")
        if document_boundary == "file":
            yield [sentence for paragraph in paragraphs for sentence in paragraph]
        else:
            yield from paragraphs


def builtin_documents() -> list[Document]:
    """The language reference that every Python carries for `help()`, one document per topic.

    Without headings' underlines, tables, grammar and code. Many topics hold another topic whole: a paragraph that
    stands in several is kept in the longest of them only, so that held-out documents share no text with the others.
    """
    seen: set[str] = set()
    documents = []
    for text in sorted(pydoc_data.topics.topics.values(), key=lambda text: (-len(text), text)):
        paragraphs = [" ".join(block.split()) for block in _BLANK_LINE.split(_UNDERLINE.sub("", text))]
        paragraphs = [paragraph for paragraph in paragraphs if _PROSE.match(paragraph) and "::=" not in paragraph]
        documents.append([s for paragraph in paragraphs if paragraph not in seen for s in split_sentences(paragraph)])
        seen.update(paragraphs)
    return [document for document in documents if document]


def hold_out(documents: list[Document], share: float, seed: int) -> tuple[list[Document], list[Document]]:
    """(training documents, validation documents): a seeded draw of `share` of them, but two or more.

    Two, because a random second segment comes from another document. A share of 0 holds none out. Raises `ValueError`
    if fewer than two are left for training.
    """
    if not 0 <= share < 1:
        raise ValueError(f"validation_share must be at least 0 and less than 1, got {share}.")
    if share == 0:
        return documents, []
    held_out = max(2, round(share * len(documents)))
    if len(documents) - held_out < 2:
        raise ValueError(
            f"The text has {len(documents)} document(s), but training and validation need two or more each. Look at "
            "--document_boundary, or give --validation_file, or train without evaluation: --validation_share 0."
        )
    order = np.random.default_rng(seed).permutation(len(documents)).tolist()
    return [documents[i] for i in order[held_out:]], [documents[i] for i in order[:held_out]]
