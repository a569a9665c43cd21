"""Checkpoints: written atomically, the oldest ones deleted, and the one that a run resumes from."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import is_zipfile

from pydantic import FiniteFloat, NonNegativeInt
from safetensors import SafetensorError
from transformers import PreTrainedModel, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from scratch_bert_options.errors import is_lack_of_space
from scratch_bert_options.outputs import NEWEST
from scratch_bert_options.schema import check

from ..atomic import LOCK, MANIFEST, STAGING, find_damaged_file, move_into_place, remove, seal
from ..logs import logger
from ..repository import RUN_FILE, read_json
from .weights import INDEX, WEIGHTS


SNAPSHOTS = "snapshots"  # in output directories: models named by their step, to look at
EXAMPLES = "examples.json"  # in the directory of snapshots: texts to try them on
METRICS_FILE = "metrics.json"  # in output directories: the last file that a run writes
DAMAGED = "damaged-"  # prefix of the checkpoints that a resume skipped
ABANDONED = "abandoned-"  # prefix of the checkpoints later than the one that a run was resumed from
FSDP_STATES = {"FULL_STATE_DICT": "pytorch_model_fsdp.bin", "SHARDED_STATE_DICT": "pytorch_model_fsdp_0"}
# Files required for a resume: at least one of each line.
REQUIRED = (
    ("trainer_state.json",),
    (WEIGHTS, INDEX, *FSDP_STATES.values()),
    ("optimizer.pt", "optimizer.bin", "optimizer_0"),
    ("scheduler.pt",),
)
BESIDE_WEIGHTS = 700_000  # bytes of a tokenizer, code and card
_NAME = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")


def checkpoints_in(directory: Path) -> list[Path]:
    """Return the checkpoints sorted by step. Copies under other names, such as checkpoint-4-backup, are ignored."""
    found = (path for path in directory.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir())
    return sorted((path for path in found if _step_of(path) is not None), key=_step_of)


def snapshots_in(directory: Path) -> list[Path]:
    """Return the snapshots of a run, sorted by step."""
    found = (path for path in (directory / SNAPSHOTS).glob("*") if path.name.isdecimal() and path.is_dir())
    return sorted(found, key=lambda path: int(path.name))


def _step_of(checkpoint: Path) -> int | None:
    """The step in the name of a checkpoint; None for other names."""
    match = _NAME.fullmatch(checkpoint.name)
    return int(match[1]) if match else None


@contextmanager
def explain_write_errors(what: str, output_dir: Path) -> Iterator[None]:
    """Turn errors of writing `what` into an `OSError` that names the last checkpoint and the remedy."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        full = is_lack_of_space(error)
        if isinstance(error, RuntimeError) and not full:
            raise
        shutil.rmtree(output_dir / STAGING, ignore_errors=True)
        reason = "the disk may be full" if isinstance(error, RuntimeError) else error
        kept = checkpoints_in(output_dir)
        raise OSError(
            f"{what} could not be written to {output_dir}: {reason}. "
            + (f"{kept[-1].name} is kept. " if kept else "There is no checkpoint yet. ")
            + ("Free some space there, then " if full else "Once it is writable, ")
            + f"{'continue' if kept else 'start again'}: the same command with --resume_from_checkpoint auto"
        ) from error


def check_space(model: PreTrainedModel, args: TrainingArguments, snapshots: int = 0) -> None:
    """Raise `OSError` if the disk is too small for the checkpoints that a run keeps, with the one being written, for
    its model and its `snapshots`. AdamW's state is twice the weights; snapshots are in bf16."""
    output_dir = Path(args.output_dir)
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    missing = max((args.save_total_limit or 1) + 1 - len(checkpoints_in(output_dir)), 1)
    checkpoints = 0 if args.save_strategy == "no" else missing * (1 if args.save_only_model else 3)
    needed = size * (checkpoints + 1 + snapshots / 2) + BESIDE_WEIGHTS * (missing + 1 + snapshots)
    free = shutil.disk_usage(output_dir).free
    if free < needed:
        raise OSError(
            f"{output_dir} has {free / 1e6:,.0f} MB free, but the model and its checkpoints need about {needed / 1e6:,.0f}: "
            f"free some space, or pass {'--snapshots 0, ' * bool(snapshots)}a lower --save_total_limit, --save_strategy no "
            "or another --output_dir."
        )


def write_checkpoint(
    place: Path, save: Callable[[Path], None], wait: Callable[[], None], args: TrainingArguments, best: str | None
) -> None:
    """Write a checkpoint atomically, and delete surplus ones: `save(directory)` writes, in each process, into a
    temporary directory beside `place`, which one process renames after all have left `wait`. Raises `OSError`, with
    the remedy, if something can't be written."""
    staged = place.parent / STAGING / place.name
    with explain_write_errors(place.name, place.parent):
        save(staged)
        wait()  # each process has written the state of its random generators
        if args.should_save:
            seal(staged, without=("README.md", "curves.png"))  # which a user may edit
            move_into_place(staged, place)
            remove_surplus(place, args.save_total_limit, best)
            shutil.rmtree(staged.parent, ignore_errors=True)


def remove_surplus(newest: Path, limit: int | None, best: str | None) -> None:
    """Delete the earliest checkpoints beside `newest` down to `limit`; newest and best stay."""
    checkpoints = checkpoints_in(newest.parent)
    kept = {newest, Path(best)} if best else {newest}
    surplus = len(checkpoints) - max(limit or len(checkpoints), len(kept & set(checkpoints)))
    for checkpoint in [path for path in checkpoints if path not in kept][: max(surplus, 0)]:
        try:
            remove(checkpoint)
        except OSError as error:  # such as an open file on Windows
            logger.warning(f"{checkpoint} could not be deleted: {error}")


def find_best(output_dir: Path, state: TrainerState) -> str | None:
    """Return the best checkpoint, in `output_dir` or where `state` says; None if it does not exist or is damaged."""
    if not state.best_global_step:
        return None
    here = output_dir / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
    best = here if here.is_dir() else Path(state.best_model_checkpoint or here)
    try:
        damage = find_damage(best)
    except OSError as error:
        damage = str(error)
    if damage:
        logger.warning(f"The best checkpoint, {best}, cannot be used, {damage}: the last model is kept instead")
        return None
    return str(best)


def resumes_newest(args: TrainingArguments) -> bool:
    """Whether `--resume_from_checkpoint` names no directory."""
    return str(args.resume_from_checkpoint).lower() in NEWEST


def find_checkpoint(args: TrainingArguments) -> str | None:
    """Return the checkpoint that `args.resume_from_checkpoint` names, or with `auto` the newest intact one in
    output_dir; None for a new run. Newer checkpoints that are damaged are renamed.

    Raises `ValueError` if the named checkpoint does not exist or is damaged, or if output_dir has no checkpoint but
    files of anything but a run that has just begun; `OSError` if the newest checkpoint can't be read.
    """
    output_dir, checkpoint = Path(args.output_dir), None
    remedy = "Pass --resume_from_checkpoint to continue the run in it, or another --output_dir to start a new one."
    if args.resume_from_checkpoint and not resumes_newest(args):
        checkpoint = Path(args.resume_from_checkpoint)
        if not checkpoint.is_dir():
            raise ValueError(f"There is no checkpoint {checkpoint}. Pass auto for the newest one in {output_dir}.")
        if damage := find_damage(checkpoint):
            another = f"Name another one, or pass auto for the newest intact one in {output_dir}."
            raise ValueError(f"The checkpoint {checkpoint} cannot be resumed from: {damage}. {another}")
        if checkpoint.absolute().parent.resolve() == output_dir.resolve():
            return str(checkpoint)
        remedy = "Pass an empty one, or that of the checkpoint."
    elif args.resume_from_checkpoint:
        with args.main_process_first():
            newest = _newest_intact(output_dir, renames=args.should_save)
        if newest:
            return str(newest)
        begun = (output_dir / RUN_FILE).is_file() and not (output_dir / METRICS_FILE).exists()
        remedy = (
            "" if begun else "There is no complete checkpoint in it: pass another --output_dir to start a new run."
        )
    beginnings, logs = (LOCK, f".{RUN_FILE}"), (".log", ".out", ".err")  # of a run that has just begun, and of its job
    there = output_dir.iterdir() if args.should_save and output_dir.exists() else ()
    if remedy and any(path.name not in beginnings and path.suffix not in logs for path in there):
        raise ValueError(f"The output directory {output_dir} is not empty. {remedy}")
    if args.resume_from_checkpoint and not checkpoint:
        logger.info(f"There is no checkpoint to resume from in {output_dir}: starting a new run")
    return checkpoint and str(checkpoint)


def find_damage(checkpoint: Path) -> str | None:
    """Describe what is wrong with a checkpoint, or return None if it can be resumed from.

    Files listed in `MANIFEST` must have the recorded length and CRC-32. Without a manifest, as in the stock Trainer's
    checkpoints, missing files are found, and states that PyTorch has not written to their end.
    """
    for names in REQUIRED:
        if not any((checkpoint / name).exists() for name in names):
            return f"{names[0]} is missing"
    if (checkpoint / MANIFEST).exists():
        if damage := find_damaged_file(checkpoint):
            return damage
    elif damaged := [file.name for file in checkpoint.glob("*.pt*") if file.is_file() and not is_zipfile(file)]:
        return f"{damaged[0]} is damaged"
    try:
        step = saved_step(str(checkpoint))
    except ValueError as error:
        return str(error)
    return None if _step_of(checkpoint) in (None, step) else f"its {TRAINER_STATE_NAME} is that of step {step}"


def saved_step(checkpoint: str) -> int:
    """Return the number of optimizer steps after which a checkpoint was saved."""
    file = Path(checkpoint, TRAINER_STATE_NAME)
    state = read_json(file)
    check(FiniteFloat, state.get("epoch") or 0.0, f"{file}: epoch")  # a resume would compute with it
    return check(NonNegativeInt, state.get("global_step"), f"{file}: global_step")


def _newest_intact(output_dir: Path, renames: bool) -> Path | None:
    """Return the newest intact checkpoint. One process looks first, and `renames` damaged ones."""
    for checkpoint in reversed(checkpoints_in(output_dir)):
        damage = find_damage(checkpoint) if renames else None
        if not damage:
            return checkpoint
        if find_damaged_file(checkpoint) is None:  # saved like this
            raise ValueError(
                f"{checkpoint} cannot be resumed from: {damage}. Rename it to resume from the one before."
            )
        logger.warning(f"{checkpoint} cannot be resumed from, {damage}: renamed to {_rename(checkpoint, DAMAGED)}")
    return None


def _rename(checkpoint: Path, prefix: str) -> str:
    """Hide a checkpoint from later resumes. Returns its new name."""
    place, number = checkpoint.with_name(f"{prefix}{checkpoint.name}"), 1
    while place.exists():
        number += 1
        place = checkpoint.with_name(f"{prefix}{checkpoint.name}-{number}")
    os.replace(checkpoint, place)
    return place.name


def archive_later_checkpoints(checkpoint: str, output_dir: Path) -> None:
    """Rename the checkpoints in `output_dir` that are later than this one, so that no later resume finds them."""
    step = saved_step(checkpoint)
    if Path(checkpoint).resolve().parent == output_dir.resolve():
        for path in checkpoints_in(output_dir):
            if _step_of(path) > step:
                logger.warning(f"{path} is later than {Path(checkpoint).name}: renamed to {_rename(path, ABANDONED)}")
