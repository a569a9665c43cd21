"""`--search`: trials that are compared on the validation data, the best of which stays, also after a stop."""

import json
import shutil

import pandas
import pytest

from scratch_bert.finetuning.run import FinetuningRun, prepare_finetuning
from scratch_bert.finetuning.trainer import FinetuningTrainer
from scratch_bert.training.trainer import DivergenceError
from scratch_bert_options.declare import from_keywords
from scratch_bert_options.finetuning import FinetuningOptions, TaskOptions


@pytest.fixture
def prepare(saved, tmp_path):
    (tmp_path / "rows.csv").write_text("text,label\n" + "an object,good\na class,bad\na name,bad\n" * 20)

    def prepare(search, **options):
        options = {"num_train_epochs": 1, "disable_tqdm": True, "bf16": False, "learning_rate": 1e-3} | options
        files = {"train_file": str(tmp_path / "rows.csv"), "model_name_or_path": saved, "search": search}
        options |= files | {"output_dir": str(tmp_path / "run")}
        return prepare_finetuning("sequence-classification", *from_keywords(TaskOptions, FinetuningOptions, **options))

    return prepare


def test_the_best_trial_stays_and_a_stopped_search_resumes(prepare, tmp_path, monkeypatch):
    train, started = FinetuningTrainer.train_and_predict, []

    def stop_in_the_second(trainer, *args):
        started.append(trainer.args.learning_rate)
        if len(started) == 2:
            raise KeyboardInterrupt
        return train(trainer, *args)

    monkeypatch.setattr(FinetuningTrainer, "train_and_predict", stop_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        prepare(3).train()
    search = prepare(3, resume_from_checkpoint="auto")
    results = search.train()
    assert started[2] == started[1] and len(set(started)) == 3  # the stopped trial, and one more
    table = pandas.read_csv(tmp_path / "run" / "search.csv")
    assert table["state"].tolist() == ["COMPLETE"] * 3
    assert (table["params_head_learning_rate"] / table["params_learning_rate"]).nunique() == 3
    best = table.loc[table["value"].idxmax()]
    assert [path.name for path in (tmp_path / "run").glob("trial-*")] == [best["user_attrs_directory"]]
    assert search.model_dir == tmp_path / "run" / best["user_attrs_directory"]
    metrics = json.loads((search.model_dir / "metrics.json").read_text())
    assert results.mean == metrics and metrics["eval_average_precision"] == best["value"]
    report = search.report(results)
    assert str(search.model_dir) in report.replace("\n", " ") and "validation, by class" in report
    assert prepare(3, resume_from_checkpoint="auto").train().mean == metrics and len(started) == 4
    with pytest.raises(ValueError, match="a different metric_for_best_model: average_precision, not loss"):
        prepare(3, resume_from_checkpoint="auto", metric_for_best_model="loss")


def test_a_search_that_was_killed_ends_as_the_unbroken_one(prepare, tmp_path, monkeypatch):
    """Also if it died holding the lock of its log, and in the middle of a line."""
    expected = prepare(3).train().mean
    (tmp_path / "run").rename(tmp_path / "unbroken")
    train = FinetuningTrainer.train_and_predict
    monkeypatch.setattr(FinetuningTrainer, "train_and_predict", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare(3).train()
    (tmp_path / "run" / "search.log.lock").symlink_to("run/search.log")  # which leads nowhere, as Optuna's does
    with (tmp_path / "run" / "search.log").open("a") as log:
        log.write('{"op_code": 6, "worker')
    monkeypatch.setattr(FinetuningTrainer, "train_and_predict", train)
    found = prepare(3, resume_from_checkpoint="auto").train().mean
    unequal = ("runtime", "per_second")
    assert {name: value for name, value in found.items() if not name.endswith(unequal)} == {
        name: value for name, value in expected.items() if not name.endswith(unequal)
    }
    tables = [pandas.read_csv(tmp_path / name / "search.csv") for name in ("run", "unbroken")]
    assert tables[0]["value"].tolist() == tables[1]["value"].tolist()


def test_a_trial_that_diverges_ends_no_search_of_half_an_epoch(prepare, monkeypatch, tmp_path):
    train = FinetuningRun.train

    def diverge(run):
        if run.output_dir.name == "trial-1":
            raise DivergenceError("the training has diverged")
        return train(run)

    monkeypatch.setattr(FinetuningRun, "train", diverge)
    assert prepare(2, num_train_epochs=0.5).train().mean["eval_accuracy"] > 0
    table = pandas.read_csv(tmp_path / "run" / "search.csv")
    assert table["state"].tolist() == ["PRUNED", "COMPLETE"] and "params_num_train_epochs" not in table


def test_a_search_whose_best_trial_is_gone_does_not_resume(prepare):
    search = prepare(1)
    search.train()
    shutil.rmtree(search.model_dir)
    with pytest.raises(OSError, match="trial-1, of the best trial, is missing"):
        prepare(2, resume_from_checkpoint="auto").train()


def test_what_a_search_excludes(prepare):
    with pytest.raises(ValueError, match="dropout has no effect with search, which tries several"):
        prepare(2, dropout=0.3)
    with pytest.raises(ValueError, match="seeds"):
        prepare(2, seeds=[1, 2])
