"""Pairs in, examples out, [CLS] A [SEP] B [SEP]: by index, from a stream, or prepared earlier in parquet files."""

import tempfile
import zlib
from collections.abc import Iterator

import datasets
import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from ..tokenizer import segment_ids, vocabulary_size
from .corpus import TokenizedCorpus
from .pairs import OBJECTIVES, build_pairs
from .text import TextSource


class SentencePairDataset(Dataset):
    """Examples for pretraining, new ones each epoch, built when they are asked for.

    An example holds `input_ids`, `token_type_ids`, `special_tokens_mask` (1 at special tokens, [UNK] among them, which are
    never masked), `next_sentence_label` (see `OBJECTIVES`; not with the objective `none`) and
    `mask_seed`, from which the collator masks a batch. Everything follows from (seed, epoch, index): examples are the
    same in any process and after a resume. They are in the order of the text, to be shuffled by a sampler. Every epoch
    has as many as the first, so that Trainer's count of steps holds: some pairs are left out, or come twice.

    With `static_pairs`, every epoch has the first one's pairs, with new masks. Raises `ValueError` for a corpus with too
    few documents or with lone sentences only, and for a `max_seq_length` without room for two segments.
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
        single_segment_prob: float = 0.0,
    ):
        _check(corpus, max_seq_length, short_seq_prob, objective)
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.short_seq_prob = short_seq_prob
        self.seed = seed
        self.objective = objective
        self.static_pairs = static_pairs
        self.single_segment_prob = single_segment_prob
        self.encode = ExampleEncoder(tokenizer, objective)
        self.pairs = self.num_examples = self.epoch = None
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Build the pairs of an epoch, block by block of the corpus, in a temporary file."""
        if epoch == self.epoch:
            return
        self.epoch = epoch
        if self.static_pairs and self.pairs is not None:
            return
        rng = np.random.default_rng((self.seed, epoch))
        label_0 = label_1 = 0
        try:
            with tempfile.TemporaryFile() as file:
                for block in self.corpus.blocks():
                    pairs = build_pairs(
                        block, self.max_seq_length, self.short_seq_prob, rng, self.objective, self.single_segment_prob
                    )
                    label_0 += int((pairs[:, 4] == 0).sum())
                    label_1 += int((pairs[:, 4] == 1).sum())
                    file.write(np.ascontiguousarray(pairs))
                file.flush()
                pairs = np.memmap(file, dtype=np.int64, mode="r")
                self.pairs = pairs.reshape(-1, 5)  # (pairs, 5), as build_pairs says
        except OSError as error:
            raise OSError(
                f"The pairs of an epoch could not be written to a temporary file in {tempfile.gettempdir()}: {error}. Free some "
                "space there, or set TMPDIR to another directory."
            ) from error
        self.label_0_share = label_0 / max(label_0 + label_1, 1)
        self.num_examples = self.num_examples or len(self.pairs)

    def __getstate__(self) -> dict:
        """Another process gets the epoch's number: it builds the same pairs."""
        return self.__dict__ | {"pairs": None, "epoch": None, "_epoch": self.epoch}

    def __setstate__(self, state: dict) -> None:
        epoch = state.pop("_epoch")
        self.__dict__.update(state)
        if self.static_pairs:
            self.set_epoch(0)
        self.set_epoch(epoch)

    def summary(self) -> str:
        summary = f"{len(self):,} examples of up to {self.max_seq_length} tokens"
        label_0 = OBJECTIVES[self.objective].label_0
        if label_0:
            summary += f", {self.label_0_share:.0%} of the pairs with label 0 ({label_0})"
        return summary

    def lengths(self) -> np.ndarray:
        """Tokens of each example, with special tokens: (examples,) int64."""
        pairs = self._pairs()
        length_a, length_b = pairs[:, 1] - pairs[:, 0], pairs[:, 3] - pairs[:, 2]
        return length_a + length_b + np.where(length_b > 0, 3, 2)

    def documents(self) -> np.ndarray:
        """The documents of each example's segments, by their numbers in the corpus: (examples, 2) int64."""
        starts = self.corpus.document_tokens[:, 0]
        return np.searchsorted(starts, self._pairs()[:, [0, 2]], side="right") - 1

    def labels(self) -> np.ndarray:
        """The `next_sentence_label` of each example, -100 for a single segment: (examples,) int64."""
        return self._pairs()[:, 4]

    def coverage(self) -> float:
        """Share of the corpus' tokens that are in a pair of this epoch."""
        segments = np.concatenate([self.pairs[:, :2], self.pairs[:, 2:4]])
        start, end = segments[np.argsort(segments[:, 0])].T
        before = np.append(0, np.maximum.accumulate(end)[:-1])  # where the segments before a segment have reached
        return float(np.maximum(end - np.maximum(start, before), 0).sum() / self.corpus.num_tokens)

    def _pairs(self) -> np.ndarray:
        return self.pairs[self._pair(np.arange(len(self)))]

    def _pair(self, index: int | np.ndarray) -> int | np.ndarray:
        # Spreads the pairs that come twice or not at all over the corpus.
        return index * len(self.pairs) // self.num_examples

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, index: int) -> dict[str, np.ndarray | int]:
        example = self.encode(self.corpus.tokens, self.pairs[self._pair(int(index))])
        return example | {"mask_seed": mask_seed(self.seed, self.epoch, int(index))}


def _check(corpus: TokenizedCorpus, max_seq_length: int, short_seq_prob: float, objective: str) -> None:
    if objective not in OBJECTIVES:
        raise ValueError(f"The sentence objective must be one of {', '.join(OBJECTIVES)}; got {objective!r}.")
    has_pairs, special_tokens = OBJECTIVES[objective].has_pairs, OBJECTIVES[objective].special_tokens
    if corpus.num_documents < OBJECTIVES[objective].min_documents:
        raise ValueError(
            f"{OBJECTIVES[objective].title} needs {OBJECTIVES[objective].min_documents} documents or more, because a random "
            f"second segment comes from another one; this text has {corpus.num_documents}. See how --text_format splits it "
            "into documents, or use another --sentence_objective."
        )
    least = special_tokens + (2 if has_pairs else 1)
    if max_seq_length < least:
        raise ValueError(f"max_seq_length must be {least} or more, got {max_seq_length}.")
    if not 0 <= short_seq_prob <= 1:
        raise ValueError(f"short_seq_prob must be between 0 and 1, got {short_seq_prob}.")
    limit = max_seq_length - special_tokens
    (first, last), (start, end) = corpus.documents.T, corpus.document_tokens.T
    if has_pairs and not ((last - first > 1) | (end - start > limit // 2)).any():
        raise ValueError(
            "No document has two sentences, so there are no two segments that follow each other. See how --text_format "
            "and --sentence_splitter split the text, or use --sentence_objective none."
        )


class ExampleEncoder:
    """Builds the model's input from a pair of `build_pairs`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, objective: str):
        self.has_pairs = OBJECTIVES[objective].has_pairs
        self.segment_a, self.segment_b = segment_ids(tokenizer)
        self.cls, self.sep = ([token] for token in (tokenizer.cls_token_id, tokenizer.sep_token_id))
        self.is_special = np.zeros(vocabulary_size(tokenizer), dtype=np.int64)
        self.is_special[tokenizer.all_special_ids] = 1

    def __call__(self, tokens: np.ndarray, pair: np.ndarray) -> dict[str, np.ndarray | int]:
        a_start, a_end, b_start, b_end, label = pair.tolist()
        segments = [self.cls, tokens[a_start:a_end], self.sep]
        if b_end > b_start:
            segments += [tokens[b_start:b_end], self.sep]
        input_ids = np.concatenate(segments)
        token_type_ids = np.full_like(input_ids, self.segment_a)
        token_type_ids[a_end - a_start + 2 :] = self.segment_b
        encoded = {
            "input_ids": input_ids,
            "token_type_ids": token_type_ids,
            "special_tokens_mask": self.is_special[input_ids],
        }
        return encoded | {"next_sentence_label": label} if self.has_pairs else encoded


def mask_seed(*numbers: int) -> int:
    return hash(numbers) & 0x7FFFFFFF  # of integers only, the hash is the same in every process


# --------------------------------------------------------------------------------------------------------- streams


def stream_examples(
    source: TextSource,
    buffer: int,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    short_seq_prob: float,
    seed: int,
    objective: str,
    single_segment_prob: float = 0.0,
    passes: int | None = None,
) -> datasets.IterableDataset:
    """The examples of a source that is read during training: as from `SentencePairDataset`, but built from `buffer`
    documents at a time, which are shuffled among as many. Each pass over the source has other examples.

    Without `passes`, it has no end: to Trainer it is one epoch, in which it can find the next example again. The source's
    shards are divided among workers and machines.
    """
    arguments = {"shards": source.shards, "source": source}
    documents = datasets.IterableDataset.from_generator(_documents, gen_kwargs=arguments).repeat(passes)
    encode = ExampleEncoder(tokenizer, objective)

    def examples_of(batch: dict[str, list]) -> dict[str, list]:
        start = zlib.crc32(repr([document[0] for document in batch["sentences"]]).encode())
        rng = np.random.default_rng((seed, start))
        # A short stream comes round within a batch: in this order, copies of a document are next to each other.
        corpus = TokenizedCorpus.from_documents(sorted(batch["sentences"]), tokenizer)
        pairs = rng.permutation(
            build_pairs(corpus, max_seq_length, short_seq_prob, rng, objective, single_segment_prob)
        )
        encoded = [encode(corpus.tokens, pair) for pair in pairs]
        columns = {name: [example[name] for example in encoded] for name in (encoded[0] if encoded else ())}
        return columns | {"mask_seed": [mask_seed(seed, start, number) for number in range(len(pairs))]}

    # From several shards at a time, it would take as many documents of a small one as of a large one.
    shuffled = documents.shuffle(seed=seed, buffer_size=buffer, max_buffer_input_shards=1)
    return shuffled.map(examples_of, batched=True, batch_size=buffer, remove_columns="sentences")


def _documents(shards: list, source: TextSource) -> Iterator[dict[str, list[str]]]:
    return ({"sentences": document} for document in source.with_shards(shards).documents())
