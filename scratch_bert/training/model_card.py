"""The common part of both kinds of model cards: a run's arguments, state, hardware and curves."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..hub.model_card import path_in_card
from .arguments import precision
from .trainer import ScratchBertTrainer


def training_context(trainer: ScratchBertTrainer, directory: Path, losses: dict[str, list[str]]) -> dict[str, Any]:
    """Return the template's variables for a run. Writes `directory`/curves.png if matplotlib is installed: a panel for
    each title in `losses`, with the log entries of these names, and one for the learning rate."""
    args, history = trainer.args, trainer.state.log_history
    panels = {**losses, "learning rate": ["learning_rate"]}
    place = Path(args.output_dir)
    if directory.name.startswith(PREFIX_CHECKPOINT_DIR):
        place /= directory.name
    return {
        "path": trainer.hub_model_id or path_in_card(place),
        "args": args,
        "options": trainer.options,
        "state": trainer.state,
        "minutes_used": trainer.minutes_used,
        "metrics": trainer.latest_metrics(),
        "parameters": trainer.model.num_parameters(),
        "lowercase": getattr(trainer.processing_class, "do_lower_case", False),
        "curves": trainer.draws(_draw_curves, history, panels, file=directory / "curves.png"),
        "precision": precision(args),
        "device": name_device(args.device),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def name_device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{os.cpu_count()} CPU cores" if device.type == "cpu" else device.type.upper()


def model_name(trainer: ScratchBertTrainer) -> str:
    return trainer.hub_model_id or Path(trainer.args.output_dir).resolve().name


def new_figure(width: float, height: float) -> Any:
    """A matplotlib figure, in inches; None without matplotlib."""
    if find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _draw_curves(log_history: list[dict[str, float]], panels: dict[str, list[str]], file: Path) -> bool:
    """Plot the log over the steps. Returns False if there is nothing to plot, or no matplotlib."""
    figure = new_figure(4 * len(panels), 3)
    if figure is None or not any("loss" in entry for entry in log_history):
        return False
    for axes, (title, keys) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for key in keys:
            points = [(entry["step"], entry[key]) for entry in log_history if key in entry]
            if points:
                evaluation = key.startswith("eval")
                label = "validation" if evaluation else "training"
                axes.plot(*zip(*points, strict=True), ".-" if evaluation else "-", label=label)
        axes.set(title=title, xlabel="step")
        if len(keys) > 1:
            axes.legend()
    figure.savefig(file)
    return True
