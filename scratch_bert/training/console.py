"""Console output of a training: an aligned line for each entry of the log and, on a terminal, a progress line."""

import json
import math
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback
from transformers.trainer_utils import has_length
from transformers.utils import CONFIG_NAME, logging

from ..checkpoints.saved import METRICS_FILE, checkpoints_in, snapshots_in


TIMINGS = ("_runtime", "_per_second", "_time")  # suffixes of the timings that Trainer adds to the metrics
# Parts of the names of entries that are not shown: redundant ones, standard errors, and baselines, which are fixed.
NOT_SHOWN = (*TIMINGS, "epoch", "step", "total_flos", "learning_rate", "speed/")
NOT_SHOWN += ("unigram", "majority", "perplexity", "bits_per_character", "stderr", "roc_auc", "balanced_accuracy")


def show_on_console(trainer: Trainer, as_json: bool = False) -> None:
    """Replace the stock callbacks that print the log, except in notebooks. `as_json`: a JSON object for each entry."""
    lines_only = trainer.pop_callback(PrinterCallback)
    if as_json:
        trainer.pop_callback(ProgressCallback)
        trainer.add_callback(JsonLines)
    elif lines_only or (not sys.stderr.isatty() and trainer.pop_callback(ProgressCallback)):
        trainer.add_callback(PlainLines)
    elif trainer.pop_callback(ProgressCallback):
        trainer.add_callback(ProgressLine)


def describe_entry(logs: dict[str, float], step: int, max_steps: int) -> str:
    """Format an entry of the log as a line: its kind, the step, and the values that change, in columns."""
    kind = "eval" if any(name.startswith("eval_") for name in logs) else "train"
    place = f"{step:,}/{max_steps:,}"
    values = {
        name.removeprefix("eval_"): value
        for name, value in logs.items()
        if isinstance(value, float) and not any(part in name for part in NOT_SHOWN)
    }
    shown = sorted(values.items(), key=lambda item: item[0] == "grad_norm")  # last, after what the model learns
    columns = "".join(f"  {name} {value:<7.4g}" for name, value in shown)
    return f"{kind:<5} {place:>{2 * len(f'{max_steps:,}') + 1}}{columns}"


def wrap(text: str) -> str:
    """Text in lines of 80 characters at most. Longer words, such as paths, are not split."""
    return textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False)


def describe_output(output_dir: str | Path) -> str:
    """What a finished run has left in its directory."""
    directory = Path(output_dir)
    parts = ["the model with its tokenizer"] * (directory / CONFIG_NAME).exists()
    parts += ["its card (README.md)"] * (directory / "README.md").exists()
    for kind, saved in (("snapshot", snapshots_in(directory)), ("checkpoint", checkpoints_in(directory))):
        parts += [f"{len(saved)} {kind}{'s' * (len(saved) > 1)}"] if saved else []
    parts += [*sorted(file.name for file in directory.glob("*predictions.json*")), METRICS_FILE]
    return wrap(f"In {output_dir}: {', '.join(parts)}.")


def describe_speed(logs: dict[str, float]) -> str:
    return f"{logs['speed/tokens_per_second']:,.0f} tokens/s" if "speed/tokens_per_second" in logs else ""


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Within `with`, transformers shows no progress bars, such as those of saves: they would break a training's."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


class PlainLines(TrainerCallback):
    """Prints a line for each entry of the log, without control characters, for files and pipes."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.start, self.first_step = time.monotonic(), state.global_step

    def on_log(self, args, state, control, logs=None, **kwargs):
        # The last entry is a summary; the results of an evaluation without a training are shown by its caller.
        if not state.is_world_process_zero or "train_loss" in logs or not state.max_steps:
            return
        line = describe_entry(logs, state.global_step, state.max_steps)
        speed = describe_speed(logs)
        if speed:
            steps = max(state.global_step - self.first_step, 1)
            left = (time.monotonic() - self.start) / steps * (state.max_steps - state.global_step)
            line += f"  {speed}, epoch {state.epoch:.2f}, {tqdm.format_interval(left)} left"
        print(line.rstrip(), flush=True)


class ProgressLine(ProgressCallback):
    """Shows a progress bar of the training, with the latest losses and the speed, and aligned lines above it; and one
    of each evaluation. A bar disappears at its end."""

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            layout = "{percentage:3.0f}% |{bar:10}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
            self.training_bar = tqdm(
                total=state.max_steps, dynamic_ncols=True, bar_format=layout, leave=False, delay=0
            )
        self.current_step = 0

    def on_step_end(self, args, state, control, **kwargs):
        if self.training_bar is not None:
            self.training_bar.total = state.max_steps  # with max_minutes, an estimate
        super().on_step_end(args, state, control, **kwargs)

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        if state.is_world_process_zero and self.prediction_bar is None and has_length(eval_dataloader):
            self.prediction_bar = tqdm(
                total=len(eval_dataloader), desc="Evaluation", dynamic_ncols=True, leave=False, delay=0
            )
        super().on_prediction_step(args, state, control, eval_dataloader=eval_dataloader, **kwargs)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self.training_bar is None or "train_loss" in logs:
            return
        if "loss" in logs:
            shown = ", ".join(f"{name} {logs[name]:.3g}" for name in ("loss", "mlm_accuracy") if name in logs)
            self.training_bar.set_postfix_str(", ".join(filter(None, [shown, describe_speed(logs)])))
        self.training_bar.write(describe_entry(logs, state.global_step, state.max_steps).rstrip())


class JsonLines(TrainerCallback):
    """Prints a JSON object for each entry of the log on stdout."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero:
            infinite = {
                name: None for name, value in logs.items() if isinstance(value, float) and not math.isfinite(value)
            }
            print(json.dumps({**logs, **infinite, "step": state.global_step}), flush=True)  # JSON has no NaN
