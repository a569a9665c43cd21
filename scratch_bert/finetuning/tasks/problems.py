"""The problem types of text classification: what a label is, and what is made of the logits for a text."""

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow
import torch
from scipy.special import softmax
from sklearn.metrics import precision_recall_curve

from ..class_report import class_report, class_scores
from ..metrics import OF_PROBABILITIES
from .base import Logits, Tensors


DEFAULT_THRESHOLD, LOWEST_THRESHOLD = 0.5, 1e-6


class Problem:
    """Base class. `names` are those of the classes, by id; a prediction is what `decode` returns for a text."""

    metrics: tuple[str, ...]
    """The first selects the best checkpoint."""

    def __init__(self, names: Sequence[str] = ()):
        self.names = list(names)

    def reduce(self, logits: torch.Tensor) -> Tensors:
        """What `decode` takes of the logits of a batch."""
        return logits

    def decode(self, logits: Logits) -> list:
        raise NotImplementedError

    def constant(self, labels: np.ndarray) -> Any:
        """The best prediction for all texts alike, given the training labels."""
        raise NotImplementedError

    def gold(self, label: Any) -> Any:
        """The correct prediction for a label."""
        return label

    def format(self, prediction: Any) -> Any:
        """A prediction for readers."""
        return prediction

    def for_metric(self, name: str, predictions: list, references: list) -> tuple[list, list]:
        """What the metric `name` takes. Raises `ValueError` for one that does not fit."""
        if name in OF_PROBABILITIES:
            raise ValueError(f"{name} is for single labels of two classes.")
        return predictions, references

    def report(self, golds: list, predictions: list) -> dict[str, Any] | None:
        """The predictions by class; None without classes."""

    def columns(self, logits: torch.Tensor) -> dict[str, list | pyarrow.Array]:
        """The columns of `predict` for logits (N, L)."""
        return {"prediction": self.decode(logits.numpy())}

    def by_class(self, probabilities: torch.Tensor) -> dict[str, list]:
        """A column for each class from probabilities (N, L)."""
        columns = zip(self.names, probabilities.T.tolist(), strict=True)
        return {f"probability_{name}": column for name, column in columns}


class Regression(Problem):
    metrics = ("pearsonr", "spearmanr", "mse")

    def decode(self, logits: Logits) -> list[float]:
        return np.asarray(logits)[:, 0].tolist()

    def constant(self, labels: np.ndarray) -> float:
        return labels.mean().item()


class MultiLabel(Problem):
    """A prediction is a list with 0 or 1 for each class."""

    metrics = ("f1_micro", "f1_macro", "accuracy")

    def __init__(self, names: Sequence[str] = ()):
        super().__init__(names)
        if len(self.names) == 1:  # others would count its absence as a class
            self.metrics = ("f1", "accuracy")

    def decode(self, logits: Logits) -> list[list[int]]:
        return (np.asarray(logits) > 0).astype(int).tolist()

    def constant(self, labels: np.ndarray) -> list[int]:
        """The classes of more than half of the texts."""
        return (labels.mean(0) > 0.5).astype(int).tolist()

    def format(self, prediction: list[int]) -> list[str]:
        return [name for name, chosen in zip(self.names, prediction, strict=True) if chosen]

    def report(self, golds: list, predictions: list) -> dict[str, Any]:
        return {"classes": class_scores(np.array(golds), np.array(predictions), self.names)}

    def columns(self, logits: torch.Tensor) -> dict[str, list | pyarrow.Array]:
        predictions = [self.format(prediction) for prediction in self.decode(logits.numpy())]
        column = pyarrow.array(predictions, pyarrow.list_(pyarrow.string()))
        return {"prediction": column, **self.by_class(logits.sigmoid())}


class MultiClass(Problem):
    """A prediction is the id of a class."""

    metrics: ClassVar = ("accuracy", "f1_macro", "balanced_accuracy")

    def __init__(self, names: Sequence[str] = ()):
        super().__init__(names)
        integers = all(re.fullmatch("0|-?[1-9][0-9]*", name) for name in self.names)  # as in the table
        self.values = list(map(int, self.names)) if integers else self.names

    def reduce(self, logits: torch.Tensor) -> Tensors:
        """The highest logits and their classes: those of thousands of classes would not fit into memory."""
        return tuple(logits.max(-1))

    def decode(self, logits: Logits) -> list:
        return logits[1].tolist()

    def constant(self, labels: np.ndarray) -> Any:
        """The most frequent class."""
        return np.bincount(labels).argmax().item()

    def format(self, prediction: Any) -> str | int:
        return self.values[prediction]

    def report(self, golds: list, predictions: list) -> dict[str, Any]:
        return class_report(*([str(self.format(one)) for one in several] for several in (golds, predictions)))

    def columns(self, logits: torch.Tensor) -> dict[str, list | pyarrow.Array]:
        probabilities = logits.softmax(-1)  # (N, L)
        predicted = self.choose(probabilities)
        return {
            "prediction": [self.values[number] for number in predicted.tolist()],
            "probability": probabilities.gather(1, predicted[:, None])[:, 0].tolist(),
            **self.by_class(probabilities),
        }

    def choose(self, probabilities: torch.Tensor) -> torch.Tensor:
        """The classes (N,) that are predicted, given the probabilities (N, L)."""
        return probabilities.argmax(-1)


class TwoClasses(MultiClass):
    """A prediction is the probability of the positive class, which is predicted from the probability `threshold` on.

    Args:
        positive: Name of the class that precision, recall, F1 and average precision are about.
        rare: Whether few examples are of this class, so that accuracy says little.
        threshold: None: to be chosen by `with_best_threshold` if the positive class is rare, otherwise 0.5.
    """

    def __init__(self, names: Sequence[str], positive: str, rare: bool = False, threshold: float | None = None):
        super().__init__(names)
        if positive not in self.names:
            raise ValueError(f"positive_label must be one of {', '.join(names)}, got {positive}.")
        self.positive_label, self.positive = positive, self.names.index(positive)  # its id
        self.rare, self.fixed = rare, threshold is not None
        self.threshold = DEFAULT_THRESHOLD if threshold is None else threshold
        ranking, counted = ("average_precision", "roc_auc"), ("accuracy", "f1")
        self.metrics = (*ranking, *counted) if rare else (*counted, *ranking)
        self.metrics = (*self.metrics, "balanced_accuracy")

    def reduce(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def decode(self, logits: Logits) -> list[float]:
        return softmax(np.asarray(logits, dtype=float), axis=-1)[:, self.positive].tolist()

    def constant(self, labels: np.ndarray) -> float:
        """The share of the positive class."""
        return np.mean(labels == self.positive).item()

    def gold(self, label: int) -> float:
        return float(label == self.positive)

    def format(self, prediction: float) -> str | int:
        return self.values[self.positive if prediction >= self.threshold else 1 - self.positive]

    def for_metric(self, name: str, predictions: list[float], references: list[int]) -> tuple[list, list]:
        """With 1 for the positive class."""
        labels = [int(label == self.positive) for label in references]
        if name in OF_PROBABILITIES:
            return predictions, labels
        return [int(prediction >= self.threshold) for prediction in predictions], labels

    def choose(self, probabilities: torch.Tensor) -> torch.Tensor:
        is_positive = probabilities[:, self.positive] >= self.threshold
        return torch.where(is_positive, self.positive, 1 - self.positive)

    def with_best_threshold(self, probabilities: list[float], labels: list[int]) -> "TwoClasses":
        """If the positive class is rare, and no threshold is given, these classes with the one of highest F1."""
        positive = [label == self.positive for label in labels]
        if self.fixed or not self.rare or not any(positive):
            return self
        precision, recall, thresholds = precision_recall_curve(positive, probabilities)
        f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
        best = f1[:-1].argmax()
        # Halfway to the next probability: rounding, which depends on the batch, does not change a decision.
        threshold = float(thresholds[max(best - 1, 0) : best + 1].mean())
        return TwoClasses(self.names, self.positive_label, threshold=max(threshold, LOWEST_THRESHOLD))

    def report(self, golds: list[float], predictions: list[float]) -> dict[str, Any]:
        """Also the decision and its alternatives: precision and recall by threshold."""
        found, positive = np.array(predictions), np.array(golds) == 1
        alternatives = []
        for threshold in sorted({*np.arange(1, 10) / 10, self.threshold}):
            chosen = found >= threshold
            hits, flagged = int((chosen & positive).sum()), int(chosen.sum())
            alternatives.append(
                {
                    "threshold": float(threshold),
                    "predicted": flagged,
                    "precision": hits / max(flagged, 1),
                    "recall": hits / max(int(positive.sum()), 1),
                }
            )
        decision = {"positive": self.positive_label, "threshold": self.threshold, "thresholds": alternatives}
        return super().report(golds, predictions) | decision
