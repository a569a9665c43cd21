"""What must not be published: access tokens, keys and passwords, paths on this machine, and what a link leads to."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.plugins.base import RegexBasedDetector
from huggingface_hub import get_token


# Not in detect-secrets 1.5.
PATTERNS = {
    "Hugging Face Token": r"\b(hf|api_org)_[A-Za-z0-9]{30,}",
    "GitHub Token": r"\bgithub_pat_\w{22,}",
    "Google API Key": r"\bAIza[\w-]{35}",
    "Anthropic Key": r"\bsk-ant-[\w-]{20,}",
    "NPM Token": r"\bnpm_[A-Za-z0-9]{36}\b",
    "Private Key": r"BEGIN [A-Z ]*PRIVATE KEY",
    # A long value with letters and digits under such a name, quoted or not: AWS_SECRET_ACCESS_KEY, WANDB_API_KEY, …
    "Key": r"(?i)(access_?key|api_?key|secret|token(?!iz)|password|passwd)[\w-]*[\"']?\s*[:=]\s*[\"']?"
    r"(?=[A-Z/+]*\d)[A-Z\d/+]{32,}",
}
# Detectors whose patterns ordinary words match, such as APFELSTRUDEL, or that take seconds for a vocabulary.
LOOSE = ("Artifactory", "Cloudant", "IBM", "Public IP", "SoftLayer")
PATHS = r"/home/[\w.-]+|/Users/[\w.-]+|/(mnt|media|Volumes|content/drive)/[\w.-]+/[\w.-]+|[A-Z]:[\\/]+[\w.-]+|file:/+[\w.-]+"
PATHS_IN_JSON = r'(?<=")/[\w.-]+/[^"\s]*'  # a value


@cache
def _detectors() -> list[RegexBasedDetector]:
    """The detectors of detect-secrets that look for the form of a secret. Those for entropy and for words beside a value would
    report vocabularies and code, and so would those in `LOOSE`; addresses are no secrets."""
    classes = get_mapping_from_secret_type_to_class()
    return [
        detector()
        for kind, detector in classes.items()
        if issubclass(detector, RegexBasedDetector) and not kind.startswith(LOOSE)
    ]


def check_private(text: str, where: str | Path, tokens: Iterable[str | bool | None] = (), paths: bool = True) -> None:
    """Raise `ValueError`, which names the line of `where` but not the secret, if `text` contains a secret, one of these `tokens`,
    that of the user, or a local path, which is looked for with `paths`."""
    patterns = {f"a secret ({kind})": pattern for kind, pattern in PATTERNS.items()}
    patterns["an access token"] = "|".join(
        re.escape(token) for token in (get_token(), *tokens) if token and isinstance(token, str)
    )
    if paths:
        home = f"|{re.escape(str(Path.home()))}/" if Path.home() != Path("/") else ""
        in_json = f"|{PATHS_IN_JSON}" if str(where).endswith(".json") else ""
        patterns["a local path"] = rf"(?<![\w.\-/])({PATHS}{home}{in_json})"  # not inside a word or a URL
    found = {
        what: match.start() for what, pattern in patterns.items() if pattern and (match := re.search(pattern, text))
    }
    for detector in _detectors():
        for secret in detector.analyze_string(text):
            found.setdefault(f"a secret ({detector.secret_type})", text.find(secret))
    if found:
        what, start = min(found.items(), key=lambda item: item[1])
        line = text.count("\n", 0, start) + 1
        raise ValueError(f"{where} contains {what} in line {line}: remove it before you publish.")


def check_no_link(file: Path) -> None:
    """Raise `ValueError` for a link, which may lead to anything on this machine."""
    if file.is_symlink():
        raise ValueError(f"{file} is a link, which is not followed: put the file itself there, or delete the link.")
