"""The data of a run: examples of files or a dataset, of a stream, of texts in memory, or preprocessed ones."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

import datasets
import numpy as np
import torch.utils.data
from transformers import PreTrainedTokenizerBase

from scratch_bert_options.data import DataOptions
from scratch_bert_options.outputs import check_output_dir
from scratch_bert_options.preparation import TokenizerPreparationOptions

from ..corpus.cache import cached
from ..corpus.corpus import TokenizedCorpus
from ..corpus.normalization import MUCH, SAMPLE_SHARDS, count_characters, find_changes
from ..corpus.overlap import report_overlap
from ..corpus.tokenizer import check_unknown, continues_word, load_tokenizer, vocabulary_size
from ..corpus.tokenizer_training import train_tokenizer
from ..examples.collator import PretrainingCollator
from ..examples.dataset import SentencePairDataset
from ..examples.prepared import open_examples
from ..examples.stream import stream_examples
from ..logs import logger
from ..objectives import Objective, find_objective
from ..objectives.predictions import examples_to_try
from ..text.builtin import builtin_documents
from ..text.files import TextError, find_files
from ..text.formats import TextSource
from ..text.tables import open_dataset
from .metrics import characters_per_token


STREAM_TOKENIZER_PARAGRAPHS = 200_000
# Continuation tokens in a word: 0.1 to 1 on average where spaces separate words; 0 in Chinese, where each character
# is a word to the tokenizer, and 5 in Thai.
FEW_PARTS, MANY_PARTS = 0.02, 3


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
    eval_token_counts: np.ndarray
    """The same of the text to evaluate on or, without one, of the training text."""
    description: str
    """Summary of the training text, without a path."""
    train_checksum: int = 0
    """CRC-32 of the training text's tokens; of a stream's first documents and the sizes of its files."""
    eval_checksum: int | None = None
    eval_kind: str = "validation"
    """What the text to evaluate on is called: `held-out` if it is a part of the text that is not trained on."""
    held_out: str = ""
    """What is held out, and how much of it is also in the training text."""
    quality: str = ""
    """Unknown tokens in the training and the held-out text, and what was skipped."""
    eval_source: TextSource | None = None
    """The text that has the one to evaluate on, if it can be read again."""

    @cached_property
    def characters_per_token(self) -> float:
        """Of the text of `eval_token_counts`: see `characters_per_token`."""
        return characters_per_token(self.eval_token_counts, self.tokenizer)

    @cached_property
    def examples_to_try(self) -> dict[str, list]:
        """Pieces of the text to evaluate on: see `examples_to_try`."""
        quotable = self.eval_source.unsplit_documents() if self.eval_source else ()
        with suppress(OSError, TextError):  # the files may be gone, as a run needs them only at its start
            return examples_to_try(self.eval_dataset or [], self.tokenizer, quotable)
        return examples_to_try(self.eval_dataset or [], self.tokenizer)


def load_data(
    args: DataOptions,
    seed: int,
    tokenizer: PreTrainedTokenizerBase | None = None,
    texts: Iterable | None = None,
    eval_texts: Iterable | None = None,
) -> PretrainingData:
    """The examples of the text that the options name, or of `texts` in memory. Without a `tokenizer`, one is trained
    on the text; preprocessed examples have theirs, which must give the same input.

    Raises `ValueError` or `OSError` for text or options that give no examples.
    """
    check_output_dir("cache_dir", Path(args.cache_dir))
    # The second is also that of the held-out text.
    seeds = {"train": seed, "validation": seed if args.split_seed is None else args.split_seed}
    if args.prepared_data:
        if eval_texts is not None:
            raise ValueError("Preprocessed examples have their own validation split: leave out other texts.")
        data = _load_preprocessed(args, seeds, tokenizer)
    else:
        find_objective(args.sentence_objective)  # an unknown one is reported before any work
        text, eval_text = find_texts(args, texts, eval_texts)
        data = _load_text(args, seeds, text, eval_text, tokenizer or trained_tokenizer(args, text))
    for counts in (data.token_counts, data.eval_token_counts):
        counts[data.tokenizer.all_special_ids] = 0  # they are never masked
    if args.whole_word_mask:
        _check_whole_words(data)
    return data


def _check_whole_words(data: PretrainingData) -> None:
    """Warn if the words of the tokenizer are not those of the language, which writes no spaces between them."""
    continuing = data.token_counts[continues_word(data.tokenizer)].sum()
    words = max(data.token_counts.sum() - continuing, 1)
    effect = "has no effect" if continuing < FEW_PARTS * words else "selects phrases, not words"
    if not FEW_PARTS * words <= continuing <= MANY_PARTS * words:
        logger.warning(
            f"whole_word_mask {effect}: a word has {1 + continuing / words:.2f} tokens on average. To the tokenizer, "
            "words end at spaces and punctuation marks, and each Chinese character is a word"
        )


def find_texts(
    args: DataOptions | TokenizerPreparationOptions, texts: Iterable | None = None, eval_texts: Iterable | None = None
) -> tuple[TextSource, TextSource | None]:
    """The text to train on; and the text to evaluate on, if it is another one.

    Raises `ValueError` or `OSError` for files or a dataset that can't be found.
    """
    settings = {"text_format": args.text_format, "splitter": args.sentence_splitter, "language": args.language or "en"}

    def named(shards: list) -> TextSource:
        return TextSource(shards, text_column=args.text_column, **settings)

    def in_memory(texts: Iterable) -> TextSource:
        return TextSource.from_texts(texts, None if args.text_column == "text" else args.text_column, **settings)

    eval_text = None
    if texts is not None:
        if args.streaming:
            raise ValueError("streaming has no effect with texts in memory: leave it out.")
        text = in_memory(texts)
    elif args.train_file:
        text = named(find_files(args.train_file))
    elif args.dataset_name:
        splits = open_dataset(args.dataset_name, args.dataset_config, args.streaming)
        if "train" not in splits:
            known = ", ".join(map(str, splits))
            raise ValueError(f"The dataset {args.dataset_name} has no split 'train', only {known}.")
        text = named(_shards(splits["train"]))
        eval_text = named(_shards(splits["validation"])) if "validation" in splits else None
    else:
        logger.info("Text: the built-in corpus, as there is no train_file")
        text = TextSource([builtin_documents()])
    if eval_texts is not None:
        is_list = isinstance(eval_texts, list)  # which has no column, unlike the training text perhaps
        eval_text = TextSource([eval_texts], **settings) if is_list else in_memory(eval_texts)
    elif args.validation_file:
        eval_text = named(find_files(args.validation_file))
    if args.text_column != "text" and not any(one.has_columns for one in (text, eval_text) if one):
        raise ValueError(f"text_column is for tables, which {text.shards[0]} is not: leave it out.")
    return text, eval_text


def _shards(dataset: datasets.Dataset | datasets.IterableDataset) -> list:
    if isinstance(dataset, datasets.Dataset):
        return [dataset]
    return [dataset.shard(dataset.num_shards, index) for index in range(dataset.num_shards)]


def trained_tokenizer(args: DataOptions, text: TextSource) -> PreTrainedTokenizerBase:
    """A tokenizer trained on the text, from the cache if it was trained before; or on the beginning of a stream."""
    options = args.tokenizer_options()
    if args.streaming:
        logger.info("Training a tokenizer on the beginning of the stream")
        paragraphs = list(islice(text, STREAM_TOKENIZER_PARAGRAPHS))
        return train_tokenizer([paragraphs], **options)  # as one list, they are not split again

    def train(directory: Path) -> None:
        logger.info("Training a tokenizer")
        train_tokenizer(text, **options).save_pretrained(directory)

    versions = [metadata.version(name) for name in ("tokenizers", "transformers")]
    tokenizer = load_tokenizer(str(cached(args.cache_dir, "tokenizer", (text.fingerprint, options, versions), train)))
    ordinary = tokenizer.get_vocab().keys() - tokenizer.all_special_tokens
    if args.min_frequency > 2 and all(len(piece.removeprefix("##")) == 1 for piece in ordinary):
        logger.warning(
            f"The vocabulary has {len(ordinary):,} single characters and no word: none occurs {args.min_frequency:,} "
            "times. Lower min_frequency."
        )
    return tokenizer


def sequence_length(args: DataOptions, corpus: TokenizedCorpus) -> int:
    """The number of tokens that `max_seq_length` is, or that it asks for by a percentile of the sentences' lengths."""
    length = args.max_seq_length
    return length if isinstance(length, int) else corpus.max_seq_length(int(length.removeprefix("auto:")))


def _load_text(
    args: DataOptions, seeds: dict, text: TextSource, eval_text: TextSource | None, tokenizer: PreTrainedTokenizerBase
) -> PretrainingData:
    """Text is encoded once into the cache, which is mapped into memory. A stream is read during training, without a
    copy: its examples by index are those of its first documents."""
    changes = _describe_changes(text, tokenizer, max_shards=1 if args.streaming else SAMPLE_SHARDS)
    corpus, eval_corpus, held_out = _encode(args, text, tokenizer), None, ""
    if eval_text:
        eval_corpus = _encode(args, eval_text, tokenizer, evaluates=True)
        held_out = f"other text, {eval_corpus.summary()}"
    elif not args.streaming:
        corpus, eval_corpus, held_out = _hold_out(corpus, args.validation_share, seeds["validation"])
    eval_kind, vocab_size = "validation" if eval_text else args.part_kind, vocabulary_size(tokenizer)
    name = f"{eval_kind} text"
    if eval_corpus:
        logger.info(f"{name.capitalize()}: {held_out}")
        names = (name, "the beginning of the stream" if args.streaming else "the training text")
        held_out += f"; {report_overlap(corpus, eval_corpus, vocab_size, args.cache_dir, *names)}"
    settings: dict[str, Any] = {
        "tokenizer": tokenizer,
        "max_seq_length": sequence_length(args, corpus),
        "short_seq_prob": args.short_seq_prob,
        "objective": find_objective(args.sentence_objective),
    }
    single = args.single_segment_prob  # in training only
    examples = SentencePairDataset(
        corpus, **settings, seed=seeds["train"], static_pairs=args.static_pairs, single_segment_prob=single
    )
    data = PretrainingData(
        tokenizer=tokenizer,
        objective=settings["objective"],
        train_dataset=examples,
        eval_dataset=None,
        first_examples=examples,
        max_seq_length=examples.max_seq_length,
        token_counts=corpus.token_counts(vocab_size),
        eval_token_counts=(eval_corpus or corpus).token_counts(vocab_size),
        description=corpus.summary(),
        train_checksum=corpus.checksum(),
        eval_checksum=eval_corpus.checksum() if eval_corpus else None,
        eval_kind=eval_kind,
        held_out=held_out,
        quality="; ".join(filter(None, (corpus.quality(), changes))),
        eval_source=None if args.streaming else eval_text or text,
    )
    if args.streaming:
        logger.info(f"Training text: a stream, in examples of up to {data.max_seq_length} tokens")
        data.train_dataset = stream_examples(
            text, args.stream_buffer, **settings, seed=seeds["train"], single_segment_prob=single
        )
        data.description, data.quality = "a stream", ""
        data.train_checksum = _stream_checksum(text.shards, data.train_checksum)
    else:
        kind = "Text" if args.part_kind == "evaluated" else "Training text"
        logger.info(f"{kind}: {corpus.summary()} → {examples.summary()}")
    if eval_corpus:
        try:
            data.eval_dataset = SentencePairDataset(eval_corpus, **settings, seed=seeds["validation"])
        except ValueError as error:
            raise ValueError(f"The {name}, {eval_corpus.summary()}, gives no examples. {error}") from None
        logger.info(f"{name.capitalize()}: {eval_corpus.summary()} → {data.eval_dataset.summary()}")
    return data


def _encode(
    args: DataOptions, text: TextSource, tokenizer: PreTrainedTokenizerBase, evaluates: bool = False
) -> TokenizedCorpus:
    """The token ids of a text, mapped into memory, or those of a stream's first documents."""
    streams = args.streaming
    if evaluates:  # files are mapped, also beside a stream
        streams = streams and any(isinstance(shard, datasets.IterableDataset) for shard in text.shards)
    if streams:
        if evaluates:
            logger.info(f"Validation text: at most the first {args.stream_buffer:,} documents of the split")
        corpus = TokenizedCorpus.from_documents(islice(text.documents(), args.stream_buffer), tokenizer)
        if corpus.num_documents == 0:
            raise ValueError("The stream holds no text.")
        check_unknown(corpus.unknown_share, text)
        return corpus
    corpus = TokenizedCorpus.from_source(text, tokenizer, args.cache_dir)
    logger.info(f"Text: {corpus.summary()}, {corpus.quality()}")
    check_unknown(corpus.unknown_share, text)
    if hint := text.document_hint(corpus.num_documents, corpus.num_sentences, corpus.num_tokens):
        logger.info(f"Hint: {hint}")
    return corpus


def _hold_out(corpus: TokenizedCorpus, share: float, seed: int) -> tuple[TokenizedCorpus, TokenizedCorpus | None, str]:
    """The text to train on, the text that is held out, and how much that is, as a phrase."""
    training, held_out = corpus.split(share, seed)
    if held_out is None:
        return training, None, ""
    drawn = training.num_documents + held_out.num_documents == corpus.num_documents
    which = "{:,} documents drawn at random" if drawn else "the ends of the {:,} longest documents"
    part = f"{held_out.num_tokens / corpus.num_tokens:.1%} of the tokens"
    return training, held_out, f"{part}, {which.format(held_out.num_documents)}"


def _stream_checksum(files: Iterable, checksum: int) -> int:
    """The checksum of a stream's first documents, continued with the sizes of all its files."""
    return crc32(repr([file.stat().st_size for file in files if isinstance(file, Path)]).encode(), checksum)


def _describe_changes(text: TextSource, tokenizer: PreTrainedTokenizerBase, max_shards: int) -> str:
    """What the tokenizer's normalizer changes in the text; a warning if it is much."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    if normalizer is None:
        return ""
    changes = find_changes(count_characters(text, max_shards), normalizer.normalize_str)
    if not changes.share:
        return ""
    described = f"The tokenizer's normalizer changes {changes}"
    if changes.share > MUCH:
        logger.warning(f"{described}. If these are letters, train a tokenizer with strip_accents=false")
    else:
        logger.info(described)
    return described[0].lower() + described[1:]


def _load_preprocessed(args: DataOptions, seeds: dict, tokenizer: PreTrainedTokenizerBase | None) -> PretrainingData:
    """Examples written by inspect_data.py or prepare_data.py, mapped into memory or streamed."""
    examples = open_examples(Path(args.prepared_data), tokenizer)  # ty: ignore[invalid-argument-type]: it is set
    files, tokenizer = examples.files["train"], examples.tokenizer
    if args.streaming:  # only the first file is mapped
        examples = examples._replace(files=examples.files | {"train": files[:1]})
    splits = {split: examples.mapped(split, seeds[split], args.cache_dir) for split in examples.files}
    for split, dataset in splits.items():
        logger.info(f"Preprocessed examples, {split}: {dataset.summary()}")
    first, validation = splits["train"], splits.get("validation")
    vocab_size = vocabulary_size(tokenizer)
    data = PretrainingData(
        tokenizer=tokenizer,
        objective=examples.objective,
        train_dataset=first,
        eval_dataset=validation,
        first_examples=first,
        max_seq_length=int(max(dataset.lengths().max() for dataset in splits.values())),
        token_counts=first.token_counts(vocab_size),
        eval_token_counts=(validation or first).token_counts(vocab_size),
        description=first.summary(),
        train_checksum=first.checksum(),
        eval_checksum=validation.checksum() if validation else None,
    )
    check_unknown(data.token_counts[tokenizer.unk_token_id] / data.token_counts.sum())
    if validation:
        names = ("validation text", "the first file" if args.streaming else "the training text")
        data.held_out = report_overlap(first, validation, vocab_size, args.cache_dir, *names)
    if not args.streaming:
        return data
    logger.info(f"Training examples: a stream of {len(files):,} files; the examples above are from the first")
    return replace(
        data,
        train_dataset=examples._replace(files={"train": files}).streamed("train", seeds["train"], args.stream_buffer),
        max_seq_length=examples.max_seq_length,
        description="a stream of preprocessed examples",
        train_checksum=_stream_checksum(files, data.train_checksum),
    )


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
