"""What must not be published: access tokens, keys and passwords, paths on this machine, and targets of links."""

import re
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
    "Databricks Token": r"\bdapi[0-9a-f]{32}",
    "Authorization": r"(?i)\b(bearer|basic) +(?=[\w.+/=~-]*\d)[\w.+/=~-]{20,}",
    "Password": r"(?i)(?<![^\W_])(password|passwd|pwd)[\"']? *[:=] *[\"']?(?=[^\s,\"']*[a-z])(?=[^\s,\"']*\d)[^\s,\"']{6,}",
    "Private Key": r"BEGIN [A-Z ]*PRIVATE KEY",
    # A long value with letters and digits under such a name, quoted or not: AWS_SECRET_ACCESS_KEY, WANDB_API_KEY, …
    "Key": r"(?i)(access_?key|api_?key|secret|token(?!iz)|password|passwd)[\w-]*[\"']?\s*[:=]\s*[\"']?"
    r"(?=[A-Z/+]*\d)[A-Z\d/+]{32,}",
}
# Detectors that match ordinary words, such as APFELSTRUDEL, or take seconds for a vocabulary.
LOOSE = ("Artifactory", "Cloudant", "IBM", "Public IP", "SoftLayer")
PLACES = "data|gpfs|lustre|media|mnt|nfs|scratch|work|workspace|Volumes|content/drive"  # of clusters, disks and Colab
PATHS = rf"/(home|Users)/[\w.-]+|/({PLACES})/[\w.-]+/[\w.-]+|([A-Z]:[\\/]+|file:/+|~/|\\{{2,}}[\w.-]+\\+)[\w.-]+"
PATHS_IN_JSON = r'(?<=")(?<!\d": ")(?![^"\n]*": \d)/[\w.-]+/[^"\s]*'  # a value, but not a label: /people/person


@cache
def _detectors() -> list[RegexBasedDetector]:
    """The detectors of detect-secrets that know the form of a secret. Those for entropy and for keywords would report
    vocabularies and code, and so would those in `LOOSE`; addresses are not secrets."""
    kinds = get_mapping_from_secret_type_to_class().items()
    return [kind() for name, kind in kinds if issubclass(kind, RegexBasedDetector) and not name.startswith(LOOSE)]


def reject_private(found: list[str]) -> None:
    """Raise `ValueError`, which names the lines but not the secrets, if anything was found by `find_private`."""
    if found:
        raise ValueError(f"{'; '.join(found)}: remove it before you publish.")


def find_private(text: str, where: str | Path, paths: bool = True) -> list[str]:
    """What is private in a text, by its lines: for each kind, the first."""
    patterns = {f"a secret ({kind})": pattern for kind, pattern in PATTERNS.items()}
    if token := get_token():
        patterns["an access token"] = re.escape(token)
    if paths:
        home = f"|{re.escape(str(Path.home()))}/" if Path.home() != Path("/") else ""
        in_json = f"|{PATHS_IN_JSON}" if str(where).endswith(".json") else ""
        patterns["a local path"] = rf"(?<![\w.\-/])({PATHS}{home}{in_json})"  # not inside a word or a URL
    found = {what: match.start() for what, pattern in patterns.items() if (match := re.search(pattern, text))}
    for detector in _detectors():
        for secret in detector.analyze_string(text):
            found.setdefault(f"a secret ({detector.secret_type})", text.find(secret))
    return [f"{where} contains {what} in line {text.count(chr(10), 0, start) + 1}" for what, start in found.items()]


def check_no_link(file: Path) -> None:
    """Raise `ValueError` for a link, which may lead to anything on this machine."""
    if file.is_symlink():
        raise ValueError(f"{file} is a link, which is not followed: put the file itself there, or delete the link.")
