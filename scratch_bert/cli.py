"""What the rest of the package uses of the command line: options, which `scratch_bert_cli` declares, and logging."""

import logging
import sys

import transformers
from datasets.utils import disable_progress_bars

from scratch_bert_cli.options import (
    OptionGroup,
    from_keywords,
    one_line_errors,
    option,
    parse_arguments,
    reject_non_default,
    similar,
)


def configure_logging(level: int = logging.INFO) -> None:
    """Print our log messages, of this level and above, as plain lines on stderr; progress bars on a terminal only."""
    if not sys.stderr.isatty():
        disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()  # also those of huggingface_hub
    logging.basicConfig(format="%(message)s")
    logging.getLogger("scratch_bert").setLevel(level)
