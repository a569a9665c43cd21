"""A cache of directories, each built once for its settings."""

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from scratch_bert_options.data import DataOptions
from scratch_bert_options.errors import is_lack_of_space

from ..atomic import STAGING, find_damaged_file, locked, remove, seal
from ..logs import logger


CACHE_DIR = DataOptions.cache_dir  # the default of the option
VERSION = 3  # increase it when the same settings give different files
BUILDING = "building-"  # prefix of directories that are not complete yet
SECONDS_TO_LOCK = 60  # an older directory is locked, if its builder is alive


def cached(cache_dir: str | Path, kind: str, settings: object, build: Callable[[Path], None]) -> Path:
    """The directory for these settings. If it is missing or damaged, `build` fills a new one.

    Its name has `kind` and a hash of `VERSION` and the representation of `settings`, and is set when it is complete: a
    killed run leaves nothing that looks complete, and runs that build it at the same time share the first one.
    """
    key = hashlib.blake2b(repr((VERSION, settings)).encode(), digest_size=16).hexdigest()
    directory = Path(cache_dir, f"{kind}-{key}")
    if directory.exists():
        damage = find_damaged_file(directory)
        if damage is None:
            return directory
        logger.warning(f"The cache {directory} is damaged, {damage}: it is built again")
        remove(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(directory.parent)
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix=BUILDING) as scratch, locked(Path(scratch)):
        new = Path(scratch, "new")
        new.mkdir()
        try:
            build(new)
            seal(new)
        except Exception as error:  # without the name of the directory
            if is_lack_of_space(error):
                raise OSError(f"There is no space left in the cache_dir {cache_dir}: {error}") from error
            raise
        try:
            os.replace(new, directory)
        except OSError:
            if not directory.exists():  # otherwise, another run has built it in the meantime
                raise
    return directory


def _remove_leftovers(cache_dir: Path) -> None:
    """Delete the directories of killed builders, whose locks are free."""
    for scratch in [*cache_dir.glob(f"{BUILDING}*"), *cache_dir.glob(STAGING)]:
        with suppress(OSError):  # its builder is alive, or has just finished
            if time.time() - scratch.stat().st_mtime > SECONDS_TO_LOCK:
                with locked(scratch) as held:
                    if held:
                        shutil.rmtree(scratch)
