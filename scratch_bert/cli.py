"""What every script does with its options: flags after a YAML or JSON file; one-line errors; logging."""

import argparse
import difflib
import json
import logging
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field, fields
from importlib.resources import files
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

import transformers
import yaml
from datasets.utils import disable_progress_bars
from huggingface_hub.errors import StrictDataclassError
from transformers import HfArgumentParser


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field that becomes an option with this help text. `within`, such as "[0, 1)", is the range of its values,
    which `check_ranges` checks."""
    return field(default=default, metadata={"help": help, **metadata})


def check_ranges(arguments: Any, **more: str) -> None:
    """Raise `ValueError` for an option of a dataclass, or one of `more`, that is out of its range. None is in any."""
    ranges = {field.name: field.metadata.get("within") for field in fields(arguments)} | more
    for name, interval in ranges.items():
        value = getattr(arguments, name)
        if interval is None or value is None:
            continue
        low, high = (float(end) for end in interval[1:-1].split(","))
        within = (low <= value if interval[0] == "[" else low < value) and (
            value <= high if interval[-1] == "]" else value < high
        )
        if not within:  # as NaN always is
            ends = [f"{'at least' if interval[0] == '[' else 'greater than'} {low:g}" if low > -inf else ""]
            ends += [f"{'at most' if interval[-1] == ']' else 'less than'} {high:g}" if high < inf else ""]
            raise ValueError(f"{name} must be {' and '.join(filter(None, ends))}, got {value}.")


def refuse(arguments: Any, names: Iterable[str], where: str) -> None:
    """Raise `ValueError` for an option of these that has another value than its default."""
    for name in names:
        if getattr(arguments, name) != arguments.__dataclass_fields__[name].default:
            raise ValueError(f"{name} has no effect {where}: leave it out.")


def similar(name: str, known: Iterable[str]) -> str:
    """ " Did you mean …?", if one of `known` is much like `name`; otherwise an empty string."""
    matches = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {matches[0]}?" if matches else ""


class _Parser(HfArgumentParser):
    def add_argument(self, *args, within: str | None = None, **kwargs) -> argparse.Action:
        return super().add_argument(*args, **kwargs)  # the range is not argparse's


def parse_arguments(
    *dataclasses: type,
    description: str,
    argv: list[str] | None = None,
    tasks: Iterable[str] = (),
    hidden: Iterable[str] = (),
) -> tuple:
    """Options as one object per dataclass, from `argv` or the command line.

    If there are `tasks`, the first argument must be one, and the last object returned is a namespace with the `task`. If
    the next argument is a YAML or JSON file, it gives options as flags would; flags take precedence. An unknown option
    or a bad value ends the program with a message, and a suggestion for a typo. `--help` leaves out the `hidden` options.
    """
    parser = _Parser(
        dataclasses,
        description=description,
        usage=f"%(prog)s {'TASK ' if tasks else ''}[OPTIONS.yaml|OPTIONS.json] [--option value ...]",
        allow_abbrev=False,
    )
    if tasks:
        parser.add_argument("task", metavar="TASK", choices=list(tasks), help="One of " + ", ".join(tasks) + ".")
    for action in parser._actions:
        if action.dest in hidden:
            action.help = argparse.SUPPRESS
    argv = sys.argv[1:] if argv is None else argv
    before, argv = (argv[:1], argv[1:]) if tasks else ([], argv)
    known = {action.dest for action in parser._actions}

    def reject(option: str, where: str) -> None:
        parser.error(f"{where}: there is no option {option}.{similar(option.lstrip('-').split('=')[0], known)}")

    flags = [argument.split("=")[0] for argument in argv]
    for action in parser._actions:  # of other options, the last one counts
        if action.nargs == "+" and sum(flags.count(flag) for flag in action.option_strings) > 1:
            parser.error(f"{action.option_strings[0]} is given twice: give it once, with all its values.")
    if argv and argv[0].endswith((".yaml", ".yml", ".json")):
        try:
            values = yaml.safe_load(Path(_find(argv[0])).read_text(encoding="utf-8")) or {}  # JSON is YAML, too
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            parser.error(f"{argv[0]} cannot be read: {' '.join(str(error).split())}")
        if not isinstance(values, dict):
            parser.error(f"{argv[0]} must hold options as name: value pairs.")
        for unknown in sorted(map(str, set(values) - known)):
            reject(unknown, argv[0])
        argv = [flag for name, value in values.items() for flag in _as_flags(name, value)] + argv[1:]
    try:
        *parsed, remaining = parser.parse_args_into_dataclasses(before + argv, return_remaining_strings=True)
    except (ValueError, TypeError, ArithmeticError, ImportError, OSError) as error:
        parser.error(str(error))
    if remaining:
        reject(remaining[0], "command line")
    return tuple(parsed)


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


def _find(name: str) -> str:
    """The path of a file; if there is none, `recipes/NAME` is the file of that name in the installed package."""
    path = Path(name)
    if path.parent == Path("recipes") and not path.exists() and find_spec("scratch_bert.recipes"):
        packaged = files("scratch_bert.recipes") / path.name
        if packaged.is_file():
            return str(packaged)
    return name


def _as_flags(name: str, value: Any) -> list[str]:
    """An option from a file as it would stand on the command line, so that it is checked in the same way."""
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    return [f"--{name}", *(json.dumps(one) if isinstance(one, dict) else _find(str(one)) for one in values)]
