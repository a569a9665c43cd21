"""Runs of several seeds: their directories, and the statistics of their results."""

import statistics
from pathlib import Path
from typing import NamedTuple

from transformers import TrainingArguments

from ..checkpoints.output_dir import read_metrics
from ..checkpoints.resume import check_same_run, read_record
from ..checkpoints.saved import METRICS_FILE, checkpoints_in, find_checkpoint, resumes_newest
from ..checkpoints.weights import WEIGHTS


# Options that may differ between the runs of several seeds: they do not change the results.
WITHOUT_EFFECT = {"save_total_limit", "per_device_eval_batch_size", "eval_accumulation_steps", "skip_memory_metrics"}
WITHOUT_EFFECT |= {"dataloader_num_workers", "dataloader_prefetch_factor", "versions"}
WITHOUT_EFFECT |= {"test split"}  # finished seeds predict another one


class SeedResults(NamedTuple):
    seeds: dict[int, dict[str, float]]
    """Metrics by seed: `eval_…` on the validation split, `test_…` on the test split, `train_…` of the training."""
    mean: dict[str, float]
    std: dict[str, float]
    """Sample standard deviation over the seeds; 0 if there is only one."""


def summarize(metrics: dict[int, dict[str, float]]) -> SeedResults:
    """Mean and standard deviation, over the seeds, of the metrics that all of them have."""
    first, *others = metrics.values()
    shared = [name for name in first if all(name in other for other in others)]  # a resumed run may have no test split
    values = {name: [of_seed[name] for of_seed in metrics.values()] for name in shared}
    std = {name: statistics.stdev(values[name]) if others else 0.0 for name in shared}
    return SeedResults(metrics, {name: statistics.mean(values[name]) for name in shared}, std)


def check_parent(args: TrainingArguments, one: str = "seed") -> None:
    """Raise `ValueError` if the directory of several runs, each with its own checkpoints, holds other files and is not
    resumed from, or if a checkpoint is named."""
    if args.resume_from_checkpoint is None:
        find_checkpoint(args)  # for its checks
    elif Path(args.output_dir, WEIGHTS).is_file() or checkpoints_in(Path(args.output_dir)):
        raise ValueError(f"{args.output_dir} holds a single run, not one for each {one}: pass another output_dir.")
    elif not resumes_newest(args):
        raise ValueError(f"With {one}s, pass --resume_from_checkpoint without a value: each has its own checkpoint.")


def check_finished(record: dict[str, dict], directory: str | Path) -> None:
    """Raise `ValueError` if the finished run of a seed had other data or options than a run with this record."""
    fixed = {name: value for name, value in record["fixed"].items() if name != "seed"}
    also_fixed = record["options"].keys() - WITHOUT_EFFECT
    check_same_run({"fixed": fixed, "options": record["options"]}, str(directory), also_fixed)


def finished_metrics(directory: Path, seed: int, resumes: bool) -> dict[str, float] | None:
    """The metrics of a seed that needs no training, on resume. Raises `ValueError` if they can't be read, or are those
    of another seed."""
    if not resumes or not (directory / METRICS_FILE).is_file():
        return None
    if (found := read_record(directory).get("seed", seed)) != seed:
        raise ValueError(f"{directory} holds the run of another seed, {found}: move it away.")
    metrics = read_metrics(directory)
    if not metrics:
        raise ValueError(f"{directory / METRICS_FILE} cannot be read: delete it to finish this run again.")
    return metrics
