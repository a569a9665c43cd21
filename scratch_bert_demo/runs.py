"""Training runs: their snapshots, curves and examples, and the description of a model."""

import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel
from tqdm import tqdm
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import CONFIG_NAME

from scratch_bert.checkpoints.saved import EXAMPLES, METRICS_FILE, RUN_FILE, SNAPSHOTS, checkpoints_in, snapshots_in
from scratch_bert.repository import check_name, read_json
from scratch_bert_options.masking import describe_masking
from scratch_bert_options.schema import check

from .model import MASK, Model


KEPT_MODELS = 4  # open snapshots of a run
MAX_RESULTS = 4  # in the description of a model

STEPS, EXAMPLES_SEEN, TOKENS_SEEN, SECONDS = "steps", "examples", "tokens", "seconds"  # how far a training has come
# In its log, about the steps since the entry before:
EXAMPLES_PER_STEP, TOKENS_PER_STEP = "speed/examples_per_step", "speed/tokens_per_step"
TOKENS_PER_SECOND = "speed/tokens_per_second"

MLM_LOSS = "MLM loss"  # title of its curves
Curves = dict[str, dict[str, list[tuple[int, float]]]]


class Moment(NamedTuple):
    """When a training has come as far as the `amount` of the `measure`: `STEPS`, `EXAMPLES_SEEN`, `TOKENS_SEEN` or
    `SECONDS`."""

    amount: float
    measure: str = STEPS


class Run:
    """The snapshots of a training run, or its checkpoints if there are none, opened on demand, and the run's curves.

    `saved` are the models' directories by step, `curves` those of `read_curves`, `masked` that of `read_mask_rates`,
    and `examples` and `pairs` those of `read_examples`. Raises `OSError` or `ValueError` if the last model has no
    trainer_state.json.
    """

    def __init__(self, directory: str, trust_remote_code: bool = False):
        self.name = self.title = directory
        self.saved: list[Path] = []
        self.curves: Curves = {}
        self.masked = read_mask_rates(Path(directory))
        self._read: tuple[list[Path], Path, int] | None = None
        self.refresh()
        self._lock = Lock()  # from_pretrained fails in several threads at a time
        # The time tells a model from one of an earlier run in the same place.
        self._open = lru_cache(KEPT_MODELS)(lambda place, time: Model(place, trust_remote_code))

    def amounts(self, measure: str = STEPS) -> list[float]:
        """How far the training had come at each of the `saved` models; zeros if the log does not say."""
        return self._amounts[measure]

    def refresh(self) -> None:
        """Look for models that the run has saved or deleted meanwhile."""
        directory = Path(self.name)
        if saved := saved_models(directory):
            # At the same step, a checkpoint's log has more entries than a snapshot's.
            log = max([saved[-1], *checkpoints_in(directory)], key=lambda place: (step_of(place), "-" in place.name))
            state = saved, log, _changed_at(log / TRAINER_STATE_NAME)
            if state != self._read:  # each request looks, and a log may be large
                entries, (examples, pairs) = read_log(log), read_examples(directory)
                amounts = amounts_at([step_of(place) for place in saved], entries)
                # Together, as other threads look up models meanwhile.
                self.saved, self._amounts, self.curves = saved, amounts, read_curves(entries)
                self.examples, self.pairs, self._read = examples, pairs, state

    def place_at(self, moment: Moment) -> Path:
        """The directory of the last model that was saved up to this moment, or the first."""
        places = zip(reversed(self.saved), reversed(self.amounts(moment.measure)), strict=True)
        return next((place for place, amount in places if amount <= moment.amount), self.saved[0])

    def at(self, moment: Moment) -> Model:
        """The model at this moment, which is the final one from the last snapshot on, if the run has ended."""
        place = self.place_at(moment)
        return (place == self.saved[-1] and self.final()) or self.open(place)

    def open(self, place: Path) -> Model:
        """The model of one of the `saved` directories."""
        return self._open_as(f"{self.title}, step {step_of(place):,}", place)

    def final(self) -> Model | None:
        """The final model, if the run has ended."""
        final, latest = (Path(place, CONFIG_NAME) for place in (self.name, self.saved[-1]))
        with suppress(FileNotFoundError):  # there is no final one, or the latest is being deleted
            if _changed_at(final) >= _changed_at(latest):  # or else the run has been continued
                return self._open_as(self.title, final.parent)
        return None

    def latest(self) -> Model:
        """The final model if the run has ended, or else that of the latest step."""
        with suppress(OSError, ValueError):  # a file of the latest is being deleted
            self.refresh()
        return self.final() or self.open(self.saved[-1])

    def _open_as(self, title: str, place: Path) -> Model:
        try:
            with self._lock:
                model = self._open(str(place), _changed_at(place / CONFIG_NAME))
        except FileNotFoundError:
            raise ValueError(f"The model of {title} has been deleted: choose another step.") from None
        model.title = title
        return model


class RunModel:
    """The model of a run, in place of a `Model`: `at` a moment, and otherwise the latest."""

    def __init__(self, run: Run):
        self.name, self.run, self.at = run.name, run, run.at

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run.latest(), name)


def open_models(names: list[str], trust_remote_code: bool = False) -> tuple[list[Model], list[Run]]:
    """The models of these directories and Hub repositories, and the runs among them: directories with several snapshots
    or checkpoints of an MLM training. Until a run has ended, its model is the latest."""
    models, runs = [], []
    names = list(dict.fromkeys(names))
    titles = tqdm(short_names(names), "Opening", unit=" models", disable=None)
    for name, title in zip(names, titles, strict=True):
        check_name(name)
        saved = saved_models(Path(name))
        ended = not saved or Path(name, CONFIG_NAME).exists()
        model = Model(name if ended else str(saved[-1]), trust_remote_code)
        several = len(saved) > 1 or snapshots_in(Path(name))  # a training begins with one snapshot
        trained_here = several and (saved[-1] / TRAINER_STATE_NAME).is_file()  # not a copy from the Hub
        if trained_here and "MaskedLM" in model.heads:
            runs.append(Run(name, trust_remote_code))
            runs[-1].title = title
            model = RunModel(runs[-1])
        else:
            model.title = title
        models.append(model)
    return models, runs


def step_of(place: Path) -> int:
    """The step in the name of a snapshot or a checkpoint."""
    return int(place.name.rpartition("-")[2])


def saved_models(directory: Path) -> list[Path]:
    """The snapshots of a run by step, or if there are none, its checkpoints."""
    return snapshots_in(directory) or checkpoints_in(directory)


def short_names(names: list[str]) -> list[str]:
    """The last part of each path or repository, and as many before it as it takes to tell them apart."""
    parts = [name.replace("\\", "/").rstrip("/").split("/") for name in names]
    for length in range(1, max(map(len, parts), default=1)):
        short = ["/".join(part[-length:]) for part in parts]
        if len(set(short)) == len(short):
            return short
    return names


class Examples(BaseModel):
    """The file that a run writes beside its snapshots."""

    texts: list[str]
    answers: list[str]
    pairs: list[tuple[str, str, bool]]


def read_examples(directory: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str, bool]]]:
    """Texts of a run's evaluation with a masked word, and the word; and pairs (A, B, whether B follows A)."""
    try:
        found = check(Examples, read_json(directory / SNAPSHOTS / EXAMPLES))
    except (OSError, ValueError):
        return [], []
    examples = zip(found.texts, found.answers, strict=False)
    return [(text, word) for text, word in examples if MASK in text], found.pairs


def read_log(checkpoint: Path) -> list[dict[str, Any]]:
    """The log in a checkpoint's trainer_state.json."""
    file = checkpoint / TRAINER_STATE_NAME
    return check(list[dict[str, Any]], read_json(file).get("log_history"), f"{file}: log_history")


def read_mask_rates(directory: Path) -> str:
    """`describe_masking` of a pretraining run; empty for others."""
    options = _read(directory / RUN_FILE).get("options")
    options = options if isinstance(options, dict) else {}
    shares = options.get("mlm_probability"), options.get("final_mlm_probability")
    return describe_masking(*shares).capitalize() if isinstance(shares[0], float) else ""


def read_curves(log: list[dict[str, Any]]) -> Curves:
    """The losses in a log: {panel: {"training", "validation" or "baseline": [(step, value), …]}}, MLM's
    first, then those of the sentence objective, by their names in the log."""
    names = dict.fromkeys(name for entry in log for name in entry)
    panels = {MLM_LOSS: (("mlm_loss", "loss"), ("eval_mlm_loss", "eval_loss"), ("eval_mlm_unigram_loss",))}
    for name in names:
        if re.fullmatch(r"(?!eval_|train_|mlm_).+_loss", name):
            objective = name.removesuffix("_loss")
            baseline = f"eval_{objective}_majority_loss"
            panels[f"{objective.upper()} loss"] = ((name,), (f"eval_{name}",), (baseline,))
    curves: Curves = {}
    for title, lines in panels.items():
        for line, candidates in zip(("training", "validation", "baseline"), lines, strict=True):
            if found := next((name for name in candidates if name in names), None):
                points = [(entry["step"], entry[found]) for entry in log if found in entry]
                curves.setdefault(title, {})[line] = points
    return curves


def amounts_at(steps: list[int], log: list[dict[str, Any]]) -> dict[str, list[float]]:
    """How far a training had come after each of the `steps`, ascending, by its measures. Time is without evaluations;
    between the entries of the log, and beyond the last, steps are taken to be alike. Zeros if the log does not say."""
    entries = [entry for entry in log if {EXAMPLES_PER_STEP, TOKENS_PER_STEP, TOKENS_PER_SECOND} <= entry.keys()]
    amounts = {STEPS: steps} | {measure: [0.0] * len(steps) for measure in (EXAMPLES_SEEN, TOKENS_SEEN, SECONDS)}
    if entries:
        ends = [0, *(entry["step"] for entry in entries)]
        ends[-1] = max(ends[-1], steps[-1])
        examples, tokens, speeds = (
            np.array([entry[name] for entry in entries])
            for name in (EXAMPLES_PER_STEP, TOKENS_PER_STEP, TOKENS_PER_SECOND)
        )
        for measure, per_step in ((EXAMPLES_SEEN, examples), (TOKENS_SEEN, tokens), (SECONDS, tokens / speeds)):
            reached = np.cumsum([0, *(np.diff(ends) * per_step)])
            amounts[measure] = np.interp(steps, ends, reached).round(3).tolist()  # equal in runs that are alike
    return amounts


def describe_model(model: Model) -> str:
    """A model's size, and its training according to its directory: text, duration and results."""
    config, directory = model.config, Path(model.name)
    layers = config.num_hidden_layers
    parts = [
        f"{layers} layer{'s' * (layers > 1)} × {config.hidden_size}",
        f"{model.model.num_parameters() / 1e6:.1f} M parameters",
        f"vocabulary of {config.vocab_size:,}",
    ]
    text = _read(directory / RUN_FILE).get("fixed", {}).get("training text")
    if text:
        parts.append(re.sub(r", CRC-32 .*", "", text))
    metrics = _read(directory / METRICS_FILE)
    seconds = metrics.get("train_runtime")
    if seconds:
        parts.append(f"trained for {seconds / 60:.0f} min" if seconds >= 60 else f"trained for {seconds:.0f} s")
    elif saved := saved_models(directory):
        state = _read(saved[-1] / TRAINER_STATE_NAME)
        if state.get("max_steps"):
            parts.append(f"step {state['global_step']:,} of {state['max_steps']:,}")
        metrics = {name: value for entry in state.get("log_history", []) for name, value in entry.items()}
    return " · ".join(parts + _results(metrics)[:MAX_RESULTS])


def _results(metrics: dict[str, Any]) -> list[str]:
    """Losses and scores of an evaluation, beside their baselines."""
    baselines = {"mlm_loss": "mlm_unigram_loss", "nsp_accuracy": "nsp_majority_accuracy"}
    shown = [name for name in baselines if f"eval_{name}" in metrics]
    if not shown:  # of a fine-tuned model
        other = r"eval_(?!.*(loss|runtime|per_second|baseline|majority)).+"
        shown = [name.removeprefix("eval_") for name in metrics if re.fullmatch(other, name)]
    found = []
    for name in shown:
        value, baseline = (metrics.get(f"eval_{key}") for key in (name, baselines.get(name)))
        if isinstance(value, float):
            label = name.replace("_", " ").replace("mlm", "MLM").replace("nsp", "NSP")
            found.append(f"{label} {value:.2f}" + (f" (baseline {baseline:.2f})" if baseline is not None else ""))
    return found


def _changed_at(file: Path) -> int:
    return file.stat().st_mtime_ns


def _read(file: Path) -> dict[str, Any]:
    """A JSON file of a run, if there is one."""
    try:
        return read_json(file)
    except (OSError, ValueError):
        return {}
