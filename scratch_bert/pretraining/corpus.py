"""Text in, token ids out: encoded once, into a file of a cache that is mapped into memory."""

import errno
import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import metadata
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
from tokenizers import Encoding
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..tokenizer import text_encoder
from .text import UNKNOWN, TextSource, sentence_splitter


SENTENCES_PER_BATCH = 2048


@dataclass(frozen=True)
class TokenizedCorpus:
    """Token ids of a corpus, held once. Sentence s is tokens[sentence_offsets[s] : sentence_offsets[s + 1]], and document d is
    the sentences documents[d, 0] up to documents[d, 1]."""

    tokens: np.ndarray  # (tokens,) int32
    sentence_offsets: np.ndarray  # (sentences + 1,) int64
    documents: np.ndarray  # (documents, 2) int64
    unknown: int = 0  # tokens of the whole corpus that are the unknown token
    skipped: dict[str, int] | None = None  # what was left out of the whole corpus, by reason
    file: Path | None = None  # that the tokens and offsets are mapped from

    def __getstate__(self) -> dict:
        """To another process goes the name of the file, not its content."""
        return self.__dict__ | ({"tokens": None, "sentence_offsets": None} if self.file else {})

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        if self.file:
            whole = TokenizedCorpus.open(self.file)
            self.__dict__.update(tokens=whole.tokens, sentence_offsets=whole.sentence_offsets)

    @property
    def num_documents(self) -> int:
        return len(self.documents)

    @property
    def num_sentences(self) -> int:
        return int((self.documents[:, 1] - self.documents[:, 0]).sum())

    @property
    def document_tokens(self) -> np.ndarray:
        """Where each document's tokens begin and end: (documents, 2) int64."""
        return self.sentence_offsets[self.documents]

    @property
    def num_tokens(self) -> int:
        return int((self.document_tokens[:, 1] - self.document_tokens[:, 0]).sum())

    def distinct_documents(self) -> np.ndarray:
        """Numbers of the documents, where one that repeats the document before it has the same: (documents,) int64."""
        start, end = self.document_tokens.T
        same = np.zeros(len(start), dtype=bool)
        for i in np.flatnonzero((end - start)[1:] == (end - start)[:-1]) + 1:
            same[i] = np.array_equal(self.tokens[start[i] : end[i]], self.tokens[start[i - 1] : end[i - 1]])
        return np.cumsum(~same)

    def summary(self) -> str:
        return f"{self.num_documents:,} documents, {self.num_sentences:,} sentences, {self.num_tokens:,} tokens"

    def quality(self) -> str:
        """Of the whole corpus: the share of unknown tokens, and what was skipped."""
        return f"{self.unknown / len(self.tokens):.2%} unknown tokens, skipped: {_counts(self.skipped or {})}"

    def select(self, documents: np.ndarray) -> "TokenizedCorpus":
        """The corpus with some of its documents, given by their numbers."""
        return replace(self, documents=self.documents[documents])

    def hold_out(self, share: float, seed: int) -> tuple["TokenizedCorpus", "TokenizedCorpus | None"]:
        """(training documents, validation documents): a seeded draw of `share` of them, but two or more.

        Two, because a random second segment comes from another document. A share of 0 holds none out. Raises
        `ValueError` if fewer than two are left for training.
        """
        if not 0 <= share < 1:
            raise ValueError(f"validation_share must be at least 0 and less than 1, got {share}.")
        if share == 0:
            return self, None
        held_out = max(2, round(share * self.num_documents))
        if self.num_documents - held_out < 2:
            raise ValueError(
                f"The text has {self.num_documents} document(s), but training and validation need two or more each. "
                "Look at --text_format, or give --validation_file, or train without evaluation: --validation_share 0."
            )
        order = np.random.default_rng(seed).permutation(self.num_documents)
        return self.select(np.sort(order[held_out:])), self.select(np.sort(order[:held_out]))

    def blocks(self, sentences: int = 1 << 16, documents: int = 2) -> Iterator["TokenizedCorpus"]:
        """The corpus in parts of about `sentences` sentences and at least `documents` documents."""
        ends = np.cumsum(self.documents[:, 1] - self.documents[:, 0])
        first = 0
        while first < self.num_documents:
            done = ends[first - 1] if first else 0
            last = max(int(np.searchsorted(ends, done + sentences)), first + documents)
            if self.num_documents - last < documents:  # too few to be a block of their own
                last = self.num_documents
            yield replace(self, documents=self.documents[first:last])
            first = last

    def token_counts(self, vocab_size: int) -> np.ndarray:
        """How often each token id occurs: (vocab_size,) int64."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        for block in self.blocks(documents=1):
            tokens = np.concatenate([self.tokens[start:end] for start, end in block.document_tokens.tolist()])
            counts += np.bincount(tokens, minlength=vocab_size)
        return counts

    def row_length(self, percentile: int) -> int:
        """Tokens of a row with room for two sentences of that percentile's length, judged by the first million."""
        first, last = self.documents[0, 0], min(self.documents[-1, 1], self.documents[0, 0] + 1_000_000)
        lengths = np.diff(self.sentence_offsets[first : last + 1])
        return 3 + 2 * int(np.ceil(np.percentile(lengths, percentile)))

    @classmethod
    def from_source(
        cls, source: TextSource, tokenizer: PreTrainedTokenizerBase, cache_dir: str | Path
    ) -> "TokenizedCorpus":
        """Encode a source without special tokens into a file of `cache_dir`, or open the file if it is there.

        The file's name is a hash of the text, the tokenizer and the settings; `datasets.Dataset.from_file` opens it,
        with a row per sentence. Sentences without a token, and documents without a sentence, are left out and counted.
        """
        digest = hashlib.blake2b(digest_size=16)
        digest.update(source.fingerprint.encode() + text_encoder(tokenizer).to_str().encode())
        digest.update(Path(__file__).read_bytes() + metadata.version("tokenizers").encode())
        file = make_cache(cache_dir) / f"corpus-{digest.hexdigest()}.arrow"
        if not file.exists():
            with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
                os.replace(_write_corpus(source, tokenizer, Path(scratch)), file)
        return cls.open(file)

    @classmethod
    def open(cls, file: Path) -> "TokenizedCorpus":
        reader = pa.ipc.open_stream(pa.memory_map(str(file)))
        about = json.loads(reader.schema.metadata[b"scratch_bert"])
        numbers, sentences = reader.read_next_batch().columns
        bounds = _document_bounds(numbers.to_numpy())
        tokens, offsets = sentences.values.to_numpy(), sentences.offsets.to_numpy()  # not copied: still in the file
        return cls(tokens, offsets, np.stack([bounds[:-1], bounds[1:]], axis=1), **about, file=file)

    @classmethod
    def from_documents(cls, documents: Iterable[list[str]], tokenizer: PreTrainedTokenizerBase) -> "TokenizedCorpus":
        """Encode documents of sentences in memory, leaving out what gives no token."""
        numbered = [(number, sentence) for number, document in enumerate(documents) for sentence in document]
        tokens, lengths = _as_arrays(text_encoder(tokenizer).encode_batch_fast([text for _, text in numbered]))
        numbers = np.array([number for number, _ in numbered], dtype=np.int64)[lengths > 0]
        bounds = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1))
        offsets = np.cumsum(np.append(0, lengths[lengths > 0]))
        return cls(tokens, offsets, np.stack([bounds[:-1], bounds[1:]], axis=1))


def make_cache(directory: str | Path) -> Path:
    """The directory, made if need be. Raises `OSError` if it cannot be."""
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise OSError(
            f"Nothing can be written to {directory} ({error.strerror}). Choose another --cache_dir."
        ) from None
    return Path(directory)


def _as_arrays(encodings: list[Encoding]) -> tuple[np.ndarray, np.ndarray]:
    """All token ids (tokens,) int32, and how many each sentence has (sentences,) int64."""
    ids = [encoding.ids for encoding in encodings]
    lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
    return np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=int(lengths.sum())), lengths


def _encode(
    source: TextSource, tokenizer: PreTrainedTokenizerBase, skipped: Counter
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The source's sentences in order and in batches: token ids, the sentences' lengths, and their documents' numbers."""
    split = sentence_splitter(source.splitter, source.language)

    def batches() -> Iterator[tuple[list[str], np.ndarray]]:
        sentences, numbers, number, has_text = [], [], 0, False
        for paragraph in source.paragraphs(skipped):
            if paragraph is None:
                number += has_text
                progress.update(has_text)
                has_text = False
            else:
                has_text = True
                found = split(paragraph.replace(UNKNOWN, tokenizer.unk_token or UNKNOWN))
                sentences += found
                numbers += [number] * len(found)
                if len(sentences) >= SENTENCES_PER_BATCH:
                    yield sentences, np.array(numbers)
                    sentences, numbers = [], []
        skipped["documents without a sentence"] += number  # what remains when those with one are taken off
        yield sentences, np.array(numbers, dtype=np.int64)

    encode = text_encoder(tokenizer).encode_batch_fast
    # It encodes on all cores and without Python's lock, so that this thread can read the next batch meanwhile.
    with (
        tqdm(desc="Tokenizing", unit=" documents", leave=False, disable=None) as progress,
        ThreadPoolExecutor(1) as pool,
    ):
        pending = None
        for sentences, numbers in batches():
            encodings = pool.submit(encode, sentences)
            if pending:
                yield *_as_arrays(pending[0].result()), pending[1]
            pending = encodings, numbers
        yield *_as_arrays(pending[0].result()), pending[1]


def _write_corpus(source: TextSource, tokenizer: PreTrainedTokenizerBase, directory: Path) -> Path:
    """Arrow needs each column whole, so batches go to plain files first, and from there, mapped, into the file that is
    returned. Raises `OSError` if there is no room for them."""
    skipped: Counter[str] = Counter()
    total = unknown = 0
    paths = [directory / name for name in ("tokens", "offsets", "documents", "corpus.arrow")]
    try:
        with paths[0].open("wb") as tokens_file, paths[1].open("wb") as offsets_file, paths[2].open("wb") as documents:
            offsets_file.write(np.zeros(1, dtype=np.int64))
            for tokens, lengths, numbers in _encode(source, tokenizer, skipped):
                tokens_file.write(tokens)
                offsets_file.write(total + np.cumsum(lengths[lengths > 0]))
                documents.write(numbers[lengths > 0])
                total += len(tokens)
                unknown += int((tokens == tokenizer.unk_token_id).sum())
                skipped["sentences without a token"] += int((lengths == 0).sum())
        if total == 0:
            raise ValueError(f"The text is empty: no document gave a token. Skipped: {_counts(skipped)}.")
        tokens = np.memmap(paths[0], dtype=np.int32, mode="r")
        offsets, numbers = (np.memmap(path, dtype=np.int64, mode="r") for path in paths[1:3])
        skipped["documents without a sentence"] -= len(_document_bounds(numbers)) - 1
        about = {"unknown": unknown, "skipped": {reason: count for reason, count in skipped.items() if count}}
        schema = pa.schema(
            {"document": pa.int64(), "input_ids": pa.large_list(pa.int32())},
            metadata={"scratch_bert": json.dumps(about)},
        )
        columns = [pa.array(numbers), pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens))]
        with pa.OSFile(str(paths[3]), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise OSError(
            f"There is no room for the token ids in {directory.parent} ({error.strerror}). Make some, or choose another "
            "place with --cache_dir."
        ) from None
    return paths[3]


def _document_bounds(numbers: np.ndarray) -> np.ndarray:
    """Where the documents begin among sentences with document numbers (sentences,), which rise but may have gaps; and
    where the last ends."""
    return np.unique(np.searchsorted(numbers, np.arange(numbers[-1] + 2)))


def _counts(skipped: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in skipped.items() if count) or "nothing"
