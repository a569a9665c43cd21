"""What tasks with a closed set of labels share: the names of the labels, and their ids."""

import logging
import re
from collections.abc import Sequence
from typing import Any

import torch
from datasets import ClassLabel

from ..labels import as_label_name, is_missing, is_number, list_labels
from .base import Task


logger = logging.getLogger("scratch_bert")

Label = str | bool | int | float


class ClassLabelTask(Task):
    """A task with a closed set of labels, `label_names`; an id is a position in it."""

    def read_label_names(
        self, values: Sequence[Label], feature: Any, label_names: Sequence[str] | None = None, at_least: int = 2
    ) -> None:
        """Set the names: `label_names`, or those of a `ClassLabel` feature, or the labels' `values`, sorted."""
        self.class_names = dict(enumerate(feature.names)) if isinstance(feature, ClassLabel) else {}  # -1 has none
        self.label_names = list(label_names or self.class_names.values()) or _sorted_names(values)
        if len(self.label_names) < at_least:
            found = f"only one label, {self.label_names[0]!r}" if self.label_names else "no labels"
            raise ValueError(f"The training examples have {found}: pass --label_column.")
        self.label_ids = {name: number for number, name in enumerate(self.label_names)}
        if label_names:  # GLUE's files have ids where its dataset on the Hub has names
            self.label_ids = {str(number): number for number in range(len(self.label_names))} | self.label_ids

    def ids_of(self, labels: Sequence, origin: str) -> list[int]:
        """The ids of the labels of an example. Raises `ValueError` for one that is missing or unknown."""
        labels = [self.class_names.get(label, label) if isinstance(label, int) else label for label in labels]
        for label in labels:
            if is_missing(label) or as_label_name(label) not in self.label_ids:
                raise ValueError(
                    f"{origin}, has the label {label!r}, but the labels of the training examples are: "
                    f"{list_labels(self.label_names, 20)}. Correct it, or leave the example out."
                )
        return [self.label_ids[as_label_name(label)] for label in labels]

    def reduce(
        self, logits: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The highest logits and their classes. With thousands of classes, all logits of a split would not fit into
        memory."""
        return tuple(logits.max(-1))

    @property
    def model_options(self) -> dict[str, Any]:
        return {
            "id2label": dict(enumerate(self.label_names)),
            "label2id": {name: number for number, name in enumerate(self.label_names)},
        }


def _sorted_names(values: Sequence[Label]) -> list[str]:
    """The names of the labels, numbers by their value. Raises `ValueError` if two are the same number."""
    names = sorted({as_label_name(value) for value in values if not is_missing(value)}, key=_numeric_order)
    numbers = [float(name) for name in names if is_number(name)]
    if len(set(numbers)) < len(numbers):
        raise ValueError("Labels such as 1 and 1.0 are the same number: write all of them in the same way.")
    if len(names) > max(2, len(values) / 2):
        logger.warning(
            f"There are {len(names):,} classes in {len(values):,} labels, such as {', '.join(map(repr, names[:3]))}: is this "
            "the right --label_column? Numbers to predict need --problem_type regression."
        )
    return names


def _numeric_order(name: str) -> tuple:
    return (0, int(name), "") if re.fullmatch(r"-?\d+", name) else (1, 0, name)
