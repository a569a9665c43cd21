"""Text of any kind as documents and sentences: tables, formats, the built-in corpus."""

from collections.abc import Iterator

from scratch_bert_options.text_formats import UNK_TOKEN


__all__ = ["MAX_PIECE", "MAX_WORD", "UNK_TOKEN", "pieces"]

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
