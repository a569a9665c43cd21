"""Errors that a user can do something about, as one line with the cause and the remedy."""

import errno
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from http.client import responses
from importlib.metadata import PackageNotFoundError

from pydantic import ValidationError

from .commands import command_line
from .schema import explain


# Packages whose errors are those of the network, and those of data that can't be read.
NETWORK = {"httpx", "httpx2", "requests", "urllib3", "aiohttp", "botocore"}
DATA = {"datasets", "huggingface_hub", "pyarrow", "safetensors", "yaml", "zlib"}
PLAIN = (OSError, ValueError, ImportError)  # whose messages users get unchanged
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk is full, or a file is too large
# Pattern in the last line of an error → the message.
LIMITS = {
    r"Too many open files|ancdata": (
        "No more files can be opened: raise the limit (ulimit -n 4096), or lower dataloader_num_workers"
    ),
    r"shared memory|Bus error": (
        "The shared memory is full: give more to /dev/shm (docker run --shm-size=1g), or lower dataloader_num_workers"
    ),
    r"start new thread|thread pool|fork.*Resource temporarily unavailable|Cannot fork": (
        "No more threads or processes can be started: raise the limit (ulimit -u, or that of the container), or lower "
        "dataloader_num_workers and OMP_NUM_THREADS"
    ),
    r"MemoryError|allocate memory|out of memory|enough memory|failed to map segment|could not create a primitive$": (
        "There is not enough memory: raise the limit (ulimit -v, or that of the container), or use a smaller model, "
        "batch or max_seq_length, and fewer dataloader_num_workers"
    ),
    r"^RuntimeError: DataLoader worker \(pid": (
        "A process that loads data has died, perhaps for lack of memory, shared memory, threads or open files: raise "
        "the limit, or lower dataloader_num_workers"
    ),
}


REMEDY = "check the connection and the proxy, and try again."
# HTTP status → what to do.
STATUSES = {
    400: "correct what the message names",
    **dict.fromkeys((401, 404), "check the name; if it is private, log in with `{login}` or set HF_TOKEN"),
    403: "check the token's permissions, or request access on the repository's page",
    407: "put the proxy's user name and password into HTTPS_PROXY",
    429: "wait a few minutes",
}


class NetworkError(OSError):
    """A failure of the network or the Hub, with the remedy."""


class LimitError(OSError):
    """Out of memory, threads, files or shared memory, with the remedy."""


def explain_limit(error: BaseException) -> str | None:
    """The message of a `LimitError` in place of this error; None if the error has another reason."""
    kinds = (OSError, MemoryError, RuntimeError, ImportError)
    if type(error).__name__ == "OutOfMemoryError":  # of an accelerator: PyTorch's message has the figures
        return None
    if isinstance(error, LimitError) or not (isinstance(error, kinds) or type(error).__name__ == "PanicException"):
        return None
    last = (str(error).strip().splitlines() or [""])[-1]  # a data loader's worker puts its traceback before it
    last = last if re.match(r"\w+: ", last) else f"{type(error).__name__}: {last}"
    remedy = next((remedy for pattern, remedy in LIMITS.items() if re.search(pattern, last)), None)
    return remedy and f"{remedy} ({last.split('. ')[0].strip()})."


def explain_network(error: BaseException) -> str | None:
    """The message of a `NetworkError` in place of this error; None if it has another reason."""
    message, reason, seen = None, error, []
    while reason and reason not in seen:
        seen.append(reason)
        if isinstance(reason, NetworkError):
            return str(reason)
        text = str(reason).strip()
        if status := getattr(getattr(reason, "response", None), "status_code", None):
            own = None if "\n" in text else text  # others are paragraphs of advice
            words = getattr(reason, "server_message", None) or own or responses.get(status, "")
            remedy = STATUSES.get(status, "try again later" if status >= 500 else "check the name and the proxy")
            remedy = remedy.format(login=command_line("hf", "auth", "login"))
            url = str(reason.response.url).partition("?")[0]  # without a signature
            return f"{url} answers {status} ({' '.join(words.split())}): {remedy}."
        if _package(reason) in NETWORK:
            at = f" at {reason.request.url.host}" if getattr(reason, "_request", None) else ""
            message = f"The network failed{at} ({type(reason).__name__}: {text}): {REMEDY}"
        elif _package(reason) == "huggingface_hub" and isinstance(reason, OSError):
            message = text
        reason = reason.__cause__ or reason.__context__
    return message and " ".join(message.split())


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def is_lack_of_space(error: BaseException) -> bool:
    # tokenizers, safetensors and torch raise other exceptions than OSError.
    messages = (*(f"(os error {code})" for code in FULL), "inline_container.cc", "iostream error")
    return getattr(error, "errno", None) in FULL or any(message in str(error) for message in messages)


def plain_message(error: BaseException) -> str | None:
    """What a user is told of an error; None for one that only a change of the code can prevent."""
    cause = None if isinstance(error, OSError) else error.__cause__  # our OSErrors say how to continue
    if cause and (is_lack_of_space(cause) or explain_limit(cause)):
        return plain_message(cause)
    text = str(error) or type(error).__name__
    if isinstance(error, PackageNotFoundError):  # transformers puts a sentence in place of the package's name
        text = str(error.name)
    if is_lack_of_space(error) and "Free some space" not in text:
        return f"{text}. Free some space, or raise the file size limit (ulimit -f)."
    if limit := explain_limit(error):
        return limit
    if isinstance(error, ValidationError):
        return explain(error)
    if network := explain_network(error):
        return network
    if isinstance(error, PLAIN):
        return f"{text}{_variable_of(text)}"
    if _package(error) in DATA:  # "An error occurred while generating the dataset" has the reason as its cause
        return ": ".join(dict.fromkeys(filter(None, (text, error.__cause__ and str(error.__cause__)))))
    return None


def _variable_of(text: str) -> str:
    """The environment variable whose value a message cites, such as HF_HUB_DOWNLOAD_TIMEOUT=abc in "invalid literal for
    int() with base 10: 'abc'"; empty for other messages."""
    cited = re.fullmatch(r"(?:invalid literal for|could not convert|Unknown level).*?'?(\w+)'?", text)
    found = [name for name, value in os.environ.items() if cited and value == cited[1]]
    return f" (from the environment variable {found[0]})" if found else ""


@contextmanager
def plain_errors() -> Generator[None]:
    """A context or a decorator: errors of the network, of limits and of data become `OSError`s of one line."""
    try:
        yield
    except Exception as error:
        message = plain_message(error)
        if message is None or message == str(error) and isinstance(error, PLAIN):
            raise
        raise (ValueError if isinstance(error, ValueError) else OSError)(message) from error
