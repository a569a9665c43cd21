import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value

from scratch_bert.finetuning.tasks.sequence_classification import SequenceClassification


TEXTS = ["a class is an object", "so is a function", "a module"]


@pytest.fixture
def make(make_task):
    """A task of three texts with these labels."""

    def make(labels, validation=None, **options):
        if validation is not None:
            options["validation"] = {"text": TEXTS, "label": validation}
        return make_task(SequenceClassification, {"text": TEXTS, "label": labels}, **options)

    return make


def named(names, labels):
    features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
    return Dataset.from_dict({"text": TEXTS, "label": labels}, features=features)


SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
MORE = ["accuracy", "f1_macro", "balanced_accuracy"]
TWO = ["accuracy", "f1", "average_precision", "roc_auc", "balanced_accuracy"]
RARE = [*TWO[2:4], *TWO[:2], *TWO[4:]]  # one of three examples is positive
LABELS = {  # labels, problem type, names, references, metrics
    "names": (["no", "yes", "no"], SINGLE, ["no", "yes"], [0, 1, 0], RARE),
    "integers": ([10, 9, 10], SINGLE, ["9", "10"], [1, 0, 1], RARE),
    "digits": (["10", "9", "1"], SINGLE, ["1", "9", "10"], [2, 1, 0], MORE),
    "booleans": ([True, False, True], SINGLE, ["False", "True"], [1, 0, 1], RARE),
    "lists": ([["a", "b"], [], ["b"]], MULTI, ["a", "b"], [[1, 1], [0, 0], [0, 1]], ["f1_micro", "f1_macro", "accuracy"]),
    "lists of one label": ([["a"], [], ["a"]], MULTI, ["a"], [[1], [0], [1]], ["f1", "accuracy"]),
    "floats": ([0.5, 1.0, -2.0], REGRESSION, None, [0.5, 1.0, -2.0], ["pearsonr", "spearmanr", "mse"]),
}  # fmt: skip


@pytest.mark.parametrize(("labels", "problem_type", "names", "references", "metrics"), LABELS.values(), ids=LABELS)
def test_problem_type_and_metrics_follow_from_the_labels(labels, problem_type, names, references, metrics, make):
    task = make(labels)
    assert task.problem_type == problem_type
    assert task.references["train"] == references
    assert list(task.metrics) == metrics and task.best_metric == metrics[0]
    ids = {"num_labels": 1}
    if names:
        ids = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    if len(names or ()) == 2 and problem_type == SINGLE:
        ids["positive_label"] = next(name for name in names if references.count(names.index(name)) == 1)
    assert task.model_options == {"problem_type": problem_type, **ids}
    assert task.features["train"]["labels"][:] == references


def test_text_pairs_are_encoded_as_the_tokenizer_does(make_task, tokenizer):
    columns = {"text": TEXTS, "text_pair": TEXTS[::-1], "label": ["a", "b", "a"]}
    task = make_task(SequenceClassification, columns, max_seq_length=9)
    for number, features in enumerate(task.features["validation"]):
        expected = tokenizer(TEXTS[number], TEXTS[-1 - number], truncation=True, max_length=9)
        assert {name: features[name] for name in expected} == dict(expected)


def test_class_names_of_a_dataset_and_a_test_split_without_labels(make_task):
    names = ["minus", "plus"]
    task = make_task(SequenceClassification, named(names, [1, 0, 1]), test=named(names, [-1, -1, -1]))
    assert task.references == {"train": [1, 0, 1], "validation": [1, 0, 1]}
    assert "labels" not in task.features["test"].column_names
    predictions = task.decode("test", np.eye(2)[::-1])
    assert [task.format_prediction(one) for one in predictions] == ["plus", "minus"]


def test_logits_of_all_classes_are_not_kept(make):
    task = make(["a", "b", "c"])
    kept = task.reduce(torch.eye(3))
    assert [part.shape for part in kept] == [(3,), (3,)] and kept[1].tolist() == [0, 1, 2]
    assert task.reduce(torch.tensor([[0.0, torch.nan]]))[0].isnan().all()  # not finite, which must be seen


def test_test_split_of_placeholders_has_no_labels(make_task):
    numbers, unknown = ({"text": TEXTS, "label": labels} for labels in ([1.0, 0.5, 2.0], [-1.0] * 3))
    assert "test" not in make_task(SequenceClassification, numbers, test=unknown).references


def test_rare_label_may_be_held_out(make_task):
    columns = {"text": [str(number) for number in range(20)], "label": [*"ab" * 9, "a", "rare"]}
    for seed in range(20):
        task = make_task(SequenceClassification, columns, hold_out=True, seed=seed)
        assert task.label_names == ["a", "b", "rare"]
        assert [len(task.features[split]) for split in ("train", "validation")] == [18, 2]
        if 2 in task.references["validation"]:
            return
    raise AssertionError("no seed has held it out")


def test_multi_label_predictions(make):
    task = make(["a, b", "", "b"], problem_type="multi_label_classification")
    assert task.references["train"] == [[1, 1], [0, 0], [0, 1]]
    predictions = task.decode("train", np.array([[1.0, -1.0], [-1.0, -1.0], [2.0, 1.0]]))
    assert [task.format_prediction(one) for one in predictions] == [["a"], [], ["a", "b"]]
    assert task.compute_scores("train", predictions)["accuracy"] == pytest.approx(1 / 3)
    assert make([None, ["a"], ["b", "a"]]).references["train"] == [[0, 0], [1, 0], [1, 1]]


def test_glue_labels_by_name_or_id(make):
    task = make(["1", "negative", "0"], label_names=("negative", "positive"))
    assert task.references["train"] == [1, 0, 0]


def test_integer_labels_that_a_gap_turned_into_floats(make):
    task = make([10.0, 2.0, 2.0], validation=[2, 2, 10], problem_type="single_label_classification")
    assert task.label_names == ["2", "10"] and task.references == {"train": [1, 0, 0], "validation": [0, 0, 1]}


def test_the_absence_of_a_single_label_is_no_class(make):
    scores = make([["a"], [], []]).compute_scores("train", [[0], [0], [0]])
    assert scores["f1"] == 0 and scores["accuracy"] == pytest.approx(2 / 3)


def test_labels_are_compared_in_nfc_and_integers_exactly(make):
    assert make(["é", "e\u0301", "b"]).label_names == ["b", "é"]
    assert len(make([10**18, 10**18 + 1, 10**18]).label_names) == 2


def test_best_metric_is_that_of_the_first_metric(make):
    labels = ["a", "b", "a"]
    assert make(labels, metrics=("matthews_correlation", "accuracy")).best_metric == "matthews_correlation"
    assert make(labels, best_metric="loss").best_metric == "loss"
