"""Token ids in, pairs of segments out: the second follows the first, or it does not. Each pair is one training example.

A pair is five numbers, `a_start, a_end, b_start, b_end, label`: its segments as spans of `corpus.tokens`, and its
`next_sentence_label`. Nothing here loops over tokens.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .corpus import TokenizedCorpus


def build_pairs(
    corpus: TokenizedCorpus,
    max_seq_length: int,
    short_seq_prob: float,
    rng: np.random.Generator,
    objective: str,
    single_segment_prob: float = 0.0,
) -> np.ndarray:
    """One pass over the corpus as pairs for an objective of `OBJECTIVES`: (pairs, 5) int64, in the order of the text.

    The text is cut into chunks of whole sentences that fill a sequence, and each chunk into two segments, at a sentence
    drawn uniformly (paper, appendix A.2). For two documents of eight sentences of 10 tokens, and room for 40 tokens:

        nsp   0 10 10 40 0 ·  40 60 100 120 1 ·  80 100 60 80 1 ·  120 140 140 160 0
        sop   0 10 10 40 0 ·  60 80 40 60 1 ·  110 120 80 110 1 ·  120 140 140 160 0
        none  0 6 6 6 0 ·  6 46 46 46 0 ·  46 80 80 80 0 ·  80 95 95 95 0 ·  …

    - `nsp`: half of the pairs are chunks as they are (label 0). The others come from two chunks of different documents and
      similar lengths that swap their second segments (label 1). So nearly every token is in one pair of an epoch, and
      lengths hardly reveal the label, which they do where random segments fill up the short chunk at a document's end.
      A last sentence that is left alone is paired with another such one. If one document has more text than all others
      together, theirs is drawn more than once.
    - `sop`: half of the chunks have their segments in the wrong order (label 1; Lan et al. 2020, section 3.1). Lone
      sentences are left out.
    - `none`: documents are cut into full sequences at any token, from a first cut drawn uniformly. B is empty.

    A chunk is made shorter with probability `short_seq_prob`, to a length drawn uniformly. It takes in a last sentence
    that exceeds the sequence by a sixteenth at most; the excess is cut off at the pair's outer ends. A sentence longer
    than half a sequence counts as several. With probability `single_segment_prob`, it stays one segment: B is empty, and the
    label -100, which no loss counts.
    """
    limit = max_seq_length - OBJECTIVES[objective].special_tokens
    pairs = OBJECTIVES[objective].build(corpus, limit, short_seq_prob, single_segment_prob, rng)
    return pairs[np.argsort(pairs[:, 0], kind="stable")]


def _pairs(
    a_start: np.ndarray, a_end: np.ndarray, b_start: np.ndarray, b_end: np.ndarray, label: int = 0
) -> np.ndarray:
    return np.column_stack([a_start, a_end, b_start, b_end, np.full_like(a_start, label)])


def _trim(pairs: np.ndarray, limit: int) -> np.ndarray:
    """The pairs, cut to `limit` tokens: at the front of A or at the back of B, whichever is longer."""
    length_a, length_b = pairs[:, 1] - pairs[:, 0], pairs[:, 3] - pairs[:, 2]
    excess = np.maximum(length_a + length_b - limit, 0)
    pairs[:, 0] += np.where(length_a > length_b, excess, 0)
    pairs[:, 3] -= np.where(length_a > length_b, 0, excess)
    return pairs


def _contiguous_text(
    corpus: TokenizedCorpus, limit: int, short_seq_prob: float, single_segment_prob: float, rng: np.random.Generator
) -> np.ndarray:
    start, end = corpus.document_tokens.T
    phase = np.where(end - start > limit, rng.integers(limit, size=len(start)), 0)
    count = -(-(end - start + phase) // limit)
    document, number = _members(count)
    cut = (start - phase)[document] + number * limit
    first, last = np.maximum(cut, start[document]), np.minimum(cut + limit, end[document])
    return _pairs(first, last, last, last)


def _members(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For the members of groups of these sizes: the group of each, and its number in the group."""
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - (np.cumsum(counts) - counts)[group]


# ---------------------------------------------------------------------------------------------------------- chunks


class _Units(NamedTuple):
    """Sentences, or pieces of at most half a sequence: any two fit into one. Arrays with an entry per unit."""

    start: np.ndarray
    end: np.ndarray
    document: np.ndarray


def _units(corpus: TokenizedCorpus, limit: int) -> _Units:
    first_sentence, last_sentence = corpus.documents.T
    document, number = _members(last_sentence - first_sentence)
    sentence = first_sentence[document] + number
    start = corpus.sentence_offsets[sentence]
    length = corpus.sentence_offsets[sentence + 1] - start
    pieces = -(-length // (limit // 2))
    of, number = _members(pieces)  # the sentence that a unit is a piece of, and which piece
    return _Units(
        start[of] + length[of] * number // pieces[of],
        start[of] + length[of] * (number + 1) // pieces[of],
        document[of],
    )


class _Chunks(NamedTuple):
    """Runs of units of one document. Arrays with an entry per chunk, but for `units`."""

    start: np.ndarray
    split: np.ndarray  # where the second segment begins; `end` if there is one unit alone
    end: np.ndarray
    first: np.ndarray  # number of the first unit
    num_units: np.ndarray
    document: np.ndarray
    units: _Units

    @property
    def length(self) -> np.ndarray:
        return self.end - self.start

    def nearest_split(self, chunks: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Where a second segment of `chunks` can begin nearest to token `wanted`."""
        unit_start = self.units.start
        first, last = self.first[chunks] + 1, self.first[chunks] + self.num_units[chunks] - 1
        above = np.clip(np.searchsorted(unit_start, wanted), first, last)
        below = np.clip(above - 1, first, last)
        nearer = wanted - unit_start[below] < unit_start[above] - wanted
        return unit_start[np.where(nearer, below, above)]


def _cut(corpus: TokenizedCorpus, limit: int, short_seq_prob: float, rng: np.random.Generator) -> _Chunks:
    units = _units(corpus, limit)
    bounds = _chunk_bounds(units, limit, short_seq_prob, rng)
    first, num_units = bounds[:-1], np.diff(bounds)
    end = units.end[first + num_units - 1]
    # The second segment begins at a unit drawn uniformly, but not at the first.
    second = first + 1 + rng.integers(np.maximum(num_units - 1, 1))
    split = np.where(num_units > 1, units.start[np.minimum(second, len(units.start) - 1)], end)
    document = corpus.distinct_documents()[units.document[first]]
    return _Chunks(units.start[first], split, end, first, num_units, document, units)


def _chunk_bounds(units: _Units, limit: int, short_seq_prob: float, rng: np.random.Generator) -> np.ndarray:
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


# ----------------------------------------------------------------------------------------------------- objectives


def _single_segments(chunks: _Chunks, probability: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Whether each chunk stays one segment, and the pairs of those that do."""
    single = rng.random(len(chunks.start)) < probability if probability else np.zeros(len(chunks.start), dtype=bool)
    start, end = chunks.start[single], chunks.end[single]
    return single, _pairs(start, end, start, start, label=-100)


def _sentence_order_pairs(
    corpus: TokenizedCorpus, limit: int, short_seq_prob: float, single_segment_prob: float, rng: np.random.Generator
) -> np.ndarray:
    chunks = _cut(corpus, limit, short_seq_prob, rng)
    single, single_segments = _single_segments(chunks, single_segment_prob, rng)
    whole = (chunks.num_units > 1) & ~single
    start, split, end = chunks.start[whole], chunks.split[whole], chunks.end[whole]
    pairs = _trim(_pairs(start, split, split, end), limit)
    swapped = rng.permutation(len(pairs)) % 2 == 1
    pairs[swapped] = pairs[swapped][:, [2, 3, 0, 1, 4]]
    pairs[swapped, 4] = 1
    return np.concatenate([pairs, _trim(single_segments, limit)])


def _next_sentence_pairs(
    corpus: TokenizedCorpus, limit: int, short_seq_prob: float, single_segment_prob: float, rng: np.random.Generator
) -> np.ndarray:
    chunks = _cut(corpus, limit, short_seq_prob, rng)
    single, single_segments = _single_segments(chunks, single_segment_prob, rng)
    start, split, end = chunks.start, chunks.split, chunks.end
    whole, lone = (np.flatnonzero(those & ~single) for those in (chunks.num_units > 1, chunks.num_units == 1))
    i, j, drawn = _match(chunks, whole, whole, rng)
    lone_i, lone_j, _ = _match(chunks, lone, np.arange(len(start)), rng)
    # The second segment of a lone sentence: another lone sentence, or a chunk's second segment.
    lone_split = np.where(chunks.num_units[lone_j] > 1, split[lone_j], start[lone_j])

    swaps = _choose_swaps(drawn, num_chunks=len(whole), num_lone=len(lone_i), rng=rng)
    i, j, drawn = i[swaps], j[swaps], drawn[swaps]
    follows = np.setdiff1d(whole, np.concatenate([i, j[~drawn]]))
    pairs = [
        _pairs(start[follows], split[follows], split[follows], end[follows], label=0),
        *_swap(chunks, i, j),
        _pairs(start[lone_i], end[lone_i], lone_split, end[lone_j], label=1),
        single_segments,
    ]
    return _trim(np.concatenate(pairs), limit)


def _swap(chunks: _Chunks, i: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of chunks i and j with each other's second segment; j is split where both get the same length."""
    start, split, end, length = chunks.start, chunks.split, chunks.end, chunks.length
    split_j = chunks.nearest_split(j, start[j] + split[i] - start[i] + (length[j] - length[i]) // 2)
    return (
        _pairs(start[i], split[i], split_j, end[j], label=1),
        _pairs(start[j], split_j, split[i], end[i], label=1),
    )


def _choose_swaps(drawn: np.ndarray, num_chunks: int, num_lone: int, rng: np.random.Generator) -> np.ndarray:
    """Which of the possible swaps to make, so that as many pairs have label 0 as have label 1: their numbers.

    A swap gives two pairs of label 1 and takes two chunks from those of label 0; only one if its second chunk was `drawn`,
    which stays. `num_lone` pairs have label 1 in any case.
    """
    order = rng.permutation(len(drawn))
    order = order[np.argsort(drawn[order], kind="stable")]  # those with a drawn chunk come last
    # Pairs of label 0 beyond those of label 1 after 0, 1, 2, … swaps.
    surplus = num_chunks - num_lone - np.cumsum(np.append(0, 2 + np.where(drawn, 1, 2)[order]))
    number = int((surplus > 0).sum())  # the first number that reaches balance, or goes beyond it
    if 0 < number < len(surplus) and rng.random() * (surplus[number - 1] - surplus[number]) < -surplus[number]:
        number -= 1  # by a coin that balances the labels on average
    number = min(number, len(order))
    if number and surplus[number] == -2 * number - num_lone:  # keep at least one pair of label 0
        number -= 1
    return order[:number]


# -------------------------------------------------------------------------------------------------------- matching


def _match(
    chunks: _Chunks, those: np.ndarray, others: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Chunks of different documents with segments of similar lengths, two by two: (i, j, drawn), an entry per match.

    Each of `those` is in one match, if possible. Where no other document is left, j is `drawn` uniformly from `others`,
    and so can be in several matches.
    """
    near, rest = _match_by_length(chunks, those, rng)
    far, rest = _match_by_document(chunks, rest)
    matches = np.concatenate([near, far])
    matches = np.where(rng.random((len(matches), 1)) < 0.5, matches, matches[:, ::-1])
    i, j = _draw_partners(chunks, rest, others, rng)
    drawn = np.arange(len(matches) + len(i)) >= len(matches)
    return np.concatenate([matches[:, 0], i]), np.concatenate([matches[:, 1], j]), drawn


def _match_by_length(chunks: _Chunks, those: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Neighbours in the order of lengths, (matches, 2), and the chunks left over, as their neighbour is of the same document."""
    first_length = chunks.split - chunks.start
    order = those[np.lexsort((rng.random(len(those)), first_length[those], chunks.length[those] // 4))]
    half = len(order) // 2
    matches = order[: 2 * half].reshape(half, 2)
    same = _same_document(chunks, matches)
    return matches[~same], np.concatenate([matches[same].ravel(), order[2 * half :]])


def _match_by_document(chunks: _Chunks, those: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In the order of documents, the first half with the second: they differ, unless a document has more than half."""
    those = those[np.lexsort((chunks.length[those], chunks.document[those]))]
    half = len(those) // 2
    matches = np.stack([those[:half], those[len(those) - half :]], axis=1)
    same = _same_document(chunks, matches)
    return matches[~same], np.concatenate([matches[same].ravel(), those[half : len(those) - half]])


def _draw_partners(
    chunks: _Chunks, those: np.ndarray, others: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Each of `those` with one of the `others` from another document, drawn uniformly; left out if there is none.

    `others` are in the order of their documents.
    """
    first, last = (
        np.searchsorted(chunks.document[others], chunks.document[those], side=side) for side in ("left", "right")
    )
    choices = len(others) - (last - first)
    those, first, last, choices = (array[choices > 0] for array in (those, first, last, choices))
    choice = rng.integers(choices)
    return those, others[choice + np.where(choice >= first, last - first, 0)]


def _same_document(chunks: _Chunks, matches: np.ndarray) -> np.ndarray:
    document = chunks.document[matches]
    return document[:, 0] == document[:, 1]


# ------------------------------------------------------------------------------------------------- the objectives


class SentenceObjective(NamedTuple):
    """What the second head learns from the pairs; a new one needs an entry below, and a function that builds its pairs."""

    title: str
    description: str
    build: Callable[[TokenizedCorpus, int, float, float, np.random.Generator], np.ndarray]
    """From a corpus, the tokens that a pair may have, `short_seq_prob`, `single_segment_prob` and a random generator to pairs
    (pairs, 5)."""
    label_0: str = ""
    """What label 0 means; empty if there is no second segment, so that MLM is the only objective."""
    special_tokens: int = 3
    min_documents: int = 1

    @property
    def has_pairs(self) -> bool:
        return bool(self.label_0)


OBJECTIVES = {
    "nsp": SentenceObjective(
        "Next-sentence prediction",
        "next-sentence prediction, B follows A or is from another document",
        _next_sentence_pairs,
        label_0="B follows A",
        min_documents=2,
    ),
    "sop": SentenceObjective(
        "Sentence-order prediction",
        "sentence-order prediction, A and B are in order or swapped",
        _sentence_order_pairs,
        label_0="A and B are in order",
    ),
    "none": SentenceObjective("None", "MLM alone, on contiguous text", _contiguous_text, special_tokens=2),
}
