"""Labels as they are in tables: their names, which are missing, and which are numbers."""

import re
from collections.abc import Iterable, Sequence
from typing import Any


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
_MISSING = ("", "nan", "NaN", "NaT", "<NA>", "-100")  # as pandas writes them, and what losses ignore


def is_missing(label: Any) -> bool:
    return label is None or label != label or str(label).strip() in _MISSING


def as_label_name(label: Any) -> str:
    """A label as text. Integers became floats in a column with gaps: 1.0 is 1."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def list_labels(names: Sequence[str], most: int = 10) -> str:
    """The names of the first labels, each cut to a length to read, and the number of the others."""
    listed = ", ".join(f"{name:.80}" for name in names[:most])
    return f"{listed} and {len(names) - most:,} others" if len(names) > most else listed


def is_number(label: Any) -> bool:
    """Whether a label is a number, or text such as "0.5"."""
    return isinstance(label, float) or bool(_NUMBER.fullmatch(str(label).strip()))


def is_decimal(label: Any) -> bool:
    """Whether a label is a number that is not whole."""
    return is_number(label) and not float(str(label)).is_integer()


def check_classes(labels: Iterable) -> None:
    """Raise `ValueError` for decimals, which would become names of classes."""
    if decimal := next(filter(is_decimal, labels), None):
        raise ValueError(f"A label must be a class, not a number such as {decimal}.")
