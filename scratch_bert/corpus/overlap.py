"""How much of the held-out text is also in the training text: as long passages, or as complete short documents.

Passages are found by a rolling hash of windows of tokens: memory is bounded, and time grows with the training text.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from ..logs import logger
from .cache import cached
from .corpus import Block, Tokens, union_length


WINDOW = 50  # tokens of a passage
SHORTEST = 10  # tokens of a complete document that counts: shorter ones, such as "Chapter 1", are alike by chance
WARN_ABOVE = 0.01
MEMORISED = "on which evaluation only measures memorisation"
MAX_HELD_OUT = 1 << 22  # tokens to look for: of a larger text, a sample
CHUNK = 1 << 18  # tokens to hash at once
TABLE_BITS = 26  # of a hash, for a table that tells quickly that a window is not in the held-out text

FACTOR = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64


def report_overlap(
    training: Tokens,
    held_out: Tokens,
    vocab_size: int,
    cache_dir: str | Path,
    name: str = "held-out text",
    training_name: str = "the training text",
) -> str:
    """Log what fraction of the held-out text is also in the training text, as a warning above 1%, and return it as a
    phrase with these names. It is measured once, and kept in the cache."""

    def measure(directory: Path) -> None:
        fraction = shared_fraction(training.token_blocks(), held_out.token_blocks(), tokens, vocab_size)
        (directory / "shared.json").write_text(json.dumps(fraction))

    tokens = int(held_out.lengths().sum())
    settings = (training.checksum(), held_out.checksum(), tokens, WINDOW, SHORTEST, MAX_HELD_OUT)
    fraction = json.loads((cached(cache_dir, "overlap", settings, measure) / "shared.json").read_text())
    phrase = f"{fraction:.1%} overlap with {training_name} (passages of {WINDOW} tokens)"
    if fraction > WARN_ABOVE:
        phrase += f", {MEMORISED}"
        logger.warning(f"{name.capitalize()}: {phrase}. Remove duplicates, or evaluate on other text")
    else:
        logger.info(f"{name.capitalize()}: {phrase}")
    return phrase


def shared_fraction(training: Iterable[Block], held_out: Iterable[Block], num_held_out: int, vocab_size: int) -> float:
    """Fraction of the `num_held_out` held-out tokens in passages of `WINDOW` tokens, or in complete documents of fewer,
    that the training text also has. Of more than `MAX_HELD_OUT` tokens, it is that of evenly spread chunks."""
    hashed = _HashedWindows(vocab_size)
    every = -(-num_held_out // MAX_HELD_OUT)
    windows, total = [], 0
    for number, (start, length, chunk_windows) in enumerate(hashed(held_out)):
        if number % every == 0:
            total += length
            windows += [(start + place, size, values) for place, size, values in chunk_windows]
    if not windows:
        return 0.0
    start = np.concatenate([place for place, _, _ in windows])
    end = start + np.concatenate([np.broadcast_to(size, place.shape) for place, size, _ in windows])
    wanted, number = np.unique(np.concatenate([values for _, _, values in windows]), return_inverse=True)

    table = np.zeros(1 << TABLE_BITS, dtype=bool)
    table[wanted >> np.uint64(64 - TABLE_BITS)] = True
    found = np.zeros(len(wanted), dtype=bool)
    for _, _, chunk_windows in hashed(training):
        for _, _, values in chunk_windows:
            values = np.sort(values[table[values >> np.uint64(64 - TABLE_BITS)]])  # quicker to search for
            places = np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)
            found[places[wanted[places] == values]] = True

    shared = found[number]
    return min(union_length(start[shared], end[shared]) / total, 1.0)


class _HashedWindows:
    """Hashes of all windows and complete short documents of a text, chunk by chunk.

    The hash of tokens t, at places i to j - 1, is the sum of h(t[k]) · FACTOR ** (k - i), modulo 2**64: a difference of
    prefix sums, divided by FACTOR ** i.
    """

    def __init__(self, vocab_size: int):
        self.token_hashes = np.random.default_rng(0).integers(1 << 64, size=vocab_size, dtype=np.uint64)
        exponents = np.arange(CHUNK + WINDOW) > 0
        self.powers, self.inverses = (
            np.cumprod(np.where(exponents, np.uint64(factor), np.uint64(1)))
            for factor in (FACTOR, pow(FACTOR, -1, 1 << 64))
        )

    def __call__(self, blocks: Iterable[Block]) -> Iterator[tuple[int, int, list[tuple]]]:
        """Chunks as (place of the first token, tokens, windows); windows as arrays (places in it, sizes, hashes)."""
        offset = 0
        for tokens, lengths in blocks:
            document_starts = np.cumsum(lengths) - lengths
            is_short = (lengths >= SHORTEST) & (lengths < WINDOW)
            short_starts, short_lengths = document_starts[is_short], lengths[is_short]
            for start in range(0, len(tokens), CHUNK):
                chunk = tokens[start : start + CHUNK + WINDOW - 1]  # with the windows that begin in it
                values = self.token_hashes[chunk] * self.powers[: len(chunk)]
                sums = np.append(np.uint64(0), np.cumsum(values))
                places = np.arange(len(chunk) - WINDOW + 1) if len(chunk) >= WINDOW else np.arange(0)
                hashes = (sums[WINDOW:] - sums[: len(places)]) * self.inverses[: len(places)]
                inside = slice(*np.searchsorted(short_starts, [start, start + CHUNK]))
                first, size = short_starts[inside] - start, short_lengths[inside]
                short_hashes = (sums[first + size] - sums[first]) * self.inverses[first] + size.astype(np.uint64)
                length = min(CHUNK, len(tokens) - start)
                yield offset + start, length, [(places, WINDOW, hashes), (first, size, short_hashes)]
            offset += len(tokens)
