"""`predict` and `predict_file`: the same answers as pipelines and as the evaluation of fine-tuning, and rows that stay
as they are."""

import io
import json
import os
import subprocess
import sys

import pandas
import pyarrow
import pyarrow.parquet
import pytest
import torch
from transformers import pipeline

from helpers import SCRIPTS, SMALL, read_jsonl
from scratch_bert import ScratchBertConfig
from scratch_bert.corpus.tokenizer_training import train_tokenizer
from scratch_bert.finetuning.api import finetune
from scratch_bert.finetuning.prediction import Predictor, predict, predict_file
from scratch_bert.model.modeling_scratch_bert import AUTO_MODELS
from scratch_bert.text.tables import read_chunks
from scratch_bert_cli.commands.predict import main


FAST = {"disable_tqdm": True, "bf16": False, "logging_strategy": "no", "eval_strategy": "no", "save_strategy": "no"}
FAST |= {"load_best_model_at_end": False}
TEXTS = ["a class", "an object of the class is a value", "", "this module has a function", "name " * 60]


@pytest.fixture
def make_model(tokenizer, tmp_path):
    """The directory of a random model with a head."""

    def make(head, **options):
        torch.manual_seed(0)
        sizes = {**SMALL, "vocab_size": len(tokenizer), "initializer_range": 0.3}
        model = AUTO_MODELS[f"AutoModelFor{head}"](ScratchBertConfig(**sizes, **options))
        model.save_pretrained(tmp_path / head)
        tokenizer.save_pretrained(tmp_path / head)
        return tmp_path / head

    return make


# ------------------------------------------------------------------------------------------------------ predictions


def test_labels_that_are_integers_are_predicted_as_integers(make_model):
    found = predict(make_model("SequenceClassification", id2label={0: "-1", 1: "0", 2: "10"}), TEXTS)
    assert {*found["prediction"]} <= {-1, 0, 10} and found["prediction"].dtype == "int64" and "probability_-1" in found


@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification"])
def test_probabilities_are_those_of_the_pipeline(problem_type, make_model):
    names = {0: "bad", 1: "fair", 2: "good"}
    model = make_model("SequenceClassification", id2label=names, problem_type=problem_type)
    found = predict(model, TEXTS, batch_size=2)
    classify = pipeline("text-classification", str(model), top_k=None)
    expected = classify(TEXTS, truncation=True, max_length=40)
    for row, scores in zip(found.to_dict("records"), expected, strict=True):
        scores = {one["label"]: one["score"] for one in scores}
        assert {name: row[f"probability_{name}"] for name in scores} == pytest.approx(scores, abs=1e-5)
        if problem_type == "single_label_classification":
            best = max(scores, key=scores.get)
            assert (row["prediction"], row["probability"]) == (best, row[f"probability_{best}"])
        else:
            assert row["prediction"] == [name for name in names.values() if scores[name] > 0.5]


def test_entities_are_those_of_the_pipeline(make_model):
    model = make_model("TokenClassification", id2label={0: "O", 1: "B-X", 2: "I-X", 3: "B-Y", 4: "I-Y"})
    texts = ["The class is an object, isn't it?", "unbelievably named modules.", "a", ""]
    tag = pipeline("token-classification", str(model), aggregation_strategy="first")
    found = predict(model, texts)["entities"]
    assert any(found)
    for text, entities in zip(texts, found, strict=True):
        expected = [(one["start"], one["end"], one["entity_group"]) for one in (tag(text) if text else [])]
        assert [(one["start"], one["end"], one["label"]) for one in entities] == expected
        assert all(one["text"] == text[one["start"] : one["end"]] for one in entities)
        assert all(0.2 <= one["probability"] <= 1 for one in entities)


def test_entities_keep_their_marks(make_model, tmp_path):
    """An uncased tokenizer removes vowel signs: the words of the answer are complete."""
    model, text = make_model("TokenClassification", id2label={0: "X", 1: "Y"}), "मानव अधिकारों की घोषणा"
    uncased = train_tokenizer([text], vocab_size=100, min_frequency=1, lowercase=True, strip_accents=True)
    uncased.save_pretrained(model)
    (entities,) = predict(model, [text])["entities"]
    assert [one["text"] for one in entities] == text.split()


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_cells_with_a_carriage_return_stay_one(suffix, make_model, tmp_path):
    rows = pandas.DataFrame({"text": ["a b", "c"], "note": ["x\ry", 'z "q"'], "more": ["", "w"]})
    rows.to_json(tmp_path / "x.jsonl", orient="records", lines=True)
    file = str(tmp_path / f"y.{suffix}")
    predict_file(make_model("SequenceClassification", num_labels=2), str(tmp_path / "x.jsonl"), file)
    found = pandas.read_csv(file, sep="," if suffix == "csv" else "\t", keep_default_na=False)
    assert found[["text", "note", "more"]].equals(rows)
    ours = [row for chunk in read_chunks(file) for row in chunk]
    assert [row["note"] for row in ours] == rows["note"].tolist()


def test_standard_output_is_utf_8(make_model, tmp_path):
    (tmp_path / "x.csv").write_text("text\ncafé 中文\n", encoding="utf-8")
    model = make_model("SequenceClassification", num_labels=2)
    command = [SCRIPTS / "predict.py", model, "--file", tmp_path / "x.csv", "--output_file", "-", "--format", "csv"]
    environment = os.environ | {"PYTHONIOENCODING": "cp1252"}
    found = subprocess.run([sys.executable, *map(str, command)], env=environment, capture_output=True, check=True)
    assert "café 中文" in found.stdout.decode("utf-8")


def test_rows_that_are_no_texts_are_named(make_model):
    model = make_model("SequenceClassification", num_labels=2)
    assert len(predict(model, pandas.DataFrame([["a", 1]]), text_column=0)) == 1  # names of columns may be numbers
    for texts in (pandas.Series(["a", "b"]), ("a", "b"), iter(["a", "b"])):
        assert predict(model, texts)["text"].tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="batch_size must be 1 or more, got 0"):
        predict(model, ["a"], batch_size=0)
    with pytest.raises(ValueError, match="A list of texts is needed, not the text 'a film'"):
        predict(model, "a film")
    for missing in (None, float("nan")):
        with pytest.raises(ValueError, match="row 2: text: input should be a valid string, got None"):
            predict(model, ["a", missing])


def test_threshold_of_the_second_class(make_model):
    model = make_model("SequenceClassification", num_labels=2, decision_threshold=0.0)
    assert set(predict(model, TEXTS)["prediction"]) == {"LABEL_1"}
    strict = predict(model, TEXTS, threshold=1.0)
    assert set(strict["prediction"]) == {"LABEL_0"} and (strict["probability"] == strict["probability_LABEL_0"]).all()
    with pytest.raises(ValueError, match="threshold is for two classes"):
        predict(make_model("SequenceClassification", num_labels=3), TEXTS, threshold=0.2)


WORDS = [["a", "class"], ["the", "object", "is", "unbelievable"], ["name"] * 70] * 4
CONTEXT = "The object is a value of the class, and the name of the module is its function. " * 6
TASKS = {
    "classes": ("sequence-classification", {"text": TEXTS * 4, "label": ["a", "b", "c", "a", "b"] * 4}),
    "pairs": ("sequence-classification", {"text": TEXTS * 4, "text_pair": TEXTS[::-1] * 4, "label": [0, 1] * 10}),
    "regression": ("sequence-classification", {"text": TEXTS * 4, "label": [0.5, 1.5, 2.5, -1.0, 0.1] * 4}),
    "multi-label": ("sequence-classification", {"text": TEXTS * 4, "label": [["a"], ["a", "b"], [], ["b"], []] * 4}),
    "words": ("token-classification", {"tokens": WORDS, "ner_tags": [["O"] + ["B-X"] * (len(one) - 1) for one in WORDS]}),
    "questions": (
        "question-answering",
        {
            "id": [f"q{number}" for number in range(12)],
            "context": [CONTEXT[10 * number :] for number in range(12)],
            "question": ["What is it?", "Which module?"] * 6,
            "answers": [{"text": [CONTEXT[10 * n :][40:46]], "answer_start": [40]} for n in range(12)],
        },
    ),
    "choices": (
        "multiple-choice",
        {"text": TEXTS * 4, "choices": [["a class", "an object", "name " * n] for n in range(20)], "label": [0, 1, 2, 0] * 5},
    ),
}  # fmt: skip


task, data = TASKS["questions"]
TASKS["unanswerable"] = task, data | {"answers": [{"text": [], "answer_start": []}] * 6 + data["answers"][6:]}


@pytest.mark.parametrize("kind", TASKS)
def test_predictions_are_those_of_the_evaluation(kind, saved, tmp_path):
    task, data = TASKS[kind]
    options = {"text_pair_column": "text_pair"} if kind == "pairs" else {}
    output = tmp_path / "run"
    pandas.DataFrame(data).to_json(tmp_path / "rows.jsonl", orient="records", lines=True)
    file = str(tmp_path / "rows.jsonl")
    finetune(task, file, saved, validation=file, output_dir=output, max_steps=4, learning_rate=3e-3, **FAST, **options)
    if task == "question-answering":
        expected = list(json.loads((output / "predictions.json").read_text()).values())
    else:
        expected = [row["prediction"] for row in read_jsonl(output / "validation_predictions.jsonl")]
    assert predict_file(output, file, str(tmp_path / "out.jsonl"), batch_size=3, **options) == len(expected)
    if kind == "pairs":
        with pytest.raises(ValueError, match="no column .text_pair., only text"):
            predict(output, {"text": TEXTS})
    rows = read_jsonl(tmp_path / "out.jsonl")
    found = [row["prediction"] for row in rows]
    assert found == (pytest.approx(expected, abs=1e-5) if kind == "regression" else expected)
    for row, old in zip(rows, read_jsonl(tmp_path / "rows.jsonl"), strict=True):
        assert {name: row[name] for name in old} == old
        if task == "question-answering":
            answered = row["start"] is not None
            assert row["prediction"] == (row["context"][row["start"] : row["end"]] if answered else "")
            assert 0 < row["probability"] <= 1 and 0 < row["no_answer_probability"] <= 1
        if kind == "choices":
            assert row["probability"] == row["probabilities"][row["prediction"]] == max(row["probabilities"])


def test_columns_are_those_of_the_fine_tuning(saved, tmp_path):
    data = {"review": TEXTS * 4, "label": ["a", "b", "c", "a", "b"] * 4}
    options = {"max_steps": 1, "disable_tqdm": True, "bf16": False, "validation": data, "text_column": "review"}
    finetune("sequence-classification", data, saved, output_dir=tmp_path, **options)
    expected = predict(tmp_path, {"review": TEXTS})["probability_a"].tolist()
    assert predict(tmp_path, TEXTS)["probability_a"].tolist() == expected  # a list, whose column is named text
    with pytest.raises(ValueError, match="no column 'review', only other"):
        predict(tmp_path, {"other": TEXTS})


def test_lengths_are_those_of_the_fine_tuning(saved, tmp_path):
    task, data = TASKS["questions"]
    options = {"max_seq_length": 32, "doc_stride": 8, "max_answer_length": 3, "max_steps": 1}
    finetune(task, data, saved, validation=data, output_dir=tmp_path, **options, **FAST)
    task = Predictor(tmp_path).task
    assert (task.max_seq_length, task.doc_stride, task.max_answer_length) == (32, 8, 3)


# ------------------------------------------------------------------------------------------------------------- rows


def test_columns_and_types_survive(make_model, tmp_path):
    model = make_model("SequenceClassification", id2label={0: "bad", 1: "good"})
    table = pyarrow.table({"id": pyarrow.array([1, None, 3], "int32"), "text": TEXTS[:3], "prices": [[1.5], [], None]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    (tmp_path / "rows.csv").write_text('id,text,note\n007,a class,"1\r\n,2"\nNA,an object,1.0\n')
    for source, target in [("rows.parquet", "out.parquet"), ("rows.csv", "out.csv"), ("rows.csv", "out.jsonl")]:
        predict_file(model, str(tmp_path / source), str(tmp_path / target))
    found = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    columns = ["prediction", "probability", "probability_bad", "probability_good"]
    assert found.column_names == [*table.column_names, *columns]
    assert found.select(table.column_names) == table
    rows = read_jsonl(tmp_path / "out.jsonl")
    assert [(row["id"], row["note"]) for row in rows] == [("007", "1\r\n,2"), ("NA", "1.0")]
    again = pandas.read_csv(tmp_path / "out.csv", dtype={"id": str}, keep_default_na=False)
    assert [*again["id"]] == ["007", "NA"] and [*again["probability"]] == [row["probability"] for row in rows]
    frame = pandas.DataFrame({"text": TEXTS, "id": range(5)}, index=list("abacc"))  # as of two frames, concatenated
    assert predict(model, frame)[["text", "id"]].equals(frame)


def test_standard_input_to_standard_output(make_model, tmp_path, monkeypatch, capsys):
    model = make_model("SequenceClassification", num_labels=2)
    for output in ("-", str(tmp_path / "out.jsonl")):  # whose suffix tells its format
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"id,text\n007,a class\n")))
        main([str(model), "--file", "-", "--output_file", output, "--format", "csv"])
    header, row = capsys.readouterr().out.splitlines()
    assert header == "id,text,prediction,probability,probability_LABEL_0,probability_LABEL_1"
    assert row.startswith("007,a class,LABEL_")
    assert read_jsonl(tmp_path / "out.jsonl")[0]["id"] == "007"


def test_lines_of_text_in_several_chunks(make_model, tmp_path, caplog):
    model = make_model("TokenClassification", id2label={0: "O", 1: "B-X"})
    (tmp_path / "rows.txt").write_text("a class\n\nan object\n" * 600)
    assert predict_file(model, str(tmp_path / "rows.txt"), str(tmp_path / "out.jsonl")) == 1800
    assert "600 of 1,800 rows have no text: their predictions mean nothing" in caplog.text
    rows = read_jsonl(tmp_path / "out.jsonl")  # a row for each line, also for a blank one
    assert len(rows) == 1800 and rows[:3] == rows[-3:] and [*rows[1]] == ["text", "entities"]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        pytest.param("text,prediction\nx,1\n", {}, "a column 'prediction' already", id="column of predictions"),
        pytest.param("review\nx\n", {}, "no column 'text', only review", id="no text"),
        pytest.param("text\nx\n", {"text_pair_column": "b"}, "no column 'b'", id="no pair"),
        pytest.param("text\n", {}, "has no rows", id="empty"),
        pytest.param("text\nx\n", {"choices_column": "text"}, "choices_column has no effect", id="another task's"),
    ],
)
def test_refused_rows_leave_no_file(rows, options, message, make_model, tmp_path):
    (tmp_path / "rows.csv").write_text(rows)
    with pytest.raises(ValueError, match=message):
        predict_file(
            make_model("SequenceClassification"), str(tmp_path / "rows.csv"), str(tmp_path / "out.csv"), **options
        )
    assert not (tmp_path / "out.csv").exists()


def test_model_without_a_fine_tuned_head(saved, make_model):
    with pytest.raises(ValueError, match="no task head .* fine-tune it first"):
        predict(saved, TEXTS)
    model = make_model("SequenceClassification")
    config = json.loads((model / "config.json").read_text()) | {"architectures": ["ScratchBertForQuestionAnswering"]}
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="ForQuestionAnswering without its head: qa_outputs"):
        predict(model, {"context": TEXTS, "question": TEXTS})


def test_damaged_row_of_a_later_chunk_and_truncated_ones(make_model, tmp_path, caplog):
    model = make_model("SequenceClassification")
    rows = [{"text": "a class"}] * 1001 + [{"text": "name " * 60}] * 2
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with caplog.at_level("INFO", "scratch_bert"):
        predict_file(model, str(tmp_path / "rows.jsonl"), str(tmp_path / "out.jsonl"))
    assert "2 of 1,003 rows are truncated to 40 tokens" in caplog.text
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, [*rows[:1001], {"text": None}])))
    with pytest.raises(ValueError, match="row 1,002: text: input should be a valid string"):
        predict_file(model, str(tmp_path / "rows.jsonl"), str(tmp_path / "damaged.jsonl"))
    assert not (tmp_path / "damaged.jsonl").exists() and not list(tmp_path.glob("out*.part"))
    assert len(read_jsonl(tmp_path / "damaged.jsonl.part")) == 1000  # what is written remains
