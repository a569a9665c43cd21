"""Files of text: found, opened, and read line by line."""

import gzip
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from glob import glob
from pathlib import Path

from datasets.exceptions import DatasetGenerationError

from scratch_bert_options.errors import explain_limit, is_lack_of_space

from ..logs import logger
from ..repository import one_line


TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
STANDARD = "-"  # for a file: standard input or output


class TextError(ValueError):
    """Text that can't be read: not UTF-8, damaged, or without the requested column."""


@contextmanager
def read_errors(source: Path | str, place: Callable[[], str] = str) -> Generator[None]:
    """Turn what is raised within `with` by one of the many libraries that read `source` into a `TextError`, which names
    it and the `place` in it."""
    try:
        yield
    except (TextError, MemoryError):
        raise
    except Exception as error:
        if is_lack_of_space(error) or explain_limit(error):
            raise
        reason = (isinstance(error, DatasetGenerationError) and error.__cause__) or error
        if isinstance(reason, UnicodeDecodeError):
            raise TextError(
                f"{source} is not UTF-8 text: {place() or 'it'} holds the byte 0x{reason.object[reason.start]:02x}. "
                "If it is compressed, but not with gzip, decompress it. If it is text in another encoding, convert "
                "it: iconv -f ENCODING -t utf-8"
            ) from error
        at = place() and f" at {place()}"
        what = one_line(reason) or type(reason).__name__
        if isinstance(reason, LookupError | TypeError | AttributeError):  # of a library, for unexpected content
            what = f"it is empty or damaged ({type(reason).__name__}: {what})"
        raise TextError(f"{source} cannot be read{at}: {what}") from error


def find_files(paths: Iterable[str | Path], types: Iterable[str] = (".txt", *TABLES)) -> list[Path]:
    """The files of `paths`: files, globs, or directories, which stand for all files of `types` below them, also
    gzipped. Sorted within each path; each file once.

    Raises `FileNotFoundError` for a path or glob without a file, and `ValueError` for a pipe, a device or an empty
    name.
    """
    files: dict[Path, Path] = {}  # by the real path: links may lead to the same file, or in circles
    for path in paths:
        if not str(path):
            raise ValueError("The name of a file is empty.")  # to pathlib, it is the current directory
        path = Path(path)
        matches = [path] if path.exists() else sorted(map(Path, glob(str(path), recursive=True)))
        if not matches:
            raise FileNotFoundError(f"There is no file or directory {path}.")
        for match in matches:
            for file in _files_below(match, types) if match.is_dir() else [match]:
                files.setdefault(file.resolve(), file)
    for file in files.values():
        if not file.is_file():
            raise ValueError(f"{file} is a pipe, a device or a broken link, but files are read more than once.")
    return list(files.values())


def _files_below(directory: Path, types: Iterable[str]) -> list[Path]:
    """The files of `types`. Others are left out with a warning: also hidden ones, which other tools make."""
    files, left_out = [], []
    for file in sorted(directory.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(directory).parts)
        if suffix(file) in types and file.is_file() and not hidden:
            files.append(file)
        elif not file.is_dir() or file.is_symlink():
            left_out.append(file)
    if not files:
        raise FileNotFoundError(f"The directory {directory} holds no file of type {', '.join(types)}, gzipped or not.")
    if left_out:
        logger.warning(
            f"{directory}: left out {len(left_out):,} files, such as {left_out[0].relative_to(directory)}, which are "
            f"hidden, links, or not of the types {', '.join(types)}. To read them, name them as files"
        )
    return files


def suffix(file: Path) -> str:
    """Lower-case suffix of a file, without `.gz`: `.csv` for both `text.csv` and `text.CSV.gz`. JSON Lines have two."""
    found = Path(file.name.lower().removesuffix(".gz")).suffix
    return ".jsonl" if found == ".ndjson" else found


def read_lines(file: Path, ends: bool = False) -> Iterator[str]:
    """The lines of a UTF-8 file, also gzipped, or of standard input (`-`), with or without their ends, which may be
    those of old Macs (CR alone).

    Raises `TextError`, which names the line, for what is not text.
    """
    number, open_file = 1, gzip.open if file.suffix.lower() == ".gz" else open
    with (
        read_errors(file, lambda: f"line {number}"),
        nullcontext(sys.stdin.buffer) if str(file) == STANDARD else open_file(file, "rb") as lines,
    ):
        for number, line in enumerate(lines, 1):
            if b"\0" in line:
                raise TextError(
                    f"{file} is not text: line {number} holds a NUL byte, as UTF-16, compressed and other binary data "
                    "do. Convert or decompress it; only files named .gz are decompressed here."
                )
            if number == 1 and line.startswith(b"version https://git-lfs.github.com/spec/"):
                raise TextError(f"{file} is a Git LFS pointer: fetch the file with git lfs pull.")
            if number == 1 and line.startswith((b"{\\rtf", b"%PDF-")):  # which may be ASCII
                raise TextError(f"{file} is RTF or PDF: extract its text, as with pandoc or pdftotext.")
            if b"\x1b$" in line:  # ASCII alone: it would be read as text
                raise TextError(f"{file} is ISO-2022-JP: line {number} holds an escape sequence. Convert it to UTF-8.")
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")  # -sig drops a byte-order mark
            if number == 1 and "\r" in text and not line.endswith(b"\n"):  # no LF in the file
                yield from (f"{part}\n" if ends else part for part in text.rstrip("\r").split("\r"))
            else:
                yield text if ends else text.rstrip("\r\n")
