"""Checkpoints: written whole or not at all, and which of them a run resumes from."""

import json
import logging
import os
import re
import shutil
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from transformers import TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .. import storage
from ..hub.loading import WEIGHTS, is_complete_safetensors
from ..model.configuration_scratch_bert import ARCHITECTURE_FIELDS, ScratchBertConfig
from ..storage import LOCK, MANIFEST, STAGING, is_lack_of_space, remove


logger = logging.getLogger("scratch_bert")

RUN_FILE = "run.json"  # in an output directory: what the run in it is, from before its first step on
METRICS_FILE = "metrics.json"  # in an output directory: the last file that a run writes
DAMAGED = "damaged-"  # prefix of a checkpoint that a resume has passed over
ABANDONED = "abandoned-"  # prefix of a checkpoint of later steps than the one that a resume names
FSDP_STATES = {"FULL_STATE_DICT": "pytorch_model_fsdp.bin", "SHARDED_STATE_DICT": "pytorch_model_fsdp_0"}
# What a resume needs: a file each, or, with FSDP, one of these.
REQUIRED = (
    ("trainer_state.json",),
    (WEIGHTS, "model.safetensors.index.json", *FSDP_STATES.values()),
    ("optimizer.pt", "optimizer.bin", "optimizer_0"),
    ("scheduler.pt",),
)


def checkpoints_in(directory: Path) -> list[Path]:
    """By their steps. A user's copies under other names, such as checkpoint-4-backup, aren't among them."""
    names = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-\d+")
    found = (
        path for path in directory.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if names.fullmatch(path.name) and path.is_dir()
    )
    return sorted(found, key=_step_of)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rsplit("-", 1)[1])


@contextmanager
def naming_what_is_kept(what: str, output_dir: Path) -> Iterator[None]:
    """Raise `OSError` with the last checkpoint, and the remedy, if something can't be written."""
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
            + ("Free some space there, then continue" if full else "When it can be, continue")
            + ": the same command with --resume_from_checkpoint auto"
        ) from error


def remove_surplus(newest: Path, limit: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints, by time, beside the `newest`, but for `limit` of them, the newest and the best."""
    checkpoints = sorted(checkpoints_in(newest.parent), key=lambda checkpoint: checkpoint.stat().st_mtime)
    kept = {newest, Path(best)} if best else {newest}
    surplus = len(checkpoints) - max(limit or len(checkpoints), len(kept & set(checkpoints)))
    for checkpoint in [one for one in checkpoints if one not in kept][: max(surplus, 0)]:
        try:
            remove(checkpoint)
        except OSError as error:  # such as an open file on Windows
            logger.warning(f"{checkpoint} could not be deleted: {error}")


# ---------------------------------------------------------------------------------------------------------- resuming


def resumes_newest(args: TrainingArguments) -> bool:
    """Whether `--resume_from_checkpoint` names no directory. `True` is the stock Trainer's word for it."""
    return str(args.resume_from_checkpoint).lower() in ("auto", "last", "true")


def find_checkpoint(args: TrainingArguments) -> str | None:
    """The checkpoint that `args.resume_from_checkpoint` asks for: a directory, or with `auto` the newest one in output_dir
    that is whole. Newer ones that are damaged are renamed.

    None for a new run. Raises `ValueError` if the directory is no checkpoint or damaged, and if there is no checkpoint in
    output_dir and something else in it than the beginnings of a run, or logs; `OSError` if the newest one can't be read.
    """
    output_dir = Path(args.output_dir)
    if args.resume_from_checkpoint and not resumes_newest(args):
        checkpoint = Path(args.resume_from_checkpoint)
        if not checkpoint.is_dir():
            raise ValueError(f"There is no checkpoint {checkpoint}. Pass auto for the newest one in {output_dir}.")
        damage = find_damage(checkpoint)
        if damage:
            raise ValueError(
                f"The checkpoint {checkpoint} cannot be resumed from: {damage}. Name another one, or pass auto for the "
                f"newest whole one in {output_dir}."
            )
        if checkpoint.absolute().parent.resolve() != output_dir.resolve():
            _check_new(output_dir, args, "Pass an empty one, or that of the checkpoint.")
        return str(checkpoint)
    if args.resume_from_checkpoint:
        with args.main_process_first():
            newest = _newest_whole(output_dir, check=args.should_save)
        if newest:
            return str(newest)
        if not _is_beginning(output_dir):
            _check_new(
                output_dir, args, "There is no whole checkpoint in it: pass another --output_dir to start a new run."
            )
        logger.info(f"There is no checkpoint to resume from in {output_dir}: a new run")
        return None
    remedy = "Pass --resume_from_checkpoint to continue the run in it, or another --output_dir to start a new one."
    _check_new(output_dir, args, remedy)
    return None


def find_damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, or None if it can be resumed from.

    Files that `MANIFEST` lists must have their length and CRC-32. Without it, as after the stock Trainer, damage is found
    if the file's format shows it.
    """
    for names in REQUIRED:
        if not any((checkpoint / name).exists() for name in names):
            return f"{names[0]} is missing"
    if not (checkpoint / MANIFEST).exists():
        files = (checkpoint / name for names in REQUIRED for name in names[:1])
        return next((f"{file.name} is truncated" for file in files if file.exists() and not _can_be_read(file)), None)
    return storage.find_damage(checkpoint)


def saved_step(checkpoint: str) -> int:
    return TrainerState.load_from_json(str(Path(checkpoint, TRAINER_STATE_NAME))).global_step


def _can_be_read(file: Path) -> bool:
    if file.suffix == ".pt":
        return zipfile.is_zipfile(file)  # a file saved by torch ends with the zip format's directory
    if file.suffix == ".json":
        try:
            return "global_step" in json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            return False
    return is_complete_safetensors(file)


def _newest_whole(output_dir: Path, check: bool) -> Path | None:
    """Only one process needs to `check`: it renames damaged checkpoints, before the others look."""
    for checkpoint in reversed(checkpoints_in(output_dir)):
        try:
            damage = find_damage(checkpoint) if check else None
        except OSError as error:
            raise OSError(
                f"{checkpoint} cannot be read: {error}. Check the disk, or rename this checkpoint to resume from the one before."
            ) from error
        if not damage:
            return checkpoint
        if storage.find_damage(checkpoint) is None:  # as it was saved
            raise ValueError(f"{checkpoint} was saved without what a resume needs: {damage}. Start a new run.")
        name = _rename(checkpoint, DAMAGED)
        logger.warning(f"{checkpoint} cannot be resumed from, {damage}: it is {name} now")
    return None


def _rename(checkpoint: Path, prefix: str) -> str:
    """Give it a name that no resume looks at: the new name."""
    place, number = checkpoint.with_name(f"{prefix}{checkpoint.name}"), 1
    while place.exists():
        number += 1
        place = checkpoint.with_name(f"{prefix}{checkpoint.name}-{number}")
    os.replace(checkpoint, place)
    return place.name


def abandon_later(checkpoint: str, output_dir: Path) -> None:
    """Rename checkpoints in `output_dir` of later steps than this one in it, from which the run goes on another way: they are
    not to be taken for its newest."""
    step = saved_step(checkpoint)
    if Path(checkpoint).resolve().parent == output_dir.resolve():
        for path in checkpoints_in(output_dir):
            if _step_of(path) > step:
                logger.warning(f"{path} is later than {Path(checkpoint).name}: it is {_rename(path, ABANDONED)} now")


def _is_beginning(output_dir: Path) -> bool:
    """Whether a run was started here that has not come to its end."""
    return (output_dir / RUN_FILE).is_file() and not (output_dir / METRICS_FILE).exists()


def _check_new(output_dir: Path, args: TrainingArguments, remedy: str) -> None:
    """Raise `ValueError` with this remedy if a new run would write into a directory that is not empty."""
    beginnings, logs = (LOCK, f".{RUN_FILE}"), (".log", ".out", ".err")  # as of the job itself
    if not args.should_save or not output_dir.exists():
        return
    if any(path.name not in beginnings and path.suffix not in logs for path in output_dir.iterdir()):
        raise ValueError(f"The output directory {output_dir} is not empty. {remedy}")


def check_same_run(record: dict[str, dict], checkpoint: str, also_fixed: Collection[str] = ()) -> None:
    """Compare a run with the one that saved `checkpoint`: raise `ValueError` for a difference in `record["fixed"]`, or in an
    option that is `also_fixed`, and log those in the other `record["options"]`, which the resumed run takes."""
    try:
        saved = json.loads(Path(checkpoint, RUN_FILE).read_text(encoding="utf-8"))
        saved = dict(saved["fixed"]) | dict(saved["options"])
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        logger.warning(
            f"{checkpoint} has no {RUN_FILE} that can be read: make sure that seed and text are those of the run that saved it"
        )
        return
    changed = {
        name: value for name, value in (record["fixed"] | record["options"]).items() if saved.get(name, value) != value
    }
    for name, value in changed.items():
        if name in record["fixed"] or name in also_fixed:
            raise ValueError(
                f"The run in {checkpoint} has another {name}: {saved[name]}, not {value}. Resume with the options and the "
                "data that the run was started with, or start a new one in another --output_dir."
            )
    if "examples in a step" in changed:
        logger.warning(
            "Another number of examples in a step: as steps are counted, some examples come twice or not at all"
        )
    for name, value in changed.items():
        logger.info(f"{name}: {saved[name]} until this checkpoint, {value} from here on")


def check_same_architecture(config: ScratchBertConfig, checkpoint: str) -> None:
    """Raise `ValueError` if the model in `checkpoint` has another architecture than `config`."""
    if not Path(checkpoint, "config.json").is_file():
        raise ValueError(f"The checkpoint {checkpoint} cannot be resumed from: config.json is missing.")
    saved = ScratchBertConfig.from_pretrained(checkpoint)
    for name in ARCHITECTURE_FIELDS:
        if getattr(saved, name) != getattr(config, name):
            raise ValueError(
                f"The checkpoint {checkpoint} has {name}={getattr(saved, name)}, but the options ask for "
                f"{getattr(config, name)}. Resume with the options that the run was started with."
            )
