"""Files and directories that are whole or absent, whenever the process dies: written beside their place and renamed, with
checksums to find later damage; and locks of directories."""

import json
import logging
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout


logger = logging.getLogger("scratch_bert")

MANIFEST = "manifest.json"  # in a sealed directory: the length and the CRC-32 of each other file
STAGING = ".saving"  # beside the names of directories: what is being written, or deleted
LOCK = ".lock"  # in a directory: held by the process that writes there


def seal(directory: Path) -> None:
    """Write the manifest of all files in `directory`, and wait until all of it is on the disk."""
    paths = sorted(path for path in directory.rglob("*") if path != directory / MANIFEST)
    files = [path for path in paths if path.is_file()]
    manifest = {file.relative_to(directory).as_posix(): [file.stat().st_size, _crc32(file)] for file in files}
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    for path in (*paths, directory / MANIFEST, directory):
        sync(path)


def find_damage(directory: Path) -> str | None:
    """What is wrong with a sealed directory: the first file that has not the length and CRC-32 it had, or None."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        for name, (length, crc32) in manifest.items():
            file = directory / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != length:
                return f"{name} is truncated"
            if _crc32(file) != crc32:
                return f"{name} is damaged"
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return f"{MANIFEST} is missing or damaged"
    return None


def move_into_place(new: Path, place: Path) -> None:
    """Rename a directory, or a file, to `place`, and replace what is there: nobody ever sees half of either."""
    if new.is_file():
        sync(new)
    if place.is_dir():
        remove(place)
    os.replace(new, place)
    sync(place.parent)


def write_whole(file: Path, text: str) -> None:
    """Write a file that is never seen half written."""
    new = file.with_name(f".{file.name}")
    new.write_text(text, encoding="utf-8")
    move_into_place(new, file)


def remove(directory: Path) -> None:
    """Delete a directory whose name must never stand for half of it."""
    staging = directory.parent / STAGING
    staging.mkdir(exist_ok=True)
    doomed = staging / f"deleted-{directory.name}"
    shutil.rmtree(doomed, ignore_errors=True)
    with suppress(FileNotFoundError):  # another process has deleted it
        os.replace(directory, doomed)
    shutil.rmtree(doomed, ignore_errors=True)  # what stays is deleted with `STAGING`


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory, which the operating system frees when the process ends, however it does.

    Raises `BlockingIOError` if another process holds it.
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


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a directory, are on the disk."""
    if os.name == "nt" and path.is_dir():  # cannot be opened there
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
