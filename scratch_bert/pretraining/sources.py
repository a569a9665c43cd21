"""Sources of a run's examples: files or a dataset, a stream, preprocessed examples, or texts in memory."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

import datasets
import numpy as np
import torch.utils.data
from transformers import PreTrainedTokenizerBase

from scratch_bert_options.data import DataOptions

from ..corpus.cache import cached
from ..corpus.corpus import TokenizedCorpus
from ..corpus.overlap import report_overlap
from ..corpus.tokenizer import load_tokenizer, vocabulary_size
from ..corpus.tokenizer_training import train_tokenizer
from ..examples.collator import PretrainingCollator
from ..examples.dataset import SentencePairDataset
from ..examples.prepared import open_examples
from ..examples.stream import stream_examples
from ..objectives import Objective, find_objective
from ..text.builtin import builtin_documents
from ..text.formats import TextSource
from ..text.tables import find_files, open_dataset


logger = logging.getLogger("scratch_bert")

STREAM_TOKENIZER_PARAGRAPHS = 200_000


@dataclass(kw_only=True)
class PretrainingData:
    """The data that a run trains and evaluates on."""

    tokenizer: PreTrainedTokenizerBase
    objective: Objective
    train_dataset: torch.utils.data.Dataset
    eval_dataset: torch.utils.data.Dataset | None
    first_examples: torch.utils.data.Dataset
    """Examples by index: the training dataset, or the examples of a stream's first documents."""
    max_seq_length: int
    token_counts: np.ndarray
    """Counts of the token ids in the training text, or in a stream's first documents: (vocabulary size,)."""
    description: str
    """Summary of the training text, without a path."""
    train_checksum: int = 0
    """CRC-32 of the training text's tokens; of a stream's first documents and the sizes of its files."""
    eval_checksum: int | None = None
    eval_kind: str = "validation"
    """What the text to evaluate on is called: `held-out` if it is a part of the training text that is not trained on."""
    held_out: str = ""
    """What is held out, and how much of it is in the training text, too."""
    quality: str = ""
    """Unknown tokens in the training and the held-out text, and what was skipped."""


class Source:
    """A source of examples."""

    def load(self) -> PretrainingData:
        """The examples. Raises `ValueError` or `OSError` for text or options that give none."""
        raise NotImplementedError


@dataclass
class MappedSource(Source):
    """Text that is encoded once into the cache, which is mapped into memory: files, a dataset, texts in memory, or the
    built-in corpus."""

    args: DataOptions
    seed: int
    text: TextSource
    eval_text: TextSource | None = None
    """The text to evaluate on; None to hold it out from `text`."""
    tokenizer: PreTrainedTokenizerBase | None = None
    """The tokenizer to use; None to train it on `text`."""

    name_of_training_text: ClassVar = "the training text"

    def load(self) -> PretrainingData:
        for text in filter(None, (self.text, self.eval_text)):
            text.check_not_empty()
        tokenizer = self.tokenizer or self.train_tokenizer()
        corpus, eval_corpus, held_out = self.encode(tokenizer)
        eval_kind = "validation" if self.eval_text else self.args.part_kind
        if eval_corpus:
            name = f"{eval_kind} text"
            logger.info(f"{name.capitalize()}: {held_out}")
            names = (name, self.name_of_training_text)
            overlap = report_overlap(corpus, eval_corpus, vocabulary_size(tokenizer), self.args.cache_dir, *names)
            held_out = f"{held_out}; {overlap}"
        percentile = self.args.length_percentile
        settings: dict[str, Any] = {
            "tokenizer": tokenizer,
            "max_seq_length": corpus.max_seq_length(percentile) if percentile else self.args.max_tokens,
            "short_seq_prob": self.args.short_seq_prob,
            "seed": self.seed,
            "objective": find_objective(self.args.sentence_objective),
        }
        eval_dataset = None
        first_examples = SentencePairDataset(
            corpus,
            **settings,
            static_pairs=self.args.static_pairs,
            single_segment_prob=self.args.single_segment_prob,  # in training only
        )
        train = self.training_examples(first_examples, settings)
        if eval_corpus:
            try:
                eval_dataset = SentencePairDataset(eval_corpus, **settings)
            except ValueError as error:
                raise ValueError(f"The {name}, {eval_corpus.summary()}, gives no examples. {error}") from None
            logger.info(f"{name.capitalize()}: {eval_corpus.summary()} → {eval_dataset.summary()}")
        return PretrainingData(
            tokenizer=tokenizer,
            objective=settings["objective"],
            eval_dataset=eval_dataset,
            first_examples=first_examples,
            max_seq_length=first_examples.max_seq_length,
            token_counts=corpus.token_counts(vocabulary_size(tokenizer)),
            eval_kind=eval_kind,
            held_out=held_out,
            eval_checksum=eval_corpus.checksum() if eval_corpus else None,
            **train,
        )

    def train_tokenizer(self) -> PreTrainedTokenizerBase:
        """A tokenizer trained on the text; from the cache if it was trained before."""
        options = self.tokenizer_options()

        def train(directory: Path) -> None:
            logger.info("Training a tokenizer")
            train_tokenizer(self.text, **options).save_pretrained(directory)

        versions = [metadata.version(name) for name in ("tokenizers", "transformers")]
        settings = (self.text.fingerprint, options, versions)
        tokenizer = load_tokenizer(str(cached(self.args.cache_dir, "tokenizer", settings, train)))
        ordinary = tokenizer.get_vocab().keys() - tokenizer.all_special_tokens
        if self.args.min_frequency > 2 and all(len(piece.removeprefix("##")) == 1 for piece in ordinary):
            logger.warning(
                f"The vocabulary has {len(ordinary):,} single characters and no word: none occurs {self.args.min_frequency:,} "
                "times. Lower min_frequency."
            )
        return tokenizer

    def tokenizer_options(self) -> dict[str, Any]:
        args = self.args
        return {
            "vocab_size": args.max_vocab_size(),
            "tokenizer_type": args.tokenizer_type,
            "lowercase": args.lowercase,
            "min_frequency": args.min_frequency,
            "first_segment_id": args.first_segment_id,
        }

    def encode(self, tokenizer: PreTrainedTokenizerBase) -> tuple[TokenizedCorpus, TokenizedCorpus | None, str]:
        """Token ids of the text to train on and of the text to evaluate on, and what is held out, as a phrase."""
        corpus = self.map(self.text, tokenizer)
        if self.eval_text:
            eval_corpus = self.map(self.eval_text, tokenizer)
            return corpus, eval_corpus, f"other text, {eval_corpus.summary()}"
        training, held_out = corpus.split(self.args.validation_share, self.seed)
        if held_out is None:
            return training, None, ""
        drawn = training.num_documents + held_out.num_documents == corpus.num_documents
        which = "{:,} documents drawn at random" if drawn else "the ends of the {:,} longest documents"
        share = f"{held_out.num_tokens / corpus.num_tokens:.1%} of the tokens"
        return training, held_out, f"{share}, {which.format(held_out.num_documents)}"

    def map(self, text: TextSource, tokenizer: PreTrainedTokenizerBase) -> TokenizedCorpus:
        corpus = TokenizedCorpus.from_source(text, tokenizer, self.args.cache_dir)
        logger.info(f"Text: {corpus.summary()}, {corpus.quality()}")
        warn_of_unknown(corpus.unknown_share)
        if hint := text.document_hint(corpus.num_documents, corpus.num_sentences):
            logger.info(f"Hint: {hint}")
        return corpus

    def training_examples(self, examples: SentencePairDataset, settings: dict[str, Any]) -> dict[str, Any]:
        """The fields of `PretrainingData` on the training text."""
        corpus = examples.corpus
        name = "Text" if self.args.part_kind == "evaluated" else "Training text"
        logger.info(f"{name}: {corpus.summary()} → {examples.summary()}")
        return {
            "train_dataset": examples,
            "description": corpus.summary(),
            "train_checksum": corpus.checksum(),
            "quality": corpus.quality(),
        }


class StreamSource(MappedSource):
    """Text that is read during training, without a copy. Examples by index are those of its first documents."""

    name_of_training_text = "the beginning of the stream"

    def train_tokenizer(self) -> PreTrainedTokenizerBase:
        logger.info("Training a tokenizer on the beginning of the stream")
        paragraphs = list(islice(self.text, STREAM_TOKENIZER_PARAGRAPHS))
        return train_tokenizer([paragraphs], **self.tokenizer_options())  # as one list, they are not split again

    def encode(self, tokenizer: PreTrainedTokenizerBase) -> tuple[TokenizedCorpus, TokenizedCorpus | None, str]:
        corpus, eval_corpus = self.first_documents(self.text, tokenizer), None
        if self.eval_text and any(isinstance(shard, datasets.IterableDataset) for shard in self.eval_text.shards):
            logger.info(f"Validation text: at most the first {self.args.stream_buffer:,} documents of the split")
            eval_corpus = self.first_documents(self.eval_text, tokenizer)
        elif self.eval_text:
            eval_corpus = self.map(self.eval_text, tokenizer)
        return corpus, eval_corpus, f"other text, {eval_corpus.summary()}" if eval_corpus else ""

    def first_documents(self, text: TextSource, tokenizer: PreTrainedTokenizerBase) -> TokenizedCorpus:
        corpus = TokenizedCorpus.from_documents(islice(text.documents(), self.args.stream_buffer), tokenizer)
        if corpus.num_documents == 0:
            raise ValueError("The stream holds no text.")
        return corpus

    def training_examples(self, examples: SentencePairDataset, settings: dict[str, Any]) -> dict[str, Any]:
        logger.info(f"Training text: a stream, in examples of up to {settings['max_seq_length']} tokens")
        single = self.args.single_segment_prob
        sizes = [shard.stat().st_size for shard in self.text.shards if isinstance(shard, Path)]
        return {
            "train_dataset": stream_examples(
                self.text, self.args.stream_buffer, **settings, single_segment_prob=single
            ),
            "description": "a stream",
            "train_checksum": crc32(repr(sizes).encode(), examples.corpus.checksum()),
        }


def warn_of_unknown(share: float) -> None:
    """Log a warning if more than a tenth of the tokens are unknown."""
    if share > 0.1:
        logger.warning(
            f"{share:.0%} of the tokens are unknown: the tokenizer is for other text, such as that in another script. A "
            "model learns little from them, and their predictions are no measure of it."
        )


@dataclass
class PreprocessedSource(Source):
    """Examples written by inspect_data.py or prepare_data.py, mapped or streamed."""

    args: DataOptions
    seed: int
    tokenizer: PreTrainedTokenizerBase | None = None
    """A tokenizer that must give the same input as that of the examples."""

    def load(self) -> PretrainingData:
        args, seed = self.args, self.seed
        examples = open_examples(Path(args.prepared_data), self.tokenizer)  # ty: ignore[invalid-argument-type]: it is set
        files = examples.files["train"]
        if args.streaming:  # only the first file is mapped
            examples = examples._replace(files=examples.files | {"train": files[:1]})
        splits = {split: examples.mapped(split, seed, args.cache_dir) for split in examples.files}
        for split, dataset in splits.items():
            logger.info(f"Preprocessed examples, {split}: {dataset.summary()}")
        first_examples = splits["train"]
        data = PretrainingData(
            tokenizer=examples.tokenizer,
            objective=examples.objective,
            train_dataset=first_examples,
            eval_dataset=splits.get("validation"),
            first_examples=first_examples,
            max_seq_length=int(max(dataset.lengths().max() for dataset in splits.values())),
            token_counts=first_examples.token_counts(vocabulary_size(examples.tokenizer)),
            description=first_examples.summary(),
            train_checksum=first_examples.checksum(),
            eval_checksum=splits["validation"].checksum() if "validation" in splits else None,
        )
        warn_of_unknown(data.token_counts[examples.tokenizer.unk_token_id] / data.token_counts.sum())
        if "validation" in splits:
            names = ("validation text", "the first file" if args.streaming else "the training text")
            vocab_size = vocabulary_size(examples.tokenizer)
            data.held_out = report_overlap(first_examples, splits["validation"], vocab_size, args.cache_dir, *names)
        if not args.streaming:
            return data
        logger.info(f"Training examples: a stream of {len(files):,} files, of which these are the first")
        sizes = [file.stat().st_size for file in files]
        return replace(
            data,
            train_dataset=examples._replace(files={"train": files}).streamed("train", seed, args.stream_buffer),
            max_seq_length=examples.max_seq_length,
            description="a stream of preprocessed examples",
            train_checksum=crc32(repr(sizes).encode(), data.train_checksum),
        )


def find_source(
    args: DataOptions,
    seed: int,
    tokenizer: PreTrainedTokenizerBase | None = None,
    texts: Iterable | None = None,
    eval_texts: Iterable | None = None,
) -> Source:
    """The source that the options name, or that of `texts` in memory; `tokenizer`, if given, encodes the examples.

    Raises `ValueError` or `OSError` for files or a dataset that can't be found.
    """
    if args.prepared_data:
        if eval_texts is not None:
            raise ValueError("Preprocessed examples have their own validation split: leave out other texts.")
        return PreprocessedSource(args, seed, tokenizer)
    find_objective(args.sentence_objective)  # an unknown one is reported before any work
    if texts is not None and args.streaming:
        raise ValueError("streaming has no effect with texts in memory: leave it out.")
    settings = (args.text_format, args.sentence_splitter, args.language or "en")
    column = None if args.text_column == "text" else args.text_column
    if texts is None:
        text, eval_text = _named_texts(args)
    else:
        text, eval_text = TextSource.from_texts(texts, column, *settings), None
    if eval_texts is not None:
        eval_text = TextSource.from_texts(eval_texts, column, *settings)
    elif args.validation_file:
        eval_text = _text(args, find_files(args.validation_file))
    return (StreamSource if args.streaming else MappedSource)(args, seed, text, eval_text, tokenizer)


def load_data(
    args: DataOptions, seed: int, tokenizer: PreTrainedTokenizerBase | None = None, **texts
) -> PretrainingData:
    """The examples of the source that `find_source` returns."""
    return find_source(args, seed, tokenizer, **texts).load()


def _named_texts(args: DataOptions) -> tuple[TextSource, TextSource | None]:
    """The text to train on, and the text to evaluate on, if the dataset has a validation split."""
    if args.train_file:
        return _text(args, find_files(args.train_file)), None
    if not args.dataset_name:
        logger.info("Text: the built-in corpus, as there is no train_file")
        return TextSource([builtin_documents()]), None
    splits = open_dataset(args.dataset_name, args.dataset_config, args.streaming)
    if "train" not in splits:
        raise ValueError(f"The dataset {args.dataset_name} has no split 'train', but {', '.join(map(str, splits))}.")
    train = _text(args, _shards(splits["train"]))
    return train, _text(args, _shards(splits["validation"])) if "validation" in splits else None


def _text(args: DataOptions, shards: list) -> TextSource:
    return TextSource(shards, args.text_format, args.text_column, args.sentence_splitter, args.language or "en")


def _shards(dataset: datasets.Dataset | datasets.IterableDataset) -> list:
    if isinstance(dataset, datasets.Dataset):
        return [dataset]
    return [dataset.shard(dataset.num_shards, index) for index in range(dataset.num_shards)]


def build_collator(
    args: DataOptions,
    tokenizer: PreTrainedTokenizerBase,
    pack_to: int | None = None,
    mlm_probability: float | None = None,
) -> PretrainingCollator:
    """The collator of the options; `mlm_probability`, if given, replaces theirs."""
    return PretrainingCollator(
        tokenizer,
        mlm_probability=args.mlm_probability if mlm_probability is None else mlm_probability,
        mask_replace_prob=args.mask_replace_prob,
        random_replace_prob=args.random_replace_prob,
        whole_word_mask=args.whole_word_mask,
        max_predictions_per_seq=args.max_predictions_per_seq,
        pack_to=pack_to,
    )
