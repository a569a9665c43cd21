"""Pairs in, rows of the model's input out, [CLS] A [SEP] B [SEP]: by index, from a stream, or prepared before."""

import tempfile
import zlib
from collections.abc import Iterator

import datasets
import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from ..tokenizer import vocabulary_size
from .corpus import TokenizedCorpus
from .pairs import SPECIAL_TOKENS, build_rows
from .text import TextSource


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
    encode_row = RowEncoder(tokenizer, objective)

    def rows_of(batch: dict[str, list]) -> dict[str, list]:
        start = zlib.crc32(repr([document[0] for document in batch["sentences"]]).encode())
        rng = np.random.default_rng((seed, start))
        # A short stream comes round within a batch: in this order, copies of a document are next to each other.
        corpus = TokenizedCorpus.from_documents(sorted(batch["sentences"]), tokenizer)
        rows = rng.permutation(build_rows(corpus, max_seq_length, short_seq_prob, rng, objective))
        encoded = [encode_row(corpus.tokens, row) for row in rows]
        columns = {name: [row[name] for row in encoded] for name in (encoded[0] if encoded else ())}
        return columns | {"mask_seed": [_mask_seed(seed, start, number) for number in range(len(rows))]}

    shuffled = documents.shuffle(seed=seed, buffer_size=buffer)
    return shuffled.map(rows_of, batched=True, batch_size=buffer, remove_columns="sentences")


def _documents(shards: list, source: TextSource) -> Iterator[dict[str, list[str]]]:
    return ({"sentences": document} for document in source.with_shards(shards).documents())


def _mask_seed(*numbers: int) -> int:
    return hash(numbers) & 0x7FFFFFFF  # of integers only, the hash is the same in every process
