"""Training of a tokenizer on texts of any kind."""

from collections.abc import Iterable, Iterator
from typing import Any

from transformers import PreTrainedTokenizerFast

from ..text.formats import TextSource
from . import tokenizer


def train_tokenizer(
    texts: Iterable, vocab_size: int = 30528, *, text_column: str | None = None, **options: Any
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on `texts`, which are those that `SentencePairDataset.from_texts` accepts.

    `options` are those of `scratch_bert.corpus.tokenizer.train_tokenizer`: `tokenizer_type`, `lowercase`, `min_frequency`, … An
    iterator is read into memory, as training reads the texts twice. Raises `ValueError` for what is no text, for no text at
    all, and for a `vocab_size` that is too small for the characters alone.
    """
    source = TextSource.from_texts(list(texts) if isinstance(texts, Iterator) else texts, text_column)
    return tokenizer.train_tokenizer(source, vocab_size, **options)
