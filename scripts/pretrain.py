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
)
from scratch_bert.collator import PreTrainingCollator
from scratch_bert.corpus import Document, builtin_documents, hold_out, read_documents, text_files
from scratch_bert.metrics import PreTrainingMetrics, describe_metrics, unigram_log_probs
from scratch_bert.model_card import render_model_card
from scratch_bert.pairs import SentencePairDataset
from scratch_bert.predictions import describe_predictions
from scratch_bert.tokenizer import TokenizedCorpus, load_tokenizer, train_wordpiece
from scratch_bert.trainer import PreTrainingTrainer, check_same_architecture, find_checkpoint


logger = logging.getLogger("scratch_bert")
MODEL_CARD = Path(__file__).resolve().parent.parent / "model_card.md"


def build_trainer(
    model_args: ModelArguments, data_args: DataArguments, args: PretrainingArguments, checkpoint: str | None
) -> PreTrainingTrainer:
    """Text → documents → tokenizer → token ids → sentence pairs → model → Trainer."""
    max_positions = model_args.max_position_embeddings or data_args.max_seq_length
    if data_args.max_seq_length > max_positions:
        raise ValueError(
            f"max_seq_length ({data_args.max_seq_length}) is longer than max_position_embeddings ({max_positions})."
        )
    config = ScratchBertConfig.from_preset(
        model_args.preset, max_position_embeddings=max_positions, **model_args.config_overrides
    )
    if config.type_vocab_size < 2:
        raise ValueError("type_vocab_size must be 2 or more: a row has two segments.")
    if checkpoint:
        check_same_architecture(config, checkpoint)

    def read(paths: list[str]) -> list[Document]:
        boundaries = data_args.document_boundary, data_args.sentence_boundary
        return list(read_documents(text_files(paths), *boundaries))

    documents = read(data_args.train_file) if data_args.train_file else builtin_documents()
    if data_args.validation_file:
        held_out = read(data_args.validation_file)
    else:
        documents, held_out = hold_out(documents, data_args.validation_share, args.seed)

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

    def pairs(name: str, documents: list[Document]) -> SentencePairDataset:
        corpus = TokenizedCorpus.from_documents(documents, tokenizer)
        dataset = SentencePairDataset(
            corpus, tokenizer, data_args.max_seq_length, data_args.short_seq_prob, seed=args.seed
        )
        logger.info(f"{name}: {corpus.summary()} → {dataset.summary()}")
        return dataset

    train_dataset = pairs("Training text", documents)
    eval_dataset = pairs("Held-out text", held_out) if held_out else None
    if eval_dataset is None:
        logger.info("No held-out text: no evaluation")
        args.eval_strategy = "no"

    config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
    set_seed(args.seed)
    model = ScratchBertForPreTraining(config)
    logger.info(f"Model: {model_args.preset}, {len(tokenizer):,} word pieces, {model.num_parameters():,} parameters")
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
    except KeyboardInterrupt:
        sys.exit("Stopped before training.")

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
