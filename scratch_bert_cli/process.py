"""What the commands share as processes: output that may have lost its reader, and errors in one line."""

import errno
import faulthandler
import io
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps

from scratch_bert_options.errors import plain_message


LOST = (errno.EPIPE, errno.EIO, errno.EBADF)  # the reader of a pipe or the terminal has gone, or never was


class Stream(io.FileIO):
    """A standard stream that drops output without a reader. Other errors, such as a full disk, remain errors."""

    def write(self, data) -> int | None:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in LOST:
                raise OSError(error.errno, error.strerror, "standard output or standard error") from None
            return len(data)


def tolerate_lost_output() -> None:
    """Let the process continue when stdout or stderr has lost its reader, or was closed from the start."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        buffer = getattr(stream, "buffer", None)
        raw = getattr(buffer, "raw", buffer)  # with python -u, there is no buffer
        if stream is None:  # otherwise the next file would get its descriptor, and the output of C libraries
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and type(raw) is io.FileIO and stream is getattr(sys, f"__{name}__"):  # no console of Windows
            stream.flush()
            raw = Stream(raw.fileno(), "w", closefd=False)
            new = io.TextIOWrapper(
                raw if stream.write_through else io.BufferedWriter(raw),
                encoding=stream.encoding,
                errors="backslashreplace" if stream.errors in ("strict", "surrogateescape") else stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, new)


def script(main: Callable[..., None]) -> Callable[..., None]:
    """Decorator of a command's main function, which continues when its output has no reader. Expected errors end it
    with one line and exit code 1, signals with 128 + their number, also during its imports; with
    SCRATCH_BERT_TRACEBACK=1, all errors have a traceback. Progress bars appear after a second, and disappear at their
    end."""

    @wraps(main)
    def run(*argv: list[str] | None) -> None:
        tolerate_lost_output()
        with suppress(OSError, ValueError):  # without a file descriptor
            faulthandler.enable()  # says where, if a mapped file is truncated meanwhile (SIGBUS)
        os.environ.setdefault("TQDM_DELAY", "1")  # tqdm reads its defaults when it is imported
        os.environ.setdefault("TQDM_LEAVE", "")  # false
        if hasattr(signal, "SIGUSR1") and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the training begins, there is nothing to save
        try:
            os.getcwd()
        except FileNotFoundError:
            sys.exit("error: The current directory no longer exists: change to another one.")
        try:
            main(*argv)
        except SystemExit:
            raise
        except KeyboardInterrupt as interrupt:
            print(str(interrupt) or "Stopped.", file=sys.stderr)
            sys.exit(getattr(interrupt, "exit_code", 128 + signal.SIGINT))
        except BaseException as error:  # Rust's panics are not Exceptions
            message = plain_message(error)
            if message is None or os.environ.get("SCRATCH_BERT_TRACEBACK"):
                raise
            sys.exit(f"error: {' '.join(message.split())}")

    return run
