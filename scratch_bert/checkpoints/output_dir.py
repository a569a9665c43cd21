"""The output directory of a run: one run at a time writes there, and metrics.json marks it as finished."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import TrainingArguments

from scratch_bert_options.schema import check

from ..atomic import STAGING, locked, write_json
from ..repository import RUN_FILE, read_json
from .saved import METRICS_FILE, explain_write_errors


def read_metrics(directory: str | Path) -> dict[str, float]:
    """Return the metrics of a finished run; empty if there are none, or they can't be read."""
    try:
        return check(dict[str, float | int], read_json(Path(directory, METRICS_FILE)))
    except (FileNotFoundError, ValueError):
        return {}


def write_metrics(directory: str | Path, metrics: dict) -> None:
    """Write the metrics of a finished run, or of several, to `directory`/metrics.json."""
    with explain_write_errors(METRICS_FILE, Path(directory)):
        write_json(Path(directory, METRICS_FILE), metrics)


@contextmanager
def output_dir_lock(args: TrainingArguments, record: dict, checkpoint: str | None) -> Iterator[None]:
    """Hold the lock of the output directory while a run writes there. Cleans up after a run that died, and writes the
    `record` for `check_same_run`.

    Raises `BlockingIOError` if another run holds the lock, and `OSError` if the checkpoint to resume no longer exists.
    """
    if not args.should_save:
        yield
        return
    output_dir = Path(args.output_dir)
    with locked(output_dir):
        if checkpoint and not Path(checkpoint).is_dir():
            raise OSError(f"{checkpoint} no longer exists: another process resumed this run. Run the command again.")
        shutil.rmtree(output_dir / STAGING, ignore_errors=True)
        with explain_write_errors(RUN_FILE, output_dir):
            write_json(output_dir / RUN_FILE, record)
        yield
