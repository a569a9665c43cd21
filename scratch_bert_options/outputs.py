"""The default directory of results, and checks before any work that results can be written, which leave no trace."""

import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path


# Values of resume_from_checkpoint that name no directory; `True` is the stock Trainer's.
NEWEST = ("auto", "last", "true")


def numbered_dir(beginning: str, resume_from: str | None) -> str:
    """The next free one of `beginning`-1, -2, …; to resume, the newest, or the directory of the named checkpoint."""
    if resume_from and str(resume_from).lower() not in NEWEST:
        return str(Path(resume_from).parent)
    place = Path(beginning)
    found = (re.fullmatch(rf"{place.name}-(\d+)", path.name) for path in place.parent.glob(f"{place.name}-*"))
    newest = max((int(match[1]) for match in found if match), default=0)
    return f"{beginning}-{max(newest, 1) if resume_from else newest + 1}"


def check_output_dir(option: str, directory: Path, inputs: Iterable[str] | None = None) -> None:
    """Raise `ValueError`, which names the option, if no file can be written to `directory`, which need not exist, or it
    is in one of the directories that are read as `inputs`."""
    for path in inputs or ():
        if Path(path).is_dir() and directory.resolve().is_relative_to(Path(path).resolve()):
            raise ValueError(f"The {option} {directory} is in {path}, whose files are read: choose another place.")
    try:
        # Nothing is created but a nameless file: other processes may make the same directories at the same time.
        str(directory).encode()  # tokenizers writes to names in UTF-8 only
        if re.fullmatch(r"[\w+.-]{2,}:", directory.parts[0] if directory.parts else ""):
            raise ValueError("it is a URL")
        existing = next(path for path in (directory, *directory.absolute().parents) if os.path.lexists(path))
        tempfile.TemporaryFile(dir=existing).close()
    except (OSError, ValueError) as error:
        raise ValueError(_refuse(option, directory, error)) from None


def check_new_dir(option: str, directory: Path) -> None:
    """Raise `ValueError`, which names the option, if a complete directory can't be moved to `directory`: if that holds
    files or is a mount point."""
    check_output_dir(option, directory)
    if directory.exists():
        check_output_dir(f"the parent of {option}", directory.absolute().parent)
        if any(directory.iterdir()):
            raise ValueError(f"The {option} {directory} is not empty: choose another directory.")
        if directory.is_mount():
            raise ValueError(f"The {option} {directory} is a mount point: choose a directory in it.")


def check_new_file(option: str, file: Path) -> None:
    """Raise `ValueError`, which names the option, if `file` exists or can't be written."""
    try:
        str(file).encode()  # as in `check_output_dir`
        file.touch(exist_ok=False)
        file.unlink()
    except FileExistsError:
        raise ValueError(f"{option} {file} exists: choose another name.") from None
    except FileNotFoundError:
        raise ValueError(f"The directory of {option} {file} does not exist: create it first.") from None
    except (OSError, ValueError) as error:
        raise ValueError(_refuse(option, file, error)) from None


def _refuse(option: str, path: Path, error: OSError | ValueError) -> str:
    reason = getattr(error, "strerror", None) or error
    return f"Cannot write to {option} {path} ({reason}): choose another place."
