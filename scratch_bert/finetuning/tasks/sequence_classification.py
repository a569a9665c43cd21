"""Text classification, multi-label classification and regression, of a text or a pair of texts."""

import re
from collections.abc import Sequence
from copy import copy
from typing import Any, ClassVar

import numpy as np
import pyarrow
import torch
from datasets import Dataset
from pydantic import FiniteFloat
from transformers import AutoModelForSequenceClassification, PreTrainedConfig

from scratch_bert_options.schema import check

from ...logs import logger
from .base import Logits, Tensors, TextRow
from .class_labels import ClassLabelTask, Label, is_missing, is_number
from .problems import MultiClass, MultiLabel, Problem, Regression, TwoClasses


RARE = 0.4  # a class with a smaller share of the training examples is rare


class LabelledRow(TextRow):
    label: Label | list[Label | None] | None = None


class SequenceClassification(ClassLabelTask):
    """A label, a set of labels, or a number for a text or a pair of texts; see `Problem`."""

    row = LabelledRow
    columns: ClassVar = {"text": "text", "text_pair": None, "label": "label"}
    options: ClassVar = ("problem_type", "positive_label", "decision_threshold")
    auto_class = AutoModelForSequenceClassification

    def read_labels(
        self,
        problem_type: str | None = None,
        label_names: Sequence[str] | None = None,
        positive_label: str | None = None,
        decision_threshold: float | None = None,
    ) -> None:
        labels, feature = self.splits["train"]["label"][:], self.splits["train"].features["label"]
        self.problem_type = problem_type or infer_problem_type(labels)
        self.problem: Problem = Regression()
        if self.problem_type == "multi_label_classification":
            lists = [_as_list(label_list) for label_list in labels]
            if missing := labels.count(None):
                logger.warning(f"{missing:,} training examples have a missing list of labels: taken as empty")
            values = [value for one in lists for value in one]
            multi_hot = len({len(one) for one in lists}) == 1 < len(lists[0]) and set(values) <= {0, 1, "0", "1"}
            if multi_hot or any(isinstance(value, float) and value % 1 for value in values):
                raise ValueError(f"The labels are vectors of numbers, not lists of label names: {lists[0]}.")
            self.read_label_names(values, feature, at_least=1)
            self.problem = MultiLabel(self.label_names)
        elif self.problem_type == "single_label_classification":
            if any(isinstance(label, list) for label in labels):
                raise ValueError("Lists of labels need the problem_type multi_label_classification.")
            self.read_label_names(labels, feature, label_names)
            self.problem = MultiClass(self.label_names)
            if len(self.label_names) == 2:
                ids = [found for label in labels if (found := self.find_id(label)) is not None]
                shares = np.bincount(ids, minlength=2) / len(labels)
                rare = self.label_names[shares.argmin()] if shares.min() < RARE and label_names is None else None
                positive = positive_label or rare or self.label_names[1]
                self.problem = TwoClasses(self.label_names, positive, positive == rare, decision_threshold)
                share = f"{shares[self.problem.positive]:.1%} of the training examples"
                logger.info(f"Positive class, for precision, recall and F1: {positive}, {share}")
                self.model_options = {**self.model_options, "positive_label": positive}
        else:
            self.model_options = {"num_labels": 1}
            if len({str(label) for label in labels}) == 1:
                raise ValueError(f"All labels of the training examples are {labels[0]}: there is nothing to learn.")
        if (positive_label or decision_threshold) and not isinstance(self.problem, TwoClasses):
            raise ValueError("positive_label and decision_threshold are for two classes.")
        self.default_metrics, self.one_label = self.problem.metrics, isinstance(self.problem, MultiClass)
        self.model_options = {**self.model_options, "problem_type": self.problem_type}

    def read_config(self, config: PreTrainedConfig) -> None:
        super().read_config(config)
        inferred = "regression" if config.num_labels == 1 else "single_label_classification"
        self.problem_type = config.problem_type or inferred
        kinds = {"regression": Regression, "multi_label_classification": MultiLabel}
        self.problem = kinds.get(self.problem_type, MultiClass)(self.label_names)
        if isinstance(self.problem, MultiClass) and config.num_labels == 2:
            positive = getattr(config, "positive_label", self.label_names[1])
            self.problem = TwoClasses(
                self.label_names, positive, threshold=getattr(config, "decision_threshold", None)
            )

    def predict(self, split: str, logits: tuple[torch.Tensor, ...]) -> dict[str, list | pyarrow.Array]:
        return self.problem.columns(logits[0])

    def reference(self, row: dict[str, Any]) -> int | float | list[int]:
        if self.problem_type == "regression":
            return check(FiniteFloat, row["label"], "label")
        if self.problem_type == "single_label_classification":
            return self.id_of(row["label"])
        ids = {self.id_of(label) for label in _as_list(row["label"])}
        return [int(number in ids) for number in range(len(self.label_names))]

    def gold_predictions(self, split: str) -> list:
        return [self.problem.gold(label) for label in self.references[split]]

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
        return self.problem.reduce(logits)

    def decode(self, split: str, logits: Logits) -> list:
        return self.problem.decode(logits)

    def constant_predictions(self, split: str) -> list:
        constant = self.problem.constant(np.array(self.references["train"]))
        return [constant] * len(self.references[split])

    def for_metric(self, name: str, predictions: list, references: list) -> tuple[list, list]:
        return self.problem.for_metric(name, predictions, references)

    def format_prediction(self, prediction: Any) -> Any:
        return self.problem.format(prediction)

    def class_counts(self) -> np.ndarray | None:
        if isinstance(self.problem, MultiClass):
            return np.bincount(self.references["train"], minlength=len(self.label_names))

    def adapted(self, predictions: list) -> "SequenceClassification":
        if not isinstance(self.problem, TwoClasses):
            return self
        adapted = copy(self)
        adapted.problem = self.problem.with_best_threshold(predictions, self.references["validation"])
        adapted.model_options = {**self.model_options, "decision_threshold": adapted.problem.threshold}
        return adapted

    def class_report(self, split: str, predictions: list) -> dict[str, Any] | None:
        return self.problem.report(self.gold_predictions(split), predictions)


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
                f"The labels are numbers, such as {decimal}: this is a regression, unless you pass a --problem_type"
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
