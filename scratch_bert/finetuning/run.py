"""A fine-tuning run, with one seed or several: open the data, prepare, train, report."""

import copy
import logging
import statistics
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedConfig, TrainingArguments, set_seed

from scratch_bert_options.finetuning import FinetuningOptions, TaskOptions
from scratch_bert_options.outputs import check_output_dir

from ..checkpoints.open import load_config
from ..checkpoints.output_dir import read_metrics, write_metrics
from ..checkpoints.resume import check_same_run, check_same_weights
from ..checkpoints.saved import METRICS_FILE, find_checkpoint, resumes_newest
from ..training.arguments import recorded
from ..training.best import PatienceCallback
from ..training.console import TIMINGS, describe_output, wrap
from ..training.tensorboard import extend_tensorboard
from .arguments import finetuning_arguments, fit_learning_rates
from .baselines import baseline_scores, scores_by_baseline
from .load import identify_model, load_model, load_task
from .metrics import GREATER_IS_BETTER
from .model_card import write_finetuning_card
from .tasks.base import Task
from .trainer import FinetuningTrainer


logger = logging.getLogger("scratch_bert")

# Options that may differ between the runs of several seeds: they do not change the results.
WITHOUT_EFFECT = {"save_total_limit", "per_device_eval_batch_size", "eval_accumulation_steps", "skip_memory_metrics"}
WITHOUT_EFFECT |= {"dataloader_num_workers", "dataloader_prefetch_factor"}


class FinetuningResults(NamedTuple):
    seeds: dict[int, dict[str, float]]
    """Metrics by seed: `eval_…` on the validation split, `test_…` on the test split, `train_…` of the training."""
    mean: dict[str, float]
    std: dict[str, float]
    """Sample standard deviation over the seeds; 0 if there is only one."""


class SeedRun(NamedTuple):
    """One seed: to train, from a checkpoint if there is one, unless it is finished and has `metrics`."""

    options: FinetuningOptions
    args: TrainingArguments
    checkpoint: str | None = None
    metrics: dict[str, float] | None = None


def prepare_finetuning(
    task_name: str, task_args: TaskOptions, options: FinetuningOptions, data: Any = None
) -> "FinetuningRun":
    """A run that is ready to train: `open_run`, whose arguments and errors these are, and `FinetuningRun.prepare`."""
    run = open_run(task_name, task_args, options, data)
    logger.info(f"Output: {options.output_dir}")
    return run.prepare()


def open_run(task_name: str, task_args: TaskOptions, options: FinetuningOptions, data: Any = None) -> "FinetuningRun":
    """A run that trains once, in `args.output_dir`, or with each of `task_args.seeds`, in its subdirectories `seed-N`.

    Args:
        task_name: One of `TASKS`.
        data: Replaces the files or the dataset of the options: see `load_splits`.

    Raises:
        ValueError, OSError: For options, data and checkpoints that can't be used.
    """
    args = finetuning_arguments(options)
    if task_args.seeds and args.push_to_hub:
        raise ValueError("--seeds trains several models: choose one, and publish it with scratch-bert push.")
    if task_args.early_stopping_patience and args.eval_strategy == "no":
        raise ValueError("early_stopping_patience counts evaluations: pass --eval_strategy epoch or steps.")
    if args.should_save:
        check_output_dir("output_dir", Path(args.output_dir))
    seed_runs = plan_seed_runs(task_args.seeds, options, args)
    with args.main_process_first():
        config = load_config(task_args.model_name_or_path, trust_remote_code=task_args.trust_remote_code)
        task = load_task(task_name, task_args, options, config, data)
    for number, run in enumerate(seed_runs):
        fitted = fit_learning_rates(run.options, config, task_args.random_init)
        run.args.learning_rate = fitted.learning_rate
        seed_runs[number] = run._replace(options=fitted)
    return FinetuningRun(task, task_args, config, seed_runs, Path(args.output_dir))


def plan_seed_runs(seeds: list[int] | None, options: FinetuningOptions, args: TrainingArguments) -> list[SeedRun]:
    """Each with its own arguments. On resume, each continues from its last checkpoint, if there is one.

    Raises `ValueError` if a new run would write into a directory that is not empty.
    """
    if not seeds:
        return [SeedRun(options, copy.deepcopy(args), find_checkpoint(args))]
    if args.resume_from_checkpoint is None:
        find_checkpoint(args)  # for its checks
    elif not resumes_newest(args):
        raise ValueError(
            "With --seeds, pass --resume_from_checkpoint without a value: each seed continues from its own checkpoint."
        )
    runs = []
    for seed in seeds:
        directory, run_args = Path(args.output_dir) / f"seed-{seed}", copy.deepcopy(args)
        run_args.seed, run_args.output_dir = seed, str(directory)
        run_args.run_name = f"{args.run_name}/seed-{seed}"
        if args.resume_from_checkpoint and (directory / METRICS_FILE).is_file():
            metrics = read_metrics(directory)
            if not metrics:
                raise ValueError(f"{directory / METRICS_FILE} cannot be read: delete it to finish this run again.")
            runs.append(SeedRun(options, run_args, metrics=metrics))
        else:
            runs.append(SeedRun(options, run_args, find_checkpoint(run_args)))
    return runs


@dataclass
class FinetuningRun:
    """A run with its data; with several seeds, a run for each."""

    task: Task
    task_args: TaskOptions
    config: PreTrainedConfig
    """Config of the checkpoint to fine-tune."""
    seed_runs: list[SeedRun]
    output_dir: Path
    first_trainer: FinetuningTrainer | None = None
    """Trainer of the first unfinished seed: errors in model and options are found before any training."""

    def prepare(self) -> "FinetuningRun":
        """Encode the examples, compare finished seeds with this run, and build the first trainer. Returns the run.

        Raises `ValueError` or `OSError` for a checkpoint or options that can't be used.
        """
        logger.info(self.task.describe())
        for run in self.seed_runs:
            if run.metrics:
                record = self.record(run)
                check_same_run(record, run.args.output_dir, also_fixed=record["options"].keys() - WITHOUT_EFFECT)
        unfinished = next((run for run in self.seed_runs if not run.metrics), None)
        self.first_trainer = unfinished and self.build_trainer(unfinished)
        return self

    def record(self, run: SeedRun) -> dict[str, dict]:
        """What `check_same_run` compares."""
        args = run.args
        fixed = {"task": self.task.name, "seed": args.seed, "optim": args.optim.value, **self.data_and_model}
        fixed["metric_for_best_model"] = self.task.best_metric
        task_options = ("dropout", "classifier_pooling", "early_stopping_patience", "random_init")
        options = recorded(run.options, args) | {name: getattr(self.task_args, name) for name in task_options}
        return {"fixed": fixed, "options": {name: value for name, value in options.items() if name not in fixed}}

    @cached_property
    def data_and_model(self) -> dict[str, str]:
        """What this run trains on, and from which model: sizes and checksums."""
        described = {}
        for split in ("train", "validation"):
            examples, checksum = self.task.features[split], self.task.checksum(split)
            described[f"{split} split"] = f"{len(examples):,} examples, CRC-32 {checksum:08x}"
        return described | {"model": identify_model(self.config, self.task_args)}

    def build_trainer(self, run: SeedRun) -> FinetuningTrainer:
        """A Trainer for the task, with a new model. Sets the seed, and in `run.args` how to select the best
        checkpoint. Raises `ValueError` if another run saved the checkpoint to resume from."""
        task, args, record = self.task, run.args, self.record(run)
        if run.checkpoint:
            check_same_run(record, run.checkpoint)
        args.resume_from_checkpoint = run.checkpoint  # the card says what its time is since
        set_seed(args.seed)
        args.metric_for_best_model = task.best_metric
        if args.greater_is_better is None:
            args.greater_is_better = GREATER_IS_BETTER.get(task.best_metric)
        patience = self.task_args.early_stopping_patience
        if args.greater_is_better is None and (args.load_best_model_at_end or patience):
            raise ValueError(f"Pass --greater_is_better true or false: is a greater {task.best_metric} better?")
        model, new = load_model(task, self.task_args, self.config)
        if not new:
            run.options.head_learning_rate = None  # for the card
        if run.checkpoint:
            check_same_weights(model, run.checkpoint)
        trainer = FinetuningTrainer(
            model=model,
            args=args,
            options=run.options,
            data_collator=task.collator(),
            train_dataset=task.features["train"],
            eval_dataset=task.features["validation"],
            processing_class=task.tokenizer,
            compute_metrics=task.compute_metrics,
            preprocess_logits_for_metrics=task.reduce,
            callbacks=[PatienceCallback(patience)] if patience else None,
            write_card=partial(write_finetuning_card, task=task, task_args=self.task_args),
            record=record,
            new_weights=new,
        )
        extend_tensorboard(trainer)
        return trainer

    def train(self) -> FinetuningResults:
        """Train, predict, save. Each seed leaves its model, predictions and metrics.json in its directory.

        Raises `OSError` if they can't be saved or pushed, and `KeyboardInterrupt`, after a checkpoint is saved, if
        Ctrl-C ended the training.
        """
        metrics, baselines = {}, None
        for run in self.seed_runs:
            seed = run.args.seed
            if self.task_args.seeds:
                logger.info(f"Seed {seed}" + (": already finished, skipped" if run.metrics else ""))
            if run.metrics:
                metrics[seed] = run.metrics
                continue
            trainer, self.first_trainer = self.first_trainer or self.build_trainer(run), None
            if run.checkpoint:
                logger.info(f"Resuming from {run.checkpoint}")
            if trainer.is_world_process_zero():
                baselines = baseline_scores(self.task) if baselines is None else baselines
                trainer.results = dict(baselines)
            metrics[seed] = trainer.train_and_predict(self.task, run.checkpoint)
            del trainer  # or its memory would be kept while the next seeds train
        results = summarize(metrics)
        if self.task_args.seeds and self.seed_runs[0].args.should_save:
            write_metrics(self.output_dir, results._asdict())
        return results

    def report(self, results: FinetuningResults) -> str:
        """For the terminal: the results of `train` beside the baselines, and where it has written what."""
        baselines = scores_by_baseline(results.mean)
        lines = [f"{'':<26}{'this model':>18}" + "".join(f"{title:>18}" for title in baselines)] if baselines else []
        for name, mean in results.mean.items():
            if name.startswith(("eval_", "test_")) and not name.endswith(TIMINGS):
                value = f"{mean:.4f} ± {results.std[name]:.4f}" if self.task_args.seeds else f"{mean:.4f}"
                metric = name.removeprefix("eval_")
                columns = "".join(f"{scores[metric]:>18.4f}" for scores in baselines.values() if metric in scores)
                lines.append(f"{metric.replace('_', ' '):<26}{value:>18}{columns}")
        place = self.output_dir
        seeds = f"In {place}/seed-*: models, cards and predictions. Mean and deviation: {place}/{METRICS_FILE}"
        lines += ["", wrap(seeds) if self.task_args.seeds else describe_output(place)]
        return "\n".join(lines)


def summarize(metrics: dict[int, dict[str, float]]) -> FinetuningResults:
    """Mean and standard deviation, over the seeds, of the metrics that all of them have."""
    first, *others = metrics.values()
    shared = [name for name in first if all(name in other for other in others)]  # a resumed run may have no test split
    values = {name: [seed_metrics[name] for seed_metrics in metrics.values()] for name in shared}
    return FinetuningResults(
        metrics,
        mean={name: statistics.mean(values[name]) for name in shared},
        std={name: statistics.stdev(values[name]) if others else 0.0 for name in shared},
    )
