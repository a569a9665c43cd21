"""A fine-tuning run, with one seed or several: train, go back to the best checkpoint, predict, save."""

import copy
import json
import logging
import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from transformers import set_seed

from ..training.callbacks import PatienceCallback, extend_tensorboard
from ..training.checkpoint import METRICS_FILE, explain_write_errors, find_checkpoint, resumes_newest
from ..training.output_dir import output_dir_lock, write_metrics
from ..training.resume import check_same_run
from ..training.trainer import ScratchBertTrainer
from .arguments import FinetuningArguments, TaskArguments
from .load import describe_model, load_model, load_task
from .metrics import GREATER_IS_BETTER
from .model_card import write_finetuning_card
from .task import Task


logger = logging.getLogger("scratch_bert")


# Options that a run of another seed may have otherwise: its results are the same.
WITHOUT_EFFECT = {
    "save_total_limit",
    "per_device_eval_batch_size",
    "eval_accumulation_steps",
    "dataloader_num_workers",
    "dataloader_prefetch_factor",
    "skip_memory_metrics",
}


class Results(NamedTuple):
    seeds: dict[int, dict[str, float]]
    """The metrics by seed: `eval_…` on the validation split, `test_…` on the test split, `train_…` of the training."""
    mean: dict[str, float]
    std: dict[str, float]
    """Sample standard deviation over the seeds; 0 if there is only one."""


class _SeedRun(NamedTuple):
    args: FinetuningArguments
    checkpoint: str | None = None
    metrics: dict[str, float] | None = None
    """If it is finished."""


@dataclass
class Run:
    """A run that is ready to train; with several seeds, one for each."""

    task_name: str
    task: Task
    task_args: TaskArguments
    seed_runs: list[_SeedRun]
    output_dir: Path
    first_trainer: ScratchBertTrainer | None
    """Of the first seed that is not finished: what is wrong with model and options is found before any training."""

    def train(self) -> Results:
        """Train, predict, save. Each run leaves its model, predictions and metrics.json in its directory.

        Raises `OSError` if they can't be saved or pushed, and `KeyboardInterrupt`, after a checkpoint is saved, if
        Ctrl-C ended the training.
        """
        metrics = {}
        trainer, self.first_trainer = self.first_trainer, None  # or its memory would be kept while the next ones train
        for run in self.seed_runs:
            seed = run.args.seed
            if self.task_args.seeds:
                logger.info(f"Seed {seed}" + (": already finished, skipped" if run.metrics else ""))
            if run.metrics:
                metrics[seed] = run.metrics
                continue
            trainer = trainer or build_trainer(self.task_name, self.task, self.task_args, run)
            metrics[seed] = train_and_predict(trainer, self.task, run.checkpoint)
            trainer = None
        results = summarize(metrics)
        if self.task_args.seeds and self.seed_runs[0].args.should_save:
            write_metrics(self.output_dir, results._asdict())
        return results


def finetune(task_name: str, task_args: TaskArguments, args: FinetuningArguments) -> Results:
    """Prepare a run and train: see `prepare` and `Run.train`. For example,

        task_args = TaskArguments(model_name_or_path="runs/mine", train_file=["train.csv"])
        results = finetune("sequence-classification", task_args, FinetuningArguments(output_dir="runs/task"))

    has the accuracy in `results.mean["eval_accuracy"]`.
    """
    return prepare(task_name, task_args, args).train()


def prepare(task_name: str, task_args: TaskArguments, args: FinetuningArguments) -> Run:
    """The task of this name, a key of `TASKS`, its examples, and what trains on them: once, in `args.output_dir`, or once
    with each of `task_args.seeds`, in its subdirectories `seed-N`.

    Raises `ValueError` or `OSError` for options, data and checkpoints that can't be used.
    """
    if task_args.seeds and args.push_to_hub:
        raise ValueError("--seeds trains several models: choose one, and publish it with scratch-bert-push.")
    if task_args.early_stopping_patience and args.eval_strategy == "no":
        raise ValueError("early_stopping_patience counts evaluations: pass --eval_strategy epoch or steps.")
    seed_runs = _plan_runs(task_args.seeds, args)
    best_metric = args.metric_for_best_model and args.metric_for_best_model.removeprefix("eval_")
    with args.main_process_first():
        task = load_task(task_name, task_args, args.seed, best_metric)
    for run in seed_runs:
        if run.metrics:
            record = _record(task_name, task, task_args, run.args)
            check_same_run(record, run.args.output_dir, also_fixed=record["options"].keys() - WITHOUT_EFFECT)
    unfinished = [run for run in seed_runs if not run.metrics]
    trainer = build_trainer(task_name, task, task_args, unfinished[0]) if unfinished else None
    return Run(task_name, task, task_args, seed_runs, Path(args.output_dir), trainer)


def build_trainer(task_name: str, task: Task, task_args: TaskArguments, run: _SeedRun) -> ScratchBertTrainer:
    """A Trainer for the task, with a new model. Sets the seed, and in `run.args` how to select the best checkpoint.

    Raises `ValueError` if it is unknown whether a greater metric is better, and if another run saved the checkpoint.
    """
    args, record = run.args, _record(task_name, task, task_args, run.args)
    if run.checkpoint:
        check_same_run(record, run.checkpoint)
    set_seed(args.seed)
    args.metric_for_best_model = task.best_metric
    if args.greater_is_better is None:
        args.greater_is_better = GREATER_IS_BETTER.get(task.best_metric)
    patience = task_args.early_stopping_patience
    if args.greater_is_better is None and (args.load_best_model_at_end or patience):
        raise ValueError(f"Pass --greater_is_better true or false: is a greater {task.best_metric} better?")
    trainer = ScratchBertTrainer(
        model=load_model(task, task_args),
        args=args,
        data_collator=task.collator(),
        train_dataset=task.features["train"],
        eval_dataset=task.features["validation"],
        processing_class=task.tokenizer,
        compute_metrics=task.compute_metrics,
        callbacks=[PatienceCallback(patience)] if patience else None,
        write_card=partial(write_finetuning_card, task_name=task_name, task=task, task_args=task_args),
        record=record,
    )
    extend_tensorboard(trainer)
    return trainer


def _record(task_name: str, task: Task, task_args: TaskArguments, args: FinetuningArguments) -> dict[str, dict]:
    """What `check_same_run` compares."""
    fixed = {"task": task_name, "seed": args.seed, "optim": args.optim.value}
    for split in ("train", "validation"):
        fixed[f"{split} split"] = f"{len(task.features[split]):,} examples, CRC-32 {task.checksums[split]:08x}"
    fixed["model"] = describe_model(task_args)
    fixed["metric_for_best_model"] = task.best_metric
    options = args.recorded() | {name: getattr(task_args, name) for name in ("dropout", "early_stopping_patience")}
    options["random_init"] = task_args.random_init
    return {"fixed": fixed, "options": {name: value for name, value in options.items() if name not in fixed}}


def train_and_predict(trainer: ScratchBertTrainer, task: Task, checkpoint: str | None = None) -> dict[str, float]:
    """Train, from a checkpoint if one is given; then write predictions, model and metrics. Returns the metrics."""
    output_dir = Path(trainer.args.output_dir)
    with output_dir_lock(trainer.args, trainer.record, checkpoint):
        metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
        trainer.raise_if_interrupted()
        trainer.compute_metrics = None  # computed below, from the predictions that are written
        for split, prefix in (("validation", "eval"), ("test", "test")):
            if split not in task.features:
                continue
            output = trainer.predict(task.features[split], metric_key_prefix=prefix)
            predictions = task.decode(split, output.predictions)
            if split in task.references:
                scores = task.compute_scores(split, predictions)
                metrics |= output.metrics | {f"{prefix}_{name}": value for name, value in scores.items()}
            if trainer.is_world_process_zero():
                with explain_write_errors("The predictions", output_dir):
                    task.write_predictions(split, predictions, output_dir)
        trainer.results = metrics  # for the model card
        trainer.save_model()
        if trainer.is_world_process_zero():
            write_metrics(output_dir, metrics)
    return metrics


def summarize(metrics: dict[int, dict[str, float]]) -> Results:
    first, *others = metrics.values()
    shared = [name for name in first if all(name in other for other in others)]  # a resumed run may have no test split
    values = {name: [one[name] for one in metrics.values()] for name in shared}
    return Results(
        metrics,
        mean={name: statistics.mean(values[name]) for name in shared},
        std={name: statistics.stdev(values[name]) if others else 0.0 for name in shared},
    )


def _plan_runs(seeds: list[int] | None, args: FinetuningArguments) -> list[_SeedRun]:
    """The runs, each with arguments of its own. On resume, each goes on from its last checkpoint, if it has one.

    Raises `ValueError` if a new run would write into a directory that is not empty.
    """
    if not seeds:
        return [_SeedRun(copy.deepcopy(args), find_checkpoint(args))]
    if args.resume_from_checkpoint is None:
        find_checkpoint(args)  # for its checks
    elif not resumes_newest(args):
        raise ValueError(
            "With --seeds, pass --resume_from_checkpoint without a value: each seed continues from its own last checkpoint."
        )
    return [_plan_seed(seed, args) for seed in seeds]


def _plan_seed(seed: int, args: FinetuningArguments) -> _SeedRun:
    directory = Path(args.output_dir) / f"seed-{seed}"
    run_args = copy.deepcopy(args)
    run_args.seed, run_args.output_dir = seed, str(directory)
    run_args.run_name = f"{args.run_name}/seed-{seed}"
    if args.resume_from_checkpoint and (directory / METRICS_FILE).is_file():
        try:
            return _SeedRun(run_args, metrics=json.loads((directory / METRICS_FILE).read_text()))
        except ValueError as error:
            raise ValueError(
                f"{directory / METRICS_FILE} cannot be read ({error}): delete it to finish this run again."
            ) from None
    return _SeedRun(run_args, find_checkpoint(run_args))
