"""Evaluation of pretrained models on the same masked tokens: MLM and NSP, compared with baselines."""

import inspect
import math
import tempfile
from collections.abc import Iterable

import torch
from transformers import PreTrainedModel, Trainer, TrainingArguments

from scratch_bert_options.evaluation import EvaluationDataOptions, EvaluationOptions

from ..checkpoints.open import load_config, open_checkpoint, open_pretrained
from ..checkpoints.resume import read_record
from ..corpus.tokenizer import check_vocabulary, gives_same_input, load_tokenizer
from ..logs import logger
from ..model.modeling_scratch_bert import AUTO_MODELS
from ..objectives import OBJECTIVES, NextSentenceHead, Objective
from ..training.console import show_on_console
from ..training.threads import to_accelerator
from .metrics import PretrainingMetrics, unigram_log_probs
from .sources import PretrainingData, build_collator, load_data


def evaluate(
    data_args: EvaluationDataOptions, args: EvaluationOptions
) -> tuple[dict[str, dict[str, float]], PretrainingData]:
    """The metrics of each model, by its name, and the data. Raises what `load_examples` and `evaluate_model` raise."""
    data = load_examples(data_args, args)
    return {name: evaluate_model(name, data, data_args, args)[0] for name in args.model_name_or_path}, data


def load_examples(data_args: EvaluationDataOptions, args: EvaluationOptions) -> PretrainingData:
    """The examples to evaluate on, made with the tokenizer that all models share.

    Raises `ValueError` or `OSError` for models that can't be evaluated on the same examples, and for text and options
    that give none.
    """
    configs = {name: load_config(name, trust_remote_code=args.trust_remote_code) for name in args.model_name_or_path}
    first, *others = args.model_name_or_path
    tokenizer = load_tokenizer(first, trust_remote_code=args.trust_remote_code)
    for name in others:
        if not gives_same_input(tokenizer, load_tokenizer(name, trust_remote_code=args.trust_remote_code)):
            raise ValueError(
                f"{first} and {name} have different vocabularies or segment ids: evaluate them separately."
            )
    limits = {name: config.max_position_embeddings for name, config in configs.items()}
    if data_args.fits_models:
        data_args.max_seq_length = min(data_args.max_seq_length, *limits.values())
    data = load_data(data_args, args.seed, tokenizer)
    if data.eval_dataset is None:
        data.eval_dataset = data.train_dataset
    for name, limit in limits.items():
        check_vocabulary(tokenizer, configs[name].vocab_size, name)
        if data.max_seq_length > limit:
            raise ValueError(f"{name} takes {limit} tokens at most: pass a max_seq_length of {limit} or less.")
    return data


def evaluate_model(
    name: str, data: PretrainingData, data_args: EvaluationDataOptions, args: EvaluationOptions
) -> tuple[dict[str, float], str]:
    """The metrics of one model, by the stock Trainer, and its predictions for `args.show_predictions` words and pairs.

    Raises `ValueError` for a model without an MLM head or with outputs that overflow, and as `open_pretrained` does.
    """
    trained, evaluated = read_record(name).get("sentence objective", "none"), data.objective.name
    if "none" not in (trained, evaluated) and trained != evaluated:
        logger.warning(f"{name} was pretrained with --sentence_objective {trained}, but is evaluated with {evaluated}")
    model, objective = open_with_objective(data.objective, name, args.trust_remote_code)
    accepted = inspect.signature(model.forward).parameters
    is_own = isinstance(model, objective.model_class)  # which may take its columns as keywords
    takes_all = is_own and any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    if "seq_idx" in data.objective.features() and "seq_idx" not in accepted:
        raise ValueError(f"{name} takes no packed segments, which {data.objective.name} needs.")
    predictions = ""
    if count := args.show_predictions:  # before the evaluation, which may leave the model in bf16 autocast
        predictions = objective.describe_predictions(model, data.eval_dataset, data.tokenizer, count)
    metrics = PretrainingMetrics(unigram_log_probs(data.token_counts), objective, data.characters_per_token)
    collator = build_collator(data_args, data.tokenizer)

    def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
        batch = {name: tensor for name, tensor in collator(examples).items() if takes_all or name in accepted}
        # The metrics need the MLM head at the masked tokens only; at all of them, it takes longer than the encoder.
        return batch | ({"sparse_prediction": True} if "sparse_prediction" in accepted else {})

    on_cpu = to_accelerator(model).type == "cpu"
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=scratch,
                per_device_eval_batch_size=args.per_device_eval_batch_size,
                use_cpu=on_cpu,
                bf16=args.bf16,
                seed=args.seed,
                label_names=["labels", *(name for name in objective.features() if "label" in name)],
                remove_unused_columns=False,
                batch_eval_metrics=True,
                dataloader_pin_memory=not on_cpu,
            ),
            data_collator=collate,
            eval_dataset=data.eval_dataset,
            compute_metrics=metrics,
            preprocess_logits_for_metrics=metrics.reduce,
        )
        show_on_console(trainer)
        results = trainer.evaluate()
    for metric, value in results.items():
        if not math.isfinite(value):
            raise ValueError(f"{metric} of {name} is {value}: its outputs overflow.")
    return results, predictions


def open_with_objective(objective: Objective, name: str, trust_remote_code: bool) -> tuple[PreTrainedModel, Objective]:
    """The model in fp32, and the part of the objective that it has heads for: all of it, NSP, or MLM alone.

    Raises `ValueError` for a model without an MLM head, and the errors of `open_pretrained`.
    """
    custom = objective.model_class not in AUTO_MODELS.values()
    if custom and load_config(name, trust_remote_code=trust_remote_code).model_type == "scratch_bert":
        model, missing = open_checkpoint(objective.model_class, name)
        if not missing:
            return model, objective
    model, heads = open_pretrained(name, with_nsp=objective.has_pairs, trust_remote_code=trust_remote_code)
    if "MaskedLM" not in heads:
        raise ValueError(f"{name} has no MLM head to evaluate.")
    if "NextSentencePrediction" not in heads or custom and not isinstance(objective, NextSentenceHead):
        return model, OBJECTIVES["none"]
    return model, OBJECTIVES["nsp"] if custom else objective


def name_of_text(data: PretrainingData, data_args: EvaluationDataOptions, names: Iterable[str]) -> str:
    """What the text is called for a reader: held-out text, if the runs that trained all models have held it out."""
    whole = data.eval_dataset is data.train_dataset or data_args.validation_file
    if not whole and all(
        read_record(name).get("held-out text") == f"CRC-32 {data.eval_checksum:08x}" for name in names
    ):
        return "held-out text"
    files = data_args.validation_file or data_args.train_file or [data_args.dataset_name or data_args.prepared_data]
    source = f"{files[0]} and {len(files) - 1} more" if len(files) > 1 else files[0] or "the built-in corpus"
    return f"{'text' if whole else 'part'} of {source}"
