"""The figures that tasks are judged by: GLUE's, CoNLL's and SQuAD's, in one table."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from numbers import Number

import evaluate
import numpy as np
from scipy import stats
from seqeval import metrics as entities
from sklearn import metrics as sklearn_metrics


def squad(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Exact match and F1 of answers in percent, each against the best of its right answers (Rajpurkar et al., 2016,
    section 6.1). An empty list of right answers means that there is none (SQuAD 2.0): then "" is right."""
    pairs = [
        (normalize_answer(answer), [normalize_answer(right) for right in rights] or [""])
        for answer, rights in zip(predictions, references, strict=True)
    ]
    return {
        "exact_match": 100 * float(np.mean([answer in rights for answer, rights in pairs])),
        "f1": 100 * float(np.mean([max(_overlap(answer, right) for right in rights) for answer, rights in pairs])),
    }


def normalize_answer(text: str) -> str:
    """Lower case, without punctuation, articles and superfluous spaces."""
    text = text.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _overlap(answer: str, right: str) -> float:
    """F1 of the words that two answers share."""
    words, right_words = answer.split(), right.split()
    if not words or not right_words:
        return float(words == right_words)
    shared = (Counter(words) & Counter(right_words)).total()
    return 2 * shared / (len(words) + len(right_words))


def _entity_figures(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> dict[str, float]:
    precision, recall, f1 = (
        score(references, predictions, zero_division=0)
        for score in (entities.precision_score, entities.recall_score, entities.f1_score)
    )
    accuracy = entities.accuracy_score(references, predictions)
    return {"precision": precision, "recall": recall, "f1": f1, "accuracy": accuracy}


def _sklearn(name: str, **options) -> Callable:
    score = getattr(sklearn_metrics, name)
    return lambda predictions, references: score(references, predictions, **options)


def _correlation(score: Callable) -> Callable:
    """0 for predictions that are all the same, where the correlation is not defined."""
    return lambda predictions, references: (
        score(predictions, references).statistic if np.ptp(predictions) and np.ptp(references) else 0.0
    )


# What a name computes from predictions and references, as numbers or as a dict of them. Classes and their ids are
# integers, several labels of a row are 0 or 1 in columns, entities are lists of IOB tags.
METRICS: dict[str, Callable[[Sequence, Sequence], float | dict[str, float]]] = {
    "accuracy": _sklearn("accuracy_score"),
    "f1": _sklearn("f1_score", zero_division=0),
    "f1_micro": _sklearn("f1_score", average="micro", zero_division=0),
    "f1_macro": _sklearn("f1_score", average="macro", zero_division=0),
    "matthews_correlation": _sklearn("matthews_corrcoef"),
    "mse": _sklearn("mean_squared_error"),
    "pearsonr": _correlation(stats.pearsonr),
    "spearmanr": _correlation(stats.spearmanr),
    "seqeval": _entity_figures,
    "squad": squad,
}


# Of the figures that these give; a metric of evaluate's does not say it.
GREATER_IS_BETTER = dict.fromkeys((*METRICS, "precision", "recall", "exact_match"), True) | {
    "mse": False,
    "loss": False,
}


def load_metric(name: str) -> Callable[[Sequence, Sequence], dict[str, float]]:
    """A function of predictions and references: an entry of `METRICS`, else what `evaluate.load` finds by that name,
    a directory or a script of the Hub, which is then run.

    Ours come first, so that a figure does not depend on whether the Hub can be reached. Raises `ValueError` for a name
    that neither has.
    """
    if name not in METRICS:
        try:
            compute = evaluate.load(name).compute
        except Exception as error:  # whatever a network, or foreign code, does
            raise ValueError(
                f"There is no metric {name!r} here ({', '.join(METRICS)}), and evaluate cannot load it: {error}"
            ) from None
        return lambda predictions, references: _numbers(
            name, compute(predictions=predictions, references=references) or {}
        )
    return lambda predictions, references: _numbers(name, METRICS[name](predictions, references))


def _numbers(name: str, result: float | dict) -> dict[str, float]:
    figures = result if isinstance(result, dict) else {name: result}
    return {key: float(value) for key, value in figures.items() if isinstance(value, Number)}
