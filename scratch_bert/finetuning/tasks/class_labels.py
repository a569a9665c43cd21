"""What tasks with a closed set of labels share: the names of the labels, and their ids."""

import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from unicodedata import normalize

from transformers import PreTrainedConfig

from ...logs import logger
from .base import Task, Tensors, class_names


Label = str | bool | int | float
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b\u2028\u2029\ufeff]")
MAX_LABEL = 500  # characters
_MISSING = ("", "nan", "NaN", "NaT", "<NA>", "-100")  # as pandas writes them, and what losses ignore


class ClassLabelTask(Task):
    """A task with a closed set of labels, `label_names`; an id is a position in it."""

    def read_label_names(
        self, values: Sequence[Label], feature: Any, label_names: Sequence[str] | None = None, at_least: int = 2
    ) -> None:
        """Set the names: `label_names`, or those of the column's `feature`, or the labels' `values`, sorted."""
        self.class_names = {
            number: as_label_name(name) for number, name in enumerate(class_names(feature) or ())
        }  # -1 has none
        self.label_names = list(label_names or self.class_names.values()) or _sorted_names(values)
        if len(self.label_names) < at_least:
            raise ValueError(f"The training examples have too few labels: {self.label_names}. Pass --label_column.")
        self._check_names(Counter(str(value) for value in values if not is_missing(value)))
        alike = Counter(name.lower() for name in self.label_names)
        if len(alike) < len(self.label_names):
            same = next(name for name, count in alike.items() if count > 1)
            logger.warning(f"Several labels differ only in case, as spellings of {same!r}: each is a class")
        self.label_ids = {name: number for number, name in enumerate(self.label_names)}
        self.model_options = {"id2label": dict(enumerate(self.label_names)), "label2id": self.label_ids}
        if label_names:  # GLUE's files have ids where its dataset on the Hub has names
            self.label_ids = {str(number): number for number in range(len(self.label_names))} | self.label_ids

    def _check_names(self, counts: Counter[str]) -> None:
        """Raise `ValueError` for what can't be a name, and what is written like names, but means something else."""
        names = (*counts, *map(str, self.label_names))
        if strange := next((name for name in names if len(name) > MAX_LABEL or _UNPRINTABLE.search(name)), None):
            raise ValueError(
                f"The label {ascii(strange):.80} has control or invisible characters, or over {MAX_LABEL} characters: "
                "clean the labels, or name their column with --label_column."
            )
        if self.predicts_tokens:  # for which NN|JJ may be a tag
            return
        parts = ((name, re.split(r" *[;|] *", name)) for name in counts)
        lists = (
            name for name, found in parts if name[:1] + name[-1:] == "[]" or found[1:] and {*found} <= counts.keys()
        )
        if listed := next(lists, None):
            raise ValueError(
                f"The label {listed:.60} looks like a list: write lists with commas, without brackets or quotes, and pass "
                "--problem_type multi_label_classification; or write JSON Lines."
            )
        if "-" in counts and len(counts) > 2 and "+" not in counts:
            raise ValueError(
                f"{counts['-']:,} training examples have the label '-', which in SNLI means no gold label: leave "
                "them out. If it is a class, give it another name."
            )
        numbers = [name for name in counts if _DECIMAL_COMMA.fullmatch(name.strip()) or is_number(name)]
        if len(numbers) == len(counts) and (decimal := next((name for name in numbers if "," in name), None)):
            raise ValueError(
                f"The labels look like numbers with a decimal comma, such as {decimal}: write them with a point for a "
                "regression, or pass --problem_type multi_label_classification if they are lists."
            )

    def read_config(self, config: PreTrainedConfig) -> None:
        self.label_names = [str(config.id2label[number]) for number in range(config.num_labels)]

    def find_id(self, label: Label | None) -> int | None:
        """None for a label that is missing or unknown."""
        name = self.class_names.get(label, label) if isinstance(label, int) else label
        return None if is_missing(name) else self.label_ids.get(self.as_name(name))

    def as_name(self, label: Label) -> str:
        """The name of a label's class."""
        return as_label_name(label)

    def id_of(self, label: Label | None) -> int:
        """Raises `ValueError` for a label that is missing or unknown."""
        found = self.find_id(label)
        if found is None:
            known = ", ".join(self.label_names[:20])
            raise ValueError(f"the label {label!r} is not one of the training labels: {known}.")
        return found

    def reduce(self, logits: Tensors, labels: Tensors | None = None) -> Tensors:
        """The highest logits and their classes: those of thousands of classes would not fit into memory."""
        return tuple(logits.max(-1))


def is_missing(label: Any) -> bool:
    return label is None or label != label or str(label).strip() in _MISSING


def as_label_name(label: Any) -> str:
    """A label as text, in NFC and without spaces around it. Integers became floats in a column with gaps: 1.0 is 1."""
    name = int(label) if isinstance(label, float) and label.is_integer() else label
    return normalize("NFC", str(name)).strip()


def is_number(label: Any) -> bool:
    """Whether a label is a number, or text such as "0.5"."""
    return isinstance(label, float) or bool(_NUMBER.fullmatch(str(label).strip()))


def _sorted_names(values: Sequence[Label]) -> list[str]:
    """The names of the labels, numbers by their value."""
    names = {as_label_name(value) for value in values if not is_missing(value)}
    numbers = [Decimal(name) for name in names if is_number(name)]
    if len(set(numbers)) < len(numbers):
        raise ValueError("Labels such as 1, 1.0 and 01 are the same number: write all of them in the same way.")
    return sorted(names, key=lambda name: (0, int(name), "") if re.fullmatch(r"-?\d+", name) else (1, 0, name))
