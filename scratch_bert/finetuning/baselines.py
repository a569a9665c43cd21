"""What a model has to beat: a constant prediction and, in text classification and regression, a bag of words, or of
characters."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier

from ..logs import logger
from .metrics import METRICS
from .tasks.base import Task
from .tasks.problems import TwoClasses
from .tasks.sequence_classification import SequenceClassification


# Kind of baseline → its name for readers.
BASELINES = {
    "majority": "majority class",
    "mean": "mean label",
    "bag_of_words": "bag of words",
    "bag_of_characters": "bag of characters",
}
# Characters from space to space: 3 to 8 on average in most languages; 25 and more in Chinese, Japanese, Thai, …
LONG_WORD = 10
# Limits of what the bag of words is trained on, so that it takes some seconds; targets are examples × classes.
MAX_EXAMPLES, MAX_CHARACTERS, MAX_TARGETS = 100_000, 20_000_000, 2_000_000


def baseline_scores(task: Task) -> dict[str, float]:
    """Scores by those of the task's metrics that are our own, such as `baseline_majority_accuracy` on the validation
    split and `baseline_bag_of_words_test_accuracy` on the test split. Empty for a task without baselines."""
    metrics = [name for name in task.metrics if name in METRICS]
    splits = [split for split in ("validation", "test") if split in task.references]
    constant = {split: task.constant_predictions(split) for split in splits}
    if not metrics or None in constant.values():
        return {}
    kind = "mean" if task.model_options.get("problem_type") == "regression" else "majority"
    predictions = {kind: constant}
    if isinstance(task, SequenceClassification):
        bag = "bag_of_words" if has_spaces(task) else "bag_of_characters"
        predictions[bag] = bag_predictions(task, splits, bag) or constant
    scores = {}
    for kind, by_split in predictions.items():
        judge = task.adapted(by_split["validation"]) if kind.startswith("bag") else task
        for split in splits:
            prefix = f"baseline_{kind}_{'test_' if split == 'test' else ''}"
            found = judge.compute_scores(split, by_split[split], metrics)
            scores |= {f"{prefix}{name}": value for name, value in found.items()}
    for title, found in scores_by_baseline(scores).items():
        logger.info(f"Baseline, {title}: {', '.join(f'{name} {value:.4f}' for name, value in found.items())}")
    return scores


def scores_by_baseline(metrics: dict[str, float]) -> dict[str, dict[str, float]]:
    """The scores of each baseline in the metrics of a run: its name for readers → metric → value."""
    found: dict[str, dict[str, float]] = {}
    for kind, title in BASELINES.items():
        for name, value in metrics.items():
            if name.startswith(f"baseline_{kind}_"):
                found.setdefault(title, {})[name.removeprefix(f"baseline_{kind}_")] = value
    return found


def has_spaces(task: SequenceClassification) -> bool:
    """Whether the words of the training texts have spaces between them, unlike those of Chinese, Thai or a protein."""
    texts = map(str.split, task.splits["train"]["text"][:MAX_EXAMPLES])  # one at a time: a corpus of words is large
    characters, words = np.sum([(sum(map(len, text)), len(text)) for text in texts], axis=0)
    return bool(characters <= LONG_WORD * words)


def bag_predictions(task: SequenceClassification, splits: Sequence[str], kind: str) -> dict[str, list] | None:
    """Predictions of a linear model of the words, or of the characters and pairs of them, with TF-IDF weights: ridge
    regression, or a logistic regression for each class. None if the training examples that it sees have one label."""
    chosen = _training_examples(task)
    labels = np.array(task.references["train"])[chosen]
    if len(np.unique(labels, axis=0)) < 2:
        return None
    columns = task.text_columns("train")
    train = task.splits["train"].select(chosen)
    units: dict[str, Any] = {"token_pattern": r"\w+|[^\w\s]"}
    if kind == "bag_of_characters":
        units = {"analyzer": "char", "ngram_range": (1, 2)}
    vectorizer = TfidfVectorizer(sublinear_tf=True, **units)
    vectorizer.fit(text for column in columns for text in train[column])
    classifier = OneVsRestClassifier(LogisticRegression(solver="liblinear"))
    model = Ridge() if task.problem_type == "regression" else classifier

    def features(examples) -> sparse.csr_matrix:
        vectors = [vectorizer.transform(examples[column][:]) for column in columns]
        return vectors[0] if len(vectors) == 1 else compare(*vectors)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a class that all examples have, or none
        model.fit(features(train), labels)
    if isinstance(task.problem, TwoClasses):
        return {
            split: model.predict_proba(features(task.splits[split]))[:, task.problem.positive].tolist()
            for split in splits
        }
    return {split: model.predict(features(task.splits[split])).tolist() for split in splits}


def compare(first: sparse.csr_matrix, second: sparse.csr_matrix) -> sparse.csr_matrix:
    """Features (examples, 2 × words + 3) of pairs of texts u and v, given by vectors of length 1: |u − v|, u · v for
    each word, their cosine, and the fractions of the words of each text that the other one has."""

    def row_sums(matrix: sparse.csr_matrix) -> np.ndarray:
        return np.asarray(matrix.sum(1), dtype=float).reshape(-1, 1)

    products = first.multiply(second).tocsr()
    shared = row_sums(products > 0)
    fractions = [shared / np.maximum(row_sums(vectors > 0), 1) for vectors in (first, second)]
    return sparse.hstack([abs(first - second), products, row_sums(products), *fractions], format="csr")


def _training_examples(task: SequenceClassification) -> np.ndarray:
    """The positions of a random subset of the training examples, in order: all if they are within the limits."""
    train, columns = task.splits["train"], task.text_columns("train")
    lengths = np.sum([[len(text) for text in train[column]] for column in columns], axis=0)
    order = np.random.default_rng(0).permutation(len(lengths))
    targets = len(getattr(task, "label_names", ())) or 1
    limit = min(MAX_EXAMPLES, MAX_TARGETS // targets, int(np.sum(np.cumsum(lengths[order]) <= MAX_CHARACTERS)))
    return np.sort(order[: max(limit, 1)])
