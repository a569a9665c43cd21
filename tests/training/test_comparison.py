import json

import numpy as np
import pytest

from scratch_bert.training.comparison import compare_runs, describe_comparison, draw_curves, read_groups


OTHER_TEXT = {"held-out text": "CRC-32 00000001"}


@pytest.fixture
def run(tmp_path):
    """Writes what a run leaves in its directory: `losses` by evaluation, the last one after its end."""

    def write(name, seed, losses, ended=True, **options):
        directory, evaluations = tmp_path / name, losses[:-1] if ended else losses
        log = [{"step": 10 * step, "eval_loss": loss} for step, loss in enumerate(evaluations, 1)]
        log += [{"step": 99, "loss": 1.0}]
        checkpoint = directory / "checkpoint-99"
        checkpoint.mkdir(parents=True)
        (checkpoint / "trainer_state.json").write_text(json.dumps({"log_history": log}))
        record = {"fixed": {"seed": seed, "optim": "muon"}, "options": {"lr": 0.1, "held-out text": "none"} | options}
        (directory / "run.json").write_text(json.dumps(record))
        if ended:
            metrics = {"train_loss": 0.0, "eval_loss": losses[-1], "eval_runtime": 3.0}
            (directory / "metrics.json").write_text(json.dumps(metrics))
        return directory

    return write


def test_runs_are_compared_by_seed(run):
    """Two ways with three seeds, one of them still running: means, deviations, and the t-interval of the differences."""
    first = [run(f"a-{seed}", seed, [5.0, loss]) for seed, loss in ((1, 1.0), (2, 2.0), (3, 3.0))]
    other = [run(f"b/seed-{seed}", seed, losses, lr=0.2) for seed, losses in ((1, [2.0]), (2, [2.5, 3.0]))]
    run("b/seed-3", 3, [4.5], ended=False, lr=0.2, threads=1)  # as the machine was busy: no other way
    run("b/seed-1-old", 1, [9.0])  # a copy, which is none of the seeds
    groups = read_groups([*first, other[0].parent])
    assert [(group.name, len(group.runs)) for group in groups] == [("a", 3), ("b", 3)]
    table = compare_runs(groups)
    assert table["figure"].tolist() == ["loss", "loss"]
    assert np.allclose(table["final"], [2, 9.5 / 3]) and np.allclose(table["best"], [2, 3.0])
    assert np.isclose(table["final_std"][0], 1)
    mean, half = 3.5 / 3, 4.30265 * np.std([1, 1, 1.5], ddof=1) / np.sqrt(3)  # Student's t, 2 degrees of freedom
    assert np.allclose(table.loc[1, ["difference", "low", "high"]].astype(float), [mean, mean - half, mean + half])
    text = describe_comparison(groups, table)
    assert "lr: 0.1, 0.2" in text and "3.1667 ± 1.2583" in text and "seed-3" in text.splitlines()[-1]


def test_runs_evaluated_on_different_text_are_not_comparable(run, curves, tmp_path, caplog):
    groups = read_groups([run("a", 1, [1.0, 2.0]), run("b", 2, [1.0, 2.0], **OTHER_TEXT)])
    describe_comparison(groups, compare_runs(groups))
    assert "evaluated on different text (held-out text)" in caplog.text
    caplog.clear()
    for name, test in {"c": {}, "d": {"test split": "CRC-32 1"}, "e": {"test split": "CRC-32 2"}}.items():
        run(name, 1, [1.0, 2.0], **test)
        groups = read_groups([tmp_path / other for other in "cde" if (tmp_path / other).exists()])
        describe_comparison(groups, compare_runs(groups))
        assert ("different text (test split)" in caplog.text) == (name == "e")
    pytest.importorskip("matplotlib")
    assert draw_curves(groups, tmp_path / "curves.png") and (tmp_path / "curves.png").stat().st_size > 5000


def test_runs_that_cannot_be_compared_are_errors(run, tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a run"):
        read_groups([tmp_path])
    with pytest.raises(ValueError, match="the same options and seed"):
        read_groups([run("a", 1, [1.0]), run("b", 1, [1.0])])
    with pytest.raises(ValueError, match="no evaluation yet"):
        read_groups([run("c", 1, [], ended=False)])
