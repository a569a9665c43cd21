"""A pretraining run from its options: what scripts/pretrain.py does, for Python."""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import set_seed
from transformers.integrations import TensorBoardCallback

from ..files import TextError
from ..model.configuration_scratch_bert import ScratchBertConfig
from ..model.modeling_scratch_bert import ScratchBertForMaskedLM, ScratchBertForPreTraining
from ..tokenizer import load_tokenizer, segment_ids, vocabulary_size
from ..training.callbacks import TensorBoardGraphCallback
from ..training.resume import check_same_architecture, find_checkpoint
from ..training.trainer import write_metrics
from .arguments import (
    EVAL_MLM_PROBABILITY,
    DataArguments,
    ModelArguments,
    OwnOptimizerNames,
    PretrainingArguments,
    parse_overrides,
)
from .embeddings import init_token_embeddings
from .load import PretrainingData, build_collator, load_data
from .metrics import PreTrainingMetrics, unigram_log_probs
from .model_card import write_pretraining_card
from .optimizer import check_same_optimizer
from .pairs import OBJECTIVES
from .trainer import PreTrainingTrainer


logger = logging.getLogger("scratch_bert")


@dataclass
class Run:
    """A run that is ready to train."""

    trainer: PreTrainingTrainer
    data: PretrainingData
    checkpoint: str | None = None
    """The one to resume from."""

    def train(self) -> dict[str, float]:
        """Train, evaluate, and save the model with its card, tokenizer and metrics.json. Returns the metrics.

        Raises `OSError` if the model can't be saved or pushed, `TextError` for a bad file of a stream, and
        `KeyboardInterrupt`, after a checkpoint is saved, if Ctrl-C ended the training.
        """
        trainer = self.trainer
        try:
            metrics = trainer.train(resume_from_checkpoint=self.checkpoint).metrics
        except TextError as error:
            reason = str(error).splitlines()[-1]  # a data loader's worker puts its traceback before it
            raise TextError(
                f"{reason}\nCheckpoints are kept: fix the text, and continue with --resume_from_checkpoint"
            ) from error
        trainer.raise_if_interrupted()
        if trainer.eval_dataset:
            metrics |= trainer.evaluate()
        if trainer.is_world_process_zero():
            write_metrics(trainer.args.output_dir, metrics)
        trainer.save_model()
        return metrics


def pretrain(model_args: ModelArguments, data_args: DataArguments, args: PretrainingArguments) -> dict[str, float]:
    """Prepare a run and train: see `prepare` and `Run.train`."""
    return prepare(model_args, data_args, args).train()


def prepare(model_args: ModelArguments, data_args: DataArguments, args: PretrainingArguments) -> Run:
    """Text → tokenizer → token ids → examples → model → Trainer.

    Raises `ValueError` or `OSError` for options, text or a checkpoint that can't be used.
    """
    checkpoint = find_checkpoint(args)
    if data_args.streaming:
        if args.max_steps <= 0:
            raise ValueError("--streaming needs --max_steps: the length of a stream is unknown.")
        args.accelerator_config.dispatch_batches = False  # each process reads its own share
    dropout = {"hidden_dropout_prob": model_args.dropout, "attention_probs_dropout_prob": model_args.dropout}
    overrides = dropout | parse_overrides(model_args.config_overrides)
    try:
        config = ScratchBertConfig.from_preset(model_args.preset, **overrides)
    except StrictDataclassError as error:  # its cause says what is wrong
        raise ValueError(f"config_overrides: {error.__cause__ or error}") from None
    with args.main_process_first():  # the others find its files
        data = load_data(data_args, args.seed, load_tokenizer(checkpoint) if checkpoint else None)
    config.max_position_embeddings = model_args.max_position_embeddings or data.max_seq_length
    _fit(config, data, overrides, checkpoint)
    if checkpoint:
        check_same_architecture(config, checkpoint)
        check_same_optimizer(args.optim == OwnOptimizerNames.MUON, checkpoint)
    if data.eval_dataset is None:
        logger.info("No held-out text: evaluation is disabled")
        args.eval_strategy = "no"

    set_seed(args.seed)
    with_pairs = OBJECTIVES[data.sentence_objective].has_pairs
    model = (ScratchBertForPreTraining if with_pairs else ScratchBertForMaskedLM)(config)
    if args.bf16_by_default:
        logger.info("Precision: bf16 autocast, as this CPU multiplies bf16 natively; --bf16 false for fp32")
    logger.info(
        f"Model: {model_args.preset}, vocabulary of {config.vocab_size:,}, {model.num_parameters():,} parameters"
    )
    if model_args.token_embedding_init == "lsa" and not checkpoint:
        init_token_embeddings(model, data.first_examples)
    metrics = PreTrainingMetrics(unigram_log_probs(data.token_counts), with_pairs)
    pack_to = data.max_seq_length if args.pack_sequences else None
    trainer = PreTrainingTrainer(
        model=model,
        args=args,
        data_collator=build_collator(data_args, data.tokenizer, mlm_probability=EVAL_MLM_PROBABILITY),
        train_collator=build_collator(data_args, data.tokenizer, pack_to),
        train_dataset=data.train_dataset,
        eval_dataset=data.eval_dataset,
        processing_class=data.tokenizer,
        compute_metrics=metrics,
        preprocess_logits_for_metrics=metrics.reduce,
        write_card=partial(write_pretraining_card, data_args=data_args, data=data),
    )
    if args.tensorboard_graph:
        trainer.remove_callback(TensorBoardCallback)
        trainer.add_callback(TensorBoardGraphCallback)
    return Run(trainer, data, checkpoint)


def _fit(config: ScratchBertConfig, data: PretrainingData, overrides: dict[str, Any], checkpoint: str | None) -> None:
    """Fit vocabulary, segments and lengths of model and tokenizer to each other. Raises `ValueError` if they can't be."""
    if data.max_seq_length > config.max_position_embeddings:
        raise ValueError(
            f"max_seq_length ({data.max_seq_length}) is longer than max_position_embeddings "
            f"({config.max_position_embeddings})."
        )
    data.tokenizer.model_max_length = config.max_position_embeddings
    config.pad_token_id = data.tokenizer.pad_token_id
    entries = vocabulary_size(data.tokenizer)
    if "vocab_size" not in overrides:
        config.vocab_size = ScratchBertConfig.from_pretrained(checkpoint).vocab_size if checkpoint else entries
    if entries > config.vocab_size:
        raise ValueError(f"The tokenizer has {entries} entries, but the model's vocab_size is {config.vocab_size}.")
    a, b = segment_ids(data.tokenizer)
    if "type_vocab_size" not in overrides:
        config.type_vocab_size = b + 1
    least = 1 + (b if OBJECTIVES[data.sentence_objective].has_pairs else a)
    if config.type_vocab_size < least:
        raise ValueError(f"type_vocab_size must be {least} or more: the segment ids are {a} and {b}.")
