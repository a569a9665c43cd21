"""Checkpoints: written whole or not at all, and which of them a run resumes from."""

import json
import logging
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from transformers import TrainingArguments
from transformers.trainer_utils import sort_checkpoints

from ..hub.publishing import WEIGHTS, is_complete
from ..model.configuration_scratch_bert import ARCHITECTURE_FIELDS, ScratchBertConfig


logger = logging.getLogger("scratch_bert")

MANIFEST = "manifest.json"  # in a checkpoint: the length and the CRC-32 of each other file
RUN_FILE = "run.json"  # in an output directory: what the run in it is, from before its first step on
METRICS_FILE = "metrics.json"  # in an output directory: the last file that a run writes
STAGING = ".saving"  # in an output directory: what is being written, or about to be deleted
LOCK = ".lock"  # in an output directory: held by the run that writes there
DAMAGED = "damaged-"  # prefix of a checkpoint that a resume has passed over
# What a resume needs: a file each, or, with FSDP, one of these.
REQUIRED = (
    ("trainer_state.json",),
    (WEIGHTS, "model.safetensors.index.json", "pytorch_model_fsdp.bin", "pytorch_model_fsdp_0"),
    ("optimizer.pt", "optimizer.bin", "optimizer_0"),
    ("scheduler.pt",),
)


# ----------------------------------------------------------------------------------------------------------- writing


def seal(directory: Path) -> None:
    """Write the manifest of all files in `directory`, and wait until all of it is on the disk."""
    paths = sorted(path for path in directory.rglob("*") if path != directory / MANIFEST)
    files = [path for path in paths if path.is_file()]
    manifest = {file.relative_to(directory).as_posix(): [file.stat().st_size, _crc32(file)] for file in files}
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    for path in (*paths, directory / MANIFEST, directory):
        _sync(path)


def move_into_place(new: Path, place: Path) -> None:
    """Rename a directory, or a file, to `place`, and replace what is there: nobody ever sees half of either."""
    if new.is_file():
        _sync(new)
    if place.is_dir():
        remove(place)
    os.replace(new, place)
    _sync(place.parent)


def write_whole(file: Path, text: str) -> None:
    """Write a file that is never seen half written."""
    new = file.with_name(f".{file.name}")
    new.write_text(text, encoding="utf-8")
    move_into_place(new, file)


@contextmanager
def naming_what_is_kept(what: str, output_dir: Path) -> Iterator[None]:
    """Raise `OSError` with the last checkpoint, and the remedy, if something can't be written."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "inline_container.cc" not in str(error):  # of torch.save
            raise
        shutil.rmtree(output_dir / STAGING, ignore_errors=True)
        reason = "the disk may be full" if isinstance(error, RuntimeError) else error
        kept = sort_checkpoints(str(output_dir))
        raise OSError(
            f"{what} could not be written to {output_dir}: {reason}. "
            + (f"{Path(kept[-1]).name} is kept. " if kept else "There is no checkpoint yet. ")
            + "Free some space there, then continue: the same command with --resume_from_checkpoint"
        ) from error


def remove(directory: Path) -> None:
    """Delete a directory whose name must never stand for half of it."""
    staging = directory.parent / STAGING
    staging.mkdir(exist_ok=True)
    doomed = staging / f"deleted-{directory.name}"
    shutil.rmtree(doomed, ignore_errors=True)
    os.replace(directory, doomed)
    shutil.rmtree(doomed, ignore_errors=True)  # what stays is deleted with `STAGING`


def remove_surplus(output_dir: Path, limit: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints, by time, but for `limit` of them, the newest, and the best."""
    checkpoints = [Path(path) for path in sort_checkpoints(str(output_dir), use_mtime=True)]
    kept = {checkpoints[-1], Path(best)} if best else set(checkpoints[-1:])
    surplus = len(checkpoints) - max(limit or len(checkpoints), len(kept & set(checkpoints)))
    for checkpoint in [one for one in checkpoints if one not in kept][: max(surplus, 0)]:
        remove(checkpoint)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of an output directory, which the operating system frees when the process ends, however it does.

    Raises `BlockingIOError` if another run holds it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise BlockingIOError(
            f"Another run is writing to {directory}: wait until it ends, or choose another --output_dir."
        ) from None
    except (NotImplementedError, OSError) as error:  # a file system without locks
        logger.warning(f"{directory} cannot be locked ({error}): do not start a second run in it")
    try:
        yield
    finally:
        lock.release()


def _crc32(file: Path) -> int:
    value = 0
    with file.open("rb") as content:
        for chunk in iter(partial(content.read, 1 << 20), b""):
            value = zlib.crc32(chunk, value)
    return value


def _sync(path: Path) -> None:
    """Wait until a file, or the entries of a directory, are on the disk."""
    if os.name == "nt" and path.is_dir():  # cannot be opened there
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------------------------------------------------- resuming


def resumes_newest(args: TrainingArguments) -> bool:
    return str(args.resume_from_checkpoint).lower() in ("auto", "last", "true")


def find_checkpoint(args: TrainingArguments) -> str | None:
    """The checkpoint that `args.resume_from_checkpoint` asks for: a directory, or with `auto` the newest one in output_dir
    that is whole. Newer ones that are damaged are renamed.

    None for a new run. Raises `ValueError` if the directory is no checkpoint or damaged, and if there is no checkpoint in
    output_dir and something else in it than the beginnings of a run.
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
            _check_new(output_dir, args)
        return str(checkpoint)
    if args.resume_from_checkpoint:
        with args.main_process_first():
            newest = _newest_whole(output_dir, set_aside=args.should_save)
        if newest:
            return str(newest)
        if not _is_beginning(output_dir):
            _check_new(output_dir, args)
        logger.info(f"There is no checkpoint to resume from in {output_dir}: a new run")
        return None
    _check_new(output_dir, args)
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
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
        for name, (length, crc32) in manifest.items():
            file = checkpoint / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != length:
                return f"{name} is truncated"
            if _crc32(file) != crc32:
                return f"{name} is damaged"
    except (ValueError, TypeError, AttributeError):
        return f"{MANIFEST} is damaged"
    return None


def _can_be_read(file: Path) -> bool:
    if file.suffix == ".pt":
        return zipfile.is_zipfile(file)  # a file saved by torch ends with the zip format's directory
    if file.suffix == ".json":
        return file.read_text(encoding="utf-8", errors="replace").rstrip().endswith("}")
    return is_complete(file)


def _newest_whole(output_dir: Path, set_aside: bool) -> Path | None:
    for path in reversed(sort_checkpoints(str(output_dir))):
        checkpoint, damage = Path(path), find_damage(Path(path))
        if not damage:
            return checkpoint
        if set_aside:
            place, number = checkpoint.with_name(f"{DAMAGED}{checkpoint.name}"), 1
            while place.exists():
                number += 1
                place = checkpoint.with_name(f"{DAMAGED}{checkpoint.name}-{number}")
            os.replace(checkpoint, place)
            logger.warning(f"{checkpoint} cannot be resumed from, {damage}: it is {place.name} now")
    return None


def _is_beginning(output_dir: Path) -> bool:
    """Whether a run was started here that has not come to its end."""
    return (output_dir / RUN_FILE).is_file() and not (output_dir / METRICS_FILE).exists()


def _check_new(output_dir: Path, args: TrainingArguments) -> None:
    """Raise `ValueError` if a new run would write into a directory that is not empty."""
    beginnings = (LOCK, f".{RUN_FILE}")
    if args.should_save and output_dir.exists() and any(path.name not in beginnings for path in output_dir.iterdir()):
        raise ValueError(
            f"The output directory {output_dir} is not empty. Pass --resume_from_checkpoint to continue the run in it, or "
            "another --output_dir to start a new one."
        )


def check_same_run(record: dict[str, dict], checkpoint: str) -> None:
    """Compare a run with the one that saved `checkpoint`: raise `ValueError` for a difference in `record["fixed"]`, and log
    those in `record["options"]`, which the resumed run takes."""
    file = Path(checkpoint, RUN_FILE)
    if not file.is_file():
        logger.warning(
            f"{checkpoint} has no {RUN_FILE}: make sure that seed and text are those of the run that saved it"
        )
        return
    saved = json.loads(file.read_text(encoding="utf-8"))
    for name, value in record["fixed"].items():
        if saved["fixed"].get(name, value) != value:
            raise ValueError(
                f"The checkpoint {checkpoint} has another {name}: {saved['fixed'][name]}, not {value}. Resume with the "
                "options and the data that the run was started with, or start a new one in another --output_dir."
            )
    for name, value in record["options"].items():
        if saved["options"].get(name, value) != value:
            logger.info(f"{name}: {saved['options'][name]} until this checkpoint, {value} from here on")


def check_same_architecture(config: ScratchBertConfig, checkpoint: str) -> None:
    """Raise `ValueError` if the model in `checkpoint` has another architecture than `config`."""
    saved = ScratchBertConfig.from_pretrained(checkpoint)
    for name in ARCHITECTURE_FIELDS:
        if getattr(saved, name) != getattr(config, name):
            raise ValueError(
                f"The checkpoint {checkpoint} has {name}={getattr(saved, name)}, but the options ask for "
                f"{getattr(config, name)}. Resume with the options that the run was started with."
            )
