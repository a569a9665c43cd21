#!/usr/bin/env python
"""Fine-tune a checkpoint on all GLUE tasks that are found, with the same options for all, and print a table of the
scores on the development sets, next to baselines and Google's small BERTs.

    python benchmarks/glue.py MODEL --data GLUE/ --output_dir runs/glue

Each task is trained for 5 epochs with the seeds 1, 2 and 3, and scored after the last step: no checkpoint is selected
by the sets that are reported. --search 20 first searches for each task's best options on a tenth of its training
examples. All options of scripts/finetune.py that concern neither data nor task replace the defaults.
Results are in glue.json and glue.md; metrics and predictions of each run in OUTPUT_DIR/TASK/seed-N. The data of all
tasks are checked before the first training. --resume_from_checkpoint continues where a run was stopped."""

import argparse
import logging
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from transformers import TrainingArguments

from scratch_bert.atomic import write_json
from scratch_bert.checkpoints.saved import find_checkpoint
from scratch_bert.finetuning.arguments import finetuning_arguments
from scratch_bert.finetuning.baselines import scores_by_baseline
from scratch_bert.finetuning.glue import GLUE
from scratch_bert.finetuning.run import FinetuningRun
from scratch_bert.logs import configure_logging
from scratch_bert.text.tables import open_dataset
from scratch_bert.training.arguments import recorded
from scratch_bert.training.seeds import SeedResults
from scratch_bert_cli.command_line import read_options
from scratch_bert_cli.process import script
from scratch_bert_options.declare import with_defaults
from scratch_bert_options.finetuning import FinetuningOptions, TaskOptions


logger = logging.getLogger("scratch_bert")

OPTIONS = (
    with_defaults(TaskOptions, seeds=(1, 2, 3)),
    with_defaults(
        FinetuningOptions, num_train_epochs=5.0, eval_strategy="no", save_strategy="no", load_best_model_at_end=False
    ),
)
TITLES = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "stsb": "STS-B",
    "rte": "RTE",
    "qqp": "QQP",
    "mnli": "MNLI",
    "qnli": "QNLI",
    "wnli": "WNLI",
}

# Metrics whose mean is the task's score in GLUE → their names for readers; accuracy alone for the other tasks. The
# mismatched examples of MNLI are the test split of its run.
F1_ACCURACY = {"f1": "F1", "accuracy": "accuracy"}
SCORES = dict.fromkeys(GLUE, {"accuracy": "accuracy"}) | {
    "cola": {"matthews_correlation": "Matthews correlation"},
    "mrpc": F1_ACCURACY,
    "stsb": {"pearsonr": "Pearson", "spearmanr": "Spearman"},
    "qqp": F1_ACCURACY,
    "mnli": {"accuracy": "matched", "test_accuracy": "mismatched"},
}
SMALL = ["cola", "sst2", "mrpc", "stsb", "rte"]

# Google's models on the test sets, from https://github.com/google-research/bert: the parts of the scores
GOOGLE = {
    "BERT-tiny": {
        "cola": [0.0], "sst2": [83.2], "mrpc": [81.1, 71.1], "stsb": [74.3, 73.6], "rte": [57.2],
        "qqp": [62.2, 83.4], "mnli": [70.2, 70.3], "qnli": [81.5], "wnli": [62.3],
    },
    "BERT-mini": {
        "cola": [0.0], "sst2": [85.9], "mrpc": [81.1, 71.8], "stsb": [75.4, 73.3], "rte": [57.9],
        "qqp": [66.4, 86.2], "mnli": [74.8, 74.3], "qnli": [84.1], "wnli": [62.3],
    },
    "BERT-small": {
        "cola": [27.8], "sst2": [89.7], "mrpc": [83.4, 76.2], "stsb": [78.8, 77.0], "rte": [61.8],
        "qqp": [68.1, 87.0], "mnli": [77.6, 77.0], "qnli": [86.4], "wnli": [62.3],
    },
    "BERT-medium": {
        "cola": [38.0], "sst2": [89.6], "mrpc": [86.6, 81.6], "stsb": [80.4, 78.4], "rte": [62.2],
        "qqp": [69.6, 87.9], "mnli": [80.0, 79.1], "qnli": [87.7], "wnli": [62.3],
    },
}  # fmt: skip

NOTES = """\
- Scores × 100: Matthews correlation for CoLA, the mean of Pearson and Spearman correlation for STS-B, the mean of F1 and accuracy for MRPC and
  QQP, the mean of the accuracy on matched and mismatched examples for MNLI, otherwise accuracy.
- Majority class and bag of words: baselines on the same development sets. The bag of words is a linear model of the words; for STS-B, the
  mean label takes the place of the majority class.
- BERT-tiny to BERT-medium: Google's models on GLUE's *test* sets, with the best of 20 settings for each task (Turc et al., 2019;
  https://github.com/google-research/bert). Other rows are on the development sets."""


@script
def main(argv: list[str] | None = None) -> None:
    options, task_args, training = read_arguments(argv)
    configure_logging()
    splits = find_glue(options.data, options.tasks)
    runs = open_runs(splits, replace(task_args, search=None), training)
    results, searched, first = {}, {}, next(iter(runs.values()))
    setting = task_args, first.options, first.seed_runs[0].args
    del first
    try:
        for task in list(runs):
            logger.info(f"\n{TITLES[task]}")
            run = runs.pop(task)  # nothing of a task is kept while the next ones train
            if task_args.search:
                run, searched[task] = search_first(run, task_args, splits[task])
            results[task] = run.prepare().train()
            if not options.keep_models:
                for pattern in (f"{task}/seed-*/*.safetensors", f"search-{task}/trial-*/*.safetensors"):
                    for weights in Path(training.output_dir).glob(pattern):
                        weights.unlink()
            logger.info(GlueReport({task: results[task]}, *setting).summary(task))
    finally:  # if a task fails, those before it are reported
        if results and setting[-1].should_save:
            report = GlueReport(results, *setting, searched)
            print(f"\n{report.as_markdown()}")
            report.write(Path(training.output_dir))
            print(f"\nglue.json, glue.md and the runs are in {training.output_dir}")


def read_arguments(argv: list[str] | None) -> tuple[argparse.Namespace, TaskOptions, FinetuningOptions]:
    """The options of this program, and those that it shares with scripts/finetune.py."""
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL", help="a directory or a Hub repository, scratch_bert or BERT")
    parser.add_argument("--data", default="hub", help="directory with GLUE's own folders (CoLA, SST-2, …), each with "
                        "train.tsv and dev.tsv, optionally gzipped; hub, the default: nyu-mll/glue")  # fmt: skip
    parser.add_argument("--tasks", nargs="+", choices=GLUE, help="default: all that are found")
    parser.add_argument("--keep_models", action="store_true", help="keep the fine-tuned models, too")
    parser.add_argument("--output_dir", required=True, help="for glue.json, glue.md and the runs")
    options, others = parser.parse_known_args(argv)
    others += ["--model_name_or_path", options.model, "--output_dir", options.output_dir]
    return options, *read_options(*OPTIONS, description=__doc__, argv=others)


# ------------------------------------------------------------------------------------------------------------ the runs


def open_runs(
    splits: dict[str, dict[str, Any]], task_args: TaskOptions, training: FinetuningOptions
) -> dict[str, FinetuningRun]:
    """A run for each task of `find_glue`, in its subdirectory of `training.output_dir`, with its data read and checked.

    Raises `ValueError` or `OSError` for options, data and output directories that can't be used.
    """
    if training.resume_from_checkpoint is None:
        find_checkpoint(finetuning_arguments(training))  # raises if there are other results
    runs = {}
    for task in splits:
        of_task = replace(training, output_dir=f"{training.output_dir}/{task}")
        runs[task] = FinetuningRun(task, task_args, of_task, splits[task])
    return runs


def search_first(
    run: FinetuningRun, task_args: TaskOptions, splits: dict[str, Any]
) -> tuple[FinetuningRun, dict[str, Any]]:
    """The run with the best options of a search in the training examples alone, and these options."""
    from scratch_bert.finetuning.search import FinetuningSearch  # needs optuna

    task, output_dir = run.task.name, Path(run.options.output_dir)
    in_search = replace(run.options, output_dir=str(output_dir.with_name(f"search-{task}")))
    search = FinetuningSearch(task, replace(task_args, seeds=None), in_search, {"train": splits["train"]})
    search.prepare().train()
    found_task_args, found = search.settings(search.best)
    found_task_args = replace(found_task_args, seeds=task_args.seeds, search=None)
    found = replace(found, output_dir=str(output_dir))
    return FinetuningRun(task, found_task_args, found, splits), search.best.params


def find_glue(data: str, tasks: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """The splits of these tasks, or of all that are there, as `load_splits` takes them: the lists of files in the
    folders of a directory, or those of nyu-mll/glue on the Hub if `data` is "hub". For MNLI, `test` has the mismatched
    examples. Raises `ValueError` or `OSError` if a task is missing."""
    if data == "hub":
        return {task: _splits_on_the_hub(task) for task in GLUE if task in (tasks or GLUE)}
    folders = {path.name.lower().replace("-", ""): path for path in sorted(Path(data).iterdir()) if path.is_dir()}
    missing = [TITLES[task] for task in tasks or () if task not in folders]
    if missing or folders.keys().isdisjoint(GLUE):
        raise ValueError(f"{data} has no folder {', '.join(missing or TITLES.values())}.")
    return {task: _files_in(folders[task], task) for task in GLUE if task in (tasks or folders)}


def _splits_on_the_hub(task: str) -> dict[str, Any]:
    splits = open_dataset("nyu-mll/glue", task)
    if task == "mnli":
        names = {"train": "train", "validation": "validation_matched", "test": "validation_mismatched"}
    else:
        names = {"train": "train", "validation": "validation"}  # the labels of test are not public
    return {split: splits[name] for split, name in names.items()}


def _files_in(folder: Path, task: str) -> dict[str, list[Path]]:
    names = {"train": "train.tsv", "validation": "dev_matched.tsv" if task == "mnli" else "dev.tsv"}
    if task == "mnli" and list(folder.glob("dev_mismatched.tsv*")):
        names["test"] = "dev_mismatched.tsv"
    return {
        split: [next(filter(Path.is_file, (folder / name, folder / f"{name}.gz")), folder / name)]
        for split, name in names.items()
    }


# ---------------------------------------------------------------------------------------------------------- the report


@dataclass
class Row:
    """The scores of a model in percent, with one seed or several."""

    title: str
    seeds: list[dict[str, list[float]]]
    """For each seed: task → the parts of its score."""

    def scores(self, *tasks: str) -> list[float]:
        """For each seed, the mean of the scores of these tasks, each of which is the mean of its parts."""
        return [mean(mean(parts[task]) for task in tasks) for parts in self.seeds]

    def parts(self, task: str) -> list[float]:
        """The means over the seeds."""
        return [mean(values) for values in zip(*(parts[task] for parts in self.seeds), strict=True)]


class GlueReport:
    """What is reported of the `results` of runs on tasks of GLUE, all with the same seeds and options."""

    def __init__(
        self,
        results: dict[str, SeedResults],
        task_args: TaskOptions,
        options: FinetuningOptions,
        args: TrainingArguments,
        searched: dict[str, dict[str, Any]] | None = None,
    ):
        self.tasks, self.task_args, self.searched = list(results), task_args, searched or {}
        self.options, self.recorded = options, recorded(options, args)
        name = task_args.model_name_or_path
        name = Path(name).resolve().name if Path(name).exists() else name
        self.model = Row(
            f"{name}, random weights" if task_args.random_init else name,
            [{task: _parts_of(task, results[task].seeds[seed]) for task in results} for seed in task_args.seeds],
        )
        found = {task: scores_by_baseline(results[task].mean) for task in results}
        self.baselines = []
        for kinds in (("majority class", "mean label"), ("bag of words",)):
            parts = {task: _parts_of(task, of[kind]) for task, of in found.items() for kind in kinds if kind in of}
            self.baselines.append(Row(kinds[0], [parts]))

    @property
    def means(self) -> dict[str, list[str]]:
        """The title of each mean, and its tasks."""
        usual = [task for task in self.tasks if task != "wnli"]
        means = {"mean": usual} if len(usual) > 1 else {}
        if set(usual) > set(SMALL):
            means["five tasks"] = SMALL
        if set(usual) >= set(SMALL):
            means["without CoLA"] = SMALL[1:]
        return means

    def as_dict(self) -> dict[str, Any]:
        """The content of glue.json; scores are in percent."""
        names = ("max_seq_length", "random_init", "trust_remote_code", "dropout", "classifier_pooling")
        settings = {name: getattr(self.task_args, name) for name in names}
        settings |= {name: value for name, value in self.recorded.items() if name != "seed"}
        if self.searched:  # which the options of each task replace
            for name in ("global batch size", *chain(*self.searched.values())):
                settings.pop(name, None)
        tasks = {task: self._describe([task]) for task in self.tasks}
        for task, values in tasks.items():
            values["parts"] = dict(zip(SCORES[task], self.model.parts(task), strict=False))
            values |= {"options": self.searched[task]} if task in self.searched else {}
        means = {title: {"tasks": means, **self._describe(means)} for title, means in self.means.items()}
        return {"model": self.model.title, "tasks": tasks, "means": means, "settings": settings}

    def _describe(self, tasks: list[str]) -> dict[str, Any]:
        scores = self.model.scores(*tasks)
        return {
            "mean": mean(scores),
            "std": stdev(scores) if len(scores) > 1 else 0.0,
            "seeds": dict(zip(self.task_args.seeds, scores, strict=True)),
            "baselines": {row.title: row.scores(*tasks)[0] for row in self.baselines},
        }

    def as_markdown(self) -> str:
        """The table of the scores, that of their parts, and what they are."""
        counts = {task: len(self.model.parts(task)) for task in self.tasks}
        google = [  # without the mismatched examples of MNLI, if the other rows are
            Row(name, [{task: parts[: counts.get(task)] for task, parts in scores.items()}])
            for name, scores in GOOGLE.items()
        ]
        rows = [self.model, *self.baselines, *google]
        columns = {TITLES[task]: [task] for task in self.tasks} | self.means
        table = [["", *columns]]
        table += [[row.title, *(_format(row.scores(*tasks)) for tasks in columns.values())] for row in rows]
        divided = [task for task in self.tasks if counts[task] > 1]
        parts = [["", *(f"{TITLES[task]}: {', '.join(SCORES[task].values())}" for task in divided)]]
        for row in rows:
            parts.append([row.title, *(", ".join(f"{part:.1f}" for part in row.parts(task)) for task in divided)])
        return "\n\n".join([format_table(table), *([format_table(parts)] if divided else []), self._notes()])

    def _notes(self) -> str:
        seeds, args = self.task_args.seeds, self.options
        epochs = f"{args.num_train_epochs:g} epoch{'s' * (args.num_train_epochs != 1)}"
        length = f"{args.max_steps:,} steps" if args.max_steps > 0 else epochs
        length = f"{args.max_minutes:g} minutes" if args.max_minutes else length
        chosen = (
            "the best checkpoint by this set, which is optimistic" if args.load_best_model_at_end else "the last step"
        )
        spread = "mean ± standard deviation of the seeds" if len(seeds) > 1 else "seed"
        new = f" ({args.head_learning_rate:g} for new weights)" if args.head_learning_rate is not None else ""
        model = {"classifier_pooling": self.task_args.classifier_pooling, "dropout": self.task_args.dropout}
        model = {name: "of the checkpoint" if value is None else value for name, value in model.items()}
        if self.task_args.search:
            setting = (
                f"Each task with the best of {self.task_args.search} settings on a tenth of its training examples; the "
                "settings are in glue.json."
            )
        else:
            setting = (
                f"All tasks with learning rate {args.learning_rate:g}{new}, batch size "
                f"{self.recorded['global batch size']}, {length}; "
                f"{', '.join(f'{name} {value}' for name, value in model.items())}."
            )
        note = f"- {self.model.title}: development sets, {spread} {', '.join(map(str, seeds))}, {chosen}. {setting}"
        means = {"mean": "all tasks here, without WNLI", "five tasks": _list(SMALL), "without CoLA": _list(SMALL[1:])}
        return "\n".join([note, NOTES, *(f"- {title}: {means[title]}." for title in self.means)])

    def summary(self, task: str) -> str:
        """The task's scores on one line."""
        baselines = ", ".join(f"{row.title} {_format(row.scores(task))}" for row in self.baselines)
        return f"{TITLES[task]}: {_format(self.model.scores(task))} ({baselines})"

    def write(self, directory: Path) -> None:
        write_json(directory / "glue.json", self.as_dict())
        (directory / "glue.md").write_text(f"{self.as_markdown()}\n", encoding="utf-8")


def _parts_of(task: str, metrics: dict[str, float]) -> list[float]:
    """The parts of the task's score in percent; MNLI may have no mismatched examples."""
    values = {name.removeprefix("eval_"): value for name, value in metrics.items()}
    return [100 * values[name] for name in SCORES[task] if name in values or name != "test_accuracy"]


def _list(tasks: list[str]) -> str:
    return ", ".join(TITLES[task] for task in tasks)


def _format(scores: list[float]) -> str:
    # Published scores have one digit, so many of their means end in 5, or in 4999… as floats.
    value = f"{round(mean(scores), 6):.1f}"
    return f"{value} ± {stdev(scores):.1f}" if len(scores) > 1 else value


def format_table(rows: list[list[str]]) -> str:
    """A Markdown table, aligned; the first row is its header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    first, *others = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (first, rule, *others))


if __name__ == "__main__":
    main()
