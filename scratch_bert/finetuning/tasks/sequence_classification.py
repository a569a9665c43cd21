"""Text classification, multi-label classification and regression, of a text or a pair of texts."""

import logging
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow
import torch
from datasets import Dataset
from pydantic import BaseModel, FiniteFloat
from transformers import AutoModelForSequenceClassification, PreTrainedConfig

from .base import Logits, Tensors, TextRow
from .class_labels import ClassLabelTask, Label, is_missing, is_number


logger = logging.getLogger("scratch_bert")

# Problem type → its metrics; the first selects the best checkpoint.
DEFAULT_METRICS = {
    "single_label_classification": ("accuracy", "f1_macro"),  # with two labels, f1
    "multi_label_classification": ("f1_micro", "f1_macro", "accuracy"),
    "regression": ("pearsonr", "spearmanr", "mse"),
}


class LabelledRow(TextRow):
    label: Label | list[Label | None] | None = None


class NumberRow(BaseModel):
    label: FiniteFloat


class SequenceClassification(ClassLabelTask):
    """A label, a set of labels, or a number for a text or a pair of texts."""

    row = LabelledRow
    columns: ClassVar = {"text": "text", "text_pair": None, "label": "label"}
    options: ClassVar = ("problem_type",)
    auto_class = AutoModelForSequenceClassification

    def read_labels(self, problem_type: str | None = None, label_names: Sequence[str] | None = None) -> None:
        labels, feature = self.splits["train"]["label"][:], self.splits["train"].features["label"]
        self.problem_type = problem_type or infer_problem_type(labels)
        self.default_metrics = DEFAULT_METRICS[self.problem_type]
        if self.problem_type == "multi_label_classification":
            lists = [_as_list(label_list) for label_list in labels]
            values = [value for one in lists for value in one]
            multi_hot = len({len(one) for one in lists}) == 1 < len(lists[0]) and set(values) <= {0, 1, "0", "1"}
            if multi_hot or any(isinstance(value, float) and value % 1 for value in values):
                raise ValueError(f"The labels are vectors of numbers, not lists of labels' names: {lists[0]}.")
            self.read_label_names(values, getattr(feature, "feature", None), at_least=1)
        elif self.problem_type == "single_label_classification":
            if any(isinstance(label, list) for label in labels):
                raise ValueError("Lists of labels need the problem_type multi_label_classification.")
            self.read_label_names(labels, feature, label_names)
            if len(self.label_names) == 2:
                self.default_metrics = ("accuracy", "f1")
        else:
            self.model_options = {"num_labels": 1}
        self.model_options = {**self.model_options, "problem_type": self.problem_type}
        if self.problem_type == "regression" and len({str(label) for label in labels}) == 1:
            raise ValueError(f"All labels of the training examples are {labels[0]}: there is nothing to learn.")

    def read_config(self, config: PreTrainedConfig) -> None:
        super().read_config(config)
        inferred = "regression" if config.num_labels == 1 else "single_label_classification"
        self.problem_type = config.problem_type or inferred
        self.threshold: float | None = getattr(config, "decision_threshold", None) if config.num_labels == 2 else None

    def prediction_types(self, split: str) -> dict[str, pyarrow.DataType]:
        if self.problem_type == "regression":
            return {"prediction": pyarrow.float64()}
        probabilities = dict.fromkeys((f"probability_{name}" for name in self.label_names), pyarrow.float64())
        if self.problem_type == "multi_label_classification":
            return {"prediction": pyarrow.list_(pyarrow.string())} | probabilities
        return {"prediction": pyarrow.string(), "probability": pyarrow.float64()} | probabilities

    def predict(self, split: str, logits: tuple[torch.Tensor, ...]) -> dict[str, list]:
        """Of two classes, the second is predicted from the probability `threshold` on."""
        if self.problem_type == "regression":
            return {"prediction": self.decode(split, logits[0].numpy())}
        if self.problem_type == "multi_label_classification":
            probabilities, predictions = logits[0].sigmoid(), self.decode(split, logits[0].numpy())
            columns = {"prediction": [self.format_prediction(prediction) for prediction in predictions]}
        else:
            probabilities = logits[0].softmax(-1)  # (N, L)
            predicted = probabilities.argmax(-1)
            if self.threshold is not None:
                predicted = (probabilities[:, 1] >= self.threshold).long()
            columns = {
                "prediction": [self.label_names[number] for number in predicted.tolist()],
                "probability": probabilities.gather(1, predicted[:, None])[:, 0].tolist(),
            }
        names = (f"probability_{name}" for name in self.label_names)
        return columns | dict(zip(names, probabilities.T.tolist(), strict=True))

    def reference(self, row: dict[str, Any]) -> int | float | list[int]:
        if self.problem_type == "regression":
            return NumberRow.model_validate(row).label
        if self.problem_type == "single_label_classification":
            return self.id_of(row["label"])
        ids = {self.id_of(label) for label in _as_list(row["label"])}
        return [int(number in ids) for number in range(len(self.label_names))]

    def encode(self, split: str) -> Dataset:
        columns = self.text_columns(split)
        features = self.tokenize(
            split, lambda batch: self.tokenizer(*(batch[column] for column in columns), **self.truncation)
        )
        self.log_truncated(split, map(len, features["input_ids"]))
        if split not in self.references:
            return features
        labels = self.references[split]
        if self.problem_type == "multi_label_classification":
            labels = [[float(chosen) for chosen in row] for row in labels]
        return features.add_column("labels", labels)

    def reduce(self, logits: Tensors, labels: Tensors | None = None) -> Tensors:
        return super().reduce(logits) if self.problem_type == "single_label_classification" else logits

    def decode(self, split: str, logits: Logits) -> list:
        if isinstance(logits, tuple):
            return logits[1].tolist()
        if self.problem_type == "regression":
            return logits[:, 0].tolist()
        return (logits > 0).astype(int).tolist()

    def constant_predictions(self, split: str) -> list:
        """The mean of the training labels, the most frequent class, or the classes of more than half of the texts."""
        labels = np.array(self.references["train"])
        if self.problem_type == "regression":
            constant = labels.mean()
        elif self.problem_type == "multi_label_classification":
            constant = (labels.mean(0) > 0.5).astype(int)
        else:
            constant = np.bincount(labels).argmax()
        return [constant.tolist()] * len(self.references[split])

    def format_prediction(self, prediction: Any) -> Any:
        if self.problem_type == "regression":
            return prediction
        if self.problem_type == "multi_label_classification":
            return [name for name, chosen in zip(self.label_names, prediction, strict=True) if chosen]
        return self.label_names[prediction]


def infer_problem_type(labels: Sequence) -> str:
    """Multi-label classification for lists, regression for floats and for text such as "0.5", otherwise single-label
    classification.

    Raises `ValueError` for floats, or text such as "1.0", that are all integers: they may also be ids of classes.
    """
    labels = [label for label in labels if not is_missing(label)]
    if any(isinstance(label, list) for label in labels):
        return "multi_label_classification"
    decimals = (label for label in labels if is_number(label) and not float(str(label)).is_integer())
    if all(map(is_number, labels)) and (decimal := next(decimals, None)) is not None:
        if isinstance(labels[0], str):
            logger.warning(
                f"The labels are numbers, such as {decimal}: this is a regression, without a --problem_type"
            )
        return "regression"
    if labels and all(isinstance(label, float) or re.fullmatch(r"\s*-?\d+\.0+\s*", str(label)) for label in labels):
        raise ValueError(f"The labels are integers written as floats, such as {labels[0]}: pass --problem_type.")
    return "single_label_classification"


def _as_list(labels: list | str | None) -> list:
    """The labels of an example, which in a cell are separated by commas."""
    if isinstance(labels, str) and not labels.strip().startswith(("[", "{", "(")):
        return [name.strip() for name in labels.split(",") if name.strip()]
    if not isinstance(labels, list | None):
        raise ValueError(f"Labels must be a list, or text with commas between them, not {labels!r:.80}.")
    return labels or []
