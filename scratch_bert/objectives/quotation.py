"""Passages of tokens as the text has them, with its case, accents and spaces, which tokens may lack."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase


MAX_CHARACTERS = 5_000_000  # of a text in which passages are looked for: about two seconds


class Quotation(NamedTuple):
    """A part of a text, and where each token of a passage starts and ends in it."""

    text: str
    offsets: list[tuple[int, int]]

    def token(self, position: int) -> str:
        start, end = self.offsets[position]
        return self.text[start:end]

    def write(self, masked: int | None = None, mask: str = "") -> str:
        """The passage on one line, with `mask` in place of its token number `masked`."""
        (start, _), (_, end) = self.offsets[0], self.offsets[-1]
        first, last = (end, end) if masked is None else self.offsets[masked]
        return " ".join(f"{self.text[start:first]}{mask}{self.text[last:end]}".split())


def find_passages(
    passages: list[list[int]], tokenizer: PreTrainedTokenizerBase, documents: Iterable[list[str]]
) -> list[Quotation | None]:
    """Look for each passage, a list of token ids, in documents, which are lists of paragraphs; None for those that are
    not found in the first `MAX_CHARACTERS`."""
    if not passages:
        return []
    normalizer = tokenizer.backend_tokenizer.normalizer
    keys = ["".join(text.split()) for text in tokenizer.batch_decode(passages)]
    found: list[Quotation | None] = [None] * len(passages)
    read = 0
    for document in documents:
        parts = ["".join((normalizer.normalize_str(text) if normalizer else text).split()) for text in document]
        joined, ends = "".join(parts), np.cumsum([len(part) for part in parts])
        for number, key in enumerate(keys):
            if found[number] is None and (place := joined.find(key)) >= 0:
                first, last = np.searchsorted(ends, [place + 1, place + len(key)])
                found[number] = _find(passages[number], tokenizer, " ".join(document[first : last + 1]))
        read += sum(map(len, document))
        if read > MAX_CHARACTERS or all(found):
            break
    return found


def _find(passage: list[int], tokenizer: PreTrainedTokenizerBase, text: str) -> Quotation | None:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids, length = encoded["input_ids"], len(passage)
    for start in range(len(ids) - length + 1):
        if ids[start : start + length] == passage:
            return Quotation(text, encoded["offset_mapping"][start : start + length])
    return None
