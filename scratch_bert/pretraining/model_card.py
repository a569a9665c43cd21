"""The model card of a pretraining run."""

from collections.abc import Collection
from pathlib import Path

from huggingface_hub import EvalResult

from scratch_bert_options.pretraining import DataArguments, ModelOptions

from ..hub.model_card import TAGS, write_card
from ..model.modeling_scratch_bert import AUTO_MODELS
from ..objectives import Objective
from ..training.model_card import model_name, training_context
from .metrics import MLM_ROWS
from .sources import PretrainingData
from .trainer import PretrainingTrainer


def write_pretraining_card(
    trainer: PretrainingTrainer,
    directory: Path,
    model_args: ModelOptions,
    data_args: DataArguments,
    data: PretrainingData,
    in_memory: Collection[str] = (),
) -> None:
    """Write README.md, and curves.png if matplotlib is installed, about the run so far."""
    name, metrics = model_name(trainer), trainer.latest_metrics()
    objective = data.objective
    eval_steps = [entry["step"] for entry in trainer.state.log_history if "eval_mlm_loss" in entry]
    start = model_args.model_name_or_path
    base_model = None if start is None or Path(start).exists() else start
    on_the_hub = data_args.dataset_name and not Path(data_args.dataset_name).exists()
    builtin = not ("texts" in in_memory or data_args.train_file or data_args.dataset_name or data_args.prepared_data)
    source = (
        data_args.dataset_name if on_the_hub else "texts in memory" if "texts" in in_memory else _source(data_args)
    )
    eval_source = "text held out from training" if data.eval_kind == "held-out" else f"{data.eval_kind} text"
    losses = {"MLM loss (nats)": ["mlm_loss" if objective.losses else "loss", "eval_mlm_loss"]}
    losses |= {
        f"{row.label} (nats)": [row.metric, f"eval_{row.metric}"]
        for row in objective.metric_rows
        if row.metric in objective.losses
    }
    write_card(
        directory,
        model_name=name,
        auto_class=next(name for name, kind in AUTO_MODELS.items() if issubclass(objective.model_class, kind)),
        config=trainer.model.config,
        metadata={
            "tags": TAGS + [objective.title.lower().replace(" ", "-")] * bool(objective.losses),
            "license": trainer.options.license,
            "base_model": base_model,
            "language": data_args.language or ("en" if builtin else None),
            "datasets": [data_args.dataset_name] if on_the_hub else None,
            "metrics": ["perplexity", "accuracy"] if "eval_mlm_loss" in metrics else None,
            "model_name": name.split("/")[-1],
            "eval_results": _eval_results(metrics, f"{eval_source}: {source}", objective) or None,
        },
        base_model=base_model or (start and "a local pretrained model"),
        objective=objective,
        rows=[row for row in (*MLM_ROWS, *objective.metric_rows) if f"eval_{row.metric}" in metrics],
        source=source,
        data=data,
        data_args=data_args,
        examples=0 if data_args.streaming else len(data.train_dataset),
        eval_source=eval_source,
        eval_step=min(eval_steps[-1], trainer.weights_step) if eval_steps else None,
        eval_examples=len(trainer.eval_dataset) if trainer.eval_dataset else 0,
        held_out_examples=len(data.eval_dataset) if data.eval_dataset else 0,
        **training_context(trainer, directory, losses),
    )


def _source(data_args: DataArguments) -> str:
    if data_args.dataset_name:
        return "a local dataset"
    if data_args.prepared_data:
        return "preprocessed examples"
    return "text files" if data_args.train_file else "the help texts and docstrings of Python"


def _eval_results(metrics: dict[str, float], dataset: str, objective: Objective) -> list[EvalResult]:
    names = {"perplexity": "eval_mlm_perplexity", "accuracy": "eval_mlm_accuracy"}
    tasks = [("fill-mask", "Masked language modelling", metric, names[metric]) for metric in names]
    tasks += [
        ("text-classification", objective.title, "accuracy", f"eval_{row.metric}")
        for row in objective.metric_rows
        if row.metric.endswith("_accuracy")
    ]
    return [
        EvalResult(
            task_type=task_type,
            task_name=task_name,
            dataset_type="text",
            dataset_name=dataset,
            metric_type=metric,
            metric_value=round(metrics[key], 4),
        )
        for task_type, task_name, metric, key in tasks
        if key in metrics
    ]
