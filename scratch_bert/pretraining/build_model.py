"""Tokenizer and model at the start of a run: new, or from a checkpoint, with more positions and tokens if needed."""

import copy
from pathlib import Path
from typing import NamedTuple

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from scratch_bert_options.commands import command
from scratch_bert_options.data import TOKENIZER_TRAINING, DataOptions
from scratch_bert_options.declare import reject_non_default
from scratch_bert_options.model import ModelOptions

from ..checkpoints.open import load_config, open_checkpoint
from ..corpus.tokenizer import add_tokens, check_vocabulary, load_tokenizer, segment_ids, vocabulary_size
from ..hub.conversion import convert_config
from ..logs import logger
from ..model.configuration_scratch_bert import ScratchBertConfig
from ..text.files import read_lines
from .arguments import overrides
from .embeddings import init_added_embeddings, init_token_embeddings
from .sources import PretrainingData


class TokenizerChoice(NamedTuple):
    tokenizer: PreTrainedTokenizerBase | None
    """The tokenizer to use; None if it is to be trained on the text, or comes with preprocessed examples."""
    named: PreTrainedTokenizerBase | None
    """The tokenizer that the options name, which must be the same when a run is resumed."""


def choose_tokenizer(args: ModelOptions, data_args: DataOptions, checkpoint: str | None = None) -> TokenizerChoice:
    """Load the tokenizer of the `checkpoint` to resume from, or else of the model to continue from, with added tokens,
    or else the one that `tokenizer_name_or_path` names. Raises `ValueError` for tokens that can't be added."""
    resumed = load_tokenizer(checkpoint) if checkpoint else None
    if not args.model_name_or_path:
        name = data_args.tokenizer_name_or_path
        named = load_tokenizer(name) if name else None
        return TokenizerChoice(resumed or named, named)
    unused = ("tokenizer_name_or_path", *TOKENIZER_TRAINING)
    reject_non_default(data_args, unused, "with model_name_or_path, whose tokenizer is used")
    named = resumed or load_tokenizer(args.model_name_or_path)
    if args.add_tokens:
        try:
            longer = add_tokens(named, list(read_lines(Path(args.add_tokens))))
        except ValueError as error:
            raise ValueError(f"{args.add_tokens}: {error}") from None
        if longer is named and not resumed:
            raise ValueError(f"{args.add_tokens}: There are no new tokens: the vocabulary has all of them.")
        named = longer
    return TokenizerChoice(resumed or named, named)


def start_config(args: ModelOptions, checkpoint: str | None = None) -> ScratchBertConfig:
    """The config of the preset, or of the model to continue from (or of the `checkpoint` that replaces it on resume),
    before `resolve_config`. Raises `ValueError` for invalid values, and for another type of model."""
    if not args.model_name_or_path:
        try:
            return ScratchBertConfig.from_preset(args.preset, **overrides(args))
        except (StrictDataclassError, TypeError, LookupError, AttributeError) as error:
            # The cause of a `StrictDataclassError` states what is wrong.
            raise ValueError(f"config_overrides: {error.__cause__ or error}") from None
    name = checkpoint or args.model_name_or_path
    config = load_config(name)
    if config.model_type == "bert":
        if not config.tie_word_embeddings:  # then its MLM head has two biases
            raise ValueError(
                f"{name} has untied word embeddings: convert it first, with `{command('convert', name, 'CONVERTED')}`"
            )
        config = convert_config(config, "scratch_bert")
    elif config.model_type != "scratch_bert":
        raise ValueError(f"{name} is a {config.model_type}: pretraining continues from a scratch_bert or a BERT.")
    config.update(overrides(args))
    return config


def resolve_config(
    start: ScratchBertConfig, args: ModelOptions, data: PretrainingData, length: int, checkpoint: str | None = None
) -> ScratchBertConfig:
    """Adapt `start` to the data: vocabulary, segments, and positions for sequences of up to `length` tokens. A run
    resumed from `checkpoint` keeps its vocab_size. Raises `ValueError` for values that contradict each other."""
    config, tokenizer = copy.deepcopy(start), data.tokenizer
    if args.model_name_or_path:
        config.max_position_embeddings = args.max_position_embeddings or max(config.max_position_embeddings, length)
        if args.add_tokens:  # a published vocab_size may have room for the tokens
            config.vocab_size = max(config.vocab_size, vocabulary_size(tokenizer))
        fixed = ("vocab_size", "type_vocab_size")
    else:
        config.max_position_embeddings = args.max_position_embeddings or length
        fixed = overrides(args)
    if length > config.max_position_embeddings:
        raise ValueError(
            f"max_seq_length ({length}) is longer than max_position_embeddings ({config.max_position_embeddings})."
        )
    config.pad_token_id = tokenizer.pad_token_id
    if "vocab_size" not in fixed:
        config.vocab_size = load_config(checkpoint).vocab_size if checkpoint else vocabulary_size(tokenizer)
    check_vocabulary(tokenizer, config.vocab_size, args.model_name_or_path or "")
    a, b = segment_ids(tokenizer)
    if "type_vocab_size" not in fixed:
        config.type_vocab_size = b + 1
    needed = 1 + (b if data.objective.has_pairs else a)
    if config.type_vocab_size < needed:
        raise ValueError(f"type_vocab_size must be {needed} or more: the segment ids are {a} and {b}.")
    return config


def build_model(
    args: ModelOptions, config: ScratchBertConfig, data: PretrainingData, checkpoint: str | None = None
) -> PreTrainedModel:
    """The model of the objective: new, or the one to continue from, resized to `config`. On resume, its weights are
    loaded later, from the checkpoint. Raises `ValueError` if the model to continue from can't be read."""
    model_class, name = data.objective.model_class, args.model_name_or_path
    if checkpoint or not name:
        model = model_class(config)
        if args.token_embedding_init == "lsa" and not checkpoint:
            init_token_embeddings(model, data.first_examples)
        return model
    model, new = open_checkpoint(model_class, name, start_config(args))
    logger.info(f"Newly initialised: {', '.join(new)}" if new else "All weights are from the checkpoint")
    model.config.pad_token_id = config.pad_token_id
    positions = model.config.max_position_embeddings
    if positions != config.max_position_embeddings:
        repeated = ", repeated from the first on" * (config.position_embedding_type == "absolute")
        logger.info(f"Positions: {positions} → {config.max_position_embeddings}{repeated}")
        model.resize_position_embeddings(config.max_position_embeddings)
    if args.add_tokens:
        model.resize_token_embeddings(config.vocab_size, mean_resizing=False)
        init_added_embeddings(model, data.tokenizer, load_tokenizer(name))
    return model
