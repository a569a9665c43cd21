"""Files and directories that are whole or absent, whenever the process dies: written beside their place and renamed, with
checksums to find later damage; and locks of directories."""

import errno
import json
import logging
import os
import shutil
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout


logger = logging.getLogger("scratch_bert")

MANIFEST = "manifest.json"  # in a sealed directory: the length and the CRC-32 of each other file
STAGING = ".saving"  # beside the names of directories: what is being written, or deleted
LOCK = ".lock"  # in a directory: held by the process that writes there


def seal(directory: Path, without: Collection[str] = ()) -> None:
    """Write the manifest of all files in `directory`, but for those of the names `without`, and wait until all of them are on
    the disk."""
    paths = sorted(path for path in directory.rglob("*") if path != directory / MANIFEST)
    files = [path for path in paths if path.is_file() and path.name not in without]
    manifest = {file.relative_to(directory).as_posix(): [file.stat().st_size, checksum(file)] for file in files}
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    for path in (*paths, directory / MANIFEST, directory):
        sync(path)


def find_damage(directory: Path) -> str | None:
    """What is wrong with a sealed directory: the first file that has not the length and CRC-32 it had, or None.

    Raises `OSError` for a file that can't be read, which says nothing about its content.
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        for name, (length, crc32) in manifest.items():
            file = directory / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != length:
                return f"{name} is truncated"
            if checksum(file) != crc32:
                return f"{name} is damaged"
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return f"{MANIFEST} is missing or damaged"
    return None


def move_into_place(new: Path, place: Path) -> None:
    """Rename a directory, or a file, to `place`, and replace what is there: nobody ever sees half of either."""
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
    """Write a file that is never seen half written."""
    new = file.with_name(f".{file.name}")
    new.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    move_into_place(new, file)


def remove(directory: Path) -> None:
    """Delete a directory whose name must never stand for half of it."""
    shutil.rmtree(_set_aside(directory), ignore_errors=True)  # what stays is deleted with `STAGING`


def _set_aside(directory: Path) -> Path:
    """Move a directory into `STAGING`: its new path."""
    staging = directory.parent / STAGING
    staging.mkdir(exist_ok=True)
    old = staging / f"old-{directory.name}"
    shutil.rmtree(old, ignore_errors=True)
    with suppress(FileNotFoundError):  # another process has deleted it
        os.replace(directory, old)
    return old


def is_lack_of_space(error: Exception) -> bool:
    codes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    # The tokenizers and safetensors libraries, and torch, raise exceptions of other kinds.
    signs = (*(f"(os error {code})" for code in codes), "inline_container.cc", "iostream error")
    return getattr(error, "errno", None) in codes or any(sign in str(error) for sign in signs)


@contextmanager
def locked(directory: Path) -> Iterator[bool]:
    """Hold the lock of a directory, which the operating system frees when the process ends, however it does. Gives False on a
    file system without locks.

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
        yield lock.is_locked
    finally:
        lock.release()


def checksum(file: Path) -> int:
    """CRC-32."""
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
    except OSError:
        if path.is_file():  # not every file system knows it of directories
            raise
    finally:
        os.close(descriptor)
