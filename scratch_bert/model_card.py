"""Model cards, filled from a pretraining run or from a conversion; nothing in them names a path, a user or a host."""

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers.utils import cached_file
from yaml import YAMLError

from . import __version__, configuration_scratch_bert, modeling_scratch_bert, operations_scratch_bert
from .arguments import DataArguments, TaskArguments
from .checkpoints import Conversion
from .configuration_scratch_bert import ScratchBertConfig
from .data import PretrainingData
from .glue import GLUE
from .trainer import TIMINGS, InterruptibleTrainer, PreTrainingTrainer


if TYPE_CHECKING:  # pretraining need not wait for what figures of tasks are computed with
    from .tasks import Task


MARK = "<!-- Written by a training. Without this line, it leaves the card as you have changed it. -->"
TAGS = ["bert", "scratch_bert"]
PIPELINES = {
    "AutoModel": "feature-extraction",
    "AutoModelForPreTraining": "fill-mask",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForQuestionAnswering": "question-answering",
}


def write_pretraining_card(
    trainer: PreTrainingTrainer, directory: Path, template: Path, data_args: DataArguments, data: PretrainingData
) -> None:
    """Write README.md, and curves.png if matplotlib is installed, as far as the run has got.

    `template` is a Jinja file such as the project's model_card.md. A README.md without the line that marks what this
    function writes is somebody's own, and stays.
    """
    if _is_somebodys(directory / "README.md"):
        return
    state, metrics = trainer.state, _latest(trainer)
    eval_steps = [entry["step"] for entry in state.log_history if "eval_mlm_loss" in entry]
    objective = data.sentence_objective
    auto_class = "AutoModelForMaskedLM" if objective == "none" else "AutoModelForPreTraining"
    name = _name(trainer)
    on_the_hub = data_args.dataset_name and not Path(data_args.dataset_name).exists()
    source = data_args.dataset_name if on_the_hub else _source(data_args)
    losses = {"masked words: loss (nats)": ["loss" if objective == "none" else "mlm_loss", "eval_mlm_loss"]}
    if objective != "none":
        losses["second segment: loss (nats)"] = ["nsp_loss", "eval_nsp_loss"]
    eval_source = "validation text" if data_args.validation_file else "text held out from training"
    builtin = not (data_args.train_file or data_args.dataset_name or data_args.prepared_data)
    card_data = ModelCardData(
        library_name="transformers",
        pipeline_tag=PIPELINES[auto_class],
        tags=TAGS + ["next-sentence-prediction"] * (objective == "nsp"),
        license=trainer.args.license,
        language=data_args.language or ("en" if builtin else None),
        datasets=[data_args.dataset_name] if on_the_hub else None,
        metrics=["perplexity", "accuracy"] if "eval_mlm_loss" in metrics else None,
        model_name=name.split("/")[-1],
        eval_results=_eval_results(metrics, f"{eval_source}: {source}", objective) or None,
    )
    ModelCard.from_template(
        card_data,
        template_path=str(template),
        model_name=name,
        **_of_the_model(trainer.model.config),
        **_of_the_training(trainer, directory, losses),
        auto_class=auto_class,
        objective=objective,
        source=source,
        corpus=data.description,
        quality=data.quality,
        rows=0 if data_args.streaming else len(data.train_dataset),
        max_seq_length=data.max_seq_length,
        eval_source=eval_source,
        eval_step=eval_steps[-1] if eval_steps else None,
        eval_rows=len(trainer.eval_dataset) if trainer.eval_dataset else 0,
        data=data_args,
        metrics=metrics,
    ).save(directory / "README.md")


def write_finetuning_card(
    trainer: InterruptibleTrainer,
    directory: Path,
    template: Path,
    task_name: str,
    task: "Task",
    task_args: TaskArguments,
) -> None:
    """Write the README.md of a fine-tuned model, and curves.png, as `write_pretraining_card` does."""
    if _is_somebodys(directory / "README.md"):
        return
    metrics, name, start = _latest(trainer), _name(trainer), task_args.model_name_or_path
    base_model = None if Path(start).exists() or task_args.random_weights else start
    dataset = task_args.dataset_name or ("nyu-mll/glue" if task_name in GLUE and not task_args.train_file else None)
    on_the_hub = dataset and not Path(dataset).exists()
    figures = {
        key.removeprefix("eval_"): value
        for key, value in metrics.items()
        if key.startswith("eval_") and not key.endswith(TIMINGS)
    }
    auto_class = task.auto_class.__name__
    source = dataset if on_the_hub else f"files for {task_name}"
    card_data = ModelCardData(
        library_name="transformers",
        pipeline_tag=PIPELINES.get(auto_class),
        tags=TAGS,
        license=trainer.args.license,
        base_model=base_model,
        datasets=[dataset] if on_the_hub else None,
        model_name=name.split("/")[-1],
        eval_results=[
            EvalResult(
                task_type=PIPELINES.get(auto_class, "multiple-choice"),
                dataset_type=dataset if on_the_hub else "text",
                dataset_name=source,
                metric_type=key,
                metric_value=round(value, 4),
            )
            for key, value in figures.items()
            if key != "loss"
        ]
        or None,
    )
    ModelCard.from_template(
        card_data,
        template_path=str(template),
        model_name=name,
        **_of_the_model(trainer.model.config),
        **_of_the_training(trainer, directory, {"loss": ["loss", "eval_loss"]}),
        auto_class=auto_class,
        task=task_name,
        base_model=base_model or ("" if task_args.random_weights else "a model that was pretrained before"),
        source=source,
        counts={split: len(rows) for split, rows in task.splits.items()},
        labels=list(task.model_options.get("id2label", {}).values()),
        figures=figures,
        max_seq_length=task.max_seq_length,
        metrics=metrics,
    ).save(directory / "README.md")


def _is_somebodys(card: Path) -> bool:
    """Whether a card is there that no training has written, or that somebody has taken over."""
    return card.exists() and MARK not in card.read_text(encoding="utf-8")


def _name(trainer: InterruptibleTrainer) -> str:
    return trainer.hub_model_id or Path(trainer.args.output_dir).resolve().name


def _latest(trainer: InterruptibleTrainer) -> dict[str, float]:
    """The latest value of each figure in the log."""
    return {name: value for entry in trainer.state.log_history for name, value in entry.items()}


def _of_the_training(trainer: InterruptibleTrainer, directory: Path, losses: dict[str, list[str]]) -> dict:
    args = trainer.args
    return {
        "mark": MARK,
        "args": args,
        "state": trainer.state,
        "parameters": trainer.model.num_parameters(),
        "lowercase": getattr(trainer.processing_class, "do_lower_case", False),
        "curves": _draw_curves(
            trainer.state.log_history, {**losses, "learning rate": ["learning_rate"]}, directory / "curves.png"
        ),
        "precision": "bf16 autocast" if args.bf16 else "fp16 autocast" if args.fp16 else "fp32",
        "device": torch.cuda.get_device_name() if args.device.type == "cuda" else f"{os.cpu_count()} CPU cores",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def write_conversion_card(
    directory: Path, conversion: Conversion, template: Path, source: str, revision: str | None = None
) -> None:
    """Write the README.md of a checkpoint that was converted from `source`, a directory or a Hub repository."""
    base_model = None if Path(source).exists() else source
    model_class = conversion.model_class
    auto_class = model_class.replace("ScratchBert", "Auto" if model_class == "ScratchBertModel" else "AutoModel")
    card_data = ModelCardData(
        base_model=base_model, library_name="transformers", pipeline_tag=PIPELINES.get(auto_class), tags=TAGS
    )
    for name, value in _metadata_of(source, revision).items():
        if name in ("language", "datasets") or name.startswith("license"):
            card_data[name] = value
    ModelCard.from_template(
        card_data,
        template_path=str(template),
        model_name=directory.name,
        **_of_the_model(ScratchBertConfig.from_pretrained(directory)),
        auto_class=auto_class,
        base_model=base_model,
        difference=conversion.difference,
    ).save(directory / "README.md")


def _metadata_of(source: str, revision: str | None) -> dict:
    """Of the source's own card, if there is one that can be read."""
    optional = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    card = cached_file(source, "README.md", revision=revision, **optional)
    try:
        return ModelCard.load(card).data.to_dict() if card else {}
    except (ValueError, YAMLError):
        return {}


def _of_the_model(config: ScratchBertConfig) -> dict:
    return {"package_version": __version__, "code_hash": code_hash(), "config": config}


def code_hash() -> str:
    """SHA-256 of the three files that travel with a checkpoint, its first 16 digits: `cat` them in this order."""
    modules = (configuration_scratch_bert, modeling_scratch_bert, operations_scratch_bert)
    return hashlib.sha256(b"".join(Path(module.__file__).read_bytes() for module in modules)).hexdigest()[:16]


def _source(data_args: DataArguments) -> str:
    if data_args.dataset_name:
        return "a local data set"
    if data_args.prepared_data:
        return "prepared rows"
    return "text files" if data_args.train_file else "Python's built-in help texts"


def _eval_results(metrics: dict[str, float], dataset: str, objective: str) -> list[EvalResult]:
    names = {"perplexity": "eval_mlm_perplexity", "accuracy": "eval_mlm_accuracy"}
    tasks = [("fill-mask", "Masked words", metric, names[metric]) for metric in names]
    if objective != "none":
        task = "Next sentence" if objective == "nsp" else "Sentence order"
        tasks.append(("text-classification", task, "accuracy", "eval_nsp_accuracy"))
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


def _draw_curves(log_history: list[dict[str, float]], panels: dict[str, list[str]], file: Path) -> bool:
    """The logged figures over the steps, in a panel for each title. False if there is nothing to draw, or nothing to
    draw it with."""
    if find_spec("matplotlib") is None or not any("loss" in entry for entry in log_history):
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(panels), 3), layout="constrained")
    for axes, (title, keys) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for key in keys:
            points = [(entry["step"], entry[key]) for entry in log_history if key in entry]
            if points:
                held_out = key.startswith("eval")
                axes.plot(
                    *zip(*points, strict=True), ".-" if held_out else "-", label="held out" if held_out else "training"
                )
        axes.set(title=title, xlabel="step")
        if len(keys) > 1:
            axes.legend()
    figure.savefig(file)
    return True
