"""Labels as they are in tables: their names, and what is no label, or looks like a mistake."""

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from numbers import Number
from typing import Any


logger = logging.getLogger("scratch_bert")

MANY_CLASSES = 50
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
_MISSING = ("", "nan", "NaN", "NaT", "<NA>")  # as pandas writes them
_DOUBTFUL = ("null", "none", "na", "n/a")


def is_missing(label: Any) -> bool:
    return label is None or label != label or str(label).strip() in _MISSING


def as_label_name(label: Any) -> str:
    """A label as text. Integers became floats in a column with gaps: 1.0 is 1."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def list_labels(names: Sequence[str], most: int = 10) -> str:
    """The names of the first labels, each cut to a length to read, and the number of the others."""
    listed = ", ".join(f"{name:.80}" for name in names[:most])
    return f"{listed} and {len(names) - most:,} others" if len(names) > most else listed


def is_decimal(label: Any) -> bool:
    """Whether a label is a number that is not whole, or text such as "0.5"."""
    text = str(label).strip()
    return bool(_NUMBER.fullmatch(text)) and not float(text).is_integer()


def are_decimals(labels: Iterable) -> bool:
    """Whether labels are numbers, and not all whole."""
    present = [label for label in labels if not is_missing(label)]
    return any(map(is_decimal, present)) and all(_NUMBER.fullmatch(str(label).strip()) for label in present)


def check_labels(labels: Sequence) -> None:
    """Raise `ValueError` for labels that name no classes, are written in several ways, or are the same number."""
    kinds: dict[str, Any] = {}  # with an example of each
    for label in labels:
        if not isinstance(label, str | Number):
            raise ValueError(
                f"A label must be text or a number, not {label!r:.80}. Name the column with --label_column."
            )
        if label == -100:
            raise ValueError("The label -100 stands for no label: leave the example or the word out.")
        kind = "text" if isinstance(label, str) else "true or false" if isinstance(label, bool) else "numbers"
        kinds.setdefault(kind, label)
    if len(kinds) > 1:
        raise ValueError(
            f"The labels are {' and '.join(kinds)}, such as {' and '.join(map(repr, kinds.values()))}: write all of them "
            "in the same way."
        )
    numbers: dict[float, str] = {}
    for name in dict.fromkeys(map(as_label_name, labels)):
        if _NUMBER.fullmatch(name.strip()) and numbers.setdefault(float(name), name) != name:
            raise ValueError(
                f"The labels {numbers[float(name)]!r} and {name!r} are the same number: write all of them in the same way."
            )


def warn_of_several_labels(names: Sequence[str]) -> None:
    """Log a class that looks like several: text with commas, of which one part is a class, too."""
    known = set(names)
    joined = [name for name in names if "," in name and not known.isdisjoint(map(str.strip, name.split(",")))]
    if joined:
        logger.warning(
            f"{joined[0]!r} is a class of its own: if it is several labels, pass --problem_type "
            "multi_label_classification."
        )


def warn_of_classes(names: Sequence[str], labels: Sequence, examples: int, named: bool) -> None:
    """Log what looks wrong with the classes: very many, unless they are `named` by the dataset, rare, or doubtful."""
    counts = Counter(map(as_label_name, labels))
    single = [name for name in names if counts[name] == 1]
    if len(names) > max(2, examples / 2) or (len(names) > MANY_CLASSES and not named):
        logger.warning(
            f"There are {len(names):,} classes in {examples:,} examples, such as {', '.join(map(repr, names[:3]))}: is this "
            "the label? Name its column with --label_column. Numbers to predict need --problem_type regression."
        )
    elif single:
        logger.warning(
            f"{len(single):,} of {len(names):,} classes have one example, such as {single[0]!r}: they are hardly learned, "
            "and not evaluated. Correct the labels, add examples, or leave them out."
        )
    if doubtful := [name for name in names if name.strip().lower() in _DOUBTFUL]:
        logger.warning(f"{doubtful[0]!r} is a class: if it means that a label is missing, leave these examples out.")
    spellings: dict[str, str] = {}
    for name in names:
        composed = unicodedata.normalize("NFC", name)
        other = spellings.setdefault(composed.strip().lower(), name)
        if other != name:
            show = ascii if unicodedata.normalize("NFC", other) == composed else repr  # they look the same
            logger.warning(
                f"{show(other)} and {show(name)} are two classes: if they are one, write it in the same way."
            )
            break
