"""A fine-tuning run, with one seed or several: train, return to the best checkpoint, predict, save."""

import copy
import logging
import statistics
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedConfig, TrainingArguments, set_seed
from transformers.utils import CONFIG_NAME

from scratch_bert_options.finetuning import FinetuningOptions, TaskArguments
from scratch_bert_options.outputs import check_output_dir

from ..checkpoints.open import load_config
from ..checkpoints.output_dir import output_dir_lock, read_metrics, write_metrics
from ..checkpoints.resume import check_same_run, check_same_weights
from ..checkpoints.saved import METRICS_FILE, explain_write_errors, find_checkpoint, resumes_newest
from ..training.arguments import recorded
from ..training.best import PatienceCallback
from ..training.console import TIMINGS, describe_output, wrap
from ..training.counting import CountingCollator
from ..training.tensorboard import extend_tensorboard
from ..training.trainer import ScratchBertTrainer
from .arguments import finetuning_arguments, fit_learning_rates
from .baselines import baseline_scores, scores_by_baseline
from .load import describe_model, load_model, load_task
from .metrics import GREATER_IS_BETTER
from .model_card import write_finetuning_card
from .tasks.base import Task, check_finite


logger = logging.getLogger("scratch_bert")

# Options that may differ between the runs of several seeds: they do not change the results.
WITHOUT_EFFECT = {"save_total_limit", "per_device_eval_batch_size", "eval_accumulation_steps", "skip_memory_metrics"}
WITHOUT_EFFECT |= {"dataloader_num_workers", "dataloader_prefetch_factor"}


class Results(NamedTuple):
    seeds: dict[int, dict[str, float]]
    """Metrics by seed: `eval_…` on the validation split, `test_…` on the test split, `train_…` of the training."""
    mean: dict[str, float]
    std: dict[str, float]
    """Sample standard deviation over the seeds; 0 if there is only one."""


class _SeedRun(NamedTuple):
    options: FinetuningOptions
    args: TrainingArguments
    checkpoint: str | None = None
    metrics: dict[str, float] | None = None
    """Set if the run is finished."""


class FinetuningTrainer(ScratchBertTrainer):
    """Trainer that ends a run with predictions, scores and, with `keep_model`, the saved model. `results` may already contain
    the scores of baselines. `new_weights` are the names of those that learn at `options.head_learning_rate`."""

    keep_model = True

    def __init__(self, *args, new_weights: Collection[str] = (), **kwargs):
        super().__init__(*args, **kwargs)
        self.new_weights = new_weights
        if self.counts_on_the_host:
            self.data_collator = CountingCollator(self.data_collator, labels=False, compiled=self.args.torch_compile)

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        created, optimizer = self.optimizer is None, super().create_optimizer(model)
        if not created:
            return optimizer
        named = dict((self.model if model is None else model).named_parameters())
        new = {named[name] for name in self.new_weights if name in named}
        for group in list(optimizer.param_groups):
            if chosen := [parameter for parameter in group["params"] if parameter in new]:
                group["params"] = [parameter for parameter in group["params"] if parameter not in new]
                optimizer.add_param_group({**group, "params": chosen, "lr": self.options.head_learning_rate})
        return optimizer

    def train_and_predict(self, task: Task, checkpoint: str | None = None) -> dict[str, float]:
        """Train, from a checkpoint if one is given; then write predictions, model and metrics. Returns the metrics."""
        output_dir = Path(self.args.output_dir)
        with output_dir_lock(self.args, self.record, checkpoint):
            metrics = self.results | self.train(resume_from_checkpoint=checkpoint).metrics
            self.raise_if_interrupted()
            done = self.final_evaluation
            self.compute_metrics = None  # from here on, scores are computed from the predictions that are written
            for split, prefix in (("validation", "eval"), ("test", "test")):
                if split not in task.features:
                    continue
                output = done if split == "validation" else None
                output = output or self.predict(task.features[split], metric_key_prefix=prefix)
                check_finite(output.predictions)
                predictions = task.decode(split, output.predictions)
                if split in task.references:
                    scores = task.compute_scores(split, predictions)
                    metrics |= {name: value for name, value in output.metrics.items() if name.startswith(prefix)}
                    metrics |= {f"{prefix}_{name}": value for name, value in scores.items()}
                    self.check_finite(metrics)
                if self.is_world_process_zero():
                    with explain_write_errors("The predictions", output_dir):
                        task.write_predictions(split, predictions, output_dir)
            self.results = metrics  # for the model card
            if self.keep_model:
                self.save_model()
            if self.is_world_process_zero():
                write_metrics(output_dir, metrics)
        return metrics


@dataclass
class FinetuningRun:
    """A run with its data; with several seeds, a run for each. It is ready to train after `prepare`."""

    task: Task
    task_args: TaskArguments
    config: PreTrainedConfig
    """Config of the checkpoint to fine-tune."""
    seed_runs: list[_SeedRun]
    output_dir: Path
    keep_models: bool = True
    first_trainer: FinetuningTrainer | None = None
    """Trainer of the first unfinished seed: errors in model and options are found before any training."""

    def prepare(self) -> "FinetuningRun":
        """Encode the examples, compare finished seeds with this run, and build the first trainer. Returns the run.

        Raises `ValueError` or `OSError` for a checkpoint or options that can't be used.
        """
        self.task.encode_splits()
        for run in self.seed_runs:
            if run.metrics:
                directory = Path(run.args.output_dir)
                if self.keep_models and not (directory / CONFIG_NAME).exists():
                    raise ValueError(f"{directory} has results but no model: delete it to train it again.")
                record = self.record(run)
                check_same_run(record, run.args.output_dir, also_fixed=record["options"].keys() - WITHOUT_EFFECT)
        unfinished = next((run for run in self.seed_runs if not run.metrics), None)
        self.first_trainer = unfinished and self.build_trainer(unfinished)
        return self

    @cached_property
    def baselines(self) -> dict[str, float]:
        """Scores of simple baselines, by the names that they have among the metrics."""
        return baseline_scores(self.task)

    def train(self) -> Results:
        """Train, predict, save. Each seed leaves its model, predictions and metrics.json in its directory.

        Raises `OSError` if they can't be saved or pushed, and `KeyboardInterrupt`, after a checkpoint is saved, if
        Ctrl-C ended the training.
        """
        metrics = {}
        for run in self.seed_runs:
            seed = run.args.seed
            if self.task_args.seeds:
                logger.info(f"Seed {seed}" + (": already finished, skipped" if run.metrics else ""))
            metrics[seed] = run.metrics or self._train_seed(run)
        results = summarize(metrics)
        if self.task_args.seeds and self.seed_runs[0].args.should_save:
            write_metrics(self.output_dir, results._asdict())
        return results

    def report(self, results: Results) -> str:
        """For the terminal: the results of `train` beside the baselines, and where it has written what."""
        baselines = scores_by_baseline(results.mean)
        lines = [f"{'':<26}{'this model':>18}" + "".join(f"{title:>18}" for title in baselines)] if baselines else []
        for name, mean in results.mean.items():
            if name.startswith(("eval_", "test_")) and not name.endswith(TIMINGS):
                value = f"{mean:.4f} ± {results.std[name]:.4f}" if self.task_args.seeds else f"{mean:.4f}"
                metric = name.removeprefix("eval_")
                columns = "".join(f"{scores[metric]:>18.4f}" for scores in baselines.values() if metric in scores)
                lines.append(f"{metric.replace('_', ' '):<26}{value:>18}{columns}")
        seeds = f"In {self.output_dir}/seed-*: models, cards and predictions. Mean and deviation: {self.output_dir}/{METRICS_FILE}"
        lines += ["", wrap(seeds) if self.task_args.seeds else describe_output(self.output_dir)]
        return "\n".join(lines)

    def _train_seed(self, run: _SeedRun) -> dict[str, float]:
        trainer = self.first_trainer or self.build_trainer(run)
        self.first_trainer = None  # or its memory would be kept while the next seeds train
        trainer.keep_model = self.keep_models
        if run.checkpoint:
            logger.info(f"Resuming from {run.checkpoint}")
        if trainer.is_world_process_zero():
            trainer.results = dict(self.baselines)
        return trainer.train_and_predict(self.task, run.checkpoint)

    def build_trainer(self, run: _SeedRun) -> FinetuningTrainer:
        """A Trainer for the task, with a new model. Sets the seed, and in `run.args` how to select the best checkpoint.

        Raises `ValueError` if it is unknown whether a greater metric is better, and if another run saved the checkpoint.
        """
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

    def record(self, run: _SeedRun) -> dict[str, dict]:
        """What `check_same_run` compares."""
        args = run.args
        fixed = {"task": self.task.name, "seed": args.seed, "optim": args.optim.value}
        for split in ("train", "validation"):
            checksum = self.task.checksums[split]
            fixed[f"{split} split"] = f"{len(self.task.features[split]):,} examples, CRC-32 {checksum:08x}"
        fixed["model"] = describe_model(self.config, self.task_args)
        fixed["metric_for_best_model"] = self.task.best_metric
        task_options = ("dropout", "classifier_pooling", "early_stopping_patience", "random_init")
        options = recorded(run.options, args) | {name: getattr(self.task_args, name) for name in task_options}
        return {"fixed": fixed, "options": {name: value for name, value in options.items() if name not in fixed}}


def run_finetuning(task: str, task_args: TaskArguments, options: FinetuningOptions, data: Any = None) -> Results:
    """Prepare a run and train: see `prepare_finetuning` and `FinetuningRun.train`."""
    return prepare_finetuning(task, task_args, options, data).train()


def prepare_finetuning(
    task_name: str, task_args: TaskArguments, options: FinetuningOptions, data: Any = None
) -> FinetuningRun:
    """A run that is ready to train: see `open_run`, whose arguments and errors these are, and `FinetuningRun.prepare`."""
    run = open_run(task_name, task_args, options, data)
    logger.info(f"Output: {options.output_dir}")
    return run.prepare()


def open_run(task_name: str, task_args: TaskArguments, options: FinetuningOptions, data: Any = None) -> FinetuningRun:
    """A run that trains once, in `args.output_dir`, or once with each of `task_args.seeds`, in its subdirectories `seed-N`. Its
    data are read and checked, but not yet encoded.

    `task_name` is a key of `TASKS`; `data` replaces the files or the dataset of the options: see `load_splits`. Raises
    `ValueError` or `OSError` for options, data and checkpoints that can't be used.
    """
    args = finetuning_arguments(options)
    if task_args.seeds and args.push_to_hub:
        raise ValueError("--seeds trains several models: choose one, and publish it with scratch-bert-push.")
    if task_args.early_stopping_patience and args.eval_strategy == "no":
        raise ValueError("early_stopping_patience counts evaluations: pass --eval_strategy epoch or steps.")
    if args.should_save:
        check_output_dir("output_dir", Path(args.output_dir))
    seed_runs = _plan_runs(task_args.seeds, options, args)
    with args.main_process_first():
        config = load_config(task_args.model_name_or_path, trust_remote_code=task_args.trust_remote_code)
        task = load_task(task_name, task_args, options, config, data)
    for number, run in enumerate(seed_runs):
        fitted = fit_learning_rates(run.options, config, task_args.random_init)
        run.args.learning_rate = fitted.learning_rate
        seed_runs[number] = run._replace(options=fitted)
    return FinetuningRun(task, task_args, config, seed_runs, Path(args.output_dir))


def summarize(metrics: dict[int, dict[str, float]]) -> Results:
    """Mean and standard deviation, over the seeds, of the metrics that all of them have."""
    first, *others = metrics.values()
    shared = [name for name in first if all(name in other for other in others)]  # a resumed run may have no test split
    values = {name: [seed_metrics[name] for seed_metrics in metrics.values()] for name in shared}
    return Results(
        metrics,
        mean={name: statistics.mean(values[name]) for name in shared},
        std={name: statistics.stdev(values[name]) if others else 0.0 for name in shared},
    )


def _plan_runs(seeds: list[int] | None, options: FinetuningOptions, args: TrainingArguments) -> list[_SeedRun]:
    """The runs, each with its own arguments. On resume, each continues from its last checkpoint, if there is one.

    Raises `ValueError` if a new run would write into a directory that is not empty.
    """
    if not seeds:
        return [_SeedRun(options, copy.deepcopy(args), find_checkpoint(args))]
    if args.resume_from_checkpoint is None:
        find_checkpoint(args)  # for its checks
    elif not resumes_newest(args):
        raise ValueError(
            "With --seeds, pass --resume_from_checkpoint without a value: each seed continues from its own last checkpoint."
        )
    return [_plan_seed(seed, options, args) for seed in seeds]


def _plan_seed(seed: int, options: FinetuningOptions, args: TrainingArguments) -> _SeedRun:
    directory = Path(args.output_dir) / f"seed-{seed}"
    run_args = copy.deepcopy(args)
    run_args.seed, run_args.output_dir = seed, str(directory)
    run_args.run_name = f"{args.run_name}/seed-{seed}"
    if args.resume_from_checkpoint and (directory / METRICS_FILE).is_file():
        metrics = read_metrics(directory)
        if not metrics:
            raise ValueError(f"{directory / METRICS_FILE} cannot be read: delete it to finish this run again.")
        return _SeedRun(options, run_args, metrics=metrics)
    return _SeedRun(options, run_args, find_checkpoint(run_args))
