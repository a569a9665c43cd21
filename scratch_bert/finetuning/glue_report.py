"""The scores of a model on the tasks of GLUE, in a table beside baselines and Google's small BERTs."""

from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scratch_bert_cli.glue import GlueArguments
from scratch_bert_options.finetuning import TaskArguments

from ..atomic import write_json, write_text
from ..checkpoints.saved import explain_write_errors
from .arguments import GlueTrainingArguments
from .baselines import scores_by_baseline
from .glue import GLUE
from .run import Results


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
  https://github.com/google-research/bert). Other rows are on the development sets, with one setting for all tasks."""


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

    def __init__(self, results: dict[str, Results], glue_args: GlueArguments, args: GlueTrainingArguments):
        self.tasks, self.glue_args, self.args = list(results), glue_args, args
        name = glue_args.model_name_or_path
        name = Path(name).resolve().name if Path(name).exists() else name
        self.model = Row(
            f"{name}, random weights" if glue_args.random_init else name,
            [{task: _parts_of(task, results[task].seeds[seed]) for task in results} for seed in glue_args.seeds],
        )
        found = {task: scores_by_baseline(results[task].mean) for task in results}
        self.baselines = [
            Row(kinds[0], [{task: _parts_of(task, found[task][kind]) for task in found for kind in kinds if kind in found[task]}])
            for kinds in (("majority class", "mean label"), ("bag of words",))
        ]  # fmt: skip

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
        options = {option.name for option in fields(TaskArguments)} - {"model_name_or_path", "seeds"}
        settings = {name: value for name, value in vars(self.glue_args).items() if name in options}
        settings |= {name: value for name, value in self.args.recorded().items() if name != "seed"}
        tasks = {task: self._describe([task]) for task in self.tasks}
        for task, values in tasks.items():
            values["parts"] = dict(zip(GLUE[task].score, self.model.parts(task), strict=False))
        means = {title: {"tasks": means, **self._describe(means)} for title, means in self.means.items()}
        return {"model": self.model.title, "tasks": tasks, "means": means, "settings": settings}

    def _describe(self, tasks: list[str]) -> dict[str, Any]:
        scores = self.model.scores(*tasks)
        return {
            "mean": mean(scores),
            "std": stdev(scores) if len(scores) > 1 else 0.0,
            "seeds": dict(zip(self.glue_args.seeds, scores, strict=True)),
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
        columns = {GLUE[task].title: [task] for task in self.tasks} | self.means
        table = [["", *columns]]
        table += [[row.title, *(_format(row.scores(*tasks)) for tasks in columns.values())] for row in rows]
        divided = [task for task in self.tasks if counts[task] > 1]
        parts = [["", *(f"{GLUE[task].title}: {', '.join(GLUE[task].score.values())}" for task in divided)]]
        parts += [[row.title, *(", ".join(f"{part:.1f}" for part in row.parts(task)) for task in divided)] for row in rows]  # fmt: skip
        return "\n\n".join([format_table(table), *([format_table(parts)] if divided else []), self._notes()])

    def _notes(self) -> str:
        seeds, args = self.glue_args.seeds, self.args
        epochs = f"{args.num_train_epochs:g} epoch{'s' * (args.num_train_epochs != 1)}"
        length = f"{args.max_steps:,} steps" if args.max_steps > 0 else epochs
        length = f"{args.max_minutes:g} minutes" if args.max_minutes else length
        chosen = (
            "the best checkpoint by this set, which is optimistic" if args.load_best_model_at_end else "the last step"
        )
        spread = "mean ± standard deviation of the seeds" if len(seeds) > 1 else "seed"
        new = f" ({args.head_learning_rate:g} for new weights)" if args.head_learning_rate is not None else ""
        note = (
            f"- {self.model.title}: development sets, {spread} {', '.join(map(str, seeds))}, {chosen}. All tasks with learning rate "
            f"{args.learning_rate:g}{new}, batch size {args.recorded()['global batch size']}, {length}; {self._architecture()}."
        )
        means = {"mean": "all tasks here, without WNLI", "five tasks": _list(SMALL), "without CoLA": _list(SMALL[1:])}
        return "\n".join([note, NOTES, *(f"- {title}: {means[title]}." for title in self.means)])

    def _architecture(self) -> str:
        options = {"classifier_pooling": self.glue_args.classifier_pooling, "dropout": self.glue_args.dropout}
        return ", ".join(
            f"{name} {'of the checkpoint' if value is None else value}" for name, value in options.items()
        )

    def summary(self, task: str) -> str:
        """The task's scores on one line."""
        baselines = ", ".join(f"{row.title} {_format(row.scores(task))}" for row in self.baselines)
        return f"{GLUE[task].title}: {_format(self.model.scores(task))} ({baselines})"

    def write(self) -> None:
        """Write glue.json and glue.md to the output directory. Raises `OSError` if they can't be written."""
        directory = Path(self.args.output_dir)
        with explain_write_errors("glue.json", directory):
            write_json(directory / "glue.json", self.as_dict())
            write_text(directory / "glue.md", f"{self.as_markdown()}\n")


def _parts_of(task: str, metrics: dict[str, float]) -> list[float]:
    """The parts of the task's score in percent; MNLI may have no mismatched examples."""
    values = {name.removeprefix("eval_"): value for name, value in metrics.items()}
    return [100 * values[name] for name in GLUE[task].score if name in values or name != "test_accuracy"]


def _list(tasks: list[str]) -> str:
    return ", ".join(GLUE[task].title for task in tasks)


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
