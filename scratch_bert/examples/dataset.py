"""Datasets of examples by index, new in each epoch."""

import operator
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import transformers.trainer
from torch.utils.data import ConcatDataset, Dataset, Subset
from transformers import BatchEncoding, PreTrainedTokenizerBase, TrainerCallback

from scratch_bert_options.schema import check_range

from ..corpus.cache import CACHE_DIR
from ..corpus.corpus import TokenizedCorpus, union_length
from ..corpus.encoder import mask_seed
from ..corpus.tokenizer import check_tokenizer
from ..objectives import Objective, find_objective
from ..text.formats import TextSource


class EpochDataset(Dataset):
    """Dataset with new examples in each epoch: every `Trainer` of this process calls `set_epoch`.

    accelerate also does, but not with several processes, nor in the epoch of a resume. Other training loops must call
    `set_epoch` before they iterate over a DataLoader.
    """

    epoch: int = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def evenly_spread(dataset: Dataset, count: int) -> Dataset:
    """`count` examples of a dataset, evenly spread; all of them if it has fewer, or if `count` is not positive."""
    size = len(dataset)  # ty: ignore[invalid-argument-type]: torch's class does not declare it
    if not 0 < count < size:
        return dataset
    return Subset(dataset, [index * size // count for index in range(count)])


class AnnounceEpoch(TrainerCallback):
    """Calls `set_epoch` of a training set that is an `EpochDataset`, or made of some by PyTorch's classes."""

    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        datasets = [getattr(train_dataloader, "dataset", None)]
        for dataset in datasets:
            if isinstance(dataset, Subset | ConcatDataset):
                datasets += [dataset.dataset] if isinstance(dataset, Subset) else dataset.datasets
            if not isinstance(dataset, EpochDataset):
                continue
            if args.dataloader_persistent_workers and args.dataloader_num_workers:
                raise ValueError(
                    "dataloader_persistent_workers must be False: workers would keep the first epoch's examples."
                )
            dataset.set_epoch(int(state.epoch))


# So that the stock Trainer needs no callback.
transformers.trainer.DEFAULT_CALLBACKS.append(AnnounceEpoch)  # ty: ignore[invalid-argument-type]: a list of any


class SentencePairDataset(EpochDataset):
    """Examples for pretraining, new in each epoch, built on access.

    An example holds `input_ids`, `token_type_ids`, `special_tokens_mask` (1 at special tokens, including [UNK], which
    are never masked), the label of the objective (`next_sentence_label`; none with the objective `none`) and
    `mask_seed`, from which the collator masks a batch. Everything follows from (seed, epoch, index): examples are the
    same in any process and after a resume. They are in the order of the text, to be shuffled by a sampler. Every epoch
    has as many examples as the first, so that Trainer's number of steps holds: some pairs are left out or repeated.

    With `static_pairs`, every epoch has the pairs of the first, with new masks. Raises `ValueError` for a corpus with
    too few documents or with lone sentences only, and for a `max_seq_length` without room for two segments.
    """

    pairs: np.ndarray
    num_examples: int

    def __init__(
        self,
        corpus: TokenizedCorpus,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int = 128,
        short_seq_prob: float = 0.1,
        seed: int = 0,
        objective: str | Objective = "nsp",
        static_pairs: bool = False,
        single_segment_prob: float = 0.0,
    ):
        self.objective = find_objective(objective)
        self.objective.check(corpus, max_seq_length)
        check_range("short_seq_prob", short_seq_prob, "[0, 1]")
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.short_seq_prob = short_seq_prob
        self.seed = seed
        self.static_pairs = static_pairs
        self.single_segment_prob = single_segment_prob
        self.encode = self.objective.encoder(tokenizer)
        self.pairs = self.num_examples = self.epoch = None  # ty: ignore[invalid-assignment]: `set_epoch` sets them
        self.set_epoch(0)

    @classmethod
    def from_texts(
        cls,
        texts: Iterable,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int = 128,
        *,
        text_column: str | None = None,
        text_format: str | None = None,
        sentence_splitter: str = "sentencex",
        language: str = "en",
        cache_dir: str | Path = CACHE_DIR,
        **options: Any,
    ) -> "SentencePairDataset":
        """Examples of texts in memory, one document each.

        `texts` is a list, a pandas Series, a column of a `datasets.Dataset`, a generator, or any other iterable of
        strings; or of lists of strings, which are sentences already; or a complete `Dataset`, `IterableDataset` or
        DataFrame, with `text_column`. `text_format`, `sentence_splitter` and `language` are those of `TextSource`,
        `options` those of `SentencePairDataset`: `objective`, `seed`, `short_seq_prob`, …

        Token ids are written to `cache_dir` and mapped into memory from there: the same texts are encoded once. For a
        generator, which can't be read twice, they are kept for this process only. Raises `ValueError` for what is not
        text, and for unsuitable tokenizers and options.
        """
        check_tokenizer(tokenizer)
        settings = {"text_format": text_format, "splitter": sentence_splitter, "language": language}
        source = TextSource.from_texts(texts, text_column, **settings)
        read_once = any(isinstance(shard, Iterator) for shard in source.shards)
        corpus = TokenizedCorpus.from_source(source, tokenizer, None if read_once else cache_dir)
        return cls(corpus, tokenizer, max_seq_length, **options)

    def split(self, fraction: float, seed: int = 0) -> tuple["SentencePairDataset", "SentencePairDataset"]:
        """Split the text into (training set, held-out set), as `TokenizedCorpus.split`: documents drawn by the seed, or
        the ends of long ones, with about this fraction of the tokens. Raises `ValueError` for too little text."""
        check_range("fraction", fraction, "(0, 1)")
        training, held_out = self.corpus.split(fraction, seed)
        options = (self.tokenizer, self.max_seq_length, self.short_seq_prob, self.seed, self.objective)
        return (
            SentencePairDataset(training, *options, self.static_pairs, self.single_segment_prob),
            SentencePairDataset(held_out, *options),  # ty: ignore[invalid-argument-type]: None for fraction 0 only
        )

    def set_epoch(self, epoch: int) -> None:
        """Build the pairs of an epoch, block by block of the corpus, in a temporary file."""
        epoch = operator.index(epoch)
        if epoch == self.epoch:
            return
        self.epoch = epoch
        if self.static_pairs and self.pairs is not None:
            return
        rng = np.random.default_rng((self.seed, epoch))
        try:
            with tempfile.TemporaryFile() as file:
                for block in self.corpus.blocks():
                    pairs = self.objective.build_pairs(
                        block, self.max_seq_length, self.short_seq_prob, rng, self.single_segment_prob
                    )
                    file.write(np.ascontiguousarray(pairs))
                if file.tell() == 0:
                    raise ValueError(f"{self.objective.title}: the text gives no pair of segments.")
                file.flush()
                pairs = np.memmap(file, dtype=np.int64, mode="r")
                self.pairs = pairs.reshape(-1, 5)  # (pairs, 5): see `Objective.draw_pairs`
        except OSError as error:  # which does not name the place
            where = f"{tempfile.gettempdir()}, which TMPDIR can change"
            raise OSError(f"The pairs of an epoch could not be written to {where}: {error}") from error
        self.num_examples = self.num_examples or len(self.pairs)

    def __getstate__(self) -> dict:
        """Return the epoch's number instead of its pairs, for another process, which builds the same pairs."""
        return self.__dict__ | {"pairs": None, "encode": None, "epoch": None, "_epoch": self.epoch}

    def __setstate__(self, state: dict) -> None:
        epoch = state.pop("_epoch")
        self.__dict__.update(state)
        self.encode = self.objective.encoder(self.tokenizer)
        if self.static_pairs:
            self.set_epoch(0)
        self.set_epoch(epoch)

    def summary(self) -> str:
        pairs = self.objective.describe_pairs(self.pairs)
        return f"{len(self):,} examples of up to {self.max_seq_length} tokens" + (pairs and f", {pairs}")

    def lengths(self) -> np.ndarray:
        """Tokens of each example, with special tokens: (examples,) int64."""
        pairs = self._pairs()
        length_a, length_b = pairs[:, 1] - pairs[:, 0], pairs[:, 3] - pairs[:, 2]
        return length_a + length_b + np.where(length_b > 0, self.objective.special_tokens, 2)

    def documents(self) -> np.ndarray:
        """Document numbers of each example's two segments, the same for a single one: (examples, 2) int64."""
        starts, (start_a, _, start_b, end_b, _) = self.corpus.document_tokens[:, 0], self._pairs().T
        both = np.stack([start_a, np.where(start_b < end_b, start_b, start_a)], axis=1)
        return np.searchsorted(starts, both, side="right") - 1

    def labels(self) -> np.ndarray:
        """Label of each example's pair, -100 for a single segment: (examples,) int64."""
        return self._pairs()[:, 4]

    def coverage(self) -> float:
        """Fraction of the corpus' tokens that are in a pair of this epoch."""
        start, end = np.concatenate([self.pairs[:, :2], self.pairs[:, 2:4]]).T
        return union_length(start, end) / self.corpus.num_tokens

    def _pairs(self) -> np.ndarray:
        return self.pairs[self._pair(np.arange(len(self)))]

    def _pair(self, index: int | np.ndarray) -> int | np.ndarray:
        # Repeated and left-out pairs are spread over the corpus.
        return index * len(self.pairs) // self.num_examples

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, index: int) -> BatchEncoding:
        """An example, not as a dict, from which `Trainer` would remove columns that the collator needs."""
        index = operator.index(index)
        example = self.encode(self.corpus.tokens, self.pairs[self._pair(index)])
        return BatchEncoding(example | {"mask_seed": mask_seed(self.seed, self.epoch, index)})
