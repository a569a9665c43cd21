#!/usr/bin/env python
"""Fine-tune a checkpoint on a task: one of the four kinds, or one of GLUE's by its name.

Rows come from files or from a data set. The checkpoint that is best on the validation rows is kept, with its predictions
and figures."""

import copy
import json
import logging
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from transformers import set_seed
from transformers.trainer_utils import get_last_checkpoint

from scratch_bert.cli import one_line_errors, parse_arguments
from scratch_bert.finetuning.arguments import FinetuningArguments, TaskArguments
from scratch_bert.finetuning.load import TASKS, load_model, load_task
from scratch_bert.finetuning.metrics import GREATER_IS_BETTER
from scratch_bert.finetuning.model_card import write_finetuning_card
from scratch_bert.finetuning.task import Task
from scratch_bert.training.callbacks import PatienceCallback
from scratch_bert.training.resume import find_checkpoint
from scratch_bert.training.trainer import TIMINGS, ScratchBertTrainer


logger = logging.getLogger("scratch_bert")
METRICS = "metrics.json"


def build_trainer(
    task_name: str, task: Task, task_args: TaskArguments, args: FinetuningArguments
) -> ScratchBertTrainer:
    set_seed(args.seed)
    args.metric_for_best_model = task.best_metric
    with one_line_errors(stopped="Stopped before training."):
        if not args.greater_is_better_told:
            args.greater_is_better = GREATER_IS_BETTER.get(task.best_metric)
        if args.greater_is_better is None and (args.load_best_model_at_end or task_args.early_stopping_patience):
            raise ValueError(
                f"Say with --greater_is_better true or false whether a greater {task.best_metric} is better."
            )
        model = load_model(task, task_args)
    patience = task_args.early_stopping_patience
    return ScratchBertTrainer(
        model=model,
        args=args,
        data_collator=task.collator(),
        train_dataset=task.features["train"],
        eval_dataset=task.features["validation"],
        processing_class=task.tokenizer,
        compute_metrics=task.compute_metrics,
        callbacks=[PatienceCallback(patience)] if patience else None,
        write_card=partial(write_finetuning_card, task_name=task_name, task=task, task_args=task_args),
    )


def run(task: Task, trainer: ScratchBertTrainer, checkpoint: str | None) -> dict[str, float]:
    """Train, predict, save. The figures, which go to a file as well."""
    metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
    if trainer.interrupted:
        sys.exit(
            f"Stopped at step {trainer.state.global_step}. To go on: the same command and --resume_from_checkpoint"
        )
    output_dir = Path(trainer.args.output_dir)
    trainer.compute_metrics = None  # the figures come from the predictions that are written
    for split, prefix in (("validation", "eval"), ("test", "test")):
        if split not in task.features:
            continue
        outcome = trainer.predict(task.features[split], metric_key_prefix=prefix)
        predictions = task.decode(split, outcome.predictions)
        if split in task.references:
            figures = task.figures(split, predictions)
            metrics |= outcome.metrics | {f"{prefix}_{name}": value for name, value in figures.items()}
        if trainer.is_world_process_zero():
            task.write_predictions(split, predictions, output_dir)
    trainer.results = metrics
    # A push that fails, a disk that is full.
    with one_line_errors((OSError,), stopped="Stopped while the model was being saved."):
        trainer.save_model()
    if trainer.is_world_process_zero():
        (output_dir / METRICS).write_text(json.dumps(metrics, indent=2) + "\n")
    return metrics


def run_seeds(
    seeds: list[int],
    build: Callable[[FinetuningArguments], ScratchBertTrainer],
    task: Task,
    args: FinetuningArguments,
) -> dict[str, dict[str, float]]:
    """The figures by seed. Resumed, it takes those of the seeds that are done from their files."""
    results = {}
    for seed in seeds:
        directory, checkpoint = Path(args.output_dir) / f"seed-{seed}", None
        seed_args = copy.deepcopy(args)
        seed_args.seed, seed_args.output_dir, seed_args.resume_from_checkpoint = seed, str(directory), None
        if args.resume_from_checkpoint and directory.is_dir():
            if (directory / METRICS).is_file():
                results[str(seed)] = json.loads((directory / METRICS).read_text())
                continue
            if get_last_checkpoint(directory):
                seed_args.resume_from_checkpoint = "last"
                with one_line_errors():
                    checkpoint = find_checkpoint(seed_args)
        logger.info(f"Seed {seed}")
        results[str(seed)] = run(task, build(seed_args), checkpoint)
    return results


def summarize(results: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation, of a sample, of each figure."""
    first, *others = results.values()
    shared = [
        name for name in first if all(name in other for other in others)
    ]  # a resumed run may have other test rows
    figures = {name: [result[name] for result in results.values()] for name in shared}
    return {
        "mean": {name: statistics.mean(values) for name, values in figures.items()},
        "std": {name: statistics.stdev(values) if len(values) > 1 else 0.0 for name, values in figures.items()},
    }


def main() -> None:
    task_args, args, command = parse_arguments(TaskArguments, FinetuningArguments, description=__doc__, tasks=TASKS)
    logging.basicConfig(format="%(message)s")
    logger.setLevel(logging.INFO if args.should_log else logging.ERROR)
    seeds = task_args.seeds
    if seeds and args.push_to_hub:
        sys.exit("error: --seeds makes several models: choose one, and publish it with scripts/push_to_hub.py.")
    if task_args.early_stopping_patience and args.eval_strategy == "no":
        sys.exit("error: early_stopping_patience counts evaluations: pass --eval_strategy epoch or steps.")
    with one_line_errors(stopped="Stopped before training."):
        checkpoint = None
        if not seeds or args.resume_from_checkpoint is None:
            checkpoint = find_checkpoint(args)
        elif args.resume_from_checkpoint.lower() not in ("last", "true"):
            raise ValueError("With --seeds, pass --resume_from_checkpoint alone: each seed goes on from its own last.")
        elif not any(Path(args.output_dir).glob("seed-*")):
            raise ValueError(f"There are no runs of --seeds to resume in {args.output_dir}.")
        with args.main_process_first():
            best_metric = None if args.best_by_task else args.metric_for_best_model.removeprefix("eval_")
            task = load_task(command.task, task_args, args.seed, best_metric)
    build = partial(build_trainer, command.task, task, task_args)
    if seeds:
        results = run_seeds(seeds, build, task, args)
    else:
        metrics = run(task, build(args), checkpoint)
    if not args.should_save:
        return
    output_dir = Path(args.output_dir)
    if seeds:
        summary = summarize(results)
        (output_dir / METRICS).write_text(json.dumps({"seeds": results, **summary}, indent=2) + "\n")
        shown = {name: f"{summary['mean'][name]:.4f} ± {summary['std'][name]:.4f}" for name in summary["mean"]}
    else:
        shown = {name: f"{value:.4f}" for name, value in metrics.items()}
    print()
    for name, value in shown.items():
        if name.startswith(("eval_", "test_")) and not name.endswith(TIMINGS):
            print(f"{name.removeprefix('eval_').replace('_', ' '):<28}{value:>18}")
    print(f"\nModel, predictions and {METRICS} are in {output_dir}{'/seed-*' if seeds else ''}")


if __name__ == "__main__":
    main()
