"""Examples that would train something wrong: an error that names the example, or a warning."""

import numpy as np
import pandas as pd
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from transformers import EvalPrediction

from scratch_bert.finetuning.dataset import Columns, load_splits
from scratch_bert.finetuning.tasks.multiple_choice import MultipleChoice
from scratch_bert.finetuning.tasks.question_answering import QuestionAnswering
from scratch_bert.finetuning.tasks.sequence_classification import SequenceClassification
from scratch_bert.finetuning.tasks.token_classification import TokenClassification
from scratch_bert.training.trainer import DivergenceError


def classified(labels, **options):
    labels = list(labels)
    return SequenceClassification, {"text": ["a class"] * len(labels), "label": labels}, options


def tagged(*labels, words=("a", "class")):
    return TokenClassification, {"text": [list(words)] * len(labels), "label": list(labels)}, {}


def answered(label, **columns):
    columns = {"text": "One Ada ran.", "text_pair": "Who?", "label": label, **columns}
    return QuestionAnswering, {name: [value] * 2 for name, value in columns.items()}, {"max_seq_length": 100}


def chosen(*choices, label=0):
    columns = {"text": ["a"] * len(choices), "choices": list(choices), "label": [label] * len(choices)}
    return MultipleChoice, columns, {}


MULTI, REGRESSION = {"problem_type": "multi_label_classification"}, {"problem_type": "regression"}
SINGLE = {"problem_type": "single_label_classification"}
ADA = {"text": ["Ada"], "answer_start": [4]}
NAMED = Features({"text": Value("string"), "label": ClassLabel(names=["minus", "plus"])})
UNNAMED = Dataset.from_dict({"text": ["a"] * 3, "label": [1, 0, -1]}, NAMED)
ESCAPED = UNNAMED.select([0, 1]).cast_column("label", ClassLabel(names=["minus", "\x1b[31mplus"]))
UNSEEN, ID = ({"text": ["b"], "label": [label]} for label in ("c", "0"))
BAD = {
    "no text": ((SequenceClassification, {"text": ["a", None], "label": ["x", "y"]}, {}), "example 2: text: input should be a valid string, got None"),
    "NaN": (classified(["a", "b", "NaN"]), "train, example 3: the label 'NaN' is not one of .*: a, b"),
    "-1 of a ClassLabel": ((SequenceClassification, UNNAMED, {}), "train, example 3: the label -1 is not one of"),
    "unknown": (classified("aba", validation=UNSEEN), "validation, example 1: the label 'c'"),
    "id": (classified("aba", validation=ID), "validation, example 1: the label '0'"),
    "one number": (classified([0.5] * 3, **REGRESSION), "All labels of the training examples are 0.5"),
    "equal numbers": (classified(["0", "1.0", "1"]), "1, 1.0 and 01 are the same number"),
    "one label": (classified("aaa"), r"too few labels: \['a'\]. Pass --label_column"),
    "lists of one label": (classified([["a"], ["b"]], **SINGLE), "Lists of labels need the problem_type multi_label_classification"),
    "integers or floats": (classified([1.0, 0.0, None]), "integers written as floats, such as 1.0: pass --problem_type"),
    "the same as text": (classified(["1.0", "5.0", None]), "integers written as floats, such as 1.0"),
    "no label in SNLI": (classified(["yes", "-", "no", "-"]), "2 training examples have the label '-', which in SNLI means"),
    "lists as pandas writes them": (classified(["['a', 'b']", "['b']"]), r"label \['a', 'b'\] looks like a list: write"),
    "lists with semicolons": (classified(["a;b", "b", "a"], **MULTI), "label a;b looks like a list: write"),
    "control characters": (classified(["a", "\x1b[31mb"]), "has control or invisible characters"),
    "control characters in a ClassLabel": ((SequenceClassification, ESCAPED, {}), "has control or invisible characters"),
    "decimal commas": (classified(["0,5", "1", "2,25"]), "decimal comma, such as 0,5: write them with a point"),
    "decimals": (classified([[0.5], [1.5]]), r"vectors of numbers, not lists of label names: \[0.5\]"),
    "multi-hot": (classified([[1, 0], [0, 0], [1, 1]]), r"vectors of numbers, .*: \[1, 0\]"),
    "multi-hot text": (classified(["1,0", "0,0", "1,1"], **MULTI), "vectors of numbers"),
    "lists as text": (classified(["['a']", "['b']"], **MULTI), "Labels must be a list, or text with commas between them, not"),
    "text for numbers": (classified(["high", "1"], **REGRESSION), "example 1: label: input should be a valid number"),
    "nan for numbers": (classified(["1", "nan"], **REGRESSION), "train, example 2: label: input should be a finite num"),
    "fewer tags than words": (tagged(["O"], ["B-X"]), "example 1: there must be a list of one label for each of its 2 words"),
    "no tags": (tagged(["O", "B-X"], None), "example 2: there must be a list of one label for each of its 2 words, not None"),
    "no answers": (answered(None), "train, example 1: there is no list of answers"),
    "answer without start": (answered({"text": ["Ada"], "answer_start": []}), "example 1: label: zip.* shorter"),
    "answer elsewhere": (answered({"text": ["Ada"], "answer_start": [5]}), "example 1: at 5, the context has 'da ', not the answer 'Ada'"),
    "repeated ids": (answered(ADA, id="q1"), "several questions have the same id, so predictions would be lost"),
    "short windows": ((*answered(ADA)[:2], {"doc_stride": 30, "max_seq_length": 40}), "at least 54 with a doc_stride of 30"),
    "other choices": (chosen(["a", "b"], ["a", "b", "c"]), "must have the same number of choices, not 2 to 3"),
    "label beyond the choices": (chosen(["a", "b"], label="2"), "example 1: the label '2' .* from A to B"),
    "unknown best metric": (classified("aba", best_metric="acuracy"), "must be one of loss, average_precision, .*, got acuracy"),
    "ranking of three labels": (classified("abc", metrics=["roc_auc"]), "roc_auc is for single labels of two classes"),
    "ranking of lists": (classified(["a", "b,a"], metrics=["average_precision"], **MULTI), "average_precision is for single labels"),
    "recall of lists": (classified(["a", "b,a"], metrics=["balanced_accuracy"], **MULTI), "is for texts with one label each"),
    "f1 of three labels": (classified("abc", metrics=["f1"]), "The metrics f1 do not fit these labels: .*average"),
}  # fmt: skip


@pytest.mark.parametrize(("table", "message"), BAD.values(), ids=BAD)
def test_examples_that_would_train_something_wrong(table, message, make_task):
    task_class, columns, options = table
    with pytest.raises(ValueError, match=message):
        make_task(task_class, columns, **options)


def test_table_that_looks_wrong_gets_a_warning(make_task, caplog):
    task_class, columns, options = answered(ADA, text_pair="what is it " * 20)
    make_task(task_class, columns, **options)
    assert caplog.messages[0].startswith("train: 2 of 2 questions are cut to their first 50 tokens")
    caplog.clear()
    make_task(*classified(f"{i / 8}" for i in range(12))[:2])
    assert caplog.messages[0].startswith("The labels are numbers, such as 0.125: this is a regression")


def test_texts_that_are_all_empty_are_rejected(make_task):
    with pytest.raises(ValueError, match="train: all texts are empty"):
        make_task(SequenceClassification, {"text": ["", " "] * 4, "label": ["a", "b"] * 4})


@pytest.mark.parametrize("labels", ["+-0", "-+", "-a"])
def test_minus_that_is_a_class(labels, make_task):
    make_task(*classified(labels)[:2])


def test_classes_of_a_split_in_another_order_are_rejected(make_task):
    """Their ids mean other classes."""
    splits = [Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, named(names)) for names in ("xy", "yx")]
    with pytest.raises(ValueError, match="validation: the names of the classes, .* are not those of train"):
        make_task(SequenceClassification, splits[0], validation=splits[1])


def named(names):
    return Features({"text": Value("string"), "label": ClassLabel(names=[*names])})


def test_spellings_of_one_label_get_a_warning(make_task, caplog):
    task = make_task(*classified(["good", "Good ", "bad", " bad"] * 3)[:2])
    assert "Several labels differ only in case, as spellings of 'good'" in caplog.text
    assert task.label_names == ["Good", "bad", "good"]  # without the spaces


def test_validation_examples_that_are_training_examples_get_a_warning(make_task, caplog):
    caplog.set_level("WARNING", "scratch_bert")
    columns = {"text": ["a", "class", "a class", "class a"], "label": ["yes", "no"] * 2}
    make_task(SequenceClassification, columns, {"text": ["b", "function"], "label": ["no", "yes"]})
    assert caplog.messages == []
    make_task(SequenceClassification, columns, {"text": ["b", "a class"], "label": ["no", "yes"]})
    assert [message.split(",")[0] for message in caplog.messages] == ["1 of 2 validation inputs are training inputs"]


def test_outputs_that_are_not_finite_are_errors(make_task):
    task = make_task(*classified(["yes", "no"] * 4)[:2])
    with pytest.raises(DivergenceError, match="The model's outputs are not finite: the training has diverged"):
        task.compute_metrics(EvalPrediction(np.full((8, 2), np.nan), None))


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", "DataFrame"])
def test_column_that_is_there_twice_is_rejected(suffix, tmp_path):
    table, file = pd.DataFrame([["a", 1, 2]] * 3, columns=["text", "label", "label"]), tmp_path / f"a{suffix}"
    if suffix == ".jsonl":
        file.write_text('{"text": "a", "label": 1, "label": 2}\n')
    elif suffix != "DataFrame":
        table.to_csv(file, index=False, sep="\t" if suffix == ".tsv" else ",")
    data = {"train": table if suffix == "DataFrame" else [str(file)]}
    with pytest.raises(ValueError, match="(two columns 'label'|Duplicate column names)"):
        load_splits(Columns({"text": ["text"], "label": ["label"]}), data)
