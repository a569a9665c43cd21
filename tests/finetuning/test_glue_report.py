"""Scores by GLUE's conventions, their means and the table."""

import re

import pytest

from scratch_bert.finetuning.arguments import GlueTrainingArguments
from scratch_bert.finetuning.glue import GLUE
from scratch_bert.finetuning.glue_report import GOOGLE, SMALL, GlueReport, format_table
from scratch_bert.finetuning.run import summarize
from scratch_bert_cli.glue import GlueArguments
from scratch_bert_options.finetuning import GLUE_TASKS


def report(tasks, seeds=(1,), mismatched=True, **options):
    """Of runs whose metrics are 0.1, 0.2, … in their order, and the seed in the third digit."""
    results = {}
    for task in tasks:
        names = [name for name in GLUE[task].score if mismatched or name != "test_accuracy"]
        kind = "mean" if task == "stsb" else "majority"
        metrics = {
            name if name.startswith("test_") else f"eval_{name}": 0.1 * (1 + names.index(name)) for name in names
        }
        baselines = {f"baseline_{baseline}_{name}": 0.5 for baseline in (kind, "bag_of_words") for name in names}
        by_seed = {seed: {name: value + seed / 100 for name, value in metrics.items()} | baselines for seed in seeds}
        results[task] = summarize(by_seed)
    arguments = GlueArguments(model_name_or_path="org/name", seeds=list(seeds), **options)
    return GlueReport(
        results, arguments, GlueTrainingArguments(use_cpu=True, learning_rate=1e-4, head_learning_rate=1e-3)
    )


def cells(text, title):
    """Column → value in the row of this title, in both tables."""
    found = {}
    for table in text.split("\n\n")[:-1]:
        lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
        found |= dict(zip(lines[0][1:], next(line[1:] for line in lines if line[0] == title), strict=True))
    return found


def test_tasks_are_those_of_glue():
    assert tuple(GLUE) == GLUE_TASKS
    for scores in GOOGLE.values():
        assert {task: len(parts) for task, parts in scores.items()} == {task: len(GLUE[task].score) for task in GLUE}
    for task in GLUE.values():
        assert set(task.score) - {"test_accuracy"} <= set(task.metrics)


def test_scores_and_means_over_tasks_and_seeds():
    text = report([*SMALL, "mnli", "wnli"], seeds=(1, 3)).as_markdown()
    row = cells(text, "org/name")  # one part: 11 and 13; two parts: the mean of 10 and 20, and of the seeds 1 and 3
    assert row["CoLA"] == row["WNLI"] == "12.0 ± 1.4" and row["MRPC"] == row["MNLI"] == "17.0 ± 1.4"
    assert row["MRPC: F1, accuracy"] == row["MNLI: matched, mismatched"] == "12.0, 22.0"
    assert row["mean"] == f"{(3 * 12 + 3 * 17) / 6:.1f} ± 1.4" and row["five tasks"] == "14.0 ± 1.4"
    assert row["without CoLA"] == "14.5 ± 1.4"
    assert cells(text, "bag of words")["STS-B"] == cells(text, "majority class")["STS-B"] == "50.0"
    assert "seeds 1, 3, the last step. All tasks with learning rate" in text and "*test* sets" in text


def test_task_has_a_summary_and_the_table_names_what_the_classifier_reads():
    found = report(["rte"], seeds=(1, 3), dropout=0.1)
    assert found.summary("rte") == "RTE: 12.0 ± 1.4 (majority class 50.0, bag of words 50.0)"
    assert "5 epochs; classifier_pooling of the checkpoint, dropout 0.1." in found.as_markdown()


def test_means_of_google():
    text = report([*SMALL, "wnli"]).as_markdown()
    rows = [cells(text, name) for name in GOOGLE]
    assert [row["mean"] for row in rows[:3]] == ["58.1", "58.9", "67.4"]
    assert [row["without CoLA"] for row in rows[:3]] == ["72.6", "73.7", "77.3"]
    assert "five tasks" not in rows[0] and rows[3]["MRPC: F1, accuracy"] == "86.6, 81.6"
    assert cells(report(GLUE).as_markdown(), "BERT-mini")["QQP"] == "76.3"


def test_mnli_without_mismatched_examples_is_compared_with_matched_scores():
    text = report(["mnli"], mismatched=False).as_markdown()
    assert cells(text, "BERT-tiny")["MNLI"] == "70.2" and "mean" not in cells(text, "BERT-tiny")
    assert cells(report(["mnli"]).as_markdown(), "BERT-tiny")["MNLI"] == "70.2"  # of 70.2 and 70.3, 70.25


def test_dictionary():
    content = report([*SMALL], seeds=(1, 3), dropout=0.1).as_dict()
    assert content["model"] == "org/name" and content["settings"]["dropout"] == 0.1
    assert content["settings"]["num_train_epochs"] == 5 and not {"seed", "seeds", "output_dir"} & set(
        content["settings"]
    )
    task = content["tasks"]["mrpc"]
    assert task["mean"] == pytest.approx(17) and task["seeds"] == {1: pytest.approx(16), 3: pytest.approx(18)}
    assert task["parts"] == {"f1": pytest.approx(12), "accuracy": pytest.approx(22)}
    assert task["baselines"] == {"majority class": 50, "bag of words": 50}
    assert list(content["means"]) == ["mean", "without CoLA"] and content["means"]["mean"]["std"] == pytest.approx(
        2**0.5
    )


def test_row_names_no_directory(tmp_path):
    (tmp_path / "mine").mkdir()
    arguments = GlueArguments(model_name_or_path=f"{tmp_path}/mine/", random_init=True, seeds=[1])
    assert (
        GlueReport(
            {}, arguments, GlueTrainingArguments(use_cpu=True, learning_rate=1e-4, head_learning_rate=1e-3)
        ).model.title
        == "mine, random weights"
    )


def test_table_is_aligned():
    text = format_table([["", "a", "long title"], ["name", "1.0", "2.0"]])
    assert text == "|      |   a | long title |\n| ---- | --: | ---------: |\n| name | 1.0 |        2.0 |"
    assert re.fullmatch(r"[| \-:]+", text.splitlines()[1])
