"""Token ids in, pairs of segments out, of which the second follows the first or does not: one row of training each."""

import numpy as np

from .corpus import TokenizedCorpus


SPECIAL_TOKENS = {"nsp": 3, "sop": 3, "none": 2}  # sentence objective → special tokens of a row


def build_rows(
    corpus: TokenizedCorpus, max_seq_length: int, short_seq_prob: float, rng: np.random.Generator, objective: str
) -> np.ndarray:
    """One pass over the corpus as rows: (rows, 5) int64, in the order of the text.

    A row is `a_start, a_end, b_start, b_end, label`: its segments as ranges of `corpus.tokens`, and its
    `next_sentence_label`. The text is cut into chunks of whole sentences that fill a row, and each chunk into two
    segments, at a sentence drawn evenly (paper, appendix A.2). Then

    - `nsp`: half of the rows are chunks as they are (label 0). The others come from two chunks of different documents,
      of much the same lengths, that swap their second segments (label 1). So nearly each token is in one row of an epoch, and
      a row's lengths hardly tell its label, which they do where segments from elsewhere fill up the short chunk at a
      document's end. A last sentence that is left alone makes a row with another such one. If one document has more
      text than all others together, theirs is drawn more than once.
    - `sop`: half of the chunks have their segments in the wrong order (label 1; Lan et al. 2020, section 3.1). Lone
      sentences are left out.
    - `none`: documents are cut into full rows at any token, from a first cut drawn evenly; B is empty (label 0).

    A chunk is made shorter with probability `short_seq_prob`, to a length drawn evenly. It takes in a last sentence
    that exceeds the row by a sixteenth at most; what exceeds it is cut off at the row's outer ends. A sentence of more
    than half a row counts as several. Nothing here loops over tokens.
    """
    limit = max_seq_length - SPECIAL_TOKENS[objective]
    if objective == "none":
        return _full_rows(corpus, limit, rng)
    chunks = _Chunks(corpus, limit, short_seq_prob, rng)
    if objective == "nsp":
        rows = _next_sentence_rows(chunks, limit, rng)
    else:
        pairs = np.flatnonzero(chunks.units > 1)
        start, split, end = chunks.start[pairs], chunks.split[pairs], chunks.end[pairs]
        rows = _trimmed(np.column_stack([start, split, split, end, np.zeros_like(start)]), limit)
        swapped = rng.permutation(len(rows)) % 2 == 1
        rows[swapped] = rows[swapped][:, [2, 3, 0, 1, 4]]
        rows[swapped, 4] = 1
    return rows[np.argsort(rows[:, 0], kind="stable")]


def _trimmed(rows: np.ndarray, limit: int) -> np.ndarray:
    """The rows, cut to `limit` tokens: at the front of A or at the back of B, whichever is longer."""
    length_a, length_b = rows[:, 1] - rows[:, 0], rows[:, 3] - rows[:, 2]
    excess = np.maximum(length_a + length_b - limit, 0)
    rows[:, 0] += np.where(length_a > length_b, excess, 0)
    rows[:, 3] -= np.where(length_a > length_b, 0, excess)
    return rows


def _full_rows(corpus: TokenizedCorpus, limit: int, rng: np.random.Generator) -> np.ndarray:
    start, end = corpus.document_tokens.T
    phase = np.where(end - start > limit, rng.integers(limit, size=len(start)), 0)
    count = -(-(end - start + phase) // limit)
    document, number = _members(count)
    cut = (start - phase)[document] + number * limit
    row_start, row_end = np.maximum(cut, start[document]), np.minimum(cut + limit, end[document])
    return np.column_stack([row_start, row_end, row_end, row_end, np.zeros_like(cut)])


def _members(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For the members of groups of these sizes: the group of each, and its number in the group."""
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - (np.cumsum(counts) - counts)[group]


class _Chunks:
    """A corpus as runs of units, which are its sentences, or pieces of them of at most `limit // 2` tokens: any two
    fit into a row. All arrays have an entry per chunk."""

    def __init__(self, corpus: TokenizedCorpus, limit: int, short_seq_prob: float, rng: np.random.Generator):
        first_sentence, last_sentence = corpus.documents.T
        document, number = _members(last_sentence - first_sentence)
        sentence = first_sentence[document] + number
        start = corpus.sentence_offsets[sentence]
        length = corpus.sentence_offsets[sentence + 1] - start

        pieces = -(-length // (limit // 2))
        of, number = _members(pieces)  # the sentence that a unit is a piece of, and which piece
        document = document[of]
        self.unit_start = start[of] + length[of] * number // pieces[of]
        unit_end = start[of] + length[of] * (number + 1) // pieces[of]

        # From each unit, a chunk would run up to `after`: as many units as its target has room for, two at least, and
        # none of the next document. The chunks are found by following this from the first unit.
        position = np.cumsum(np.append(0, unit_end - self.unit_start))
        short = rng.random(len(document)) < short_seq_prob
        target = np.where(short, rng.integers(2, limit + 1, size=len(document)), limit + limit // 16)
        after = np.searchsorted(position, position[:-1] + target, side="right") - 1
        document_end = np.cumsum(np.bincount(document, minlength=1))[document]
        after = np.minimum(np.maximum(after, np.arange(len(document)) + 2), document_end).tolist()
        bounds = [0]
        while bounds[-1] < len(document):
            bounds.append(after[bounds[-1]])

        self.first = np.array(bounds[:-1], dtype=np.int64)  # its first unit
        self.units = np.diff(bounds)
        self.document = corpus.distinct_documents()[document[self.first]]
        self.start = self.unit_start[self.first]
        self.end = unit_end[self.first + self.units - 1]
        # The second segment begins at a unit drawn evenly, but for the first; the one unit of a chunk has none.
        second = self.first + 1 + rng.integers(np.maximum(self.units - 1, 1))
        self.split = np.where(self.units > 1, self.unit_start[np.minimum(second, len(document) - 1)], self.end)

    def nearest_split(self, chunks: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Where a second segment can begin nearest to token `wanted`."""
        first, last = self.first[chunks] + 1, self.first[chunks] + self.units[chunks] - 1
        above = np.clip(np.searchsorted(self.unit_start, wanted), first, last)
        below = np.clip(above - 1, first, last)
        nearer = wanted - self.unit_start[below] < self.unit_start[above] - wanted
        return self.unit_start[np.where(nearer, below, above)]


def _next_sentence_rows(chunks: _Chunks, limit: int, rng: np.random.Generator) -> np.ndarray:
    whole = np.flatnonzero(chunks.units > 1)
    i, j, drawn = _match(chunks, whole, whole, rng)
    lone_i, lone_j, _ = _match(chunks, np.flatnonzero(chunks.units == 1), np.arange(len(chunks.start)), rng)
    # Beside a lone sentence: another one, or a second segment.
    lone_split = np.where(chunks.units[lone_j] > 1, chunks.split[lone_j], chunks.start[lone_j])

    # Of the possible swaps, each of two rows, as many are made as bring the labels into balance. A swap takes both
    # chunks from the continuations, or only the first if the second was drawn: these come last.
    order = rng.permutation(len(i))
    order = order[np.argsort(drawn[order], kind="stable")]
    surplus = len(whole) - len(lone_i) - np.cumsum(np.append(0, 2 + np.where(drawn, 1, 2)[order]))
    number = int((surplus > 0).sum())  # of swaps; one less by a coin that makes up for what it goes beyond balance
    if 0 < number < len(surplus) and rng.random() * (surplus[number - 1] - surplus[number]) < -surplus[number]:
        number -= 1
    number = min(number, len(order))
    if number and surplus[number] == -2 * number - len(lone_i):  # leave one continuation at least
        number -= 1
    swaps = order[:number]
    i, j, drawn = i[swaps], j[swaps], drawn[swaps]
    follows = np.setdiff1d(whole, np.concatenate([i, j[~drawn]]))
    # The split of the other chunk that leaves the same room in both rows.
    start, split, end = chunks.start, chunks.split, chunks.end
    split_j = chunks.nearest_split(j, start[j] + split[i] - start[i] + ((end - start)[j] - (end - start)[i]) // 2)

    def rows(a_start: np.ndarray, a_end: np.ndarray, b_start: np.ndarray, b_end: np.ndarray, label: int) -> np.ndarray:
        return np.column_stack([a_start, a_end, b_start, b_end, np.full_like(a_start, label)])

    made = [
        rows(start[follows], split[follows], split[follows], end[follows], 0),
        rows(start[i], split[i], split_j, end[j], 1),
        rows(start[j], split_j, split[i], end[i], 1),
        rows(start[lone_i], end[lone_i], lone_split, end[lone_j], 1),
    ]
    return _trimmed(np.concatenate(made), limit)


def _match(
    chunks: _Chunks, those: np.ndarray, others: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of chunks from different documents, with segments of much the same lengths: (i, j, drawn), an entry each.

    Each of `those` is in one pair, if it can be; where they run out of other documents, j is `drawn` evenly from the
    `others`, which therefore can be in several pairs.
    """
    length, first_length, document = chunks.end - chunks.start, chunks.split - chunks.start, chunks.document
    order = those[np.lexsort((rng.random(len(those)), first_length[those], length[those] // 4))]
    half = len(order) // 2
    pairs = order[: 2 * half].reshape(half, 2)
    same = document[pairs[:, 0]] == document[pairs[:, 1]]
    # The rest, sorted by document: the first half against the second differ, unless one document has more than half.
    rest = np.concatenate([pairs[same].ravel(), order[2 * half :]])
    rest = rest[np.lexsort((length[rest], document[rest]))]
    half = len(rest) // 2
    again = np.stack([rest[:half], rest[len(rest) - half :]], axis=1)
    still_same = document[again[:, 0]] == document[again[:, 1]]
    pairs = np.concatenate([pairs[~same], again[~still_same]])
    pairs = np.where(rng.random((len(pairs), 1)) < 0.5, pairs, pairs[:, ::-1])

    alone = np.concatenate([again[still_same].ravel(), rest[half : len(rest) - half]])
    first, last = (np.searchsorted(document[others], document[alone], side=side) for side in ("left", "right"))
    choices = len(others) - (last - first)
    alone, first, last, choices = (array[choices > 0] for array in (alone, first, last, choices))
    choice = rng.integers(choices)
    partner = others[choice + np.where(choice >= first, last - first, 0)]
    drawn = np.arange(len(pairs) + len(alone)) >= len(pairs)
    return np.concatenate([pairs[:, 0], alone]), np.concatenate([pairs[:, 1], partner]), drawn
