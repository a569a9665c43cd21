"""Text classification, multi-label classification and regression, of a text or a pair of texts."""

import logging
import math
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification

from ..labels import are_decimals, check_labels, is_decimal, is_missing, warn_of_classes, warn_of_several_labels
from .base import ClassLabelTask


logger = logging.getLogger("scratch_bert")

MAX_NUMBER = 1e15  # fp32 overflows at 3e38, and the loss is the mean of squares
# Problem type → its metrics; the first selects the best checkpoint.
DEFAULT_METRICS = {
    "single_label_classification": ("accuracy", "f1_macro"),  # with two labels, f1
    "multi_label_classification": ("f1_micro", "f1_macro", "accuracy"),
    "regression": ("pearsonr", "spearmanr", "mse"),
}


class SequenceClassification(ClassLabelTask):
    """A label, a set of labels, or a number for a text or a pair of texts."""

    columns: ClassVar = {"text": "text", "text_pair": None, "label": "label"}
    options: ClassVar = ("problem_type",)
    auto_class = AutoModelForSequenceClassification

    def read_labels(self, problem_type: str | None = None, label_names: Sequence[str] | None = None) -> None:
        labels, feature = self.splits["train"]["label"][:], self.splits["train"].features["label"]
        self.problem_type = problem_type or infer_problem_type(labels)
        self.default_metrics = DEFAULT_METRICS[self.problem_type]
        if self.problem_type == "multi_label_classification":
            values = _values_of_lists([_as_list(label_list) for label_list in labels])
            if decimal := next(filter(is_decimal, values), None):
                raise ValueError(f"A label in a list must be a class, not a number such as {decimal}.")
            self.read_label_names(values, getattr(feature, "feature", None), label_names)
            warn_of_classes(self.label_names, values, len(labels), self.class_feature is not None)
            joined = next((name for name in self.label_names if re.search(r"\w\s*[|;/]\s*\w", name)), None)
            if joined and len(values) <= len(labels):
                logger.warning(
                    f"No example has two labels, and one is {joined!r}: commas separate the labels in a cell."
                )
        elif self.problem_type == "single_label_classification":
            values = [label for label in labels if not is_missing(label)]
            self.read_label_names(values, feature, label_names)
            if len(self.label_names) < 2:
                raise ValueError(
                    f"The training examples have only one label, {self.label_names[0]!r}: there is nothing to learn."
                )
            if len(self.label_names) == 2:
                self.default_metrics = ("accuracy", "f1")
            if not label_names and not self.class_feature:
                warn_of_classes(self.label_names, values, len(labels), named=False)
                warn_of_several_labels(self.label_names)

    def references_of(self, split: str) -> list:
        examples = list(zip(self.splits[split]["origin"], self.splits[split]["label"], strict=True))
        if self.problem_type == "regression":
            if missing := [origin for origin, label in examples if is_missing(label)]:
                raise ValueError(
                    f"{len(missing):,} of {len(examples):,} examples for {split} have no label, the first is {missing[0]}: "
                    "correct them, or leave them out."
                )
            numbers = [_as_number(label, origin) for origin, label in examples]
            if split == "train" and len(set(numbers)) < 2:
                raise ValueError(f"All training examples have the label {numbers[0]}: there is nothing to learn.")
            return numbers
        if self.problem_type == "single_label_classification":
            return [self.ids_of([label], origin)[0] for origin, label in examples]
        id_sets = [set(self.ids_of(_as_list(labels), origin)) for origin, labels in examples]
        return [[int(label in ids) for label in range(len(self.label_names))] for ids in id_sets]

    def encode(self, split: str) -> Dataset:
        columns = self.text_columns(split)
        features = self.tokenize(
            split, lambda batch: self.tokenizer(*(batch[column] for column in columns), **self.truncation)
        )
        self.log_truncated(split, features)
        if split not in self.references:
            return features
        labels = self.references[split]
        if self.problem_type == "multi_label_classification":
            labels = [[float(chosen) for chosen in row] for row in labels]
        return features.add_column("labels", labels)

    def reduce(
        self, logits: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        return super().reduce(logits) if self.problem_type == "single_label_classification" else logits

    def decode(self, split: str, logits: np.ndarray | tuple[np.ndarray, ...]) -> list:
        if isinstance(logits, tuple):
            return logits[1].tolist()
        if self.problem_type == "regression":
            return logits[:, 0].tolist()
        return (logits > 0).astype(int).tolist()

    def constant_predictions(self, split: str) -> list:
        """The mean of the training labels, the most frequent class, or the classes that more than half of the examples have."""
        labels = np.array(self.references["train"])
        if self.problem_type == "regression":
            constant = float(labels.mean())
        elif self.problem_type == "multi_label_classification":
            constant = (labels.mean(0) > 0.5).astype(int).tolist()
        else:
            constant = int(np.bincount(labels).argmax())
        return [constant] * len(self.references[split])

    def format_prediction(self, prediction: Any) -> Any:
        if self.problem_type == "regression":
            return prediction
        if self.problem_type == "multi_label_classification":
            return [name for name, chosen in zip(self.label_names, prediction, strict=True) if chosen]
        return self.label_names[prediction]

    @property
    def model_options(self) -> dict[str, Any]:
        labels = {"num_labels": 1} if self.problem_type == "regression" else super().model_options
        return {**labels, "problem_type": self.problem_type}


def infer_problem_type(labels: Sequence) -> str:
    """Multi-label classification for lists, regression for floats and for text such as "0.5", otherwise single-label
    classification.

    Raises `ValueError` for floats, or text such as "1.0", that are all integers: they may also be ids of classes.
    """
    first = next((label for label in labels if label is not None), None)
    if isinstance(first, list):
        return "multi_label_classification"
    if isinstance(first, str) and are_decimals(labels):
        logger.warning(
            f"The labels are numbers, such as {next(filter(is_decimal, labels))}: this is a regression. If they are names "
            "of classes, pass --problem_type single_label_classification."
        )
        return "regression"
    written_as_float = isinstance(first, str) and all(
        re.fullmatch(r"\s*-?\d+\.0+\s*", label or "0.0") for label in labels
    )
    if not isinstance(first, float) and not written_as_float:
        return "single_label_classification"
    if written_as_float or all(label.is_integer() for label in labels if isinstance(label, float)):
        raise ValueError(
            f"The labels are integers written as floats, such as {first}: pass --problem_type regression if they are "
            "numbers to predict, or single_label_classification if they are names of classes."
        )
    return "regression"


def _values_of_lists(lists: list[list]) -> list:
    """The values in the lists of labels. Raises `ValueError` for vectors of 0 and 1 (multi-hot)."""
    values = [value for labels in lists for value in labels]
    check_labels([value for value in values if not is_missing(value)])
    if len({len(labels) for labels in lists}) == 1 < len(lists[0]) and set(values) <= {0, 1, "0", "1"}:
        raise ValueError(
            f"The labels are vectors of 0 and 1, such as {lists[0]}: give each example the list of its labels' names."
        )
    return [value for value in values if not is_missing(value)]


def _as_list(labels: list | str | None) -> list:
    if isinstance(labels, str):
        if labels.strip().startswith(("[", "{", "(")):
            raise ValueError(
                f"Several labels in a cell are separated by commas, without brackets, not {labels!r:.80}."
            )
        return [name.strip() for name in labels.split(",") if name.strip()]
    if not isinstance(labels, list | None):
        raise ValueError(f"Several labels of an example are a list, or comma-separated text, not {labels!r}.")
    return labels or []


def _as_number(label: Any, origin: str) -> float:
    try:
        value = float(label)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{origin}, has the label {label!r}, which is not a number.")
    if abs(value) > MAX_NUMBER:
        raise ValueError(
            f"{origin}, has the label {label!r}: its squared error overflows. Scale the labels to about 1."
        )
    return value
