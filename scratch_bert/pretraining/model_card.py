"""The model card of a pretraining run."""

from pathlib import Path

from huggingface_hub import EvalResult

from scratch_bert_options.data import DataOptions
from scratch_bert_options.masking import EVAL_MLM_PROBABILITY, describe_masking
from scratch_bert_options.model import ModelOptions

from ..hub.model_card import TAGS, write_card
from ..model.modeling_scratch_bert import AUTO_MODELS
from ..objectives import Objective
from ..objectives.predictions import SENTENCE_ENDS
from ..training.model_card import model_name, training_context
from .metrics import MLM_ROWS
from .sources import PretrainingData
from .trainer import PretrainingTrainer


BUILTIN = "the help texts and docstrings of Python"
SOURCES = {
    "texts in memory": "texts in memory",
    "dataset_name": "a local dataset",
    "prepared_data": "preprocessed examples",
    "train_file": "text files",
}


def write_pretraining_card(
    trainer: PretrainingTrainer,
    directory: Path,
    model_args: ModelOptions,
    data_args: DataOptions,
    data: PretrainingData,
) -> None:
    """Write README.md, and curves.png if matplotlib is installed, about the run so far."""
    name, metrics, objective = model_name(trainer), trainer.latest_metrics(), data.objective
    eval_steps = [entry["step"] for entry in trainer.state.log_history if "eval_mlm_loss" in entry]
    start = model_args.model_name_or_path
    base_model = start if start and not Path(start).exists() else None
    hub_dataset = data_args.dataset_name if not Path(data_args.dataset_name or ".").exists() else None
    source = hub_dataset or (SOURCES[data_args.sources[0]] if data_args.sources else BUILTIN)
    eval_source = "text held out from training" if data.eval_kind == "held-out" else f"{data.eval_kind} text"
    masked = describe_masking(data_args.mlm_probability, trainer.options.final_mlm_probability)
    losses = {f"MLM loss (nats)\n{masked}": ["mlm_loss" if objective.losses else "loss", "eval_mlm_loss"]}
    for row in objective.metric_rows:
        if row.metric in objective.losses:
            losses[f"{row.label} (nats)"] = [row.metric, f"eval_{row.metric}"]
    write_card(
        directory,
        model_name=name,
        auto_class=next(name for name, kind in AUTO_MODELS.items() if issubclass(objective.model_class, kind)),
        config=trainer.model.config,
        metadata={
            "tags": TAGS + [objective.title.lower().replace(" ", "-")] * bool(objective.losses),
            "license": trainer.options.license,
            "base_model": base_model,
            "language": data_args.language or ("en" if source == BUILTIN else None),
            "datasets": [hub_dataset] if hub_dataset else None,
            "metrics": ["perplexity", "accuracy"] if "eval_mlm_loss" in metrics else None,
            "model_name": name.split("/")[-1],
            "eval_results": _eval_results(metrics, f"{eval_source}: {source}", objective) or None,
        },
        sample_texts=_sample_texts(data),
        base_model=base_model or (start and "a local pretrained model"),
        objective=objective,
        rows=[row for row in (*MLM_ROWS, *objective.metric_rows) if f"eval_{row.metric}" in metrics],
        source=source,
        data=data,
        data_args=data_args,
        examples=0 if data_args.streaming else len(data.train_dataset),
        eval_source=eval_source,
        eval_mlm_probability=EVAL_MLM_PROBABILITY,
        eval_step=min(eval_steps[-1], trainer.weights_step) if eval_steps else None,
        eval_examples=len(trainer.eval_dataset) if trainer.eval_dataset else 0,
        held_out_examples=len(data.eval_dataset) if data.eval_dataset else 0,
        **training_context(trainer, directory, losses),
    )


def _sample_texts(data: PretrainingData) -> dict[str, str]:
    """Of the text to evaluate on, for the snippets: a sentence with a masked word, and two sentences, short and
    complete if possible, as Python strings. Empty if there are none."""
    found = data.examples_to_try
    texts = sorted(
        zip(found["texts"], found["answers"], strict=True),
        key=lambda example: (example[0][-1] not in SENTENCE_ENDS, len(example[0])),
    )
    if len(texts) < 2:
        return {}
    first, second = (text.replace(data.tokenizer.mask_token, answer) for text, answer in texts[:2])
    return {"masked": repr(texts[0][0]), "first": repr(first), "second": repr(second)}


def _eval_results(metrics: dict[str, float], dataset: str, objective: Objective) -> list[EvalResult]:
    mlm, pairs = ("fill-mask", "Masked language modelling"), ("text-classification", objective.title)
    tasks = [(*mlm, "perplexity", "eval_mlm_perplexity"), (*mlm, "accuracy", "eval_mlm_accuracy")]
    tasks += [
        (*pairs, "accuracy", f"eval_{row.metric}") for row in objective.metric_rows if row.metric.endswith("_accuracy")
    ]
    return [
        EvalResult(task, "text", dataset, metric, round(metrics[key], 4), task_name=name)
        for task, name, metric, key in tasks
        if key in metrics
    ]
