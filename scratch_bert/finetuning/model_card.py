"""The model card of a fine-tuned model."""

from pathlib import Path

from huggingface_hub import EvalResult

from scratch_bert_options.finetuning import TaskOptions

from ..hub.model_card import PIPELINES, cell, write_card
from ..training.console import TIMINGS
from ..training.model_card import model_name, training_context
from .baselines import scores_by_baseline
from .class_report import draw, most_frequent
from .tasks.base import Task
from .trainer import FinetuningTrainer


def write_finetuning_card(trainer: FinetuningTrainer, directory: Path, task: Task, task_args: TaskOptions) -> None:
    """Write README.md, and curves.png if matplotlib is installed, about the run so far."""
    name, checkpoint = model_name(trainer), task_args.model_name_or_path
    base_model = None if Path(checkpoint).exists() or task_args.random_init else checkpoint
    dataset = task.dataset_name if task.dataset_name and not Path(task.dataset_name).exists() else None  # on the Hub
    source = dataset or f"{'files' if task_args.train_file or task.dataset_name else 'data'} for {task.name}"
    metrics = trainer.latest_metrics()
    names = [name for name in metrics if name.startswith("eval_") and not name.endswith(TIMINGS)]
    results = {name.removeprefix("eval_"): metrics[name] for name in names}
    panels, best = {"loss": ["loss", "eval_loss"]}, task.best_metric
    if best != "loss" and any(f"eval_{best}" in entry for entry in trainer.state.log_history):
        panels[best.replace("_", " ")] = [f"eval_{best}"]
    report = trainer.class_reports.get("validation", {})
    auto_class = task.auto_class.__name__
    task_type = PIPELINES.get(auto_class, task.name)
    eval_results = [
        EvalResult(task_type, dataset or "text", source, metric_type=key, metric_value=round(value, 4))
        for key, value in results.items()
        if key != "loss"
    ]
    write_card(
        directory,
        model_name=name,
        auto_class=auto_class,
        config=trainer.model.config,
        metadata={
            "license": trainer.options.license,
            "base_model": base_model,
            "datasets": [dataset] if dataset else None,
            "model_name": name.split("/")[-1],
            "eval_results": eval_results or None,
        },
        task=task.name,
        base_model=base_model or ("" if task_args.random_init else "a local pretrained model"),
        source=source,
        counts={split: len(examples) for split, examples in task.splits.items()},
        labels=[*map(cell, task.model_options.get("id2label", {}).values())],
        results=results,
        class_report=report,
        shown_classes={cell(name): scores for name, scores in most_frequent(report.get("classes", {}))},
        positive=cell(report.get("positive", "")),
        confusion=trainer.draws(draw, report, file=directory / "confusion.png"),
        baselines=scores_by_baseline(metrics),
        max_seq_length=task.max_seq_length,
        pairs="text_pair" in task.text_columns("train"),
        **training_context(trainer, directory, panels),
    )
