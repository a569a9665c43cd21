"""The demo's runs: their snapshots, curves and examples, and what their directories say of a model."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from scratch_bert_demo import runs
from scratch_bert_demo.model import Model
from scratch_bert_demo.runs import Moment, Run, amounts_at, describe_model, open_models, read_curves, read_log, step_of


TEXT = "the cat sleeps on the sofa ."


def test_run(trained):
    run = Run(str(trained))
    assert run.amounts() == [100, 200, 300]
    assert list(run.curves) == ["MLM loss"]
    assert [step for step, _ in run.curves["MLM loss"]["training"]] == list(range(10, 301, 10))
    assert [step for step, _ in run.curves["MLM loss"]["validation"]] == [100, 200, 300]
    first, last = (run.open(run.saved[number]).fill_mask("the cat [MASK] on the sofa .").value[0] for number in (0, 2))
    assert last[0][0] == "sleeps" and dict(last)["sleeps"] > dict(first).get("sleeps", 0)
    assert run.open(run.saved[2]) is run.open(run.saved[2])


def test_how_far_a_run_has_come_is_in_its_log():
    """Snapshots lie between the entries of the log, and beyond the last. After a resume, batches are larger."""
    log = [
        {"step": 50, runs.EXAMPLES_PER_STEP: 2, runs.TOKENS_PER_STEP: 100, runs.TOKENS_PER_SECOND: 1000},
        {"step": 100, "eval_loss": 1.0},
        {"step": 150, runs.EXAMPLES_PER_STEP: 2, runs.TOKENS_PER_STEP: 150, runs.TOKENS_PER_SECOND: 500},
        {"step": 200, runs.EXAMPLES_PER_STEP: 4, runs.TOKENS_PER_STEP: 200, runs.TOKENS_PER_SECOND: 250},
    ]
    assert amounts_at([0, 1, 25, 100, 200, 220], log) == {
        runs.STEPS: [0, 1, 25, 100, 200, 220],
        runs.EXAMPLES_SEEN: [0, 2, 50, 200, 500, 580],
        runs.TOKENS_SEEN: [0, 100, 2_500, 5_000 + 7_500, 5_000 + 15_000 + 10_000, 34_000],
        runs.SECONDS: [0, 0.1, 2.5, 5 + 15, 5 + 30 + 40, 91],
    }
    old = [{"step": 50, runs.TOKENS_PER_SECOND: 1000}]
    assert amounts_at([0, 100], old) == {runs.STEPS: [0, 100]} | dict.fromkeys(
        (runs.EXAMPLES_SEEN, runs.TOKENS_SEEN, runs.SECONDS), [0, 0]
    )


def test_several_threads_open_checkpoints(trained):
    run = Run(str(trained))
    with ThreadPoolExecutor(6) as pool:
        found = pool.map(lambda number: run.open(run.saved[number % 3]).fill_mask(TEXT + "[MASK]").value, range(12))
    expected = [Model(str(checkpoint)).fill_mask(TEXT + "[MASK]").value for checkpoint in run.saved]
    assert list(found) == expected * 4


def test_models_are_looked_up_while_a_run_is_read_again(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "run")
    run, found = Run(str(tmp_path / "run")), []

    def look_up(read, *args):
        found.append(step_of(run.place_at(Moment(900))))
        return read(*args)

    for name in ("read_log", "read_examples", "amounts_at", "read_curves"):
        monkeypatch.setattr(runs, name, partial(look_up, getattr(runs, name)))
    shutil.copytree(trained / "checkpoint-300", tmp_path / "run/checkpoint-400")
    run.refresh()
    assert found == [300] * 4 and step_of(run.place_at(Moment(900))) == 400


def test_run_keeps_few_checkpoints_open_and_says_which_is_gone(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    for step in range(400, 1000, 100):
        shutil.copytree(trained / "checkpoint-300", tmp_path / f"run/checkpoint-{step}")
    run = Run(str(tmp_path / "run"))
    for place in run.saved:
        run.open(place)
    assert run._open.cache_info().currsize == runs.KEPT_MODELS
    shutil.rmtree(tmp_path / "run/checkpoint-200")
    with pytest.raises(ValueError, match="The model of .*run, step 200 has been deleted"):
        run.open(run.saved[1])


def test_run_that_begins_again_in_the_same_place_shows_its_own_models(trained, tmp_path):
    place, other = tmp_path / "run/checkpoint-100", tmp_path / "run/checkpoint-200"
    for checkpoint in (place, other):
        shutil.copytree(trained / "checkpoint-300", checkpoint)
    run = Run(str(tmp_path / "run"))
    before = run.open(place).fill_mask(TEXT + "[MASK]").value
    shutil.rmtree(place)
    shutil.copytree(trained / "checkpoint-100", place)
    os.utime(place / "config.json")
    assert run.open(place).fill_mask(TEXT + "[MASK]").value != before
    assert run.latest().title.endswith("step 200")
    assert [step_of(run.place_at(Moment(step))) for step in (50, 100, 150, 200, 900)] == [100, 100, 100, 200, 200]
    assert run.at(Moment(900)).title.endswith("step 200")
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(trained / name, tmp_path / "run")  # the run has ended: these are newer
    assert run.latest().title == run.at(Moment(900)).title == str(tmp_path / "run")
    assert run.at(Moment(150)).title.endswith("step 100")
    os.utime(other / "config.json")  # and has been continued
    assert run.latest().title.endswith("step 200")


def test_open_models(trained, bert, tmp_path):
    models, found = open_models([str(trained), str(bert), str(trained)])
    assert [model.name for model in models] == [str(trained), str(bert)]
    assert [run.name for run in found] == [str(trained)]
    shutil.copytree(trained, tmp_path / "unfinished", ignore=shutil.ignore_patterns("config.json"))
    for checkpoint in (tmp_path / "unfinished").glob("checkpoint-*"):
        shutil.copy(trained / "config.json", checkpoint)
    (model,), (run,) = open_models([str(tmp_path / "unfinished")])
    assert model.title == "unfinished, step 300" and model.name == run.name == str(tmp_path / "unfinished")
    shutil.copytree(trained / "checkpoint-300", tmp_path / "unfinished/checkpoint-400")
    assert model.title == "unfinished, step 400" and "MaskedLM" in model.heads  # it follows the run
    shutil.copytree(trained, tmp_path / "unfinished", dirs_exist_ok=True)
    assert model.title == "unfinished"  # the run has ended
    with pytest.raises(OSError, match="There is no model directory"):
        open_models([str(tmp_path / "nothing" / "here")])


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ('{"options": {"mlm_probability": 0.3}}', "Masked: 30%; validation: 15%"),
        ('{"options":{"mlm_probability":0.3,"final_mlm_probability":0.15}}', "Masked: 30%, then 15%; validation: 15%"),
        ('{"options": {}}', ""),
        ('{"options": [1]}', ""),
        ("broken", ""),
    ],
)
def test_mask_rates_of_a_pretraining_run(record, text, tmp_path):
    assert runs.read_mask_rates(tmp_path) == ""
    (tmp_path / "run.json").write_text(record)
    assert runs.read_mask_rates(tmp_path) == text


def test_curves_are_those_of_all_losses_of_the_log(tmp_path):
    log = [
        {"step": 10, "loss": 9.0, "mlm_loss": 6.0, "nsp_loss": 0.7, "contrastive_loss": 2.3, "learning_rate": 0.1},
        {"step": 20, "eval_mlm_loss": 5.0, "eval_contrastive_loss": 2.0, "eval_mlm_unigram_loss": 7.0},
        {"step": 20, "train_loss": 8.5},
    ]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    assert read_curves(read_log(tmp_path)) == {
        "MLM loss": {"training": [(10, 6.0)], "validation": [(20, 5.0)], "baseline": [(20, 7.0)]},
        "NSP loss": {"training": [(10, 0.7)]},
        "CONTRASTIVE loss": {"training": [(10, 2.3)], "validation": [(20, 2.0)]},
    }
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": 1, "loss": 3.0}]}))
    assert read_curves(read_log(tmp_path)) == {"MLM loss": {"training": [(1, 3.0)]}}
    (tmp_path / "trainer_state.json").write_text('{"log_history": [1]}')
    with pytest.raises(ValueError, match="trainer_state.json: log_history: 0: .* valid dict"):
        read_curves(read_log(tmp_path))


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["runs/mine/"], ["mine"]),
        (["runs/a", "runs/b", "me/c"], ["a", "b", "c"]),
        (["x/one/bert", "x/two/bert"], ["one/bert", "two/bert"]),
        (["bert", "me/bert"], ["bert", "me/bert"]),
    ],
)
def test_names_are_as_short_as_they_can_be(names, short):
    assert runs.short_names(names) == short


@pytest.mark.parametrize("content", ["", '{"texts": ["[MASK]"], "answers": [1], "pairs": []}'])
def test_examples_that_no_run_has_written_are_none(content, tmp_path):
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "snapshots/examples.json").write_text(content)
    assert runs.read_examples(tmp_path) == ([], [])


def test_description_has_size_text_time_and_results(trained, bert, tmp_path):
    assert describe_model(Model(str(bert))).startswith("2 layers × ")
    shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoint-*"))
    record = {"fixed": {"training text": "2 documents, 6 sentences, 50 tokens, CRC-32 1234abcd"}}
    metrics = {"train_runtime": 130.0, "eval_mlm_loss": 2.0, "eval_mlm_unigram_loss": 3.5, "eval_runtime": 1.0}
    metrics |= {"eval_nsp_accuracy": 0.75, "eval_nsp_majority_accuracy": 0.5}
    for name, content in (("run.json", record), ("metrics.json", metrics)):
        (tmp_path / "run" / name).write_text(json.dumps(content))
    assert describe_model(Model(str(tmp_path / "run"))).endswith(
        " · 2 documents, 6 sentences, 50 tokens · trained for 2 min · MLM loss 2.00 (baseline 3.50)"
        " · NSP accuracy 0.75 (baseline 0.50)"
    )
    metrics = {"train_runtime": 20.0, "eval_accuracy": 0.5, "eval_f1": 0.25, "eval_loss": 1.0, "eval_runtime": 1.0}
    (tmp_path / "run/metrics.json").write_text(json.dumps(metrics))
    assert describe_model(Model(str(tmp_path / "run"))).endswith(" · trained for 20 s · accuracy 0.50 · f1 0.25")
