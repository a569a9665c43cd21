"""Token ids of a text, encoded once into cached files, which are mapped into memory."""

import atexit
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import metadata
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..logs import progress_bar
from ..text import UNK_TOKEN
from ..text.formats import TextSource
from .cache import cached
from .tokenizer import text_encoder


SENTENCES_PER_BATCH = 2048
END_TOKENS = 1000  # of a document, to hold out as its end
ABOUT = "corpus.json"  # the counts of a corpus on disk; each array has a file with its field's name


Block = tuple[np.ndarray, np.ndarray]
"""Consecutive documents: their token ids (tokens,), and their lengths (documents,)."""


class Tokens:
    """Documents as token ids: a corpus, or preprocessed examples."""

    def lengths(self) -> np.ndarray:
        """Tokens of each document: (documents,)."""
        raise NotImplementedError

    def token_blocks(self) -> Iterator[Block]:
        """All documents, in blocks that fit into memory."""
        raise NotImplementedError

    @cached_property
    def _counts_and_checksum(self) -> tuple[np.ndarray, int]:
        """Both in one pass over the text, for a text that is much larger than memory."""
        counts, value = np.zeros(0, dtype=np.int64), crc32(self.lengths())
        for tokens, _ in self.token_blocks():
            value = crc32(np.ascontiguousarray(tokens), value)
            block = np.bincount(tokens, minlength=len(counts))
            block[: len(counts)] += counts
            counts = block
        return counts, value

    def token_counts(self, vocab_size: int) -> np.ndarray:
        """Count of each token id: (vocab_size,) int64."""
        counts, _ = self._counts_and_checksum
        return np.pad(counts, (0, vocab_size - len(counts)))

    def checksum(self) -> int:
        """CRC-32 of the documents' lengths, and of the tokens of all documents, in their order."""
        return self._counts_and_checksum[1]


@dataclass(frozen=True)
class TokenizedCorpus(Tokens):
    """Token ids of a corpus, stored once.

    Sentence s is `tokens[sentence_offsets[s] : sentence_offsets[s + 1]]`; document d is the sentences
    `documents[d, 0]` up to but excluding `documents[d, 1]`.
    """

    tokens: np.ndarray  # (tokens,) int32
    sentence_offsets: np.ndarray  # (sentences + 1,) int64
    documents: np.ndarray  # (documents, 2) int64
    unknown: int = 0  # number of unknown tokens in the complete corpus
    skipped: dict[str, int] | None = None  # what was left out of the complete corpus: reason → count
    directory: Path | None = None  # where the mapped files are

    def __reduce_ex__(self, protocol):
        """The name of the directory instead of its content, for another process."""
        return (_reopen, (self.directory, self.documents)) if self.directory else super().__reduce_ex__(protocol)

    @property
    def num_documents(self) -> int:
        return len(self.documents)

    @property
    def num_sentences(self) -> int:
        return int((self.documents[:, 1] - self.documents[:, 0]).sum())

    @property
    def document_tokens(self) -> np.ndarray:
        """The span of each document's tokens: (documents, 2) int64."""
        return self.sentence_offsets[self.documents]

    @property
    def num_tokens(self) -> int:
        return int(self.lengths().sum())

    def lengths(self) -> np.ndarray:
        return np.diff(self.document_tokens).ravel()

    def distinct_documents(self) -> np.ndarray:
        """Numbers of the documents, the same for a document that repeats the one before: (documents,) int64."""
        start, end = self.document_tokens.T
        same = np.zeros(len(start), dtype=bool)
        for i in np.flatnonzero((end - start)[1:] == (end - start)[:-1]) + 1:
            same[i] = np.array_equal(self.tokens[start[i] : end[i]], self.tokens[start[i - 1] : end[i - 1]])
        return np.cumsum(~same)

    def summary(self) -> str:
        return f"{self.num_documents:,} documents, {self.num_sentences:,} sentences, {self.num_tokens:,} tokens"

    def quality(self) -> str:
        """The fraction of unknown tokens in the complete corpus, and what was skipped."""
        return f"{self.unknown_share:.2%} unknown tokens, {_describe(self.skipped or {})} skipped"

    @property
    def unknown_share(self) -> float:
        """The fraction of unknown tokens in the complete corpus."""
        return self.unknown / len(self.tokens)

    def select(self, documents: np.ndarray) -> "TokenizedCorpus":
        """The corpus with only the documents of these numbers."""
        return replace(self, documents=self.documents[documents])

    def split(self, fraction: float, seed: int) -> tuple["TokenizedCorpus", "TokenizedCorpus | None"]:
        """Split the text into (training, validation), which has about this fraction of the tokens, twice that at most.

        Documents are drawn by the seed, this fraction of them, but at least two, because a random second segment comes
        from another document. If these have less than half or more than twice the fraction of the tokens, as with few
        or long documents, the ends of the longest documents are held out instead. A fraction of 0 holds nothing out.
        Raises `ValueError` if there is too little text.
        """
        if not 0 <= fraction < 1:
            raise ValueError(f"validation_share must be at least 0 and less than 1, got {fraction}.")
        if fraction == 0:
            return self, None
        order = np.random.default_rng(seed).permutation(self.num_documents)
        number = max(2, round(fraction * self.num_documents))
        drawn = self.select(np.sort(order[number:])), self.select(np.sort(order[:number]))
        splits = [(drawn, fraction / 2), (self._without_ends(fraction), 0.0), (drawn, 0.0)]
        for (training, held_out), at_least in splits:
            share = held_out.num_tokens / self.num_tokens
            enough = training.num_documents >= min(2, self.num_documents) and share > 0
            if enough and at_least <= share <= min(2 * fraction, (1 + fraction) / 2):
                return training, held_out
        raise ValueError(
            f"The text, {self.summary()}, is too short to hold out a validation_share of {fraction:g}: see how "
            "text_format and sentence_splitter split it, give a validation_file, or set validation_share=0."
        )

    def _without_ends(self, fraction: float) -> tuple["TokenizedCorpus", "TokenizedCorpus"]:
        """The text without the ends of its longest documents, which have about this fraction of the tokens; and these.

        As many documents are divided as give `END_TOKENS` each, but at least two, and so many that half of them
        remains.
        """
        first, last = self.documents.T
        start, end = self.document_tokens.T
        wanted = fraction * self.num_tokens
        longest = np.argsort(start - end, kind="stable")
        longest = longest[(last - first)[longest] >= 2]
        halves = int(np.searchsorted(np.cumsum((end - start)[longest]), 2 * wanted)) + 1
        chosen = np.sort(longest[: max(2, int(wanted // END_TOKENS), halves)])
        length = (end - start)[chosen]
        # The first sentence that begins after this fraction of a document's tokens; but at least two are held out if
        # the document has four, so that one follows another, and otherwise one; and one is left.
        cut = np.searchsorted(self.sentence_offsets, end[chosen] - length * min(wanted / max(length.sum(), 1), 1.0))
        at_least = np.where((last - first)[chosen] >= 4, 2, 1)
        cut = np.clip(cut, first[chosen] + 1, last[chosen] - at_least)
        documents = self.documents.copy()
        documents[chosen, 1] = cut
        ends = np.stack([cut, last[chosen]], axis=1)
        return replace(self, documents=documents), replace(self, documents=ends)

    def blocks(self, sentences: int = 1 << 16, documents: int = 2) -> Iterator["TokenizedCorpus"]:
        """The corpus in blocks of about `sentences` sentences and at least `documents` documents."""
        ends = np.cumsum(self.documents[:, 1] - self.documents[:, 0])
        first = 0
        while first < self.num_documents:
            done = ends[first - 1] if first else 0
            last = max(int(np.searchsorted(ends, done + sentences)), first + documents)
            if self.num_documents - last < documents:  # too few for another block
                last = self.num_documents
            yield replace(self, documents=self.documents[first:last])
            first = last

    def token_blocks(self) -> Iterator[Block]:
        for block in self.blocks(documents=1):
            spans = block.document_tokens
            yield np.concatenate([self.tokens[start:end] for start, end in spans.tolist()]), block.lengths()

    def max_seq_length(self, percentile: int) -> int:
        """Tokens of two sentences of this length percentile among the first million, with special tokens."""
        first, last = self.documents[0, 0], min(self.documents[-1, 1], self.documents[0, 0] + 1_000_000)
        lengths = np.diff(self.sentence_offsets[first : last + 1])
        return 3 + 2 * int(np.ceil(np.percentile(lengths, percentile)))

    @classmethod
    def from_source(
        cls, source: TextSource, tokenizer: PreTrainedTokenizerBase, cache_dir: str | Path | None
    ) -> "TokenizedCorpus":
        """Encode a source, without special tokens, into a directory of the cache, or open that if it exists. Without
        `cache_dir`, the directory is a temporary one of this process.

        Sentences and documents without a token are left out and counted. Raises `ValueError` if nothing is left.
        """
        if cache_dir is None:
            directory = Path(tempfile.mkdtemp(dir=_scratch_directory()))
            _write(source, tokenizer, directory)
            return cls.open(directory)
        settings = (source.fingerprint, text_encoder(tokenizer).to_str(), metadata.version("tokenizers"))
        return cls.open(cached(cache_dir, "corpus", settings, lambda new: _write(source, tokenizer, new)))

    @classmethod
    def open(cls, directory: Path) -> "TokenizedCorpus":
        """Map a directory of the cache into memory."""
        about = json.loads((directory / ABOUT).read_text())
        arrays: dict[str, Any] = {
            name: np.asarray(np.memmap(directory / name, dtype=dtype, mode="r", shape=tuple(about.pop(name))))
            for name, dtype in (("tokens", np.int32), ("sentence_offsets", np.int64), ("documents", np.int64))
        }
        return cls(**arrays, **about, directory=directory)

    @classmethod
    def from_documents(cls, documents: Iterable[list[str]], tokenizer: PreTrainedTokenizerBase) -> "TokenizedCorpus":
        """Encode documents, lists of sentences, in memory. Sentences and documents without a token are left out."""
        numbered = [(number, sentence) for number, document in enumerate(documents) for sentence in document]
        tokens, lengths = _encoder(tokenizer)([sentence for _, sentence in numbered])
        numbers = np.array([number for number, _ in numbered], dtype=np.int64)[lengths > 0]
        offsets = np.cumsum(np.append(0, lengths[lengths > 0]))
        documents = _spans(np.flatnonzero(np.diff(numbers, prepend=-1)), len(numbers))
        return cls(tokens, offsets, documents, unknown=int((tokens == tokenizer.unk_token_id).sum()))


def _reopen(directory: Path, documents: np.ndarray) -> TokenizedCorpus:
    return replace(TokenizedCorpus.open(directory), documents=documents)


@cache
def _scratch_directory() -> str:
    directory = tempfile.mkdtemp(prefix="scratch_bert-")
    process = os.getpid()
    # Not at the end of a fork, whose parent still needs it.
    atexit.register(lambda: os.getpid() == process and shutil.rmtree(directory, ignore_errors=True))
    return directory


def _encoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[str]], tuple[np.ndarray, np.ndarray]]:
    """A function that encodes sentences: their token ids (tokens,) int32, and their lengths (sentences,) int64."""
    encoder, unknown = text_encoder(tokenizer), tokenizer.unk_token or UNK_TOKEN

    def encode(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        if unknown != UNK_TOKEN:
            sentences = [sentence.replace(UNK_TOKEN, unknown) for sentence in sentences]
        ids = [encoding.ids for encoding in encoder.encode_batch_fast(sentences)]
        lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
        return np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=int(lengths.sum())), lengths

    return encode


def _batches(source: TextSource, skipped: Counter) -> Iterator[tuple[list[str], np.ndarray]]:
    """The source's sentences in order and in batches, with the numbers of their documents."""

    def numbered() -> Iterator[tuple[str, int]]:
        number = 0
        for paragraph in source.sentences(skipped):
            if paragraph is None:
                number += 1
            else:
                yield from ((sentence, number) for sentence in paragraph)

    sentences = numbered()
    with progress_bar("Tokenizing", "sentences") as advance:
        while batch := list(islice(sentences, SENTENCES_PER_BATCH)):
            yield [sentence for sentence, _ in batch], np.array([number for _, number in batch])
            advance(len(batch))


def _encode_all(
    batches: Iterable[tuple[list[str], np.ndarray]], tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Token ids, lengths and document numbers of each batch, which is encoded while the next one is read: the
    tokenizers library uses all cores, and works without Python's lock."""
    encode = _encoder(tokenizer)
    with ThreadPoolExecutor(1) as pool:
        results = ((pool.submit(encode, sentences), numbers) for sentences, numbers in batches)
        for (result, numbers), _ in cast(Any, pairwise(chain(results, [None]))):
            yield *result.result(), numbers


def _write(source: TextSource, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Write the files that `TokenizedCorpus.open` maps: arrays as in memory, and their shapes and counts as JSON."""
    skipped: Counter[str] = Counter()
    num_tokens = num_sentences = num_documents = unknown = 0
    first_sentences = [np.zeros(0, dtype=np.int64)]  # of the documents in each batch
    last_number = -1  # of the documents in the batches before
    with (directory / "tokens").open("wb") as tokens_file, (directory / "sentence_offsets").open("wb") as offsets_file:
        offsets_file.write(np.zeros(1, dtype=np.int64))
        for tokens, lengths, numbers in _encode_all(_batches(source, skipped), tokenizer):
            kept = lengths > 0
            skipped["sentences without a token"] += int((~kept).sum())
            num_documents = int(numbers[-1]) + 1
            numbers = numbers[kept]
            first_sentences.append(num_sentences + np.flatnonzero(np.diff(numbers, prepend=last_number)))
            last_number = numbers[-1] if len(numbers) else last_number
            tokens_file.write(tokens)
            offsets_file.write(num_tokens + np.cumsum(lengths[kept]))
            num_tokens += len(tokens)
            num_sentences += len(numbers)
            unknown += int((tokens == tokenizer.unk_token_id).sum())
    documents = _spans(np.concatenate(first_sentences), num_sentences)
    skipped["documents without a token"] = num_documents - len(documents)
    if num_tokens == 0:
        raise ValueError(f"The text is empty: no document gave a token. Skipped: {_describe(skipped)}.")
    (directory / "documents").write_bytes(documents.tobytes())
    about = {
        "tokens": [num_tokens],
        "sentence_offsets": [num_sentences + 1],
        "documents": documents.shape,
        "unknown": unknown,
        "skipped": {reason: count for reason, count in skipped.items() if count},
    }
    (directory / ABOUT).write_text(json.dumps(about, indent=2) + "\n")


def _spans(starts: np.ndarray, end: int) -> np.ndarray:
    """Consecutive spans (n, 2) int64 with these starts (n,), of which the last ends at `end`."""
    return np.stack([starts, np.append(starts[1:], end)[: len(starts)]], axis=1)


def union_length(start: np.ndarray, end: np.ndarray) -> int:
    """The number of tokens that are in at least one of these spans (n,)."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    before = np.append(0, np.maximum.accumulate(end))[: len(end)]  # where the spans before a span have reached
    return int(np.maximum(end - np.maximum(start, before), 0).sum())


def _describe(skipped: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in skipped.items() if count) or "nothing"
