"""What the logger scratch_bert prints, plain lines on stderr by the first process of a machine; and progress bars."""

import logging
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import transformers
from tqdm.auto import tqdm


MINUTE = 60.0  # seconds

logger = logging.getLogger("scratch_bert")


def log_level() -> int:
    """INFO in the first process of a machine, ERROR in the others."""
    return logging.INFO if os.environ.get("LOCAL_RANK", "0") == "0" else logging.ERROR


@contextmanager
def shown_messages() -> Generator[None]:
    """Within `with`, print our log messages, unless the application has configured logging."""
    if logger.hasHandlers() or logger.level:
        yield
        return
    handler = logging.StreamHandler()  # with the format of plain lines
    logger.addHandler(handler)
    logger.setLevel(log_level())
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def configure_logging(level: int | None = None) -> None:
    """Print our log messages, of `log_level()` and above by default, in a command; progress bars only on a terminal."""
    from datasets.utils import disable_progress_bars  # which the Space of the demo lacks

    if not sys.stderr.isatty():
        disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()  # also those of huggingface_hub
    logging.basicConfig(format="%(message)s")
    logger.setLevel(log_level() if level is None else level)
    logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)  # logs the errors that it raises


@contextmanager
def progress_bar(title: str, unit: str, total: int | None = None) -> Generator[Callable[[int], None]]:
    """Within `with`, a progress bar; or, without a terminal, a line in the log each minute. Yields a function that
    adds a number of units that are done."""
    done, logged = 0, time.monotonic()
    layout = {"unit_scale": True, "leave": False, "disable": None, "dynamic_ncols": True}
    with tqdm(desc=title, unit=f" {unit}", total=total, **layout) as bar:

        def advance(count: int) -> None:
            nonlocal done, logged
            bar.update(count)
            done += count
            if bar.disable and time.monotonic() - logged >= MINUTE:
                logged = time.monotonic()
                logger.info(f"{title}: {done:,}{f' of {total:,}' if total else ''} {unit}")

        yield advance
