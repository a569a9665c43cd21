"""What may change when a run is resumed: options, hyperparameters and processes, but neither data nor architecture."""

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from transformers import PreTrainedModel, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from scratch_bert_options.schema import check

from ..model.configuration_scratch_bert import ARCHITECTURE_FIELDS, ScratchBertConfig
from ..repository import RUN_FILE, read_json
from .open import find_new_weights, first_name, load_config
from .saved import FSDP_STATES, archive_later_checkpoints
from .weights import INDEX, WEIGHTS


logger = logging.getLogger("scratch_bert")
AVERAGES = ("exp_avg", "exp_avg_sq", "momentum_buffer")  # of gradients, in an optimizer's state
HYPERPARAMETERS = ("initial_lr", "weight_decay", "betas", "eps")  # of an optimizer's groups: a resume may change them


class RunRecord(BaseModel):
    """What `RUN_FILE` holds: see `check_same_run`."""

    fixed: dict[str, Any]
    options: dict[str, Any]


def check_same_run(record: dict[str, dict], checkpoint: str, also_fixed: Collection[str] = ()) -> None:
    """Compare the record of a run with that of the run that saved `checkpoint`.

    Raises `ValueError` for a difference in `record["fixed"]` or in an option that is `also_fixed`. Differences in the
    other `record["options"]` are logged: the resumed run uses its own.
    """
    file = Path(checkpoint, RUN_FILE)
    try:
        saved = check(RunRecord, read_json(file), str(file))
    except (FileNotFoundError, ValueError):
        logger.warning(f"{checkpoint} has no {RUN_FILE} that can be read: make sure that seed and text are the same")
        return
    saved, current = saved.fixed | saved.options, record["fixed"] | record["options"]
    changed = {name: value for name, value in current.items() if saved.get(name, value) != value}
    for name, value in changed.items():
        if name in record["fixed"] or name in also_fixed:
            raise ValueError(
                f"The run in {checkpoint} has another {name}: {saved[name]}, not {value}. Resume with the options and "
                "the data that the run was started with, or start a new one in another --output_dir."
            )
    if "global batch size" in changed:
        logger.warning("The global batch size has changed: some examples will be repeated or skipped")
    for name, value in changed.items():
        logger.info(f"{name}: {saved[name]} until this checkpoint, {value} from here on")


def check_same_architecture(config: ScratchBertConfig, checkpoint: str) -> None:
    """Raise `ValueError` if the model in `checkpoint` has another architecture than `config`."""
    saved = load_config(checkpoint)
    for name in ARCHITECTURE_FIELDS:
        if getattr(saved, name) != getattr(config, name):
            raise ValueError(
                f"The checkpoint {checkpoint} has {name}={getattr(saved, name)}, but the options ask for "
                f"{getattr(config, name)}. Resume with the options that the run was started with."
            )


def check_same_weights(model: PreTrainedModel, checkpoint: str) -> None:
    """Raise `ValueError` if `checkpoint` lacks weights of this model, which Trainer would silently leave random."""
    if not any(Path(checkpoint, name).is_file() for name in (WEIGHTS, INDEX)):
        return  # FSDP's own format
    _, new = find_new_weights(type(model), checkpoint, model.config)
    if new:
        raise ValueError(f"The checkpoint {checkpoint} cannot be resumed from: it has no {first_name(new)}.")


def check_processes(checkpoint: str, rng_state: str, fsdp: str | None) -> None:
    """Raise `OSError` if `checkpoint` was saved with another `state_dict_type` than `fsdp`, which is None without
    FSDP. Log it if the checkpoint has no file `rng_state` with the state of this process's random generators."""
    saved = next((kind for kind, name in FSDP_STATES.items() if Path(checkpoint, name).exists()), None)
    if saved != fsdp:
        how = f"with FSDP and the state_dict_type {saved}" if saved else "without FSDP"
        raise OSError(f"{checkpoint} was saved {how}: resume it in the same way, on any number of processes.")
    if not Path(checkpoint, rng_state).is_file():
        logger.warning(
            f"{checkpoint} has no {rng_state}, as if saved by another number of processes: the run resumes, but its "
            "results will not be bit-identical to those of an uninterrupted run"
        )


def warn_of_missing_state(optimizer: torch.optim.Optimizer) -> None:
    """Log it if the loaded state lacks weights, as that of another model does: PyTorch silently starts them anew."""
    if not type(optimizer).__module__.startswith(("torch.optim.", "scratch_bert.")):
        return  # others may keep their state elsewhere
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    weights = [weight for weight in weights if weight.numel()]  # FSDP has empty ones
    for weight in weights:
        for name in AVERAGES:
            average = optimizer.state.get(weight, {}).get(name)
            if average is not None and average.shape != weight.shape:  # beyond whose end PyTorch may read
                raise OSError(f"The optimizer's state in the checkpoint is of another model: {name} {average.shape}.")
    missing = sum(not optimizer.state.get(weight) for weight in weights)
    if missing and (optimizer.state or not isinstance(optimizer, torch.optim.SGD)):  # which may do without
        which = f"lacks {missing} of {len(weights)} weights"
        logger.warning(f"The optimizer's state in the checkpoint {which}: their averages of the gradients start anew")


def merge_hyperparameters(saved: list[dict[str, Any]], requested: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer as `saved`, with the `HYPERPARAMETERS` of those `requested`. The
    current learning rate is scaled by the ratio of the initial ones."""
    merged = []
    for group, options in zip(saved, requested, strict=True):
        new = group | {name: options[name] for name in HYPERPARAMETERS if name in options}
        if group.get("initial_lr") and "initial_lr" in options:  # not every schedule has it
            new["lr"] = group["lr"] * (options["initial_lr"] / group["initial_lr"])
        merged.append(new)
    return merged


class ResumeCallback(TrainerCallback):
    """Adapts a checkpoint's loaded state to the resumed run: intervals are those of its options, the best checkpoint
    may have been moved with this one, and later checkpoints in the output directory are renamed."""

    checkpoint: str | None = None
    step = 0  # of the checkpoint

    def on_train_begin(self, args, state, control, **kwargs):
        state.compute_steps(args, state.max_steps)
        if self.checkpoint:
            best = Path(self.checkpoint).with_name(f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}")
            if best.is_dir():
                state.best_model_checkpoint = str(best)
            if args.should_save:  # not before the checkpoint is loaded
                archive_later_checkpoints(self.checkpoint, Path(args.output_dir))
