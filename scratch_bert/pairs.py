"""Token ids in, rows for BERT's objectives out: [CLS] A [SEP] B [SEP], where B follows A or does not."""

import tempfile
import zlib
from collections.abc import Iterator
from copy import copy

import datasets
import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from .corpus import TextSource
from .tokenized_corpus import TokenizedCorpus
from .tokenizer import vocabulary_size


SPECIAL_TOKENS = {"nsp": 3, "sop": 3, "none": 2}  # sentence objective → special tokens of a row


def build_rows(
    corpus: TokenizedCorpus, max_seq_length: int, short_seq_prob: float, rng: np.random.Generator, objective: str
) -> np.ndarray:
    """One pass over the corpus as rows: (rows, 5) int64, in the order of the text.

    A row is `a_start, a_end, b_start, b_end, label`: its segments as ranges of `corpus.tokens`, and its
    `next_sentence_label`. The text is cut into chunks of whole sentences that fill a row, and each chunk into two
    segments, at a sentence drawn evenly (paper, appendix A.2). Then

    - `nsp`: half of the rows are chunks as they are (label 0). The others come from two chunks of different documents,
      of much the same lengths, that swap their second segments (label 1). So each token is in one row of an epoch, and
      a row's lengths do not tell its label, which they do where segments from elsewhere fill up the short chunk at a
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
    document = np.repeat(np.arange(len(start)), count)
    number = np.arange(len(document)) - np.repeat(np.cumsum(count) - count, count)  # of the row in its document
    cut = (start - phase)[document] + number * limit
    row_start, row_end = np.maximum(cut, start[document]), np.minimum(cut + limit, end[document])
    return np.column_stack([row_start, row_end, row_end, row_end, np.zeros_like(cut)])


class _Chunks:
    """A corpus as runs of units, which are its sentences, or pieces of them of at most `limit // 2` tokens: any two
    fit into a row. All arrays have an entry per chunk."""

    def __init__(self, corpus: TokenizedCorpus, limit: int, short_seq_prob: float, rng: np.random.Generator):
        first_sentence, last_sentence = corpus.documents.T
        count = last_sentence - first_sentence
        document = np.repeat(np.arange(len(count)), count)
        sentence = np.arange(len(document)) + np.repeat(first_sentence - (np.cumsum(count) - count), count)
        start = corpus.sentence_offsets[sentence]
        length = corpus.sentence_offsets[sentence + 1] - start

        pieces = -(-length // (limit // 2))
        of = np.repeat(np.arange(len(pieces)), pieces)  # the sentence that a unit is a piece of
        number = np.arange(len(of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
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


class SentencePairDataset(Dataset):
    """Rows for `ScratchBertForPreTraining`, new ones each epoch, found by index and built when asked for.

    A row holds `input_ids`, `token_type_ids`, `special_tokens_mask` (1 at special tokens, [UNK] among them, which are
    never masked), `next_sentence_label` (0: B follows A, 1: it does not; not with the objective `none`) and
    `mask_seed`, from which the collator masks a batch. Everything follows from (seed, epoch, index): rows are the same
    in any process and after a resume. Rows stand in the order of the text, to be shuffled by a sampler. Every epoch
    has as many as the first, so that Trainer's count of steps holds: some are left out, or come twice.

    With `static_pairs`, every epoch has the first one's rows, in new masks. Raises `ValueError` for a corpus of fewer
    than two documents, or of lone sentences only, or a `max_seq_length` without room for two segments.
    """

    def __init__(
        self,
        corpus: TokenizedCorpus,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int = 128,
        short_seq_prob: float = 0.1,
        seed: int = 0,
        objective: str = "nsp",
        static_pairs: bool = False,
    ):
        if objective not in SPECIAL_TOKENS:
            raise ValueError(f"The sentence objective must be one of {', '.join(SPECIAL_TOKENS)}; got {objective!r}.")
        limit = max_seq_length - SPECIAL_TOKENS[objective]
        if objective == "nsp" and corpus.num_documents < 2:
            raise ValueError(
                f"Sentence pairs need two documents, because a random second segment comes from another one; this text "
                f"has {corpus.num_documents}. See how --text_format parts documents, or take --sentence_objective sop or none."
            )
        least = SPECIAL_TOKENS[objective] + (1 if objective == "none" else 2)
        if max_seq_length < least:
            raise ValueError(f"max_seq_length must be {least} or more, got {max_seq_length}.")
        if not 0 <= short_seq_prob <= 1:
            raise ValueError(f"short_seq_prob must be between 0 and 1, got {short_seq_prob}.")
        (first, last), (start, end) = corpus.documents.T, corpus.document_tokens.T
        if objective != "none" and not ((last - first > 1) | (end - start > limit // 2)).any():
            raise ValueError(
                "No document has two sentences, so there is no continuation to tell. See how --text_format and "
                "--sentence_splitter part the text, or take --sentence_objective none."
            )
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.short_seq_prob = short_seq_prob
        self.seed = seed
        self.objective = objective
        self.static_pairs = static_pairs
        self.encode_row = RowEncoder(tokenizer, objective)
        self.rows = self.num_rows = self.epoch = None
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Build the rows of an epoch, block by block of the corpus, in a file that goes with this object."""
        if epoch == self.epoch:
            return
        self.epoch = epoch
        if self.static_pairs and self.rows is not None:
            return
        rng = np.random.default_rng((self.seed, epoch))
        continuations = 0
        with tempfile.TemporaryFile() as file:
            for block in self.corpus.blocks():
                rows = build_rows(block, self.max_seq_length, self.short_seq_prob, rng, self.objective)
                continuations += int((rows[:, 4] == 0).sum())
                rows.tofile(file)
            self.rows = np.memmap(file, dtype=np.int64, mode="r").reshape(-1, 5)  # (rows, 5), as build_rows says
        self.share_of_continuations = continuations / len(self.rows)
        self.num_rows = self.num_rows or len(self.rows)

    def __getstate__(self) -> dict:
        """To another process goes the epoch's number: it builds the same rows."""
        return self.__dict__ | {"rows": None, "epoch": None, "_epoch": self.epoch}

    def __setstate__(self, state: dict) -> None:
        epoch = state.pop("_epoch")
        self.__dict__.update(state)
        if self.static_pairs:
            self.set_epoch(0)
        self.set_epoch(epoch)

    def summary(self) -> str:
        summary = f"{len(self):,} rows of up to {self.max_seq_length} tokens"
        if self.objective == "none":
            return summary
        kind = "true continuations" if self.objective == "nsp" else "in order"
        return f"{summary}, {self.share_of_continuations:.0%} {kind}"

    def lengths(self) -> np.ndarray:
        """Tokens of each row: (rows,) int64."""
        rows = self._rows()
        return rows[:, 1] - rows[:, 0] + rows[:, 3] - rows[:, 2] + SPECIAL_TOKENS[self.objective]

    def documents(self) -> np.ndarray:
        """The documents of each row's segments, by their numbers in the corpus: (rows, 2) int64."""
        starts = self.corpus.document_tokens[:, 0]
        return np.searchsorted(starts, self._rows()[:, [0, 2]], side="right") - 1

    def labels(self) -> np.ndarray:
        """The `next_sentence_label` of each row: (rows,) int64."""
        return self._rows()[:, 4]

    def tokens_used(self) -> float:
        """Share of the corpus' tokens that are in a row of this epoch."""
        segments = np.concatenate([self.rows[:, :2], self.rows[:, 2:4]])
        start, end = segments[np.argsort(segments[:, 0])].T
        before = np.append(0, np.maximum.accumulate(end)[:-1])  # where the segments before a segment have reached
        return float(np.maximum(end - np.maximum(start, before), 0).sum() / self.corpus.num_tokens)

    def _rows(self) -> np.ndarray:
        return self.rows[self._row(np.arange(len(self)))]

    def _row(self, index: int | np.ndarray) -> int | np.ndarray:
        # Spreads the rows that come twice or not at all over the corpus.
        return index * len(self.rows) // self.num_rows

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, index: int) -> dict[str, np.ndarray | int]:
        row = self.encode_row(self.corpus.tokens, self.rows[self._row(int(index))])
        return row | {"mask_seed": _mask_seed(self.seed, self.epoch, int(index))}


class RowEncoder:
    """Builds the model's input from a row of `build_rows`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, objective: str):
        self.objective = objective
        self.cls, self.sep = ([token] for token in (tokenizer.cls_token_id, tokenizer.sep_token_id))
        self.is_special = np.zeros(vocabulary_size(tokenizer), dtype=np.int64)
        self.is_special[tokenizer.all_special_ids] = 1

    def __call__(self, tokens: np.ndarray, row: np.ndarray) -> dict[str, np.ndarray | int]:
        a_start, a_end, b_start, b_end, label = row.tolist()
        segments = [self.cls, tokens[a_start:a_end], self.sep]
        if self.objective != "none":
            segments += [tokens[b_start:b_end], self.sep]
        input_ids = np.concatenate(segments)
        token_type_ids = np.zeros_like(input_ids)
        token_type_ids[a_end - a_start + 2 :] = 1
        encoded = {
            "input_ids": input_ids,
            "token_type_ids": token_type_ids,
            "special_tokens_mask": self.is_special[input_ids],
        }
        return encoded if self.objective == "none" else encoded | {"next_sentence_label": label}


class PreparedRows(Dataset):
    """Rows that were built before, as scripts/inspect_data.py writes them, with a `mask_seed` that is new each epoch.

    Raises `ValueError` for a row with an id that the tokenizer does not have, and for missing columns.
    """

    def __init__(self, rows: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, seed: int = 0):
        columns = ["input_ids", "token_type_ids", "special_tokens_mask", "next_sentence_label"]
        missing = [name for name in columns[:3] if name not in rows.column_names]
        if missing:
            raise ValueError(f"The prepared rows have no column {', '.join(missing)}; write them anew.")
        self.rows = rows.select_columns([name for name in columns if name in rows.column_names]).with_format("numpy")
        self.tokenizer, self.seed, self.epoch = tokenizer, seed, 0
        highest = max(int(ids.max()) for ids in self._chunks())
        if highest >= vocabulary_size(tokenizer):
            raise ValueError(
                f"The prepared rows hold the token id {highest}, but the tokenizer has {vocabulary_size(tokenizer)} "
                "entries. Take the tokenizer that they were prepared with: it is in their directory."
            )

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def summary(self) -> str:
        return f"{len(self):,} rows of up to {self.lengths().max()} tokens"

    def lengths(self) -> np.ndarray:
        """Tokens of each row: (rows,) int64."""
        return np.concatenate([np.diff(chunk.offsets) for chunk in self.rows.data.column("input_ids").chunks])

    def token_counts(self, vocab_size: int) -> np.ndarray:
        """How often each token id occurs: (vocab_size,) int64."""
        return sum(np.bincount(ids, minlength=vocab_size) for ids in self._chunks())

    def _chunks(self) -> Iterator[np.ndarray]:
        return (chunk.values.to_numpy() for chunk in self.rows.data.column("input_ids").chunks)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, np.ndarray | int]:
        return self.rows[int(index)] | {"mask_seed": _mask_seed(self.seed, self.epoch, int(index))}


def stream_rows(
    source: TextSource,
    buffer: int,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    short_seq_prob: float,
    seed: int,
    objective: str,
    passes: int | None = None,
) -> datasets.IterableDataset:
    """The rows of a source that is read as training goes, as from `SentencePairDataset`, but built from `buffer`
    documents at a time, which come shuffled among as many. Each pass over the source has other rows.

    Without `passes`, it goes on without end: to Trainer it is one epoch, whose next row it can find again. The source's
    shards are what several workers or machines share among them.
    """
    arguments = {"shards": source.shards, "source": source}
    documents = datasets.IterableDataset.from_generator(_documents, gen_kwargs=arguments).repeat(passes)

    def rows_of(batch: dict[str, list]) -> dict[str, list]:
        start = zlib.crc32(repr([document[0] for document in batch["sentences"]]).encode())
        rng = np.random.default_rng((seed, start))
        # A short stream comes round within a batch: in this order, copies of a document are next to each other.
        corpus = TokenizedCorpus.from_documents(sorted(batch["sentences"]), tokenizer)
        rows = rng.permutation(build_rows(corpus, max_seq_length, short_seq_prob, rng, objective))
        encoded = [encode_row(corpus.tokens, row) for row in rows]
        columns = {name: [row[name] for row in encoded] for name in (encoded[0] if encoded else ())}
        return columns | {"mask_seed": [_mask_seed(seed, start, number) for number in range(len(rows))]}

    encode_row = RowEncoder(tokenizer, objective)
    shuffled = documents.shuffle(seed=seed, buffer_size=buffer)
    return shuffled.map(rows_of, batched=True, batch_size=buffer, remove_columns="sentences")


def _documents(shards: list, source: TextSource) -> Iterator[dict[str, list[str]]]:
    share = copy(source)
    share.shards = shards
    return ({"sentences": document} for document in share.documents())


def _mask_seed(*numbers: int) -> int:
    return hash(numbers) & 0x7FFFFFFF  # of integers only, the hash is the same in every process
