"""Tables whose labels or texts are mistakes: one error or warning that says what to do."""

import json
import logging

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset
from transformers import EvalPrediction

from scratch_bert.finetuning.dataset import Columns, load_splits
from scratch_bert.finetuning.tasks.multiple_choice import MultipleChoice
from scratch_bert.finetuning.tasks.question_answering import QuestionAnswering
from scratch_bert.finetuning.tasks.sequence_classification import SequenceClassification
from scratch_bert.finetuning.tasks.token_classification import TokenClassification
from scratch_bert.training.trainer import DivergenceError


MANY = range(12)


def classified(labels, texts=None):
    labels = list(labels)
    return SequenceClassification, {"text": texts or ["a class"] * len(labels), "label": labels}


def tagged(*labels):
    return TokenClassification, {"text": [["a", "class"]] * len(labels), "label": list(labels)}


def answered(**columns):
    usual = {"text": "a class", "text_pair": "what", "label": {"text": ["class"], "answer_start": [2]}}
    return QuestionAnswering, {name: [columns.get(name, usual.get(name))] * 2 for name in usual | columns}


def chosen(*choices):
    return MultipleChoice, {"text": ["a"] * len(choices), "choices": list(choices), "label": [0] * len(choices)}


@pytest.mark.parametrize(
    ("table", "message"),
    {
        "no text": (classified("abab", [""] * 4), "All examples for train have an empty text: .* --text_column"),
        "blank texts": (classified("abab", [" \n"] * 4), "All examples for train have an empty text"),
        "NaN as text": (classified(["a", "b", "NaN"]), "train, example 3, has no label, but 'NaN'"),
        "NaN of pandas": (classified(["a", "b", "<NA>"]), "train, example 3, has no label, but '<NA>'"),
        "equal numbers": (classified(["0", "1.0", "1"]), "The labels '1.0' and '1' are the same number"),
        "dates": (
            classified(pd.date_range("2020-01-01", periods=3)),
            "A label must be text or a number, not datetime",
        ),
        "objects": (classified([{"a": 1}, {"a": 2}]), "A label must be text or a number, not {'a': 1}"),
        "nested lists": (classified([[["a"]], [["b"]]]), r"A label must be text or a number, not \['a'\]"),
        "lists of decimals": (
            classified([[0.5], [1.5]]),
            "A label in a list must be a class, not a number such as 0.5",
        ),
        "too large numbers": (
            classified([0.5, 1e40]),
            "example 2, has the label 1e[+]40: its squared error overflows",
        ),
        "one number": (classified([0.5, 0.5]), "All training examples have the label 0.5: there is nothing to learn"),
        "tags that are decimals": (tagged([0.5, 1.0]), "must be its class, not a number such as 0.5"),
        "tags that are objects": (tagged([{"a": 1}] * 2), "A label must be text or a number, not {'a': 1}"),
        "one tag": (tagged(["O", "O"]), "have only one label, 'O': there is nothing to learn"),
        "no context": (answered(text="", label={"text": [], "answer_start": []}), "have an empty text: "),
        "no question": (answered(text_pair=""), "have an empty text_pair: .* --text_pair_column"),
        "no answer": (answered(label={"text": [], "answer_start": []}), "No question of the training examples has an"),
        "empty answer": (answered(label={"text": [""], "answer_start": [0]}), "an answer to question 1 is empty"),
        "list as id": (answered(id=[1]), r"has the id \[1\], which must be text or a whole number"),
        "equal choices": (chosen(["a", "a"], ["b", "b"]), "All examples for train have equal choices"),
        "one choice": (chosen(["a"], ["b"]), "have one choice: there is nothing to choose from"),
    }.values(),
    ids=lambda value: value[:30] if isinstance(value, str) else value[0].__name__,
)
def test_table_that_teaches_nothing_is_rejected(table, message, make_task):
    with pytest.raises(ValueError, match=message):
        make_task(*table)


@pytest.mark.parametrize(
    ("table", "warning"),
    {
        "a third empty": (
            classified("ab" * 6, ["", "a", "b"] * 4),
            "train: 4 of 12 examples have an empty text, the first",
        ),
        "a class each": (
            classified(map(str, MANY)),
            "There are 12 classes in 12 examples, such as '0', '1', '2': is this",
        ),
        "many classes": (classified(f"c{i % 51}" for i in range(510)), "There are 51 classes in 510 examples"),
        "a rare class": (classified(["a", "b"] * 4 + ["c"]), "1 of 3 classes have one example, such as 'c'"),
        "null": (classified(["a", "null"] * 4), "'null' is a class: if it means that a label is missing"),
        "spelling": (classified(["Good", "good ", "bad"] * 3), "'Good' and 'good ' are two classes"),
        "Unicode": (classified(["e\u0301", "\u00e9", "a"] * 3), r"'e\u0301' and '\xe9' are two classes"),
        "several labels": (classified(["a", "a, b"] * 4), "'a, b' is a class of its own: if it is several labels"),
        "bars": (
            classified([["a|b"], ["a"], ["c"]] * 3),
            "No example has two labels, and one is 'a|b': commas separate",
        ),
        "tags in small letters": (tagged(["o", "b-per"], ["o", "i-per"]), "'b-per' is a plain class: the tags of ent"),
        "long questions": (
            answered(text_pair="what is it " * 9),
            "train: 2 of 2 questions are cut to their first 20 to",
        ),
        "decimals as text": (
            classified(f"{i / 8}" for i in MANY),
            "The labels are numbers, such as 0.125: this is a regr",
        ),
    }.values(),
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "",
)
def test_table_that_looks_wrong_gets_a_warning(table, warning, make_task, caplog):
    with caplog.at_level(logging.WARNING, "scratch_bert"):
        make_task(*table)
    assert caplog.messages[0].startswith(warning)


def test_usual_tables_get_no_warning(make_task, caplog):
    with caplog.at_level(logging.WARNING, "scratch_bert"):
        make_task(*classified(["yes", "no"] * 4))
        make_task(*classified(i / 7 for i in MANY))
        make_task(*classified([["a"], ["b", "a"], ["b"]]))
        make_task(*tagged(["O", "B-X"], ["O", "O"]))
        make_task(*chosen(["a", "b"], ["b", "a"]))
    assert [message for message in caplog.messages if "are training inputs, too" not in message] == []


def test_validation_examples_that_are_training_examples_get_a_warning(make_task, caplog):
    columns = {"text": ["a", "class", "a class", "class a"], "label": ["yes", "no"] * 2}
    make_task(SequenceClassification, columns, {"text": ["b", "a class"], "label": ["no", "yes"]})
    assert any(message.startswith("1 of 2 validation inputs are training inputs, too") for message in caplog.messages)


def test_outputs_and_metrics_that_are_not_finite_are_errors(make_task):
    task = make_task(*classified(["yes", "no"] * 4))
    with pytest.raises(DivergenceError, match="The model's outputs are not finite: its weights are too large"):
        task.compute_metrics(EvalPrediction(np.full((8, 2), np.nan), None))
    task.metrics = {"own": lambda predictions, references: {"own": float("nan")}}
    with pytest.raises(ValueError, match="The metric own does not fit these labels: own is nan."):
        task.choose_best_metric(None)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", "DataFrame"])
def test_column_that_is_there_twice_is_rejected(suffix, tmp_path):
    table, file = pd.DataFrame([["a", 1, 2]] * 3, columns=["text", "label", "label"]), tmp_path / f"a{suffix}"
    if suffix == ".jsonl":
        file.write_text('{"text": "a", "label": 1, "label": 2}\n')
    elif suffix != "DataFrame":
        table.to_csv(file, index=False, sep="\t" if suffix == ".tsv" else ",")
    data = {"train": table if suffix == "DataFrame" else [str(file)]}
    with pytest.raises(ValueError, match="(two columns 'label': rename|specified twice|Duplicate column names).*"):
        load_splits(Columns({"text": ["text"], "label": ["label"]}), data)


def test_labels_of_several_types_in_a_file_are_rejected(make_task, tmp_path):
    records = [{"text": "a class", "label": label} for label in (0, "0", 1.0, True)] * 3
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    splits = load_splits(Columns({"text": ["text"], "label": ["label"]}), {"train": [str(tmp_path / "a.jsonl")]})
    assert isinstance(splits["train"], Dataset)
    with pytest.raises(
        ValueError, match="The labels are numbers and .* such as .*: write all of them in the same way"
    ):
        make_task(SequenceClassification, splits["train"].remove_columns("origin"))
