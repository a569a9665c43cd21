#!/usr/bin/env python
"""Evaluate pretrained models on text: masked words and next sentences, beside baselines.

The options of the text are those of pretrain.py, but for its tokenizer's, as each model brings one, and --streaming:
without --validation_file, documents are held out by --seed. --validation_file alone evaluates on all of it. Rows and
masks follow from the text, the tokenizer and the seed: models with the same tokenizer are compared on the same masked
tokens."""

import inspect
import json
import logging
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)

from scratch_bert.cli import one_line_errors, parse_arguments
from scratch_bert.hub.conversion import open_checkpoint
from scratch_bert.pretraining.arguments import DataArguments, EvaluationArguments, EvaluationDataArguments
from scratch_bert.pretraining.load import PretrainingData, build_collator, load_data
from scratch_bert.pretraining.metrics import PreTrainingMetrics, describe_metrics, unigram_log_probs
from scratch_bert.tokenizer import load_tokenizer


logger = logging.getLogger("scratch_bert")


def load_rows(data_args: DataArguments, args: EvaluationArguments) -> PretrainingData:
    """The rows to evaluate on, made with the tokenizer of all the models."""
    first, *others = args.model_name_or_path
    tokenizer = load_tokenizer(first, trust_remote_code=args.trust_remote_code)
    for name in others:
        if load_tokenizer(name, trust_remote_code=args.trust_remote_code).get_vocab() != tokenizer.get_vocab():
            raise ValueError(
                f"{first} and {name} have different vocabularies, and figures by token do not compare: evaluate each in a "
                "run of its own."
            )
    data = load_data(data_args, args.seed, tokenizer)
    if data.eval_dataset is None:
        data.eval_dataset = data.train_dataset
    for name in args.model_name_or_path:
        limit = AutoConfig.from_pretrained(name, trust_remote_code=args.trust_remote_code).max_position_embeddings
        if data.max_seq_length > limit:
            raise ValueError(f"{name} takes {limit} tokens at most: pass --max_seq_length {limit} or less.")
    return data


def load_model(name: str, trust_remote_code: bool, with_pairs: bool = False) -> tuple[PreTrainedModel, bool]:
    """The checkpoint's model in fp32, and whether it has a next-sentence head, which is looked for `with_pairs`. Raises
    `ValueError` if it has no head for masked words."""
    if with_pairs:
        with suppress(ValueError):  # an architecture without such a class
            model, missing = open_checkpoint(AutoModelForPreTraining, name, trust_remote_code=trust_remote_code)
            if not missing and "next_sentence_label" in inspect.signature(model.forward).parameters:
                return model, True
    model, missing = open_checkpoint(AutoModelForMaskedLM, name, trust_remote_code=trust_remote_code)
    if missing:
        raise ValueError(f"{name} has no head for masked words: {', '.join(missing)} are missing.")
    return model, False


def evaluate(
    name: str, data: PretrainingData, data_args: DataArguments, args: EvaluationArguments
) -> dict[str, float]:
    model, judges_pairs = load_model(name, args.trust_remote_code, with_pairs=data.sentence_objective != "none")
    metrics = PreTrainingMetrics(unigram_log_probs(data.token_counts), judges_pairs)
    collate = build_collator(data_args, data.tokenizer)
    labels = ["labels", "next_sentence_label"] if judges_pairs else ["labels"]

    def collate_for_model(rows: list[dict]) -> dict[str, torch.Tensor]:
        return {
            name: tensor for name, tensor in collate(rows).items() if judges_pairs or name != "next_sentence_label"
        }

    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=scratch,
                per_device_eval_batch_size=args.per_device_eval_batch_size,
                use_cpu=not torch.accelerator.is_available(),
                bf16=args.bf16,
                seed=args.seed,
                label_names=labels,
                remove_unused_columns=False,
                batch_eval_metrics=True,
                dataloader_pin_memory=torch.accelerator.is_available(),
            ),
            data_collator=collate_for_model,
            eval_dataset=data.eval_dataset,
            compute_metrics=metrics,
            preprocess_logits_for_metrics=metrics.per_row,
        )
        return trainer.evaluate()


def main() -> None:
    data_args, args = parse_arguments(EvaluationDataArguments, EvaluationArguments, description=__doc__)
    logging.basicConfig(format="%(message)s")
    logger.setLevel(logging.INFO)
    with one_line_errors():
        for name in args.model_name_or_path:  # what one lacks is known before any work
            load_model(name, args.trust_remote_code)
        data = load_rows(data_args, args)
        results = {name: evaluate(name, data, data_args, args) for name in args.model_name_or_path}
        print(f"\n{describe_metrics(results, held_out=data.eval_dataset is not data.train_dataset)}")
        if args.output_file:
            Path(args.output_file).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
