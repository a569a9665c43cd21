"""The metrics of GLUE, CoNLL and SQuAD, in one table."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from numbers import Number

import numpy as np
from scipy import stats
from seqeval import metrics as entities
from sklearn import metrics as sklearn_metrics


def squad(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Exact match and F1 of answers in percent, each against the best of its gold answers (Rajpurkar et al., 2016,
    section 6.1). Without gold answers, the question is unanswerable (SQuAD 2.0), and "" is right."""
    pairs = [
        (normalize_answer(answer), [normalize_answer(gold) for gold in gold_answers] or [""])
        for answer, gold_answers in zip(predictions, references, strict=True)
    ]
    return {
        "exact_match": 100 * float(np.mean([answer in golds for answer, golds in pairs])),
        "f1": 100 * float(np.mean([max(_word_f1(answer, gold) for gold in golds) for answer, golds in pairs])),
    }


def normalize_answer(text: str) -> str:
    """Lower-case, without punctuation, articles and extra spaces."""
    text = text.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _word_f1(answer: str, gold: str) -> float:
    """F1 of two answers as bags of words."""
    words, gold_words = answer.split(), gold.split()
    if not words or not gold_words:
        return float(words == gold_words)
    shared = (Counter(words) & Counter(gold_words)).total()
    return 2 * shared / (len(words) + len(gold_words))


def _seqeval(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> dict[str, float]:
    names = ("precision", "recall", "f1")
    scores = {name: getattr(entities, f"{name}_score")(references, predictions, zero_division=0) for name in names}
    return scores | {"accuracy": entities.accuracy_score(references, predictions)}


def _sklearn(name: str, **options) -> Callable:
    score = getattr(sklearn_metrics, name)
    return lambda predictions, references: score(references, predictions, **options)


def _correlation(score: Callable) -> Callable:
    """A correlation coefficient, or 0 where it is undefined: if all values are the same."""
    return lambda predictions, references: (
        score(predictions, references).statistic if np.ptp(predictions) and np.ptp(references) else 0.0
    )


def _balanced_accuracy(predictions: Sequence[int], references: Sequence[int]) -> float:
    """The mean recall of the classes that the references have."""
    if np.ndim(references) > 1:  # scikit-learn would take the ids of labels for those of classes
        raise ValueError("balanced_accuracy is for texts with one label each.")
    return sklearn_metrics.recall_score(references, predictions, labels=np.unique(references), average="macro")


def _average_precision(predictions: Sequence[float], references: Sequence[int]) -> float:
    """0 without a positive example."""
    return sklearn_metrics.average_precision_score(references, predictions) if any(references) else 0.0


def _roc_auc(predictions: Sequence[float], references: Sequence[int]) -> float:
    """0.5 where it is undefined: if the references have only one class."""
    return sklearn_metrics.roc_auc_score(references, predictions) if len(set(references)) > 1 else 0.5


# Name → function of predictions and references that returns a score, or several by name. A label is an integer id, a
# set of labels is a list of 0 and 1, entities are lists of IOB tags.
METRICS: dict[str, Callable[[Sequence, Sequence], float | dict[str, float]]] = {
    "accuracy": _sklearn("accuracy_score"),
    "average_precision": _average_precision,
    "balanced_accuracy": _balanced_accuracy,
    "f1": _sklearn("f1_score", zero_division=0),
    "f1_micro": _sklearn("f1_score", average="micro", zero_division=0),
    "f1_macro": _sklearn("f1_score", average="macro", zero_division=0),
    "matthews_correlation": _sklearn("matthews_corrcoef"),
    "mse": _sklearn("mean_squared_error"),
    "precision": _sklearn("precision_score", zero_division=0),
    "recall": _sklearn("recall_score", zero_division=0),
    "roc_auc": _roc_auc,
    "pearsonr": _correlation(stats.pearsonr),
    "spearmanr": _correlation(stats.spearmanr),
    "seqeval": _seqeval,
    "squad": squad,
}

OF_PROBABILITIES = ("average_precision", "roc_auc")  # of two classes: these take the probabilities of the positive one
MAIN_SCORES = {"seqeval": "f1", "squad": "f1"}  # of metrics with several, the one that selects the best checkpoint
# Unknown for Hub metrics.
GREATER_IS_BETTER = dict.fromkeys((*METRICS, "exact_match"), True)
GREATER_IS_BETTER |= {"mse": False, "loss": False}


def load_metric(name: str) -> Callable[[Sequence, Sequence], dict[str, float]]:
    """A function of predictions and references that returns scores: an entry of `METRICS`, or else what
    `evaluate.load` finds: a directory, or a Hub metric, whose code is then run."""
    if name in METRICS:
        compute = METRICS[name]
    else:
        import evaluate  # takes a second or more

        compute = evaluate.load(name).compute

    def scores(predictions: Sequence, references: Sequence) -> dict[str, float]:
        result = compute(predictions=predictions, references=references)
        found = result if isinstance(result, dict) else {name: result}
        return {key: float(value) for key, value in found.items() if isinstance(value, Number)}

    return scores
