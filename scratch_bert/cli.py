"""What the rest of the package uses of the command line: options, which `scratch_bert_cli` declares; one-line errors; logging."""

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import transformers
from datasets.utils import disable_progress_bars
from huggingface_hub.errors import StrictDataclassError

from scratch_bert_cli.options import from_keywords, option, parse_arguments, reject_non_default, similar


@contextmanager
def one_line_errors(
    kinds: tuple = (OSError, ValueError, ImportError, StrictDataclassError), stopped: str = "Stopped."
) -> Iterator[None]:
    """End the program with the message of an error that the user can fix, or with `stopped` after Ctrl-C; no traceback. The exit
    code is 1 after an error, 128 + the number of a signal after that."""
    try:
        yield
    except kinds as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or stopped, file=sys.stderr)
        sys.exit(getattr(interrupt, "exit_code", 128 + signal.SIGINT))


def configure_logging(level: int = logging.INFO) -> None:
    """Print our log messages, of this level and above, as plain lines on stderr; progress bars on a terminal only."""
    if not sys.stderr.isatty():
        disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()  # also those of huggingface_hub
    logging.basicConfig(format="%(message)s")
    logging.getLogger("scratch_bert").setLevel(level)
