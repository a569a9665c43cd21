"""The files of a model's directory, or of its repository on the Hub: found, downloaded if need be, and read."""

import json
import os
from pathlib import Path
from typing import Literal, overload

from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers.utils import cached_file

from scratch_bert_options.errors import NetworkError, explain_network


PARTS = ("checkpoint-*", "snapshots/*", "seed-*")  # directories of models within that of a run
RUN_FILE = "run.json"  # in output directories and checkpoints: the record of the run, written before its first step


@overload
def find_file(name: str | Path, file: str, revision: str | None = None, *, required: Literal[True]) -> Path: ...
@overload
def find_file(name: str | Path, file: str, revision: str | None = None) -> Path | None: ...
def find_file(name: str | Path, file: str, revision: str | None = None, required: bool = False) -> Path | None:
    """A file of the directory or Hub repository `name`; None if it has no such file.

    Raises `OSError` or `ValueError` if there is no such directory or repository, and for a missing file that is
    `required`.
    """
    check_name(name)
    try:
        found = cached_file(str(name), file, revision=revision, _raise_exceptions_for_missing_entries=required)
    except OSError as error:
        where = "" if Path(name).is_dir() else f"{name} is not a directory, and could not be downloaded from the Hub: "
        raise NetworkError(where + (explain_network(error) or one_line(error))) from error
    if required and found is None:
        saved = [path.parent for kind in PARTS for path in Path(name).glob(f"{kind}/{file}")]
        models = sorted((path.relative_to(name).as_posix() for path in saved), key=lambda path: (len(path), path))
        hint = f"but these in it have: {', '.join(models)}" if models else "which save_pretrained and Trainer write"
        raise FileNotFoundError(f"{name} has no {file}, {hint}.")
    return Path(found) if found else None


def check_name(name: str | Path) -> None:
    """Raise `OSError` for what is neither a directory nor the name of a Hub repository. A name in a directory that
    exists here is a path."""
    text = str(name)
    if os.path.isdir(text):
        return
    if os.path.exists(text):
        raise NotADirectoryError(f"{name} is a file: name the directory that it is in.")
    parent, reason = os.path.dirname(text), ""
    try:
        validate_repo_id(text)
        if not os.path.isdir(parent):
            return
        reason = f": {parent} is a directory here, so the name is not looked for on the Hub"
    except HFValidationError:
        pass
    raise FileNotFoundError(
        f"There is no model directory {name}{reason}. If a run is just starting there, wait for its first snapshot."
    )


def read_json(file: Path) -> dict:
    """The object in a JSON file. Raises `ValueError` that names the file if there is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, nested too deeply
        raise ValueError(f"{file} cannot be read: {one_line(error)}. Save it again.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds a {type(content).__name__} instead of an object. Save it again.")
    return content


def one_line(error: BaseException) -> str:
    """The message of an error, without line ends."""
    return " ".join(str(error).split())
