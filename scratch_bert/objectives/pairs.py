"""Chunks of complete sentences that fill a sequence, from which objectives build pairs of segments.

A pair is five numbers, `a_start, a_end, b_start, b_end, label`: its segments as spans of `corpus.tokens`, and its
label. The text is cut into chunks, and these into two segments, at a sentence drawn uniformly (paper, appendix A.2).

With probability `short_seq_prob`, a chunk is shorter, with a length drawn uniformly. Its last sentence may exceed the
sequence by a sixteenth; the excess is cut off at the pair's outer ends. A sentence longer than half a sequence counts
as several. Nothing here loops over tokens.
"""

from typing import NamedTuple

import numpy as np

from ..corpus.corpus import TokenizedCorpus


def make_pairs(
    a_start: np.ndarray, a_end: np.ndarray, b_start: np.ndarray, b_end: np.ndarray, label: int = 0
) -> np.ndarray:
    return np.column_stack([a_start, a_end, b_start, b_end, np.full_like(a_start, label)])


def trim(pairs: np.ndarray, limit: int) -> np.ndarray:
    """Cut the pairs to `limit` tokens, in place: at the front of A or at the back of B, whichever is longer."""
    length_a, length_b = pairs[:, 1] - pairs[:, 0], pairs[:, 3] - pairs[:, 2]
    excess = np.maximum(length_a + length_b - limit, 0)
    pairs[:, 0] += np.where(length_a > length_b, excess, 0)
    pairs[:, 3] -= np.where(length_a > length_b, 0, excess)
    return pairs


def members(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The group of each member of groups of these sizes, and its number in the group."""
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - (np.cumsum(counts) - counts)[group]


class Units(NamedTuple):
    """Sentences, or pieces of at most half a sequence, so that any two fit into one. Arrays with an entry per unit."""

    start: np.ndarray
    end: np.ndarray
    document: np.ndarray


def _units(corpus: TokenizedCorpus, limit: int) -> Units:
    first_sentence, last_sentence = corpus.documents.T
    document, number = members(last_sentence - first_sentence)
    sentence = first_sentence[document] + number
    start = corpus.sentence_offsets[sentence]
    length = corpus.sentence_offsets[sentence + 1] - start
    pieces = -(-length // (limit // 2))
    parent, number = members(pieces)  # the sentence that a unit is a piece of, and which piece
    return Units(
        start[parent] + length[parent] * number // pieces[parent],
        start[parent] + length[parent] * (number + 1) // pieces[parent],
        document[parent],
    )


class Chunks(NamedTuple):
    """Runs of units of one document. Arrays with an entry per chunk, except `units`."""

    start: np.ndarray
    split: np.ndarray  # where the second segment begins; `end` if there is only one unit
    end: np.ndarray
    first: np.ndarray  # number of the first unit
    num_units: np.ndarray
    document: np.ndarray
    units: Units

    @property
    def length(self) -> np.ndarray:
        return self.end - self.start

    def nearest_split(self, chunks: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """The start of a second segment of each of `chunks` that is nearest to its token `wanted`."""
        unit_start = self.units.start
        first, last = self.first[chunks] + 1, self.first[chunks] + self.num_units[chunks] - 1
        above = np.clip(np.searchsorted(unit_start, wanted), first, last)
        below = np.clip(above - 1, first, last)
        nearer = wanted - unit_start[below] < unit_start[above] - wanted
        return unit_start[np.where(nearer, below, above)]


def cut(corpus: TokenizedCorpus, limit: int, short_seq_prob: float, rng: np.random.Generator) -> Chunks:
    units = _units(corpus, limit)
    bounds = _chunk_bounds(units, limit, short_seq_prob, rng)
    first, num_units = bounds[:-1], np.diff(bounds)
    end = units.end[first + num_units - 1]
    # The second segment begins at a unit drawn uniformly, but not at the first.
    second = first + 1 + rng.integers(np.maximum(num_units - 1, 1))
    split = np.where(num_units > 1, units.start[np.minimum(second, len(units.start) - 1)], end)
    document = corpus.distinct_documents()[units.document[first]]
    return Chunks(units.start[first], split, end, first, num_units, document, units)


def _chunk_bounds(units: Units, limit: int, short_seq_prob: float, rng: np.random.Generator) -> np.ndarray:
    """The first unit of each chunk, and the end of the last chunk: (chunks + 1,).

    From each unit, a chunk would reach to `after`: as many units as its target length has room for, at least two, and
    none of the next document. The chunks are found by following this from the first unit.
    """
    number = len(units.document)
    position = np.cumsum(np.append(0, units.end - units.start))
    short = rng.random(number) < short_seq_prob
    target = np.where(short, rng.integers(2, limit + 1, size=number), limit + limit // 16)
    after = np.searchsorted(position, position[:-1] + target, side="right") - 1
    document_end = np.cumsum(np.bincount(units.document, minlength=1))[units.document]
    after = np.minimum(np.maximum(after, np.arange(number) + 2), document_end).tolist()
    bounds = [0]
    while bounds[-1] < number:
        bounds.append(after[bounds[-1]])
    return np.array(bounds, dtype=np.int64)


def single_segments(chunks: Chunks, probability: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Whether each chunk stays one segment, and the pairs of the chunks that do."""
    single = rng.random(len(chunks.start)) < probability if probability else np.zeros(len(chunks.start), dtype=bool)
    start, end = chunks.start[single], chunks.end[single]
    return single, make_pairs(start, end, start, start, label=-100)
