"""Command-line utilities for the rest of the package: options (from `scratch_bert_cli`), one-line errors, logging."""

import logging
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from os import PathLike
from typing import Any

import transformers
from datasets.utils import disable_progress_bars
from huggingface_hub.errors import StrictDataclassError

from scratch_bert_cli.options import from_keywords, option, parse_arguments, reject_non_default, similar
from scratch_bert_options.limits import explain_limit


def check_paths(**given: Any) -> None:
    """Raise `ValueError` for what is no path and no name, such as a model instead of its directory."""
    for name, value in given.items():
        if not isinstance(value, str | PathLike):
            remedy = ": save it first" if hasattr(value, "save_pretrained") else ""
            raise ValueError(f"{name} must be a path or a name, not {type(value).__name__}{remedy}.")


@contextmanager
def one_line_errors(
    kinds: tuple = (OSError, ValueError, ImportError, StrictDataclassError), stopped: str = "Stopped."
) -> Generator[None]:
    """End the program without a traceback: with the message of an error of these `kinds` and exit code 1, or after a
    signal with its message or `stopped` and exit code 128 + its number."""
    try:
        yield
    except kinds as error:
        sys.exit(f"error: {explain_limit(error) or error}")
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or stopped, file=sys.stderr)
        sys.exit(getattr(interrupt, "exit_code", 128 + signal.SIGINT))


@contextmanager
def shown_messages(level: int = logging.INFO) -> Generator[None]:
    """Within `with`, print our log messages of this level and above as plain lines on stderr, unless the application has
    configured logging."""
    logger = logging.getLogger("scratch_bert")
    if logger.hasHandlers() or logger.level:
        yield
        return
    handler = logging.StreamHandler()  # with the format of plain lines
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def configure_logging(level: int = logging.INFO) -> None:
    """Print our log messages of this level and above as plain lines on stderr; progress bars only on a terminal."""
    if not sys.stderr.isatty():
        disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()  # also those of huggingface_hub
    logging.basicConfig(format="%(message)s")
    logging.getLogger("scratch_bert").setLevel(level)
    logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)  # logs the errors that it raises
