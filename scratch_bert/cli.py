"""How every script reads its options: flags, after a YAML or JSON file if the first argument is one; one-line errors."""

import difflib
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.errors import StrictDataclassError
from transformers import HfArgumentParser


def option(default: Any, help: str, **metadata: Any) -> Any:
    return field(default=default, metadata={"help": help, **metadata})


def refuse(arguments: Any, names: Iterable[str], where: str) -> None:
    """Raise `ValueError` for an option of these that has another value than its default."""
    for name in names:
        if getattr(arguments, name) != arguments.__dataclass_fields__[name].default:
            raise ValueError(f"{name} has no effect {where}: leave it out.")


def similar(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {matches[0]}?" if matches else ""


def parse_arguments(
    *dataclasses: type, description: str, argv: list[str] | None = None, tasks: Iterable[str] = ()
) -> tuple:
    """One object per dataclass, and a namespace with the `task`, the first argument, if there are `tasks`. Flags win over
    the file. An unknown option ends the program with a suggestion."""
    parser = HfArgumentParser(
        dataclasses,
        description=description,
        usage=f"%(prog)s {'TASK ' if tasks else ''}[OPTIONS.yaml|OPTIONS.json] [--option value ...]",
        allow_abbrev=False,
    )
    if tasks:
        parser.add_argument("task", metavar="TASK", choices=list(tasks), help="One of " + ", ".join(tasks) + ".")
    argv = sys.argv[1:] if argv is None else argv
    before, argv = (argv[:1], argv[1:]) if tasks else ([], argv)
    known = {action.dest for action in parser._actions}

    def reject(option: str, where: str) -> None:
        parser.error(f"{where}: there is no option {option}.{similar(option.lstrip('-').split('=')[0], known)}")

    if argv and argv[0].endswith((".yaml", ".yml", ".json")):
        try:
            values = yaml.safe_load(Path(argv[0]).read_text(encoding="utf-8")) or {}  # JSON is YAML, too
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            parser.error(f"{argv[0]} cannot be read: {error}")
        if not isinstance(values, dict):
            parser.error(f"{argv[0]} must hold options as name: value pairs.")
        for unknown in sorted(set(values) - known):
            reject(unknown, argv[0])
        argv = [flag for name, value in values.items() for flag in _as_flags(name, value)] + argv[1:]
    try:
        *parsed, remaining = parser.parse_args_into_dataclasses(before + argv, return_remaining_strings=True)
    except ValueError as error:
        parser.error(str(error))
    if remaining:
        reject(remaining[0], "command line")
    return tuple(parsed)


@contextmanager
def one_line_errors(
    kinds: tuple = (OSError, ValueError, ImportError, StrictDataclassError), stopped: str = "Stopped."
) -> Iterator[None]:
    """End the program with the message of what the user can mend, or after a Ctrl-C with `stopped`; no traceback."""
    try:
        yield
    except kinds as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(stopped)


def _as_flags(name: str, value: Any) -> list[str]:
    """An option from a file as it would stand on the command line, so that it is checked in the same way."""
    if value is None:
        return []
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    if isinstance(value, dict) and name == "config_overrides":
        value = ",".join(f"{field}={json.dumps(item)}" for field, item in value.items())
    return [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]
