"""Text of any kind as documents and sentences: tables, formats, the built-in corpus."""

import unicodedata
from collections.abc import Container, Iterator

from scratch_bert_options.text_formats import UNK_TOKEN


__all__ = ["MAX_PIECE", "MAX_WORD", "UNK_TOKEN", "is_word", "pieces", "with_marks"]

MAX_WORD = 100  # characters; BERT's WordPiece turns a longer word into one unknown token
MAX_PIECE = 20_000  # characters of text to process at once: time and memory grow faster than the length


def pieces(text: str, size: int) -> Iterator[str]:
    """The text in pieces of at most `size` characters, cut after a space or a line end where there is one."""
    start = 0
    while len(text) - start > size:
        end = max(text.rfind(space, start + 1, start + size) for space in " \n") + 1 or start + size
        yield text[start:end]
        start = end
    yield text[start:]


def is_word(text: str) -> bool:
    """Whether it consists of letters, and of the marks that belong to letters: `str.isalpha` is false for Thai and
    Hindi words with vowel signs."""
    kinds = {unicodedata.category(character)[0] for character in text}
    return "L" in kinds and kinds <= {"L", "M"}


def with_marks(text: str, end: int, starts: Container[int] = ()) -> int:
    """The `end` of a token in its text, moved behind the accents and vowel signs that the tokenizer's normalizer has
    removed after it: those before the next of the `starts` of tokens."""
    while end < len(text) and end not in starts and unicodedata.category(text[end])[0] == "M":
        end += 1
    return end
