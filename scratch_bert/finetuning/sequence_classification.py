"""Text classification, multi-label classification and regression, for a text or a pair of texts."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset
from transformers import AutoModelForSequenceClassification

from .task import Labelled


class SequenceClassification(Labelled):
    """One or several labels, or a number, for a text or a pair of texts."""

    columns: ClassVar = {"text": "text", "text_pair": None, "label": "label"}
    auto_class = AutoModelForSequenceClassification

    def read_labels(self, problem_type: str | None = None, label_names: Sequence[str] | None = None) -> None:
        labels, feature = self.splits["train"]["label"][:], self.splits["train"].features["label"]
        first = next((label for label in labels if label is not None), None)
        several, number = isinstance(first, list), isinstance(first, float)
        if number and not problem_type and all(label is None or label == label // 1 for label in labels):
            raise ValueError(
                f"The labels are whole numbers written as fractions, such as {first}: say with --problem_type whether "
                "they are numbers to predict or names of classes."
            )
        by_type = "multi_label" if several else "regression" if number else "single_label"
        self.problem_type = problem_type or by_type.removesuffix("_label") + (
            "" if number else "_label_classification"
        )
        if self.problem_type == "regression":
            self.metrics, self.best_metric = ("pearsonr", "spearmanr", "mse"), "pearsonr"
        elif self.problem_type == "multi_label_classification":
            feature = getattr(feature, "feature", None)
            lists = [_several(label) for label in labels]
            values = {value for one in lists for value in one}
            if len({len(one) for one in lists}) == 1 < len(lists[0]) and values <= {0, 1, "0", "1"}:
                raise ValueError(
                    f"The labels are lists of 0 and 1, such as {lists[0]}: give each row the list of its labels' names."
                )
            self.learn_names(list(values), feature, label_names)
            self.metrics, self.best_metric = ("f1_micro", "f1_macro", "accuracy"), "f1_micro"
        else:
            self.learn_names([label for label in labels if label not in (None, "")], feature, label_names)
            if len(self.names) < 2:
                raise ValueError(f"The training rows have no two labels, but {self.names}: there is nothing to learn.")
            self.metrics = ("accuracy", "f1" if len(self.names) == 2 else "f1_macro")

    def labels_of(self, split: str) -> list:
        rows = list(zip(self.splits[split]["row"], self.splits[split]["label"], strict=True))
        if self.problem_type == "regression":
            return [_as_number(label, row) for row, label in rows]
        if self.problem_type == "single_label_classification":
            return [self.ids_of([label], row)[0] for row, label in rows]
        chosen = [set(self.ids_of(_several(labels), row)) for row, labels in rows]
        return [[int(label in ids) for label in range(len(self.names))] for ids in chosen]

    def encode(self, split: str) -> Dataset:
        columns = self.text_columns(split)
        features = self.tokenize(split, lambda batch: self.tokenizer(*(batch[name] for name in columns), **self.cut))
        self.warn_of_cut_rows(split, features)
        if split not in self.references:
            return features
        labels = self.references[split]
        if self.problem_type == "multi_label_classification":
            labels = [[float(one) for one in row] for row in labels]
        return features.add_column("labels", labels)

    def decode(self, split: str, logits: np.ndarray) -> list:
        if self.problem_type == "regression":
            return logits[:, 0].tolist()
        if self.problem_type == "multi_label_classification":
            return (logits > 0).astype(int).tolist()
        return logits.argmax(-1).tolist()

    def describe(self, prediction: Any) -> Any:
        if self.problem_type == "regression":
            return prediction
        if isinstance(prediction, list):
            return [name for name, chosen in zip(self.names, prediction, strict=True) if chosen]
        return self.names[prediction]

    @property
    def model_options(self) -> dict[str, Any]:
        names = {"num_labels": 1} if self.problem_type == "regression" else super().model_options
        return {**names, "problem_type": self.problem_type}


def _several(labels: list | str | None) -> list:
    if isinstance(labels, str):
        return [part.strip() for part in labels.split(",") if part.strip()]
    if not isinstance(labels, list | None):
        raise ValueError(f"Several labels of a row are a list, or a text with commas between them, not {labels!r}.")
    return labels or []


def _as_number(label: Any, row: str) -> float:
    try:
        value = float(label)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{row}, has the label {label!r}, which is no number.")
    return value
