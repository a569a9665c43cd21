#!/usr/bin/env python
"""Pretrain a BERT from scratch on masked words and next sentences, under Hugging Face's Trainer.

Without options: a tiny model on the built-in corpus, in a few minutes on two CPU cores."""

import json
import logging
import os
import sys
from pathlib import Path

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import set_seed

import scratch_bert
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
from scratch_bert.metrics import PreTrainingMetrics, unigram_log_probs
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


def write_model_card(trainer: PreTrainingTrainer, data_args: DataArguments, metrics: dict) -> None:
    args, config = trainer.args, trainer.model.config
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"
    card = render_model_card(
        MODEL_CARD,
        model_name=Path(args.output_dir).resolve().name,
        package_version=scratch_bert.__version__,
        config=config,
        lowercase=getattr(trainer.processing_class, "do_lower_case", False),
        parameters=trainer.model.num_parameters(),
        source="text files" if data_args.train_file else "Python's built-in help texts",
        corpus=trainer.train_dataset.corpus.summary(),
        rows=len(trainer.train_dataset),
        eval_rows=len(trainer.eval_dataset) if trainer.eval_dataset else 0,
        eval_source="validation files" if data_args.validation_file else "documents held out from training",
        data=data_args,
        args=args,
        state=trainer.state,
        world_size=args.world_size,
        precision="bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
        device=device,
        versions={"torch": torch.__version__, "transformers": transformers.__version__},
        metrics=metrics,
    )
    card.save(Path(args.output_dir) / "README.md")


def describe_metrics(metrics: dict) -> str:
    lines = [f"{'held-out text':<28}{'model':>10}{'baseline':>10}"]
    for name, key, baseline in (
        ("masked words: loss", "mlm_loss", "mlm_unigram_loss"),
        ("masked words: perplexity", "mlm_perplexity", None),
        ("masked words: accuracy", "mlm_accuracy", None),
        ("next sentence: loss", "nsp_loss", "nsp_majority_loss"),
        ("next sentence: accuracy", "nsp_accuracy", "nsp_majority_accuracy"),
    ):
        shown = f"{metrics[f'eval_{baseline}']:>10.3f}" if baseline else ""
        lines.append(f"{name:<28}{metrics[f'eval_{key}']:>10.3f}{shown}")
    return "\n".join([*lines, "Baselines: the training text's word frequencies; the commoner label."])


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
        (Path(args.output_dir) / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
        write_model_card(trainer, data_args, metrics)
        if trainer.eval_dataset:
            print(f"\n{describe_predictions(trainer.model, trainer.eval_dataset)}\n\n{describe_metrics(metrics)}")
        print(f"\n{metrics['train_runtime']:.0f} seconds of training. The model is in {args.output_dir}")


if __name__ == "__main__":
    main()
