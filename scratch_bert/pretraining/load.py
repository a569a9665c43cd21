"""From the data options to the rows to train and evaluate on: corpus.py up to rows.py, one after another."""

import hashlib
import inspect
import json
import logging
import os
import tempfile
from dataclasses import dataclass
from glob import escape
from importlib import metadata
from itertools import islice
from pathlib import Path

import datasets
import numpy as np
import torch.utils.data
from transformers import PreTrainedTokenizerBase

from .. import tokenizer as tokenizer_module
from ..files import find_files, open_dataset
from ..tokenizer import load_tokenizer, train_tokenizer, vocabulary_size
from .arguments import DataArguments
from .collator import PreTrainingCollator
from .corpus import TokenizedCorpus, make_cache
from .dataset import PreparedRows, SentencePairDataset, stream_rows
from .text import TextSource, builtin_documents


logger = logging.getLogger("scratch_bert")

PARAGRAPHS_FOR_A_STREAMS_TOKENIZER = 200_000


@dataclass
class PretrainingData:
    tokenizer: PreTrainedTokenizerBase
    train_dataset: torch.utils.data.Dataset
    eval_dataset: torch.utils.data.Dataset | None
    max_seq_length: int
    sentence_objective: str
    token_counts: np.ndarray  # (vocabulary size,): how often each token is in the training text, a stream's first part
    description: str  # of the training text, without a path
    quality: str = ""  # of the training and the held-out text: unknown tokens, and what was skipped


def load_data(args: DataArguments, seed: int, tokenizer: PreTrainedTokenizerBase | None = None) -> PretrainingData:
    """The rows that the options ask for, made with `tokenizer` if there is one.

    Raises `ValueError` or `OSError` for text or options that give no rows.
    """
    if args.tokenizer_name_or_path and not tokenizer:
        tokenizer = load_tokenizer(args.tokenizer_name_or_path)
    if args.prepared_data:
        return _load_prepared(args, seed, tokenizer)
    source, eval_source = text_sources(args)
    tokenizer = tokenizer or trained_tokenizer(args, source)
    corpus, held_out = _corpora(args, source, eval_source, tokenizer, seed)

    max_seq_length = corpus.row_length(args.percentile) if args.percentile else int(args.max_seq_length)
    settings = (tokenizer, max_seq_length, args.short_seq_prob, seed, args.sentence_objective)
    train_dataset = SentencePairDataset(corpus, *settings, static_pairs=args.static_pairs)
    if args.streaming:  # whose beginning gives rows: that is checked now
        logger.info(f"Training text: a stream, in rows of up to {max_seq_length} tokens")
        train_dataset = stream_rows(source, args.stream_buffer, *settings)
    else:
        logger.info(f"Training text: {corpus.summary()} → {train_dataset.summary()}")
    eval_dataset = None
    if held_out:
        try:
            eval_dataset = SentencePairDataset(held_out, *settings)
        except ValueError as error:
            raise ValueError(f"The held-out text, {held_out.summary()}, gives no rows. {error}") from None
        logger.info(f"Held-out text: {held_out.summary()} → {eval_dataset.summary()}")
    return PretrainingData(
        tokenizer,
        train_dataset,
        eval_dataset,
        max_seq_length,
        args.sentence_objective,
        corpus.token_counts(vocabulary_size(tokenizer)),
        "a stream" if args.streaming else corpus.summary(),
        "" if args.streaming else corpus.quality(),
    )


def _corpora(
    args: DataArguments,
    source: TextSource,
    eval_source: TextSource | None,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
) -> tuple[TokenizedCorpus, TokenizedCorpus | None]:
    """Token ids of the training text, of a stream its beginning, and of the text to evaluate on."""

    def beginning(stream: TextSource) -> TokenizedCorpus:
        corpus = TokenizedCorpus.from_documents(islice(stream.documents(), args.stream_buffer), tokenizer)
        if corpus.num_documents == 0:
            raise ValueError("The stream holds no text.")
        return corpus

    def whole(source: TextSource) -> TokenizedCorpus:
        corpus = TokenizedCorpus.from_source(source, tokenizer, args.cache_dir)
        logger.info(f"Text: {corpus.summary()}, {corpus.quality()}")
        return corpus

    corpus = beginning(source) if args.streaming else whole(source)
    if eval_source is None:
        return (corpus, None) if args.streaming else corpus.hold_out(args.validation_share, seed)
    if any(isinstance(shard, datasets.IterableDataset) for shard in eval_source.shards):
        logger.info(f"Held-out text: the first {args.stream_buffer:,} documents of the split, at most")
        return corpus, beginning(eval_source)
    return corpus, whole(eval_source)


def text_sources(args: DataArguments) -> tuple[TextSource, TextSource | None]:
    """The training text, and the text to evaluate on if it is not to be held out from it."""

    def source(shards: list) -> TextSource:
        return TextSource(shards, args.text_format, args.text_column, args.sentence_splitter, args.language or "en")

    eval_source = source(find_files(args.validation_file)) if args.validation_file else None
    if args.train_file:
        return source(find_files(args.train_file)), eval_source
    if not args.dataset_name:
        return TextSource([builtin_documents()]), eval_source
    splits = open_dataset(args.dataset_name, args.dataset_config, args.streaming)
    if "train" not in splits:
        raise ValueError(f"The data set {args.dataset_name} has no split 'train', but {', '.join(splits)}.")
    if eval_source is None and "validation" in splits:
        eval_source = source(_shards(splits["validation"]))
    return source(_shards(splits["train"])), eval_source


def _shards(dataset: datasets.Dataset | datasets.IterableDataset) -> list:
    if isinstance(dataset, datasets.Dataset):
        return [dataset]
    return [dataset.shard(dataset.num_shards, index) for index in range(dataset.num_shards)]


def trained_tokenizer(args: DataArguments, source: TextSource) -> PreTrainedTokenizerBase:
    options = (args.vocab_size, args.tokenizer_type, args.lowercase, args.min_frequency)
    if args.streaming:
        logger.info("Training a tokenizer on the beginning of the stream")
        return train_tokenizer(list(islice(source, PARAGRAPHS_FOR_A_STREAMS_TOKENIZER)), *options)
    versions = [metadata.version(name) for name in ("tokenizers", "transformers")]
    settings = f"{source.fingerprint}{options}{versions}".encode() + inspect.getsource(tokenizer_module).encode()
    cached = make_cache(args.cache_dir) / f"tokenizer-{hashlib.blake2b(settings, digest_size=16).hexdigest()}"
    if not cached.exists():
        logger.info("Training a tokenizer")
        tokenizer = train_tokenizer(source, *options)
        with tempfile.TemporaryDirectory(dir=cached.parent) as scratch:
            tokenizer.save_pretrained(Path(scratch, "tokenizer"))
            try:
                os.replace(Path(scratch, "tokenizer"), cached)
            except OSError:
                if not cached.exists():  # else another run has made it meanwhile
                    raise
    return load_tokenizer(str(cached))


def _load_prepared(args: DataArguments, seed: int, tokenizer: PreTrainedTokenizerBase | None) -> PretrainingData:
    directory = Path(args.prepared_data)
    files = {split: directory / f"{split}.parquet" for split in ("train", "validation")}
    if not files["train"].is_file():
        raise FileNotFoundError(f"{directory} holds no train.parquet, as inspect_data.py --output_dir writes it.")
    own = load_tokenizer(str(directory))
    if tokenizer and tokenizer.get_vocab() != own.get_vocab():
        raise ValueError(
            f"The rows in {directory} were made with another vocabulary: make them anew with inspect_data.py "
            "--tokenizer_name_or_path and the model's tokenizer."
        )
    tokenizer = tokenizer or own
    rows = {
        split: PreparedRows(
            datasets.Dataset.from_parquet(escape(str(file)), cache_dir=args.cache_dir), tokenizer, seed
        )
        for split, file in files.items()
        if file.is_file()
    }
    for split, dataset in rows.items():
        logger.info(f"Prepared rows, {split}: {dataset.summary()}")
    train = rows["train"]
    return PretrainingData(
        tokenizer,
        train,
        rows.get("validation"),
        int(max(dataset.lengths().max() for dataset in rows.values())),
        json.loads((directory / "rows.json").read_text())["sentence_objective"],
        train.token_counts(vocabulary_size(tokenizer)),
        train.summary(),
    )


def build_collator(
    args: DataArguments, tokenizer: PreTrainedTokenizerBase, pack_to: int | None = None
) -> PreTrainingCollator:
    return PreTrainingCollator(
        tokenizer,
        mlm_probability=args.mlm_probability,
        mask_replace_prob=args.mask_replace_prob,
        random_replace_prob=args.random_replace_prob,
        whole_word_mask=args.whole_word_mask,
        max_predictions_per_seq=args.max_predictions_per_seq,
        pack_to=pack_to,
    )
