"""From the data options to the examples to train and evaluate on: text → tokenizer → corpus → dataset, and the collator."""

import logging
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path
from zlib import crc32

import datasets
import numpy as np
import torch.utils.data
from transformers import PreTrainedTokenizerBase

from ..files import find_files, open_dataset
from ..tokenizer import load_tokenizer, train_tokenizer, vocabulary_size
from .arguments import DataArguments
from .builtin import builtin_documents
from .cache import cached
from .collator import PretrainingCollator
from .corpus import TokenizedCorpus
from .dataset import SentencePairDataset, stream_examples
from .prepared import open_prepared
from .text import TextSource


logger = logging.getLogger("scratch_bert")

PARAGRAPHS_FOR_A_STREAMS_TOKENIZER = 200_000


@dataclass(kw_only=True)
class PretrainingData:
    tokenizer: PreTrainedTokenizerBase
    train_dataset: torch.utils.data.Dataset
    eval_dataset: torch.utils.data.Dataset | None
    first_examples: torch.utils.data.Dataset
    """The training dataset, or the examples of a stream's first documents: by index."""
    max_seq_length: int
    sentence_objective: str
    token_counts: np.ndarray
    """(vocabulary size,): of each token in the training text, or in a stream's first documents."""
    description: str
    """Of the training text, without a path."""
    train_checksum: int = 0
    """Of the training text's tokens; of a stream, of its first documents and the sizes of its files."""
    eval_checksum: int | None = None
    quality: str = ""
    """Of the training and the held-out text: unknown tokens, and what was skipped."""


def load_data(args: DataArguments, seed: int, tokenizer: PreTrainedTokenizerBase | None = None) -> PretrainingData:
    """The examples that the options ask for, made with `tokenizer` if there is one.

    Raises `ValueError` or `OSError` for text or options that give no examples.
    """
    if args.prepared_data:
        return _load_prepared(args, seed, tokenizer)
    source, eval_source = text_sources(args)
    tokenizer = tokenizer or build_tokenizer(args, source)
    corpus, eval_corpus = _tokenize(args, source, eval_source, tokenizer, seed)
    percentile = args.length_percentile
    settings = {
        "tokenizer": tokenizer,
        "max_seq_length": corpus.max_seq_length(percentile) if percentile else args.max_tokens,
        "short_seq_prob": args.short_seq_prob,
        "seed": seed,
        "objective": args.sentence_objective,
    }
    single = args.single_segment_prob  # in training alone
    train_dataset = first_examples = SentencePairDataset(
        corpus, **settings, static_pairs=args.static_pairs, single_segment_prob=single
    )
    if args.streaming:  # the dataset above has shown that the stream's beginning gives examples
        logger.info(f"Training text: a stream, in examples of up to {settings['max_seq_length']} tokens")
        train_dataset = stream_examples(source, args.stream_buffer, **settings, single_segment_prob=single)
    else:
        logger.info(f"Training text: {corpus.summary()} → {train_dataset.summary()}")
    eval_dataset = None
    if eval_corpus:
        try:
            eval_dataset = SentencePairDataset(eval_corpus, **settings)
        except ValueError as error:
            raise ValueError(f"The held-out text, {eval_corpus.summary()}, gives no examples. {error}") from None
        logger.info(f"Held-out text: {eval_corpus.summary()} → {eval_dataset.summary()}")
    token_counts = corpus.token_counts(vocabulary_size(tokenizer))
    return PretrainingData(
        tokenizer=tokenizer,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        first_examples=first_examples,
        max_seq_length=settings["max_seq_length"],
        sentence_objective=args.sentence_objective,
        token_counts=token_counts,
        description="a stream" if args.streaming else corpus.summary(),
        train_checksum=crc32(repr(_sizes(source)).encode(), corpus.checksum())
        if args.streaming
        else corpus.checksum(),
        eval_checksum=eval_corpus and eval_corpus.checksum(),
        quality="" if args.streaming else corpus.quality(),
    )


def text_sources(args: DataArguments) -> tuple[TextSource, TextSource | None]:
    """The training text, and the text to evaluate on unless that is held out from it."""

    def source(shards: list) -> TextSource:
        return TextSource(shards, args.text_format, args.text_column, args.sentence_splitter, args.language or "en")

    eval_source = source(find_files(args.validation_file)) if args.validation_file else None
    if args.train_file:
        return source(find_files(args.train_file)), eval_source
    if not args.dataset_name:
        return TextSource([builtin_documents()]), eval_source
    splits = open_dataset(args.dataset_name, args.dataset_config, args.streaming)
    if "train" not in splits:
        raise ValueError(f"The dataset {args.dataset_name} has no split 'train', but {', '.join(splits)}.")
    if eval_source is None and "validation" in splits:
        eval_source = source(_shards(splits["validation"]))
    return source(_shards(splits["train"])), eval_source


def _shards(dataset: datasets.Dataset | datasets.IterableDataset) -> list:
    if isinstance(dataset, datasets.Dataset):
        return [dataset]
    return [dataset.shard(dataset.num_shards, index) for index in range(dataset.num_shards)]


def build_tokenizer(args: DataArguments, source: TextSource) -> PreTrainedTokenizerBase:
    """The tokenizer that the options name, or one trained on the source; from the cache if it was trained before."""
    if args.tokenizer_name_or_path:
        return load_tokenizer(args.tokenizer_name_or_path)
    options = {
        "vocab_size": args.max_vocab_size(),
        "tokenizer_type": args.tokenizer_type,
        "lowercase": args.lowercase,
        "min_frequency": args.min_frequency,
        "first_segment_id": args.first_segment_id,
    }
    if args.streaming:
        logger.info("Training a tokenizer on the beginning of the stream")
        return train_tokenizer(list(islice(source, PARAGRAPHS_FOR_A_STREAMS_TOKENIZER)), **options)

    def train(directory: Path) -> None:
        logger.info("Training a tokenizer")
        train_tokenizer(source, **options).save_pretrained(directory)

    versions = [metadata.version(name) for name in ("tokenizers", "transformers")]
    return load_tokenizer(str(cached(args.cache_dir, "tokenizer", (source.fingerprint, options, versions), train)))


def _tokenize(
    args: DataArguments,
    source: TextSource,
    eval_source: TextSource | None,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
) -> tuple[TokenizedCorpus, TokenizedCorpus | None]:
    """The training text, or the first documents of a stream, and the text to evaluate on, as token ids."""
    corpus = _first_documents(args, source, tokenizer) if args.streaming else _whole(args, source, tokenizer)
    if eval_source is None:
        return (corpus, None) if args.streaming else corpus.hold_out(args.validation_share, seed)
    if any(isinstance(shard, datasets.IterableDataset) for shard in eval_source.shards):
        logger.info(f"Held-out text: at most the first {args.stream_buffer:,} documents of the split")
        return corpus, _first_documents(args, eval_source, tokenizer)
    return corpus, _whole(args, eval_source, tokenizer)


def _whole(args: DataArguments, source: TextSource, tokenizer: PreTrainedTokenizerBase) -> TokenizedCorpus:
    corpus = TokenizedCorpus.from_source(source, tokenizer, args.cache_dir)
    logger.info(f"Text: {corpus.summary()}, {corpus.quality()}")
    return corpus


def _first_documents(args: DataArguments, stream: TextSource, tokenizer: PreTrainedTokenizerBase) -> TokenizedCorpus:
    corpus = TokenizedCorpus.from_documents(islice(stream.documents(), args.stream_buffer), tokenizer)
    if corpus.num_documents == 0:
        raise ValueError("The stream holds no text.")
    return corpus


def _load_prepared(args: DataArguments, seed: int, tokenizer: PreTrainedTokenizerBase | None) -> PretrainingData:
    if args.tokenizer_name_or_path and not tokenizer:
        tokenizer = load_tokenizer(args.tokenizer_name_or_path)
    prepared = open_prepared(Path(args.prepared_data), tokenizer)
    files = prepared.files["train"]
    if args.streaming:  # its first file stands for all
        prepared = prepared._replace(files=prepared.files | {"train": files[:1]})
    splits = {split: prepared.mapped(split, seed, args.cache_dir) for split in prepared.files}
    for split, dataset in splits.items():
        logger.info(f"Prepared examples, {split}: {dataset.summary()}")
    train_dataset = first_examples = splits["train"]
    checksum, length = first_examples.checksum(), int(max(dataset.lengths().max() for dataset in splits.values()))
    if args.streaming:
        logger.info(f"Training examples: a stream of {len(files):,} files, of which these are the first")
        train_dataset = prepared._replace(files={"train": files}).streamed("train", seed, args.stream_buffer)
        checksum = crc32(repr([file.stat().st_size for file in files]).encode(), checksum)
        length = prepared.max_seq_length
    return PretrainingData(
        tokenizer=prepared.tokenizer,
        train_dataset=train_dataset,
        eval_dataset=splits.get("validation"),
        first_examples=first_examples,
        max_seq_length=length,
        sentence_objective=prepared.objective,
        token_counts=first_examples.token_counts(vocabulary_size(prepared.tokenizer)),
        description="a stream of prepared examples" if args.streaming else first_examples.summary(),
        train_checksum=checksum,
        eval_checksum=splits["validation"].checksum() if "validation" in splits else None,
    )


def _sizes(source: TextSource) -> list[int]:
    """In bytes, of the files of a source."""
    return [shard.stat().st_size for shard in source.shards if isinstance(shard, Path)]


def build_collator(
    args: DataArguments,
    tokenizer: PreTrainedTokenizerBase,
    pack_to: int | None = None,
    mlm_probability: float | None = None,
) -> PretrainingCollator:
    """The collator that the options ask for; `mlm_probability`, if given, replaces theirs."""
    return PretrainingCollator(
        tokenizer,
        mlm_probability=args.mlm_probability if mlm_probability is None else mlm_probability,
        mask_replace_prob=args.mask_replace_prob,
        random_replace_prob=args.random_replace_prob,
        whole_word_mask=args.whole_word_mask,
        max_predictions_per_seq=args.max_predictions_per_seq,
        pack_to=pack_to,
    )
