"""A cache of directories, each built once for its settings."""

import errno
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


VERSION = 1  # raise it when the same settings give other files


def cached(cache_dir: str | Path, kind: str, settings: object, build: Callable[[Path], None]) -> Path:
    """The directory for these settings; if there is none yet, `build` fills a new one.

    Its name holds `kind` and a hash of `VERSION` and the representation of `settings`. It gets this name when it is complete:
    a run that is killed leaves nothing that looks complete, and runs that build it at the same time share the first one.
    Raises `OSError` if `cache_dir` can't be written to or is full.
    """
    key = hashlib.blake2b(repr((VERSION, settings)).encode(), digest_size=16).hexdigest()
    directory = Path(cache_dir, f"{kind}-{key}")
    if directory.exists():
        return directory
    _check_writable(directory.parent)
    with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
        new = Path(scratch, "new")
        new.mkdir()
        try:
            build(new)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise OSError(
                f"There is no space left in {cache_dir} ({error.strerror}). Free some, or choose another directory with "
                "--cache_dir."
            ) from None
        try:
            os.replace(new, directory)
        except OSError:
            if not directory.exists():  # otherwise another run has built it meanwhile
                raise
    return directory


def _check_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise OSError(f"Cannot write to {directory} ({error.strerror}). Choose another --cache_dir.") from None
