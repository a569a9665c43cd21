import shutil

import pytest
from transformers import Trainer, TrainingArguments

from helpers import SMALL, make_batch
from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining
from scratch_bert.training.resume import check_same_architecture, find_checkpoint


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


def find(output_dir, resume=None):
    return find_checkpoint(TrainingArguments(str(output_dir), resume_from_checkpoint=resume, use_cpu=True))


def test_find_checkpoint_gives_the_newest_or_the_named_one(run, tmp_path):
    newest = str(run / "checkpoint-2")
    assert find(run, "last") == find(run, True) == find(tmp_path / "other", newest) == newest
    assert find(run, str(run / "checkpoint-1")) == str(run / "checkpoint-1")
    assert find(tmp_path / "other") is None


def test_find_checkpoint_takes_a_link_for_its_run(run, tmp_path):
    (tmp_path / "notes").touch()
    (tmp_path / "checkpoint-2").symlink_to(run / "checkpoint-2")
    assert find(tmp_path, "last") == str(tmp_path / "checkpoint-2")


@pytest.mark.parametrize(
    ("output_dir", "resume", "message"),
    [
        pytest.param("new", "last", "no checkpoint to resume from in .*new", id="no run"),
        pytest.param("run", "checkpoint-7", "no checkpoint to resume from in .*checkpoint-7", id="no such checkpoint"),
        pytest.param("run", None, "run is not empty.*--resume_from_checkpoint", id="a new run over an old one"),
        pytest.param("full", "checkpoint-2", "full is not empty", id="another run's checkpoint in a full directory"),
    ],
)
def test_find_checkpoint_refuses(output_dir, resume, message, run, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").touch()
    resume = str(run / resume) if resume and resume.startswith("checkpoint") else resume
    with pytest.raises(ValueError, match=message):
        find(run if output_dir == "run" else tmp_path / output_dir, resume)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_find_checkpoint_names_a_damaged_file(damage, name, run, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(run / "checkpoint-2", damaged)
    content = (damaged / name).read_bytes()
    (damaged / name).unlink()
    if damage == "truncated":
        (damaged / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=f"damaged cannot be resumed from: {name} is missing or truncated"):
        find(tmp_path / "other", str(damaged))


@pytest.mark.parametrize(
    ("name", "other"), [("norm_first", True), ("hidden_size", 64), ("head_dim", 16), ("max_position_embeddings", 41)]
)
def test_check_same_architecture_names_the_first_difference(name, other, run):
    config = ScratchBertConfig(**SMALL)
    check_same_architecture(config, str(run / "checkpoint-2"))
    saved = getattr(config, name)
    with pytest.raises(ValueError, match=f"checkpoint-2 has {name}={saved}, but the options ask for {other}"):
        check_same_architecture(ScratchBertConfig(**{**SMALL, name: other}), str(run / "checkpoint-2"))
