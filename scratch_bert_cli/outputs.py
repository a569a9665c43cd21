"""Checks that results can be written where they are to go, before any work. They leave nothing behind."""

import tempfile
from contextlib import suppress
from pathlib import Path


def check_output_dir(option: str, directory: Path) -> None:
    """Raise `ValueError`, which names the option, if files can't be written to `directory`, which need not exist yet."""
    missing = []
    try:
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except (OSError, ValueError) as error:  # ValueError for a character NUL
        raise ValueError(_refuse(option, directory, error)) from None
    finally:
        for path in missing:
            with suppress(OSError, ValueError):  # not made, or another process writes there by now
                path.rmdir()


def check_new_dir(option: str, directory: Path) -> None:
    """Raise `ValueError`, which names the option, if a complete directory can't be moved to `directory`: it may be empty, but
    neither hold files nor be a mount point."""
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
