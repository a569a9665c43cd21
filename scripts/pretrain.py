#!/usr/bin/env python
"""Pretrain a BERT from scratch on masked words and next sentences, under Hugging Face's Trainer.

Without options: a tiny model on the built-in corpus, in a few minutes on two CPU cores."""

import json
import logging
import sys
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from transformers import set_seed

from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining
from scratch_bert.arguments import (
    DataArguments,
    ModelArguments,
    PretrainingArguments,
    parse_arguments,
    parse_overrides,
)
from scratch_bert.collator import PreTrainingCollator
from scratch_bert.corpus import builtin_documents, hold_out, read_documents, text_files
from scratch_bert.metrics import PreTrainingMetrics, describe_metrics, unigram_log_probs
from scratch_bert.model_card import render_model_card
from scratch_bert.pairs import SentencePairDataset
from scratch_bert.predictions import describe_predictions
from scratch_bert.tokenizer import TokenizedCorpus, load_tokenizer, train_wordpiece
from scratch_bert.trainer import PreTrainingTrainer, find_checkpoint


logger = logging.getLogger("scratch_bert")
MODEL_CARD = Path(__file__).resolve().parent.parent / "model_card.md"


def build_trainer(
    model_args: ModelArguments, data_args: DataArguments, args: PretrainingArguments, checkpoint: str | None
) -> PreTrainingTrainer:
    """Text → documents → tokenizer → token ids → sentence pairs → model → Trainer."""
    if data_args.train_file:
        documents = list(read_documents(text_files(data_args.train_file), data_args.document_boundary))
    else:
        documents = builtin_documents()
    if data_args.validation_file:
        held_out = list(read_documents(text_files(data_args.validation_file), data_args.document_boundary))
    else:
        documents, held_out = hold_out(documents, data_args.validation_share, args.seed)

    max_positions = model_args.max_position_embeddings or data_args.max_seq_length
    if data_args.max_seq_length > max_positions:
        raise ValueError(
            f"max_seq_length ({data_args.max_seq_length}) is longer than max_position_embeddings ({max_positions})."
        )
    if checkpoint or data_args.tokenizer_name_or_path:
        tokenizer = load_tokenizer(checkpoint or data_args.tokenizer_name_or_path, max_positions)
    else:
        logger.info("Training a tokenizer")
        tokenizer = train_wordpiece(
            [sentence for document in documents for sentence in document],
            vocab_size=data_args.vocab_size,
            lowercase=data_args.lowercase,
            min_frequency=data_args.min_frequency,
            model_max_length=max_positions,
        )

    def pairs(documents, name):
        corpus = TokenizedCorpus.from_documents(documents, tokenizer)
        dataset = SentencePairDataset(
            corpus, tokenizer, data_args.max_seq_length, data_args.short_seq_prob, seed=args.seed
        )
        logger.info(f"{name}: {corpus.summary()} → {len(dataset):,} rows of up to {data_args.max_seq_length} tokens")
        return dataset

    train_dataset = pairs(documents, "Training text")
    eval_dataset = pairs(held_out, "Held-out text") if held_out else None
    if eval_dataset is None:
        logger.info("No held-out text: no evaluation")
        args.eval_strategy = "no"

    config = ScratchBertConfig.from_preset(
        model_args.preset,
        **{
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
            "max_position_embeddings": max_positions,
            **parse_overrides(model_args.config_overrides),
        },
    )
    set_seed(args.seed)
    model = ScratchBertForPreTraining(config)
    logger.info(f"Model: {model_args.preset}, {model.num_parameters():,} parameters")
    metrics = PreTrainingMetrics(unigram_log_probs(train_dataset.corpus, len(tokenizer)))
    return PreTrainingTrainer(
        model=model,
        args=args,
        data_collator=PreTrainingCollator(tokenizer, mlm_probability=data_args.mlm_probability),
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        compute_metrics=metrics,
        preprocess_logits_for_metrics=metrics.per_row,
    )


def main() -> None:
    model_args, data_args, args = parse_arguments(
        ModelArguments, DataArguments, PretrainingArguments, description=__doc__
    )
    logging.basicConfig(format="%(message)s")
    logger.setLevel(logging.INFO if args.should_log else logging.ERROR)
    try:
        checkpoint = find_checkpoint(args)
        trainer = build_trainer(model_args, data_args, args, checkpoint)
    except (OSError, ValueError, StrictDataclassError) as error:
        sys.exit(f"error: {error}")

    metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
    if trainer.interrupted:
        sys.exit(
            f"Stopped at step {trainer.state.global_step}. To go on: the same command and --resume_from_checkpoint"
        )
    if trainer.eval_dataset:
        metrics |= trainer.evaluate()
    trainer.save_model()
    if trainer.is_world_process_zero():
        output_dir = Path(args.output_dir)
        (output_dir / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
        render_model_card(MODEL_CARD, trainer, data_args, metrics).save(output_dir / "README.md")
        if trainer.eval_dataset:
            print(f"\n{describe_predictions(trainer.model, trainer.eval_dataset)}\n\n{describe_metrics(metrics)}")
        print(f"\n{metrics['train_runtime']:.0f} seconds of training. The model is in {args.output_dir}")


if __name__ == "__main__":
    main()
