"""Train or load a tokenizer, and turn text into token ids with it, held once and memory-mapped."""

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
from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordLevel, WordPiece
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordPieceTrainer
from tqdm.auto import tqdm
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from .corpus import UNKNOWN, TextSource, sentence_splitter


TOKENIZER_TYPES = ("wordpiece", "wordlevel")
SENTENCES_PER_BATCH = 2048


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    tokenizer_type: str = "wordpiece",
    lowercase: bool = True,
    min_frequency: int = 2,
    model_max_length: int = 512,
) -> PreTrainedTokenizerFast:
    """A tokenizer of BERT's rows with a vocabulary of at most `vocab_size` entries, learnt from `texts`.

    `wordpiece` is BERT's; `wordlevel` has whole words only. Words, and word pieces, of fewer than `min_frequency`
    occurrences are left out. `texts` is gone through twice, and may be larger than memory. The same texts give the
    same vocabulary. Raises `ValueError` if there is no text, or if `vocab_size` cannot even hold the characters.
    """
    blank = BertTokenizer(do_lower_case=lowercase)
    special_tokens = [blank.pad_token, blank.unk_token, blank.cls_token, blank.sep_token, blank.mask_token]

    def words() -> Iterator[str]:
        return (text.replace(UNKNOWN, " ") for text in texts)

    train = {"wordpiece": _wordpiece_vocab, "wordlevel": _wordlevel_vocab}[tokenizer_type]
    vocab = train(words, vocab_size, min_frequency, blank.backend_tokenizer, special_tokens)
    if len(vocab) == len(special_tokens):
        raise ValueError(
            f"The text is empty, or no word of it occurs {min_frequency} times: there is no vocabulary to learn."
        )
    if tokenizer_type == "wordpiece":
        return BertTokenizer(vocab=vocab, do_lower_case=lowercase, model_max_length=model_max_length)
    tokenizer = Tokenizer(WordLevel(vocab, unk_token=blank.unk_token))
    tokenizer.normalizer = blank.backend_tokenizer.normalizer
    tokenizer.pre_tokenizer = blank.backend_tokenizer.pre_tokenizer
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocab[token]) for token in ("[CLS]", "[SEP]")],
    )
    names = {f"{name}_token": getattr(blank, f"{name}_token") for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=model_max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    )


def _wordpiece_vocab(words, vocab_size, min_frequency, blank: Tokenizer, special_tokens: list[str]) -> dict[str, int]:
    def train(size: int, first_tokens: list[str]) -> dict[str, int]:
        tokenizer = Tokenizer(WordPiece(unk_token=special_tokens[1]))
        tokenizer.normalizer, tokenizer.pre_tokenizer = blank.normalizer, blank.pre_tokenizer
        trainer = WordPieceTrainer(
            vocab_size=size, min_frequency=min_frequency, special_tokens=first_tokens, show_progress=False
        )
        tokenizer.train_from_iterator(words(), trainer)
        return tokenizer.get_vocab()

    # The trainer numbers the characters that continue a word ("##e") in the order of a hash table, and breaks ties
    # between merges by number: two runs differ. A first training finds these characters, the second gets them in order.
    characters = train(1, special_tokens)
    if len(characters) > vocab_size:
        raise ValueError(
            f"vocab_size is {vocab_size}, but the text alone has {len(characters)} special tokens and characters. "
            "Choose a larger vocab_size."
        )
    continuations = sorted(token for token in characters if token.startswith("##"))
    return train(vocab_size, special_tokens + continuations)


def _wordlevel_vocab(words, vocab_size, min_frequency, blank: Tokenizer, special_tokens: list[str]) -> dict[str, int]:
    # The library's own trainer orders words of the same count by chance.
    counts: Counter[str] = Counter()
    for text in words():
        counts.update(word for word, _ in blank.pre_tokenizer.pre_tokenize_str(blank.normalizer.normalize_str(text)))
    frequent = sorted((-count, word) for word, count in counts.items() if count >= min_frequency)
    kept = [word for _, word in frequent[: max(vocab_size - len(special_tokens), 0)]]
    return {token: number for number, token in enumerate([*special_tokens, *kept])}


def load_tokenizer(name_or_path: str, model_max_length: int | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a local directory or a Hub repository; `model_max_length` replaces its own.

    Raises `ValueError` if it lacks a special token that BERT's rows need, or is not one of the `tokenizers` library.
    """
    tokenizer = AutoTokenizer.from_pretrained(name_or_path)
    missing = [name for name in ("cls", "sep", "mask", "pad") if getattr(tokenizer, f"{name}_token_id") is None]
    if missing:
        tokens = ", ".join(f"[{name.upper()}]" for name in missing)
        raise ValueError(f"The tokenizer {name_or_path} has no {tokens} token, which BERT's rows are made with.")
    if not tokenizer.is_fast:
        raise ValueError(f"The tokenizer {name_or_path} has no tokenizer.json, the form that can be read fast.")
    if model_max_length is not None:
        tokenizer.model_max_length = model_max_length
    return tokenizer


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """Rows that the word embeddings need: the highest id, plus one. `len(tokenizer)` is less if ids have gaps."""
    return max(tokenizer.get_vocab().values()) + 1


def continues_word(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """For each token id, whether it continues the word of the token before: (vocabulary size,) bool.

    Raises `ValueError` for a tokenizer that is neither WordPiece nor word-level.
    """
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    if model["type"] not in ("WordPiece", "WordLevel"):
        raise ValueError(f"Whole words are known for WordPiece and word-level tokenizers, not for {model['type']}.")
    prefix = model.get("continuing_subword_prefix")
    continues = np.zeros(vocabulary_size(tokenizer), dtype=bool)
    if prefix:
        continues[[number for token, number in tokenizer.get_vocab().items() if token.startswith(prefix)]] = True
    return continues


def _text_encoder(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """The tokenizer for text alone: no truncation or padding, and a "[SEP]" in the text is text. The unknown token
    stays, as a corpus may hold it."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content |= {"truncation": None, "padding": None, "post_processor": None}
    for token in content["added_tokens"]:
        token["special"] = token["special"] and token["content"] != tokenizer.unk_token
    encoder = Tokenizer.from_str(json.dumps(content))
    encoder.encode_special_tokens = True
    return encoder


@dataclass(frozen=True)
class TokenizedCorpus:
    """Token ids of a corpus. Sentence s is tokens[sentence_offsets[s] : sentence_offsets[s + 1]], and document d is
    the sentences documents[d, 0] up to documents[d, 1]."""

    tokens: np.ndarray  # (tokens,) int32
    sentence_offsets: np.ndarray  # (sentences + 1,) int64
    documents: np.ndarray  # (documents, 2) int64
    unknown: int = 0  # tokens of the whole corpus that are the unknown token
    skipped: dict[str, int] | None = None  # what was left out of the whole corpus, by reason

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
        digest.update(source.fingerprint.encode() + _text_encoder(tokenizer).to_str().encode())
        digest.update(Path(__file__).read_bytes() + metadata.version("tokenizers").encode())
        file = Path(cache_dir) / f"corpus-{digest.hexdigest()}.arrow"
        if not file.exists():
            _write_corpus(source, tokenizer, file)
        return cls.open(file)

    @classmethod
    def open(cls, file: Path) -> "TokenizedCorpus":
        reader = pa.ipc.open_stream(pa.memory_map(str(file)))
        about = json.loads(reader.schema.metadata[b"scratch_bert"])
        numbers, sentences = reader.read_next_batch().columns
        bounds = _document_bounds(numbers.to_numpy())
        tokens, offsets = sentences.values.to_numpy(), sentences.offsets.to_numpy()  # not copied: still in the file
        return cls(tokens, offsets, np.stack([bounds[:-1], bounds[1:]], axis=1), **about)

    @classmethod
    def from_documents(cls, documents: Iterable[list[str]], tokenizer: PreTrainedTokenizerBase) -> "TokenizedCorpus":
        """Encode documents of sentences in memory, leaving out what gives no token."""
        numbered = [(number, sentence) for number, document in enumerate(documents) for sentence in document]
        tokens, lengths = _as_arrays(_text_encoder(tokenizer).encode_batch_fast([text for _, text in numbered]))
        numbers = np.array([number for number, _ in numbered], dtype=np.int64)[lengths > 0]
        bounds = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1))
        offsets = np.cumsum(np.append(0, lengths[lengths > 0]))
        return cls(tokens, offsets, np.stack([bounds[:-1], bounds[1:]], axis=1))


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

    encode = _text_encoder(tokenizer).encode_batch_fast
    # It encodes on all cores and without Python's lock, so that this thread can read the next batch meanwhile.
    with tqdm(desc="Tokenizing", unit=" documents", leave=False) as progress, ThreadPoolExecutor(1) as pool:
        pending = None
        for sentences, numbers in batches():
            encodings = pool.submit(encode, sentences)
            if pending:
                yield *_as_arrays(pending[0].result()), pending[1]
            pending = encodings, numbers
        yield *_as_arrays(pending[0].result()), pending[1]


def _write_corpus(source: TextSource, tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """Arrow needs each column whole, so batches go to plain files first, and from there, still unread, into `file`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    skipped: Counter[str] = Counter()
    total = unknown = 0
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        paths = [Path(scratch, name) for name in ("tokens", "offsets", "documents")]
        with paths[0].open("wb") as tokens_file, paths[1].open("wb") as offsets_file, paths[2].open("wb") as documents:
            np.zeros(1, dtype=np.int64).tofile(offsets_file)
            for tokens, lengths, numbers in _encode(source, tokenizer, skipped):
                tokens.tofile(tokens_file)
                (total + np.cumsum(lengths[lengths > 0])).tofile(offsets_file)
                numbers[lengths > 0].tofile(documents)
                total += len(tokens)
                unknown += int((tokens == tokenizer.unk_token_id).sum())
                skipped["sentences without a token"] += int((lengths == 0).sum())
        if total == 0:
            raise ValueError(f"The text is empty: no document gave a token. Skipped: {_counts(skipped)}.")
        tokens = np.memmap(paths[0], dtype=np.int32, mode="r")
        offsets, numbers = (np.memmap(path, dtype=np.int64, mode="r") for path in paths[1:])
        skipped["documents without a sentence"] -= len(_document_bounds(numbers)) - 1
        about = {"unknown": unknown, "skipped": {reason: count for reason, count in skipped.items() if count}}
        batch = pa.RecordBatch.from_arrays(
            [pa.array(numbers), pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens))],
            schema=pa.schema(
                {"document": pa.int64(), "input_ids": pa.large_list(pa.int32())},
                metadata={"scratch_bert": json.dumps(about)},
            ),
        )
        whole = Path(scratch, "corpus.arrow")
        with pa.OSFile(str(whole), "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        os.replace(whole, file)


def _document_bounds(numbers: np.ndarray) -> np.ndarray:
    """Where the documents begin among sentences with document numbers (sentences,), which rise but may have gaps; and
    where the last ends."""
    return np.unique(np.searchsorted(numbers, np.arange(numbers[-1] + 2)))


def _counts(skipped: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in skipped.items() if count) or "nothing"
