#!/usr/bin/env python
"""Pretrain a BERT from scratch on masked words and next sentences, under Hugging Face's Trainer.

Without options: a tiny model on the built-in corpus, in a few minutes on two CPU cores."""

import json
import logging
import sys
from functools import partial
from pathlib import Path

from transformers import set_seed

from scratch_bert import ScratchBertConfig, ScratchBertForMaskedLM, ScratchBertForPreTraining
from scratch_bert.cli import one_line_errors, parse_arguments
from scratch_bert.files import TextError
from scratch_bert.pretraining.arguments import DataArguments, ModelArguments, PretrainingArguments
from scratch_bert.pretraining.load import PretrainingData, build_collator, load_data
from scratch_bert.pretraining.metrics import PreTrainingMetrics, describe_metrics, unigram_log_probs
from scratch_bert.pretraining.model_card import write_pretraining_card
from scratch_bert.pretraining.predictions import describe_predictions
from scratch_bert.pretraining.trainer import PreTrainingTrainer
from scratch_bert.tokenizer import load_tokenizer, vocabulary_size
from scratch_bert.training.resume import check_same_architecture, find_checkpoint


logger = logging.getLogger("scratch_bert")


def build_trainer(
    model_args: ModelArguments, data_args: DataArguments, args: PretrainingArguments, checkpoint: str | None
) -> tuple[PreTrainingTrainer, PretrainingData]:
    """Text → tokenizer → token ids → rows → model → Trainer."""
    config = ScratchBertConfig.from_preset(model_args.preset, **model_args.config_overrides)
    if config.type_vocab_size < 2 and data_args.sentence_objective != "none":
        raise ValueError("type_vocab_size must be 2 or more: a row has two segments.")
    if data_args.streaming:
        if args.max_steps <= 0:
            raise ValueError("A stream has no known end: say with --max_steps when to stop.")
        args.accelerator_config.dispatch_batches = False  # each process reads its own share
    with args.main_process_first():  # the others find its files
        data = load_data(data_args, args.seed, load_tokenizer(checkpoint) if checkpoint else None)

    config.max_position_embeddings = model_args.max_position_embeddings or data.max_seq_length
    if data.max_seq_length > config.max_position_embeddings:
        raise ValueError(
            f"max_seq_length ({data.max_seq_length}) is longer than max_position_embeddings "
            f"({config.max_position_embeddings})."
        )
    config.pad_token_id = data.tokenizer.pad_token_id
    data.tokenizer.model_max_length = config.max_position_embeddings
    entries = vocabulary_size(data.tokenizer)
    expected = ScratchBertConfig.from_pretrained(checkpoint).vocab_size if checkpoint else entries
    config.vocab_size = model_args.config_overrides.get("vocab_size", expected)
    if checkpoint:
        check_same_architecture(config, checkpoint)
    if entries > config.vocab_size:
        raise ValueError(f"The tokenizer has {entries} entries, but the model's vocab_size is {config.vocab_size}.")
    if data.eval_dataset is None:
        logger.info("No held-out text: no evaluation")
        args.eval_strategy = "no"

    set_seed(args.seed)
    two_objectives = data.sentence_objective != "none"
    model = (ScratchBertForPreTraining if two_objectives else ScratchBertForMaskedLM)(config)
    if args.bf16_by_default:
        logger.info("Precision: bf16 autocast, as this CPU multiplies in bf16; --bf16 false for fp32")
    logger.info(f"Model: {model_args.preset}, vocabulary of {entries:,}, {model.num_parameters():,} parameters")
    metrics = PreTrainingMetrics(unigram_log_probs(data.token_counts), two_objectives)
    trainer = PreTrainingTrainer(
        model=model,
        args=args,
        data_collator=build_collator(data_args, data.tokenizer),
        train_collator=build_collator(
            data_args, data.tokenizer, pack_to=data.max_seq_length if args.pack_sequences else None
        ),
        train_dataset=data.train_dataset,
        eval_dataset=data.eval_dataset,
        processing_class=data.tokenizer,
        compute_metrics=metrics,
        preprocess_logits_for_metrics=metrics.per_row,
        write_card=partial(write_pretraining_card, data_args=data_args, data=data),
    )
    return trainer, data


def main() -> None:
    model_args, data_args, args = parse_arguments(
        ModelArguments, DataArguments, PretrainingArguments, description=__doc__
    )
    logging.basicConfig(format="%(message)s")
    logger.setLevel(logging.INFO if args.should_log else logging.ERROR)
    with one_line_errors(stopped="Stopped before training."):
        checkpoint = find_checkpoint(args)
        trainer, data = build_trainer(model_args, data_args, args, checkpoint)
    try:
        metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
    except TextError as error:  # in the midst of a stream; a worker puts its traceback before the message
        message = str(error).splitlines()[-1]
        sys.exit(f"error: {message}\nCheckpoints are kept: mend the text, and go on with --resume_from_checkpoint")
    if trainer.interrupted:
        sys.exit(
            f"Stopped at step {trainer.state.global_step}. To go on: the same command and --resume_from_checkpoint"
        )
    if trainer.eval_dataset:
        metrics |= trainer.evaluate()
    if trainer.is_world_process_zero():
        output_dir = Path(args.output_dir)
        (output_dir / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
        if trainer.eval_dataset:
            shown = describe_predictions(trainer.model, data.eval_dataset, data.tokenizer, data.sentence_objective)
            print(f"\n{shown}")
            print(f"\n{describe_metrics({'model': metrics})}")
    with one_line_errors((OSError,), stopped="Stopped while the model was being saved."):
        trainer.save_model()
    if trainer.is_world_process_zero():
        print(f"\n{metrics['train_runtime']:.0f} seconds of training. The model is in {args.output_dir}")


if __name__ == "__main__":
    main()
