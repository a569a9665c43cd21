"""A random sample of text that may be larger than memory."""

import heapq
import random
from dataclasses import replace
from math import inf
from typing import NamedTuple

from ..logs import progress_bar
from . import MAX_PIECE, pieces
from .formats import TextSource


class Sample(NamedTuple):
    paragraphs: list[str]
    """In random order."""
    size: int
    """Bytes of the sample, in UTF-8."""
    read: int
    """Bytes of the text that it was drawn from."""


def sample_text(source: TextSource, size: int, seed: int = 0, beginnings: bool = False) -> Sample:
    """Draw paragraphs, each with the same probability, of at most `size` bytes in all; all of a text that is smaller.

    All of the text is read, once; with `beginnings`, only the beginning of each of its files, `size` bytes in all.
    """
    draw = random.Random(seed).random
    limit = size / len(source.shards) if beginnings else inf
    sample: list[tuple[float, str, int]] = []  # a heap: what was drawn last is first
    total = read = 0
    with progress_bar("Reading", "bytes") as advance:
        for shard in source.shards:
            read_before = read
            for piece in (piece for text in replace(source, shards=[shard]) for piece in pieces(text, MAX_PIECE)):
                length = len(piece.encode("utf-8", "surrogatepass"))
                heapq.heappush(sample, (-draw(), piece, length))
                total, read = total + length, read + length
                while total > size:
                    total -= heapq.heappop(sample)[2]
                advance(length)
                if read - read_before >= limit:
                    break
    return Sample([piece for _, piece, _ in sorted(sample, reverse=True)], total, read)
