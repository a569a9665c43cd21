"""Atomic writes: files and directories are written beside their final place and renamed, so that they are complete or
absent even if the process dies, with checksums to detect later damage. Also locks of directories."""

import json
import os
import shutil
import zlib
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated

from filelock import FileLock, Timeout
from pydantic import Field

from scratch_bert_options.schema import check

from .logs import logger
from .repository import read_json


MANIFEST = "manifest.json"  # in a sealed directory: length and CRC-32 of every other file
STAGING = ".saving"  # beside the final directories: what is being written or deleted
LOCK = ".lock"  # in a directory: held by the process that writes to it

Manifest = Annotated[dict[str, tuple[int, int]], Field(min_length=1)]


def seal(directory: Path, without: Collection[str] = ()) -> None:
    """Write the manifest of the files in `directory`, except those named `without`, and wait until all are on disk."""
    paths = sorted(path for path in directory.rglob("*") if path != directory / MANIFEST)
    files = [path for path in paths if path.is_file() and path.name not in without]
    manifest = {file.relative_to(directory).as_posix(): [file.stat().st_size, checksum(file)] for file in files}
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    for path in (*paths, directory / MANIFEST, directory):
        sync(path)


def find_damaged_file(directory: Path) -> str | None:
    """Name the first file of a sealed directory that is missing or has another length or CRC-32; None if intact.

    Raises `OSError` for a file that can't be read, as it may be intact.
    """
    try:
        manifest = check(Manifest, read_json(directory / MANIFEST))
    except (FileNotFoundError, ValueError):
        return f"{MANIFEST} is missing or damaged"
    for name, (length, crc32) in manifest.items():
        file = directory / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size < length:
            return f"{name} is truncated"
        if file.stat().st_size != length or checksum(file) != crc32:
            return f"{name} is damaged"
    return None


def move_into_place(new: Path, place: Path) -> None:
    """Rename a directory or file to `place`, replacing what is there: neither is ever seen incomplete."""
    if new.is_file():
        sync(new)
    if place.is_dir():
        old = _set_aside(place)
        os.replace(new, place)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(new, place)
    sync(place.parent)


def write_json(file: Path, value: object) -> None:
    """Write a JSON file that is never seen incomplete."""
    new = file.with_name(f".{file.name}")
    try:
        new.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        move_into_place(new, file)
    finally:
        new.unlink(missing_ok=True)


def remove(directory: Path) -> None:
    """Delete a directory, which is never seen incomplete under its name."""
    shutil.rmtree(_set_aside(directory), ignore_errors=True)  # what is left is deleted with `STAGING`


def _set_aside(directory: Path) -> Path:
    """Move a directory into `STAGING`, and return its new path."""
    staging = directory.parent / STAGING
    staging.mkdir(exist_ok=True)
    old = staging / f"old-{directory.name}"
    shutil.rmtree(old, ignore_errors=True)
    with suppress(FileNotFoundError):  # another process has deleted it
        os.replace(directory, old)
    return old


@contextmanager
def locked(directory: Path) -> Generator[bool]:
    """Hold the lock of a directory, which the operating system releases at the end of the process. Yields whether it
    is locked: False on a file system without locks. Raises `BlockingIOError` if another process holds it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise BlockingIOError(
            f"Another run is writing to {directory}: wait until it ends, or choose another output_dir."
        ) from None
    except (NotImplementedError, OSError) as error:  # a file system without locks
        logger.warning(f"{directory} cannot be locked ({error}): do not start a second run in it")
    try:
        yield lock.is_locked
    finally:
        lock.release()


def checksum(file: Path) -> int:
    """CRC-32 of a file's content."""
    value = 0
    with file.open("rb") as content:
        for chunk in iter(partial(content.read, 1 << 20), b""):
            value = zlib.crc32(chunk, value)
    return value


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a directory, are on the disk."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open directories
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if path.is_file():  # some file systems cannot sync directories
            raise
    finally:
        os.close(descriptor)
