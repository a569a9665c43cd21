"""Two classes, of which one is rare: its scores, weights, threshold, and what is written about them."""

import csv
import json
import random

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.metrics import average_precision_score, f1_score, precision_recall_fscore_support, roc_auc_score

from helpers import read_jsonl
from scratch_bert.finetuning.class_report import class_report, draw, to_text
from scratch_bert.finetuning.prediction import predict, predict_file
from scratch_bert.finetuning.run import balanced_weights, prepare_finetuning
from scratch_bert.finetuning.tasks.sequence_classification import SequenceClassification
from scratch_bert_options.declare import from_keywords
from scratch_bert_options.finetuning import FinetuningOptions, TaskOptions


WITHOUT_CHECKPOINTS = {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
WORDS = ["class", "function", "module", "value", "name"]


def write_examples(file, count, seed, share):
    """Complaints, of which two in three contain the word object, and other texts, of which one in ten does."""
    rng = random.Random(seed)
    with file.open("w", newline="") as opened:
        table = csv.writer(opened)
        table.writerow(["id", "text", "label"])
        for number in range(count):
            complaint = number % round(1 / share) == 0
            words = rng.choices(WORDS, k=6)
            if rng.random() < (0.66 if complaint else 0.1):
                words[rng.randrange(6)] = "object"
            table.writerow([number, " ".join(words), "complaint" if complaint else "ok"])
    return str(file)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("rare")
    sizes = {"train": 300, "validation": 200, "test": 100}
    return {
        f"{split}_file": write_examples(directory / f"{split}.csv", size, seed, 0.1)
        for seed, (split, size) in enumerate(sizes.items())
    }


@pytest.fixture(scope="module")
def run(saved, tmp_path_factory):
    def run(**options):
        output_dir = tmp_path_factory.mktemp("output") / "run"
        options |= {"learning_rate": 3e-3, "disable_tqdm": True, "bf16": False, "output_dir": output_dir}
        run = prepare_finetuning(
            "sequence-classification",
            *from_keywords(TaskOptions, FinetuningOptions, model_name_or_path=saved, **options),
        )
        return run, run.train(), output_dir

    return run


@pytest.fixture(scope="module")
def trained(run, files, curves):
    return run(num_train_epochs=2, **files)


def test_scores_are_of_the_rare_class_and_of_probabilities(trained, files):
    run, results, output_dir = trained
    rows = pandas.read_csv(files["test_file"])
    found, labels = predict(output_dir, rows[["text"]]), rows["label"] == "complaint"
    probabilities = found["probability_complaint"]
    assert run.task.best_metric == "average_precision"
    assert results.mean["test_average_precision"] == pytest.approx(average_precision_score(labels, probabilities))
    assert results.mean["test_roc_auc"] == pytest.approx(roc_auc_score(labels, probabilities))
    assert results.mean["test_f1"] == pytest.approx(f1_score(labels, found["prediction"] == "complaint"))
    assert results.mean["baseline_majority_f1"] == 0 and results.mean["baseline_majority_accuracy"] == 0.9
    assert results.mean["baseline_majority_roc_auc"] == 0.5
    assert results.mean["baseline_majority_average_precision"] == pytest.approx(0.1)


def test_threshold_has_the_highest_f1_on_the_validation_data_and_decides(trained, files, tmp_path):
    run, results, output_dir = trained
    config = json.loads((output_dir / "config.json").read_text())
    assert config["positive_label"] == "complaint"
    predict_file(output_dir, files["validation_file"], str(tmp_path / "out.jsonl"))
    rows = read_jsonl(tmp_path / "out.jsonl")
    probabilities = np.array([row["probability_complaint"] for row in rows])
    labels = [row["label"] == "complaint" for row in rows]
    best = max(f1_score(labels, probabilities >= threshold) for threshold in probabilities)
    assert results.mean["eval_f1"] == pytest.approx(best)
    decided = ["complaint" if p >= config["decision_threshold"] else "ok" for p in probabilities]
    assert [row["prediction"] for row in rows] == decided
    written = read_jsonl(output_dir / "validation_predictions.jsonl")
    assert [row["prediction"] for row in written] == decided
    assert [row["label"] for row in written] == [row["label"] for row in rows]
    for strict in predict(output_dir, {"text": ["object"] * 2}, threshold=1.0)["prediction"]:
        assert strict == "ok"


def test_report_in_json_terminal_card_and_picture(trained):
    run, results, output_dir = trained
    report = json.loads((output_dir / "class_report.json").read_text())
    for split, count in (("validation", 200), ("test", 100)):
        rows = read_jsonl(output_dir / f"{split}_predictions.jsonl")
        counts = report[split]["confusion"]
        for row, label in zip(counts, report[split]["labels"], strict=True):
            for number, predicted in zip(row, report[split]["labels"], strict=True):
                assert number == sum((one["label"], one["prediction"]) == (label, predicted) for one in rows)
        labels, predictions = ([one[name] == "complaint" for one in rows] for name in ("label", "prediction"))
        expected = precision_recall_fscore_support(labels, predictions, average="binary", zero_division=0)[:3]
        scores = report[split]["classes"]["complaint"]
        assert (scores["precision"], scores["recall"], scores["f1"]) == pytest.approx(expected)
        assert scores["examples"] == count / 10
    shown = run.report(results)
    assert "(chosen)" in shown and "complaint from a probability of" in shown
    card = (output_dir / "README.md").read_text()
    assert f"| complaint | {report['validation']['classes']['complaint']['precision']:.4f}" in card
    assert "`decision_threshold` in config.json" in card
    assert "(confusion.png)" in card and Image.open(output_dir / "confusion.png").size == (700, 350)


def test_names_and_shares_decide_which_class_is_positive(make_task):
    def positive(labels, **options):
        task = make_task(SequenceClassification, {"text": ["a"] * len(labels), "label": list(labels)}, **options)
        return task.problem.positive_label

    assert positive("aab") == "b" and positive("abb") == "a" and positive("aabb") == "b"
    assert positive("aaabb") == positive("aabbb") == "b"  # 40% is not rare
    assert positive("abb", positive_label="b") == "b"
    assert positive("011", label_names=("no", "yes")) == "yes"  # in order, as GLUE's
    with pytest.raises(ValueError, match="positive_label must be one of a, b, got c"):
        positive("abb", positive_label="c")
    with pytest.raises(ValueError, match="for two classes"):
        positive("abc", positive_label="c")


def test_given_threshold(run, files):
    _, _, output_dir = run(max_steps=1, decision_threshold=0.25, positive_label="ok", **WITHOUT_CHECKPOINTS, **files)
    config = json.loads((output_dir / "config.json").read_text())
    assert (config["positive_label"], config["decision_threshold"]) == ("ok", 0.25)
    assert set(predict(output_dir, {"text": WORDS})["prediction"]) == {"ok"}


def test_class_weights_weigh_the_loss_also_under_accumulation(run, files):
    weights = {}
    for size in (32, 8):
        one, _, output_dir = run(
            max_steps=2, per_device_train_batch_size=size, gradient_accumulation_steps=32 // size, dropout=0.0,
            class_weights="balanced", label_smoothing_factor=0.1, **WITHOUT_CHECKPOINTS, **files,
        )  # fmt: skip
        weights[size] = load_file(output_dir / "model.safetensors")
    torch.testing.assert_close(weights[8], weights[32], atol=1e-4, rtol=1e-3)
    balanced = balanced_weights(one.task)
    assert balanced.tolist() == pytest.approx([300 / 30 / 2, 300 / 270 / 2])
    trainer = one.build_trainer(one.seed_runs[0])
    trainer.args.label_smoothing_factor = 0.0
    logits, labels = torch.randn(6, 2), torch.tensor([0, 1, 1, 0, 1, 1])
    expected = (torch.nn.functional.cross_entropy(logits, labels, reduction="none") * balanced[labels]).mean()
    torch.testing.assert_close(trainer.weighted_loss({"logits": logits}, labels), expected)


def test_weights_need_classes(run, files, tmp_path):
    (tmp_path / "numbers.csv").write_text("text,label\na,0.5\nb,1.5\nc,0.25\n")
    file = str(tmp_path / "numbers.csv")
    with pytest.raises(ValueError, match="one label for each text or word"):
        run(train_file=file, validation_file=file, class_weights="balanced")


def test_report_of_very_many_classes_has_no_confusion_matrix():
    names = [f"class {number}" for number in range(300)]
    report = class_report(names, names)
    assert len(report["classes"]) == 300 and "confusion" not in report  # it would have 90,000 cells
    assert "and 280 classes" in to_text("test", report) and not draw(report, None)


def test_report_of_many_classes_shows_the_most_frequent():
    names = [f"class {number}" for number in range(30)]
    references = [name for number, name in enumerate(names) for _ in range(number + 1)]
    shown = to_text("test", class_report(references, references))
    assert "class 29 " in shown and "class 9 " not in shown and "10 classes with fewer" in shown
