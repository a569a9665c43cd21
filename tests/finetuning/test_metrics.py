import math
import random
from collections import Counter

import numpy as np
import pytest

from helpers import write_metric
from scratch_bert.finetuning.metrics import GREATER_IS_BETTER, METRICS, load_metric


def test_classification_metrics_follow_their_formulas():
    rng = random.Random(0)
    predictions, labels = ([rng.randrange(2) for _ in range(50)] for _ in range(2))
    counts = Counter(zip(predictions, labels, strict=True))
    tp, fp, fn, tn = counts[1, 1], counts[1, 0], counts[0, 1], counts[0, 0]
    expected = {
        "accuracy": (tp + tn) / 50,
        "f1": 2 * tp / (2 * tp + fp + fn),
        "f1_macro": (2 * tp / (2 * tp + fp + fn) + 2 * tn / (2 * tn + fp + fn)) / 2,
        "matthews_correlation": (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)),
    }
    for name, value in expected.items():
        assert load_metric(name)(predictions, labels) == {name: pytest.approx(value)}


def test_scores_of_one_class_alone():
    for labels, average_precision in (([1, 1, 1], 1.0), ([0, 0, 0], 0.0)):
        scores = [load_metric(name)([0.2, 0.9, 0.5], labels) for name in ("average_precision", "roc_auc")]
        assert scores == [{"average_precision": average_precision}, {"roc_auc": 0.5}]


def test_regression_metrics_follow_their_formulas():
    x, y = np.random.default_rng(0).normal(size=(2, 30))
    ranks = [np.argsort(np.argsort(values)) for values in (x, y)]
    assert load_metric("pearsonr")(x, y)["pearsonr"] == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert load_metric("spearmanr")(x, y)["spearmanr"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert load_metric("mse")(x, y)["mse"] == pytest.approx(((x - y) ** 2).mean())
    assert load_metric("pearsonr")([1.0] * 30, y) == {"pearsonr": 0.0}


def test_seqeval_counts_complete_entities():
    references = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG"]]
    predictions = [["B-PER", "O", "O", "B-LOC"], ["O", "B-LOC"]]
    scores = load_metric("seqeval")(predictions, references)
    assert scores == pytest.approx({"precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3, "accuracy": 4 / 6})


@pytest.mark.parametrize(
    ("answer", "gold", "exact_match", "f1"),
    [
        ("the Eiffel Tower!", ["Eiffel tower"], 100, 100),  # case, article and punctuation do not count
        ("in 1889", ["1889", "the year 1889"], 0, 200 / 3),  # the best of the gold answers
        ("Paris Paris", ["Paris"], 0, 200 / 3),  # each word as often as it occurs
        ("", [], 100, 100),
        ("Paris", [], 0, 0),
        ("", ["Paris"], 0, 0),
        ("a", ["the"], 100, 100),
    ],
)
def test_squad_exact_match_and_f1(answer, gold, exact_match, f1):
    assert load_metric("squad")([answer], [gold]) == pytest.approx({"exact_match": exact_match, "f1": f1})
    mixed = load_metric("squad")([answer, "x"], [gold, ["y"]])
    assert mixed == pytest.approx({"exact_match": exact_match / 2, "f1": f1 / 2})


def test_hub_metric(tmp_path):
    metric = write_metric(tmp_path / "share.py", "{'share': sum(predictions) / len(references), 'list': predictions}")
    assert load_metric(str(metric))([1, 0, 1, 1], [0, 0, 0, 0]) == {"share": 0.75}


def test_metrics_all_have_a_direction():
    labels, tags, texts = [0, 1, 1], [["O", "B-X"]], (["a"], [["a"]])
    examples = {"seqeval": (tags, tags), "squad": texts}
    for name in METRICS:
        assert set(load_metric(name)(*examples.get(name, (labels, labels)))) <= set(GREATER_IS_BETTER)
    assert {name for name, greater in GREATER_IS_BETTER.items() if not greater} == {"loss", "mse"}
