"""Runs beside each other: their figures over seeds, the options that differ, and their curves."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
from scipy import stats

from ..checkpoints.output_dir import read_metrics
from ..checkpoints.resume import read_record
from ..checkpoints.saved import checkpoints_in
from ..logs import logger
from ..repository import RUN_FILE, read_json
from .console import TIMINGS
from .model_card import new_figure


NOT_COMPARED = (*TIMINGS, "_stderr", "_unigram_loss", "_majority_loss", "_majority_accuracy")  # the same for all runs
LOWER_IS_BETTER = ("loss", "perplexity", "bits_per_character", "mse")
CONFIDENCE = 0.95
TEXTS = ("held-out text", "validation split", "test split")  # in a record: what the figures were measured on


class Run(NamedTuple):
    directory: Path
    seed: int
    options: dict[str, Any]
    """All that is recorded of the run, but for its seed."""
    evaluations: list[dict[str, float]]
    """By step; the last one is that of metrics.json, if the run has ended."""
    ended: bool


class Group(NamedTuple):
    """Runs that differ in their seeds alone."""

    name: str
    runs: list[Run]


def read_run(directory: Path) -> Run:
    """A run, also one that has not ended, from its record, its newest checkpoint and its metrics.json.

    Raises `ValueError` or `OSError` for a directory that is not a run's, or has no evaluation.
    """
    options = read_record(directory)
    if not options:
        raise ValueError(f"{directory / RUN_FILE} can't be read.")
    checkpoints = checkpoints_in(directory)
    log = read_json(checkpoints[-1] / "trainer_state.json")["log_history"] if checkpoints else []
    evaluations = [{**figures, "step": entry["step"]} for entry in log if (figures := _figures(entry))]
    if final := _figures(read_metrics(directory)):
        evaluations.append(final)
    if not evaluations:
        raise ValueError(f"{directory} has no evaluation yet: wait for its first checkpoint.")
    options.pop("threads", None)  # they depend on the machine's load
    return Run(directory, options.pop("seed", 0), options, evaluations, bool(final))


def _figures(entry: dict[str, Any]) -> dict[str, float]:
    """What an entry of the log, or metrics.json, tells of an evaluation."""
    compared = (name for name in entry if name.startswith(("eval_", "test_")) and not name.endswith(NOT_COMPARED))
    return {name: entry[name] for name in compared if isinstance(entry[name], int | float)}


def read_groups(directories: Iterable[str | Path]) -> list[Group]:
    """The runs in the directories, or in their subdirectories `seed-N`, grouped by their options."""
    runs: list[Run] = []
    for directory in map(Path, directories):
        seeds = [file for file in directory.glob(f"seed-*/{RUN_FILE}") if file.parent.name[5:].isdecimal()]
        seeds.sort(key=lambda file: int(file.parent.name[5:]))
        if not seeds and not (directory / RUN_FILE).is_file():
            raise FileNotFoundError(f"{directory} is not a run: it has no {RUN_FILE}.")
        runs += map(read_run, [file.parent for file in seeds] or [directory])
    groups: list[Group] = []
    for run in runs:
        same = next((group for group in groups if group.runs[0].options == run.options), None)
        if same and run.seed in [other.seed for other in same.runs]:
            raise ValueError(f"{same.runs[0].directory} and {run.directory} have the same options and seed.")
        if same:
            same.runs.append(run)
        else:
            groups.append(Group("", [run]))
    return [group._replace(name=_common_name(group.runs)) for group in groups]


def _common_name(runs: Sequence[Run]) -> str:
    """`rope` for runs in rope-1 and rope-2, or in rope/seed-1 and rope/seed-2."""
    places = [run.directory.parent if run.directory.name.startswith("seed-") else run.directory for run in runs]
    return os.path.commonprefix([place.name for place in places]).rstrip("-_.") or places[0].name


def differing_options(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """The options in which the groups differ: name → the value in each group."""
    options = [group.runs[0].options for group in groups]
    names = list(dict.fromkeys(name for one in options for name in one))
    values = {name: [one.get(name) for one in options] for name in names}
    return {name: given for name, given in values.items() if any(value != given[0] for value in given)}


def compare_runs(groups: Sequence[Group]) -> pandas.DataFrame:
    """A row for each figure of each group.

    Columns: `figure`; `group`; `runs`, their number; `final` and `final_std`, mean and sample standard deviation over
    the seeds; `best` and `best_std` of each run's best evaluation; and for all groups but the first, the mean
    `difference` of the final figure from that of the first group with its 95% interval `low` to `high`: paired, over
    the seeds that both have, by Student's t.
    """
    rows, finals = [], [run.evaluations[-1] for group in groups for run in group.runs]
    for name in [name for name in finals[0] if name != "step" and all(name in final for final in finals)]:
        best = min if name.endswith(LOWER_IS_BETTER) else max
        for group in groups:
            seeds = {run.seed: [entry[name] for entry in run.evaluations if name in entry] for run in group.runs}
            values = pandas.DataFrame({"final": {seed: found[-1] for seed, found in seeds.items()}})
            values["best"] = pandas.Series({seed: best(found) for seed, found in seeds.items()})
            row = {"figure": name.removeprefix("eval_"), "group": group.name, "runs": len(values)}
            row |= {**values.mean(), **values.std().add_suffix("_std")}
            if group is groups[0]:
                first = values["final"]
            else:
                row |= _difference(first, values["final"])
            rows.append(row)
    return pandas.DataFrame(rows)


def _difference(first: pandas.Series, other: pandas.Series) -> dict[str, float]:
    """The mean difference of figures by seed, and its interval; without a seed in common, that of the means."""
    differences = (other - first).dropna()
    if differences.empty:
        return {"difference": other.mean() - first.mean()}
    found = {"difference": differences.mean()}
    if np.ptp(differences):
        interval = stats.ttest_1samp(differences, 0).confidence_interval(CONFIDENCE)
        found |= {"low": float(interval.low), "high": float(interval.high)}
    return found


def describe_comparison(groups: Sequence[Group], table: pandas.DataFrame) -> str:
    """For the terminal: the table, the differences, and the options that differ."""
    width = max(14, *(len(group.name) + 2 for group in groups))
    lines = [f"{'':<26}" + "".join(f"{group.name:>{width + 12}}" for group in groups)]
    lines.append(f"{'runs':<26}" + "".join(f"{len(group.runs):>{width + 12}}" for group in groups))
    for figure, rows in table.groupby("figure", sort=False):
        for kind in ("final", "best"):
            if kind == "best" and np.allclose(rows["best"], rows["final"]):
                continue
            label = f"{str(figure).replace('_', ' ')}{', best' if kind == 'best' else ''}"
            cells = (_cell(row[kind], row[f"{kind}_std"]) for _, row in rows.iterrows())
            lines.append(f"{label:<26}" + "".join(f"{cell:>{width + 12}}" for cell in cells))
    if "difference" in table:
        lines += ["", f"Differences from {groups[0].name}, paired by seed, with 95% intervals:"]
        for _, row in table[table["difference"].notna()].iterrows():
            interval = f" [{row['low']:+.4f}, {row['high']:+.4f}]" if pandas.notna(row.get("low")) else ""
            lines.append(f"  {row['figure'].replace('_', ' ')}: {row['group']} {row['difference']:+.4f}{interval}")
    options = differing_options(groups)
    lines += ["", "Options that differ:"] if options else []
    lines += [f"  {name}: {', '.join(str(value) for value in values)}" for name, values in options.items()]
    running = [str(run.directory) for group in groups for run in group.runs if not run.ended]
    lines += ["", f"Not finished yet, shown as of the last evaluation: {', '.join(running)}"] if running else []
    for name in TEXTS:
        if len(set(options.get(name, ())) - {None}) > 1:  # without a test split, there are no figures of one
            figures = "test figures" if name == "test split" else "figures"
            logger.warning(f"The runs were evaluated on different text ({name}): their {figures} can't be compared")
    return "\n".join(lines)


def _cell(value: float, std: float) -> str:
    return f"{value:.4f}" + (f" ± {std:.4f}" if np.isfinite(std) else "")


def draw_curves(groups: Sequence[Group], file: Path) -> bool:
    """Draw the evaluation loss of each run over its steps. False without matplotlib."""
    figure = new_figure(7, 4)
    if figure is None:
        return False
    axes = figure.subplots()
    figures = {*groups[0].runs[0].evaluations[-1]}
    loss = "eval_mlm_loss" if "eval_mlm_loss" in figures else "eval_loss"
    for number, group in enumerate(groups):
        for index, run in enumerate(group.runs):
            points = [(entry["step"], entry[loss]) for entry in run.evaluations if {"step", loss} <= entry.keys()]
            label = None if index else group.name
            axes.plot(*zip(*points, strict=True) if points else ([], []), color=f"C{number}", label=label, alpha=0.8)
    axes.set(xlabel="step", ylabel=f"{loss.removeprefix('eval_').replace('_', ' ')} (nats)")
    axes.legend()
    figure.savefig(file, dpi=150)
    return True
