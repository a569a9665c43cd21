import errno
import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from transformers import Trainer, TrainingArguments

from helpers import SMALL, make_batch
from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining, atomic
from scratch_bert.atomic import locked, seal
from scratch_bert.checkpoints.resume import check_same_architecture, check_same_run
from scratch_bert.checkpoints.saved import (
    archive_later_checkpoints,
    find_checkpoint,
    find_damage,
    remove_surplus,
    write_checkpoint,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The output directory of two steps. To be read only."""
    directory = tmp_path_factory.mktemp("runs") / "run"
    batch = make_batch("AutoModelForPreTraining", rows=8)
    Trainer(
        model=ScratchBertForPreTraining(ScratchBertConfig(**SMALL)),
        args=TrainingArguments(str(directory), max_steps=2, save_steps=1, use_cpu=True, report_to=[]),
        train_dataset=[{name: values[row] for name, values in batch.items()} for row in range(8)],
    ).train()
    return directory


@pytest.fixture
def checkpoint(run, tmp_path):
    """A copy of the last checkpoint."""
    return Path(shutil.copytree(run / "checkpoint-2", tmp_path / "checkpoint-2"))


def find(output_dir, resume=None):
    return find_checkpoint(TrainingArguments(str(output_dir), resume_from_checkpoint=resume, use_cpu=True))


def test_find_checkpoint_gives_the_newest_or_the_named_one(run, tmp_path):
    newest = str(run / "checkpoint-2")
    assert find(run, "auto") == find(run, "last") == find(run, True) == find(tmp_path / "other", newest) == newest
    assert find(run, str(run / "checkpoint-1")) == str(run / "checkpoint-1")
    assert find(tmp_path / "other") is None
    (tmp_path / "slurm-1.out").touch()  # the log of the job itself
    assert find(tmp_path) is None and find(tmp_path, "auto") is None


def test_find_checkpoint_takes_a_link_for_its_run(run, tmp_path):
    (tmp_path / "notes").touch()
    (tmp_path / "checkpoint-2").symlink_to(run / "checkpoint-2")
    assert find(tmp_path, "auto") == str(tmp_path / "checkpoint-2")


def test_copies_under_other_names_are_no_checkpoints(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    for name in ("checkpoint-2-backup", "checkpoint-1-2000"):
        shutil.copytree(run / "checkpoint-2", tmp_path / "run" / name)
    assert find(tmp_path / "run", "auto") == str(tmp_path / "run" / "checkpoint-2")
    remove_surplus(tmp_path / "run" / "checkpoint-2", 1, None)
    archive_later_checkpoints(str(tmp_path / "run" / "checkpoint-2"), tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").glob("checkpoint-*")}
    assert names == {"checkpoint-2", "checkpoint-2-backup", "checkpoint-1-2000"}


def test_checkpoint_that_fails_or_is_being_saved_is_not_there(tmp_path):
    args = TrainingArguments(str(tmp_path), save_total_limit=1, use_cpu=True)
    place = tmp_path / "checkpoint-2"

    def save(directory, content="new"):
        directory.mkdir(parents=True)
        (directory / "weights").write_text(content)
        assert not place.exists() or (place / "weights").read_text() == "old"

    def wait():
        assert (tmp_path / ".saving" / "checkpoint-2" / "weights").is_file() and not place.exists()

    def fail(directory):
        save(directory)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "checkpoint-1").mkdir()
    write_checkpoint(place, partial(save, content="old"), wait, args, best=None)
    assert atomic.find_damaged_file(place) is None
    with pytest.raises(OSError, match="checkpoint-2 could not be written.* checkpoint-2 is kept. Free some space"):
        write_checkpoint(place, fail, wait, args, best=None)
    assert (place / "weights").read_text() == "old"
    write_checkpoint(place, save, lambda: None, args, best=None)
    assert (place / "weights").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


def test_checkpoint_that_cannot_be_read_is_not_taken_for_damaged(run, tmp_path, monkeypatch):
    shutil.copytree(run, tmp_path / "run")
    seal(tmp_path / "run" / "checkpoint-2")

    def fail(file):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))

    monkeypatch.setattr(atomic, "checksum", fail)
    with pytest.raises(OSError, match="Permission denied: .*checkpoint-2"):
        find(tmp_path / "run", "auto")
    assert (tmp_path / "run" / "checkpoint-2").is_dir()


def test_checkpoints_later_than_the_named_one_are_archived(run, tmp_path):
    """After a resume from an earlier checkpoint, the later ones are not the newest of the run."""
    shutil.copytree(run, tmp_path / "run")
    archive_later_checkpoints(str(run / "checkpoint-1"), tmp_path / "run")  # in another directory: nothing is renamed
    assert find(tmp_path / "run", "auto") == str(tmp_path / "run" / "checkpoint-2")
    archive_later_checkpoints(str(tmp_path / "run" / "checkpoint-1"), tmp_path / "run")
    assert find(tmp_path / "run", "auto") == str(tmp_path / "run" / "checkpoint-1")
    assert (tmp_path / "run" / "abandoned-checkpoint-2" / "trainer_state.json").is_file()


def test_auto_resume_without_a_checkpoint_starts_a_new_run(tmp_path, caplog):
    caplog.set_level("INFO", "scratch_bert")
    assert find(tmp_path / "new", "auto") is None
    assert "no checkpoint to resume from in" in caplog.text and "a new run" in caplog.text
    with locked(tmp_path / "died"):  # of a run that died in its first steps
        (tmp_path / "died" / "run.json").write_text("{}")
        (tmp_path / "died" / "runs").mkdir()
        assert find(tmp_path / "died", "auto") is None
    with pytest.raises(ValueError, match="died is not empty"):
        find(tmp_path / "died")
    (tmp_path / "died" / "metrics.json").touch()
    with pytest.raises(ValueError, match="died is not empty"):
        find(tmp_path / "died", "auto")


@pytest.mark.parametrize(
    ("output_dir", "resume", "message"),
    [
        ("full", "auto", "full is not empty. There is no complete checkpoint"),
        ("full", "checkpoint-2", "full is not empty. Pass an empty one"),
        ("run", "2", "There is no checkpoint 2. Pass auto"),
        ("run", None, "run is not empty.*--resume_from_checkpoint"),
    ],
)
def test_find_checkpoint_rejects(output_dir, resume, message, run, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").touch()
    resume = str(run / resume) if resume and resume.startswith("checkpoint") else resume
    with pytest.raises(ValueError, match=message):
        find(run if output_dir == "run" else tmp_path / output_dir, resume)


def damage(file, how):
    content = bytearray(file.read_bytes())
    if how == "truncated":
        del content[len(content) // 2 :]
    if how == "damaged":
        content[len(content) // 2] ^= 1
    file.unlink()
    if how != "missing":
        file.write_bytes(content)


def test_missing_files_are_found_without_a_manifest(run, tmp_path):
    """As in the stock Trainer's checkpoints."""
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"):
        shutil.copytree(run / "checkpoint-2", tmp_path / name)
        (tmp_path / name / name).unlink()
        with pytest.raises(ValueError, match=f"{name} cannot be resumed from: {name} is missing"):
            find(tmp_path / "other", str(tmp_path / name))


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_states_that_end_early_are_found_without_a_manifest(name, checkpoint):
    (checkpoint / "manifest.json").unlink(missing_ok=True)
    assert find_damage(checkpoint) is None
    content = (checkpoint / name).read_bytes()
    (checkpoint / name).write_bytes(content[: len(content) // 2])
    assert find_damage(checkpoint) == f"{name} is damaged"


def test_a_damaged_shard_is_found(checkpoint):
    (checkpoint / "model.safetensors").rename(checkpoint / "model-1.safetensors")
    shutil.copy(checkpoint / "model-1.safetensors", checkpoint / "model-2.safetensors")
    (checkpoint / "model.safetensors.index.json").write_text("{}")
    seal(checkpoint)
    assert find_damage(checkpoint) is None
    damage(checkpoint / "model-2.safetensors", "damaged")
    assert find_damage(checkpoint) == "model-2.safetensors is damaged"


@pytest.mark.parametrize("sealed", [False, True])
def test_checkpoint_with_another_number_than_its_step_is_damage(sealed, run, tmp_path):
    shutil.copytree(run / "checkpoint-2", tmp_path / "checkpoint-7")
    if sealed:
        seal(tmp_path / "checkpoint-7")
    assert find_damage(tmp_path / "checkpoint-7") == "its trainer_state.json is that of step 2"


@pytest.mark.parametrize("content", ["{}", '{"global_step": -1}', '{"global_step": 2, "epoch": NaN}', "not JSON"])
def test_state_without_a_step_is_damage(content, checkpoint):
    (checkpoint / "trainer_state.json").write_text(content)
    assert "trainer_state.json" in find_damage(checkpoint)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, "damaged") for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "config.json")),
        ("trainer_state.json", "truncated"),
        ("rng_state.pth", "missing"),  # which only the manifest tells
    ],
)
def test_damaged_checkpoints_are_passed_over_and_kept(name, how, run, tmp_path, caplog):
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    seal(tmp_path / "checkpoint-1")
    seal(tmp_path / "checkpoint-2")
    assert find(tmp_path, "auto") == str(tmp_path / "checkpoint-2")
    damage(tmp_path / "checkpoint-2" / name, how)
    assert find(tmp_path, "auto") == str(tmp_path / "checkpoint-1")
    assert f"checkpoint-2 cannot be resumed from, {name} is {how}: renamed to damaged-checkpoint-2" in caplog.text
    assert (tmp_path / "damaged-checkpoint-2").is_dir() and not (tmp_path / "checkpoint-2").exists()
    shutil.copytree(tmp_path / "damaged-checkpoint-2", tmp_path / "checkpoint-2")  # damaged again
    assert find(tmp_path, "auto") == str(tmp_path / "checkpoint-1")
    assert (tmp_path / "damaged-checkpoint-2-2").is_dir()


@pytest.mark.parametrize("content", ["", "{}", '{"optimizer.pt": 7}'])
def test_manifest_that_is_damaged_is_damage(content, checkpoint):
    (checkpoint / "manifest.json").write_text(content)
    assert find_damage(checkpoint) == "manifest.json is missing or damaged"


def test_checkpoints_without_the_optimizers_state_cannot_be_resumed_from(checkpoint, tmp_path):
    """Those of save_only_model, which are as they were meant to be."""
    (checkpoint / "optimizer.pt").unlink()
    seal(checkpoint)
    assert find_damage(checkpoint) == "optimizer.pt is missing"
    with pytest.raises(ValueError, match="checkpoint-2 cannot be resumed from: optimizer.pt is missing"):
        find(tmp_path, "auto")
    assert checkpoint.is_dir()


@pytest.mark.parametrize(
    ("limit", "best", "kept"), [(None, None, "1 2 3 4"), (2, None, "3 4"), (2, 1, "1 4"), (1, 2, "2 4"), (2, 9, "3 4")]
)
def test_surplus_checkpoints_are_removed(limit, best, kept, tmp_path):
    for number in (1, 2, 3, 4):
        (tmp_path / f"checkpoint-{number}").mkdir()
    remove_surplus(tmp_path / "checkpoint-4", limit, best and str(tmp_path / f"checkpoint-{best}"))
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [f"checkpoint-{n}" for n in kept.split()]
    assert not list(tmp_path.glob(".saving/*"))


def test_options_that_may_change_are_taken_and_those_that_must_not_rejected(tmp_path, caplog):
    caplog.set_level("INFO", "scratch_bert")
    record = {"fixed": {"seed": 42, "optim": "muon"}, "options": {"learning_rate": 1e-3, "max_steps": 100}}
    check_same_run(record, str(tmp_path))
    for content in ("", "{}", "[]", '{"fixed": {}}'):
        assert "has no run.json that can be read: make sure that seed and text are the same" in caplog.text
        caplog.clear()
        (tmp_path / "run.json").write_text(content)
        check_same_run(record, str(tmp_path))
    (tmp_path / "run.json").write_text(json.dumps(record))
    caplog.clear()
    check_same_run(record, str(tmp_path))
    check_same_run({"fixed": {"task": "new"}, "options": {"new": 7}}, str(tmp_path))  # of a later version
    assert not caplog.text
    check_same_run({**record, "options": {"learning_rate": 5e-4, "max_steps": 100}}, str(tmp_path))
    assert "learning_rate: 0.001 until this checkpoint, 0.0005 from here on" in caplog.text
    with pytest.raises(ValueError, match="The run in .* has a different learning_rate: 0.001, not 0.0005"):
        check_same_run({**record, "options": {"learning_rate": 5e-4}}, str(tmp_path), also_fixed=["learning_rate"])
    check_same_run({**record, "options": {"max_steps": 50}}, str(tmp_path), also_fixed=["learning_rate"])
    moved = {"fixed": {**record["fixed"], "learning_rate": 5e-4}, "options": {}}  # what may change with other options
    with pytest.raises(ValueError, match="has a different learning_rate"):
        check_same_run(moved, str(tmp_path))
    with pytest.raises(ValueError, match="has a different seed: 42, not 7. Resume with the options and the data"):
        check_same_run({**record, "fixed": {"seed": 7, "optim": "muon"}}, str(tmp_path))


@pytest.mark.parametrize(
    ("name", "other"), [("norm_first", True), ("hidden_size", 64), ("head_dim", 16), ("max_position_embeddings", 41)]
)
def test_check_same_architecture_names_the_first_difference(name, other, run):
    config = ScratchBertConfig(**SMALL)
    check_same_architecture(config, str(run / "checkpoint-2"))
    saved = getattr(config, name)
    with pytest.raises(ValueError, match=f"checkpoint-2 has {name}={saved}, but the options ask for {other}"):
        check_same_architecture(ScratchBertConfig(**{**SMALL, name: other}), str(run / "checkpoint-2"))
