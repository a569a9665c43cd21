"""A fine-tuning run, with one seed or several: open the data, prepare, train, report."""

from copy import copy, deepcopy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from transformers import TrainingArguments, set_seed

from scratch_bert_options.commands import command
from scratch_bert_options.declare import reject_non_default
from scratch_bert_options.finetuning import FinetuningOptions, TaskOptions
from scratch_bert_options.outputs import check_output_dir

from ..atomic import checksum
from ..checkpoints.open import load_config
from ..checkpoints.output_dir import write_metrics
from ..checkpoints.resume import check_same_run, check_same_weights, has_one_seed, read_record
from ..checkpoints.saved import METRICS_FILE, find_checkpoint
from ..checkpoints.weights import find_weights
from ..logs import logger
from ..training.arguments import describe_hardware, recorded
from ..training.best import PatienceCallback
from ..training.console import TIMINGS, describe_output, wrap
from ..training.seeds import SeedResults, check_finished, check_parent, finished_metrics, summarize
from ..training.tensorboard import extend_tensorboard
from .arguments import finetuning_arguments, fit_learning_rates
from .baselines import baseline_scores, scores_by_baseline
from .class_report import to_text
from .load import load_model, load_task
from .metrics import GREATER_IS_BETTER
from .model_card import write_finetuning_card
from .tasks.base import Task
from .trainer import FinetuningTrainer


# What a record has beside the options of training.
RECORDED = ("dropout", "early_stopping_patience", "random_init", "class_weights", "split_seed")
RECORDED += ("positive_label", "decision_threshold", "max_answer_length")


class SeedRun(NamedTuple):
    """One seed: to train, from a checkpoint if there is one, unless it is finished and has `metrics`."""

    args: TrainingArguments
    checkpoint: str | None = None
    metrics: dict[str, float] | None = None


def prepare_finetuning(
    task_name: str, task_args: TaskOptions, options: FinetuningOptions, data: dict[str, Any] | None = None
) -> "FinetuningRun":
    """A run that is ready to train: a `FinetuningRun` of these arguments, `prepare`d."""
    if task_args.search:
        from .search import FinetuningSearch  # needs optuna

        run: FinetuningRun = FinetuningSearch(task_name, task_args, options, data)
    else:
        run = FinetuningRun(task_name, task_args, options, data)
    logger.info(f"Output: {options.output_dir}")
    return run.prepare()


class FinetuningRun:
    """A run that trains once, in `options.output_dir`, or with each of `task_args.seeds`, in its subdirectories
    `seed-N`.

    Args:
        task_name: One of `TASKS`.
        data: Splits that replace the files or the dataset of the options: see `load_splits`.

    Attributes:
        model_dir: Directory of the model; with seeds, of the first.

    Raises:
        ValueError, OSError: For options, data and checkpoints that can't be used.
    """

    def __init__(
        self, task_name: str, task_args: TaskOptions, options: FinetuningOptions, data: dict[str, Any] | None = None
    ):
        args = finetuning_arguments(options)
        if task_args.seeds:
            reject_non_default(options, ["seed"], "with seeds")
        if task_args.seeds and args.push_to_hub:
            raise ValueError(f"--seeds trains several models: choose one, and publish it with `{command('push')}`.")
        if task_args.early_stopping_patience and args.eval_strategy == "no":
            raise ValueError("early_stopping_patience counts evaluations: pass --eval_strategy epoch or steps.")
        if task_args.random_init:
            reject_non_default(options, ["head_learning_rate"], "with random_init")
        if args.should_save:
            check_output_dir("output_dir", Path(args.output_dir), task_args.train_file)
        self.seed_runs = self.plan(task_args.seeds, args)
        begun = next(
            (run.checkpoint or run.args.output_dir for run in self.seed_runs if run.checkpoint or run.metrics), None
        )
        holds_out = not (task_args.validation_file or "validation" in (data or {}))
        if begun and holds_out and has_one_seed(begun):
            task_args = replace(task_args, split_seed=options.seed)
        with args.main_process_first():
            self.config = load_config(task_args.model_name_or_path, trust_remote_code=task_args.trust_remote_code)
            self.task = load_task(task_name, task_args, options, self.config, data)
        self.task_args, self.output_dir = task_args, Path(args.output_dir)
        self.model_dir = self.output_dir / f"seed-{task_args.seeds[0]}" if task_args.seeds else self.output_dir
        self.options = fit_learning_rates(options, self.config, task_args.random_init)
        for run in self.seed_runs:
            run.args.learning_rate = self.options.learning_rate
        self.first_trainer: FinetuningTrainer | None = None
        self.class_reports: dict[str, dict] = {}  # of a run with one seed

    def plan(self, seeds: list[int] | None, args: TrainingArguments) -> list[SeedRun]:
        """Each with its own arguments. On resume, each continues from its last checkpoint, if there is one.

        Raises `ValueError` if a new run would write into a directory that is not empty.
        """
        if not seeds:
            return [SeedRun(args, find_checkpoint(args))]
        check_parent(args)
        runs = []
        for seed in seeds:
            directory, run_args = Path(args.output_dir) / f"seed-{seed}", deepcopy(args)
            run_args.seed, run_args.output_dir = seed, str(directory)
            run_args.run_name = f"{args.run_name}/seed-{seed}"
            metrics = finished_metrics(directory, seed, bool(args.resume_from_checkpoint))
            runs.append(SeedRun(run_args, None if metrics else find_checkpoint(run_args), metrics))
        return runs

    def prepare(self) -> "FinetuningRun":
        """Encode the examples, compare finished seeds with this run, and build the trainer of the first unfinished
        one: errors in model and options are found before any training. Returns the run."""
        logger.info(self.task.describe())
        logger.info(describe_hardware(self.seed_runs[0].args, self.options))
        for number, run in enumerate(self.seed_runs):
            if run.metrics:
                check_finished(self.record(run.args), run.args.output_dir)
                predicted, test = read_record(run.args.output_dir), self.data_and_model.get("test split")
                if test and predicted.get("test split") != test:
                    self.seed_runs[number] = SeedRun(run.args, find_checkpoint(run.args))
        unfinished = next((run for run in self.seed_runs if not run.metrics), None)
        self.first_trainer = unfinished and self.build_trainer(unfinished)
        return self

    def record(self, args: TrainingArguments) -> dict[str, dict]:
        """What `check_same_run` compares."""
        fixed = {"task": self.task.name, "seed": args.seed, "optim": args.optim.value, **self.data_and_model}
        fixed["metric_for_best_model"] = self.task.best_metric
        fixed["set of labels"] = ", ".join(self.task.model_options.get("id2label", {}).values())
        fixed["classifier_pooling"] = self.task_args.classifier_pooling
        options = recorded(self.options, args) | {name: getattr(self.task_args, name) for name in RECORDED}
        if test := fixed.pop("test split", None):  # a resumed run may have another
            options["test split"] = test
        return {"fixed": fixed, "options": {name: value for name, value in options.items() if name not in fixed}}

    @cached_property
    def data_and_model(self) -> dict[str, str]:
        """The examples of each split, and the model that this run starts from: sizes and checksums."""
        described = {}
        for split, features in self.task.features.items():
            value = crc32(repr(self.task.references.get(split)).encode())
            for ids in features["input_ids"]:
                value = crc32(repr(ids).encode(), value)
            described[f"{split} split"] = f"{len(features):,} examples, CRC-32 {value:08x}"
        sizes = (getattr(self.config, name, None) for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
        model, name = " × ".join(map(str, (self.config.model_type, *sizes))), self.task_args.model_name_or_path
        weights = [] if self.task_args.random_init else find_weights(name)
        return described | {"model": ", ".join([model, *(f"CRC-32 {checksum(file):08x}" for file in weights)])}

    @cached_property
    def baselines(self) -> dict[str, float]:
        return baseline_scores(self.task)

    def build_trainer(self, run: SeedRun) -> FinetuningTrainer:
        """A Trainer for the task, with a new model. Sets the seed, and in `run.args` how to select the best
        checkpoint. Raises `ValueError` if another run saved the checkpoint to resume from."""
        task, args, record = self.task, run.args, self.record(run.args)
        if args.label_smoothing_factor and not task.one_label:
            raise ValueError("label_smoothing_factor is for tasks with one label for each text or word: leave it out.")
        if run.checkpoint:
            check_same_run(record, run.checkpoint)
        args.resume_from_checkpoint = run.checkpoint  # the card's times begin there
        set_seed(args.seed)
        args.metric_for_best_model = task.best_metric
        known = GREATER_IS_BETTER.get(task.best_metric)
        if args.greater_is_better is None:
            args.greater_is_better = known
        elif known is not None and known != args.greater_is_better:
            raise ValueError(
                f"A {'greater' if known else 'smaller'} {task.best_metric} is better: omit greater_is_better."
            )
        patience = self.task_args.early_stopping_patience
        if args.greater_is_better is None and (args.load_best_model_at_end or patience or self.task_args.search):
            raise ValueError(f"Pass --greater_is_better true or false: is a greater {task.best_metric} better?")
        model, new = load_model(task, self.task_args, self.config)
        options = copy(self.options)
        if not new:
            options.head_learning_rate = None  # for the card
        if run.checkpoint:
            check_same_weights(model, run.checkpoint)
        trainer = FinetuningTrainer(
            model=model,
            args=args,
            options=options,
            data_collator=task.collator_class(task.tokenizer),
            train_dataset=task.features["train"],
            eval_dataset=task.features["validation"],
            processing_class=task.tokenizer,
            compute_metrics=task.compute_metrics,
            preprocess_logits_for_metrics=task.reduce,
            callbacks=[PatienceCallback(patience)] if patience else None,
            write_card=partial(write_finetuning_card, task=task, task_args=self.task_args),
            record=record,
            new_weights=new,
            class_weights=balanced_weights(task) if self.task_args.class_weights else None,
        )
        extend_tensorboard(trainer)
        return trainer

    def train(self) -> SeedResults:
        """Train, predict, save. Each seed leaves its model, predictions and metrics.json in its directory.

        Raises `OSError` if they can't be saved or pushed, and `KeyboardInterrupt`, after a checkpoint is saved, if
        Ctrl-C ended the training.
        """
        metrics: dict[int, dict[str, float]] = {}
        for run in self.seed_runs:
            if self.task_args.seeds:
                logger.info(f"Seed {run.args.seed}" + (": already finished, skipped" if run.metrics else ""))
            if run.metrics:
                metrics[run.args.seed] = run.metrics
                continue
            trainer, self.first_trainer = self.first_trainer or self.build_trainer(run), None
            if run.checkpoint:
                logger.info(f"Resuming from {run.checkpoint}")
            if trainer.is_world_process_zero():
                trainer.results = dict(self.baselines)
            metrics[run.args.seed] = trainer.train_and_predict(self.task, run.checkpoint)
            self.class_reports = {} if self.task_args.seeds else trainer.class_reports
            del trainer  # or its memory would be kept while the next seeds train
        results = summarize(metrics)
        if self.task_args.seeds and self.seed_runs[0].args.should_save:
            write_metrics(self.output_dir, results._asdict())
        return results

    def report(self, results: SeedResults) -> str:
        """For the terminal: the results of `train` beside the baselines, and where it has written what."""
        baselines = scores_by_baseline(results.mean)
        lines = [f"{'':<26}{'this model':>18}" + "".join(f"{title:>18}" for title in baselines)] if baselines else []
        for name, mean in results.mean.items():
            if name.startswith(("eval_", "test_")) and not name.endswith(TIMINGS):
                value = f"{mean:.4f} ± {results.std[name]:.4f}" if self.task_args.seeds else f"{mean:.4f}"
                metric = name.removeprefix("eval_")
                columns = "".join(f"{scores[metric]:>18.4f}" for scores in baselines.values() if metric in scores)
                lines.append(f"{metric.replace('_', ' '):<26}{value:>18}{columns}")
        for split, report in self.class_reports.items():
            lines += ["", to_text(split, report)]
        place = self.output_dir
        seeds = f"In {place}/seed-*: models, cards and predictions. Mean and deviation: {place}/{METRICS_FILE}"
        lines += ["", wrap(seeds) if self.task_args.seeds else describe_output(self.model_dir)]
        return "\n".join(lines)


def balanced_weights(task: Task) -> torch.Tensor:
    """(L,) Weights in inverse proportion to the frequency of a class, with a mean of 1 over the training examples.
    Raises `ValueError` for a task without classes of which an example has one."""
    counts = task.class_counts()
    if counts is None:
        raise ValueError(f"class_weights are for tasks with one label for each text or word, not for {task.name}.")
    return torch.tensor(counts.sum() / np.maximum(counts, 1) / np.count_nonzero(counts), dtype=torch.float32)
