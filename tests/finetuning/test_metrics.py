import math
import random

import evaluate
import numpy as np
import pytest

from helpers import write_metric
from scratch_bert.finetuning.metrics import GREATER_IS_BETTER, METRICS, load_metric


def test_figures_of_classes_are_those_of_their_formulas():
    rng = random.Random(0)
    predictions, labels = ([rng.randrange(2) for _ in range(50)] for _ in range(2))
    counts = {
        (p, t): sum(pair == (p, t) for pair in zip(predictions, labels, strict=True)) for p in (0, 1) for t in (0, 1)
    }
    tp, fp, fn, tn = counts[1, 1], counts[1, 0], counts[0, 1], counts[0, 0]
    expected = {
        "accuracy": (tp + tn) / 50,
        "f1": 2 * tp / (2 * tp + fp + fn),
        "f1_macro": (2 * tp / (2 * tp + fp + fn) + 2 * tn / (2 * tn + fp + fn)) / 2,
        "matthews_correlation": (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)),
    }
    for name, value in expected.items():
        assert load_metric(name)(predictions, labels) == {name: pytest.approx(value)}


def test_figures_of_numbers():
    x, y = np.random.default_rng(0).normal(size=(2, 30))
    ranks = [np.argsort(np.argsort(values)) for values in (x, y)]
    assert load_metric("pearsonr")(x, y)["pearsonr"] == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert load_metric("spearmanr")(x, y)["spearmanr"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert load_metric("mse")(x, y)["mse"] == pytest.approx(((x - y) ** 2).mean())
    assert load_metric("pearsonr")([1.0] * 30, y) == {"pearsonr": 0.0}


def test_entities_count_whole_or_not_at_all():
    references = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG"]]
    predictions = [["B-PER", "O", "O", "B-LOC"], ["O", "B-LOC"]]
    figures = load_metric("seqeval")(predictions, references)
    assert figures == pytest.approx({"precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3, "accuracy": 4 / 6})


@pytest.mark.parametrize(
    ("answer", "rights", "exact_match", "f1"),
    [
        ("the Eiffel Tower!", ["Eiffel tower"], 100, 100),  # case, article and punctuation do not count
        ("in 1889", ["1889", "the year 1889"], 0, 200 / 3),  # the best of the right answers
        ("Paris Paris", ["Paris"], 0, 200 / 3),  # each word as often as it stands there
        ("", [], 100, 100),
        ("Paris", [], 0, 0),
        ("", ["Paris"], 0, 0),
        ("a", ["the"], 100, 100),
    ],
)
def test_answers(answer, rights, exact_match, f1):
    assert load_metric("squad")([answer], [rights]) == pytest.approx({"exact_match": exact_match, "f1": f1})
    mixed = load_metric("squad")([answer, "x"], [rights, ["y"]])
    assert mixed == pytest.approx({"exact_match": exact_match / 2, "f1": f1 / 2})


def test_other_metrics_come_from_evaluate(tmp_path):
    metric = write_metric(tmp_path / "share.py", "{'share': sum(predictions) / len(references), 'list': predictions}")
    assert load_metric(str(metric))([1, 0, 1, 1], [0, 0, 0, 0]) == {"share": 0.75}
    with pytest.raises(ValueError, match="no metric 'acuracy'.*accuracy"):
        load_metric("acuracy")


def test_each_figure_says_whether_more_of_it_is_better():
    labels, rows, texts = [0, 1, 1], [["O", "B-X"]], (["a"], [["a"]])
    examples = {"seqeval": (rows, rows), "squad": texts}
    for name in METRICS:
        assert set(load_metric(name)(*examples.get(name, (labels, labels)))) <= set(GREATER_IS_BETTER)
    assert {name for name, greater in GREATER_IS_BETTER.items() if not greater} == {"loss", "mse"}


IN_EVALUATE = {
    "accuracy": ("accuracy", {}),
    "f1": ("f1", {}),
    "f1_micro": ("f1", {"average": "micro"}),
    "f1_macro": ("f1", {"average": "macro"}),
    "matthews_correlation": ("matthews_correlation", {}),
    "mse": ("mse", {}),
    "pearsonr": ("pearsonr", {}),
    "spearmanr": ("spearmanr", {}),
    "seqeval": ("seqeval", {}),
    "squad": ("squad", {}),
}


@pytest.mark.parametrize("name", METRICS)
def test_figures_are_those_of_evaluate(name):
    """Skipped where the Hub cannot be reached, and evaluate's metrics are not in the working directory either."""
    path, options = IN_EVALUATE[name]
    try:
        theirs = evaluate.load(path)
    except Exception as error:
        pytest.skip(f"evaluate has no {path} here: {error}")
    rng = np.random.default_rng(0)
    if name == "seqeval":
        tags = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
        predictions, references = ([[tags[i] for i in rng.integers(5, size=9)] for _ in range(40)] for _ in range(2))
        expected = {
            key.removeprefix("overall_"): value
            for key, value in theirs.compute(predictions=predictions, references=references).items()
        }
    elif name == "squad":
        words = ["the", "Seine,", "a", "river", "of", "France.", "Paris"]
        texts = [" ".join(words[i] for i in rng.integers(7, size=3)) for _ in range(80)]
        predictions, references = texts[:40], [[text, "Paris"] for text in texts[40:]]
        answers = [{"text": rights, "answer_start": [0, 0]} for rights in references]
        expected = theirs.compute(
            predictions=[{"id": str(i), "prediction_text": text} for i, text in enumerate(predictions)],
            references=[{"id": str(i), "answers": answer} for i, answer in enumerate(answers)],
        )
    else:
        predictions, references = rng.integers(2, size=(2, 40)).tolist()
        expected = theirs.compute(predictions=predictions, references=references, **options)
        expected = {name: expected[path]}
    for key, value in load_metric(name)(predictions, references).items():
        assert value == pytest.approx(expected[key]), key
