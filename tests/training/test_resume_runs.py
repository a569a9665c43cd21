"""Runs of pretraining and of fine-tuning that are started again by the same command, wherever they have stopped: they
end as the unbroken run does. With the options of another run, they are rejected."""

import json
import logging
import re
import shutil
import signal
from functools import cache

import pytest

from helpers import SIZES, assert_same_weights, make_bert
from scratch_bert.atomic import MANIFEST
from scratch_bert.finetuning.run import prepare_finetuning
from scratch_bert.pretraining.run import prepare_pretraining
from scratch_bert.training import arguments
from scratch_bert.training.trainer import ScratchBertTrainer
from scratch_bert_options.data import DataOptions
from scratch_bert_options.declare import from_keywords
from scratch_bert_options.finetuning import FinetuningOptions, TaskOptions
from scratch_bert_options.model import ModelOptions
from scratch_bert_options.pretraining import PretrainingOptions


HALVES = ["pretraining", "finetuning"]
# Four steps, with a checkpoint at every second one.
COMMON = {"dropout": 0.1, "save_total_limit": 5, "bf16": False, "disable_tqdm": True, "report_to": "none", "seed": 5}
OPTIONS = {
    "pretraining": {"max_steps": 4, "save_steps": 2, "vocab_size": 500, "max_seq_length": 32},
    "finetuning": {"num_train_epochs": 2, "per_device_train_batch_size": 16, "learning_rate": 3e-3},
}
LONGER = {"pretraining": {"max_steps": 6}, "finetuning": {"num_train_epochs": 3}}


@pytest.fixture(scope="module")
def prepare(text_file, saved, tmp_path_factory):
    """Prepares a run of either kind in a directory."""
    directory = tmp_path_factory.mktemp("shared")
    texts = [f"{word} {n}" for n in range(20) for word in ("a class", "an object")]
    for name, few in (("train", texts[:32]), ("validation", texts[32:])):
        lines = [f"{text},{'good' if 'object' in text else 'bad'}\n" for text in few]
        (directory / f"{name}.csv").write_text("".join(["text,label\n", *lines]))
    of_pretraining = {"config_overrides": SIZES, "train_file": text_file, "cache_dir": directory / "cache"}
    of_finetuning = {f"{name}_file": directory / f"{name}.csv" for name in ("train", "validation")}
    of_finetuning |= {"model_name_or_path": saved}

    def prepare(half, output_dir, **options):
        options = COMMON | OPTIONS[half] | {"output_dir": output_dir} | options
        if half == "pretraining":
            groups = (ModelOptions, DataOptions, PretrainingOptions)
            return prepare_pretraining(*from_keywords(*groups, **of_pretraining | options))
        groups = (TaskOptions, FinetuningOptions)
        return prepare_finetuning("sequence-classification", *from_keywords(*groups, **of_finetuning | options))

    return prepare


@pytest.fixture(scope="module")
def unbroken(prepare, tmp_path_factory):
    """The directory of a run of either kind that nothing stops. To be read only."""
    root = tmp_path_factory.mktemp("unbroken")

    @cache
    def directory(half):
        prepare(half, root / half).train()
        return root / half

    return directory


def checkpoint_of(run):
    """The one that a prepared run resumes from."""
    return run.checkpoint if hasattr(run, "checkpoint") else run.seed_runs[0].checkpoint


def assert_same_result(found, expected):
    """Weights, and metrics of the evaluation."""
    assert_same_weights(found, expected)
    metrics, expected_metrics = (json.loads((path / "metrics.json").read_text()) for path in (found, expected))
    timed = ("runtime", "per_second")
    names = [name for name in expected_metrics if name.startswith("eval") and not name.endswith(timed)]
    assert len(names) >= 3 and [metrics[name] for name in names] == [expected_metrics[name] for name in names]


# Where a run died → the part of an unbroken run that is there, the files that are not, and what is resumed from.
DIED = {
    "before its first checkpoint": (None, (), None),
    "after a checkpoint": ("checkpoint-2", (), "checkpoint-2"),
    "after its record was lost": ("checkpoint-2", ("run.json", MANIFEST), "checkpoint-2"),
    "while its model is saved": ("", ("metrics.json", "model.safetensors"), "checkpoint-4"),
    "while its metrics are written": ("", ("metrics.json",), "checkpoint-4"),
    "not at all": ("", (), "checkpoint-4"),
}


@pytest.mark.smoke
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(("left", "lost", "resumed_from"), DIED.values(), ids=DIED)
def test_resumed_run_ends_as_the_unbroken_run(left, lost, resumed_from, half, prepare, unbroken, tmp_path):
    """The same command, with `auto`, as a launcher repeats it."""
    directory, expected = tmp_path / "run", unbroken(half)
    if left is None:
        directory.mkdir()
        (directory / "run.json").write_text("{}")
    else:
        shutil.copytree(expected / left, directory / left)
    for name in lost:
        (directory / left / name).unlink()
    run = prepare(half, directory, resume_from_checkpoint="auto")
    assert checkpoint_of(run) == (resumed_from and str(directory / resumed_from))
    run.train()
    assert_same_result(directory, expected)


@pytest.mark.parametrize("half", HALVES)
def test_checkpoint_of_another_directory_is_resumed_from_in_an_empty_one(half, prepare, unbroken, tmp_path):
    named = {"resume_from_checkpoint": unbroken(half) / "checkpoint-2"}
    prepare(half, tmp_path / "resumed", **named).train()
    assert_same_result(tmp_path / "resumed", unbroken(half))
    with pytest.raises(ValueError, match="resumed is not empty"):
        prepare(half, tmp_path / "resumed", **named)


@pytest.mark.parametrize("half", HALVES)
def test_finished_run_continues_for_more_steps(half, prepare, unbroken, tmp_path):
    directory = shutil.copytree(unbroken(half), tmp_path / "run")
    prepare(half, directory, resume_from_checkpoint="auto", **LONGER[half]).train()
    state = json.loads((directory / "checkpoint-6" / "trainer_state.json").read_text())
    assert state["global_step"] == 6


@pytest.mark.parametrize("half", HALVES)
def test_ctrl_c_saves_a_checkpoint_to_resume_from(half, prepare, unbroken, tmp_path, monkeypatch):
    def press_ctrl_c(trainer, *args, **kwargs):
        if trainer.state.global_step == 2:
            signal.raise_signal(signal.SIGINT)
        return training_step(trainer, *args, **kwargs)

    training_step = ScratchBertTrainer.training_step
    with monkeypatch.context() as patch:
        patch.setattr(ScratchBertTrainer, "training_step", press_ctrl_c)
        with pytest.raises(KeyboardInterrupt, match="Stopped at step 3. To continue: .* --resume_from_checkpoint"):
            prepare(half, tmp_path / "run").train()
    assert not (tmp_path / "run/metrics.json").exists()
    run = prepare(half, tmp_path / "run", resume_from_checkpoint="auto")
    assert checkpoint_of(run) == str(tmp_path / "run/checkpoint-3")
    run.train()
    assert_same_result(tmp_path / "run", unbroken(half))


@pytest.mark.parametrize(
    ("half", "changed", "message"),
    [
        pytest.param("pretraining", {"optim": "adamw_torch"}, "a different optim: muon, not adamw_torch", id="option"),
        pytest.param("pretraining", {"validation_share": 0.5}, "a different training text: .* CRC-32", id="text"),
        pytest.param(
            "pretraining",
            {"config_overrides": SIZES | {"norm_first": True}},
            "norm_first=False, but the options ask for True",
            id="architecture",
        ),
        pytest.param("finetuning", {"seed": 1}, "a different seed: 5, not 1", id="seed"),
        pytest.param(
            "finetuning",
            {"model_name_or_path": "other"},
            "a different model: scratch_bert × 2 × 32 × .*, not bert × 3",
            id="model",
        ),
    ],
)
def test_options_of_another_run_are_rejected(half, changed, message, prepare, unbroken, tokenizer, tmp_path):
    if "model_name_or_path" in changed:
        make_bert("ForPreTraining", tmp_path / "other", tokenizer, num_hidden_layers=3)
        changed = {"model_name_or_path": tmp_path / "other"}
    directory = shutil.copytree(unbroken(half), tmp_path / "run")
    with pytest.raises(ValueError, match=f"checkpoint-4 has {message}"):
        prepare(half, directory, resume_from_checkpoint="auto", **changed)


CHANGED = {"finetuning": {"learning_rate": 1e-3, "dropout": 0.2, "early_stopping_patience": 1}}
CHANGED["pretraining"] = {"data_seed": 7, "train_sampling_strategy": "sequential", "dataloader_drop_last": True}
CHANGED["pretraining"] |= {"static_pairs": True, "config_overrides": SIZES | {"hidden_act": "relu"}}


@pytest.mark.parametrize("half", HALVES)
def test_options_that_have_changed_are_named_and_no_others(half, prepare, unbroken, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "scratch_bert")
    directory = shutil.copytree(unbroken(half), tmp_path / "run")
    prepare(half, directory, resume_from_checkpoint="auto")
    assert "from here on" not in caplog.text
    prepare(half, directory, resume_from_checkpoint="auto", **CHANGED[half])
    for name in CHANGED[half]:
        assert f"\n{name}: " in "\n".join(caplog.messages)
    monkeypatch.setattr(arguments, "CODE_VERSION", "99")
    prepare(half, directory, resume_from_checkpoint="auto")
    assert re.search("versions: scratch_bert .* until this checkpoint, scratch_bert 99 .* from here on", caplog.text)
