"""Pushes during a training run in the background, one at a time, and can't end it. Pushes to a Hub are tested in
tests/hub."""

import shutil
import threading
from pathlib import Path

import pytest
from transformers import TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

from scratch_bert.training import push
from scratch_bert.training.push import PushingTrainer


class Pushing(PushingTrainer):
    """The part of a trainer that pushes need."""

    def __init__(self, output_dir, **options):
        self.args = TrainingArguments(str(output_dir), report_to=[], use_cpu=True, **options)
        self.hub_model_id, self.push_in_progress, self.control = "tester/model", None, None
        self.state, self.callback_handler = TrainerState(), CallbackHandler([], None, None, None, None)

    def save(self, step):
        checkpoint = Path(self.args.output_dir, f"checkpoint-{step}")
        checkpoint.mkdir(parents=True)
        for name in ("config.json", "optimizer.pt", "rng_state.pth", "training_args.bin"):
            (checkpoint / name).touch()
        self.state.global_step = step
        self.push_checkpoint(checkpoint)
        shutil.rmtree(checkpoint)  # as save_total_limit does


@pytest.mark.parametrize("always", [False, True])
def test_pushes_run_in_the_background_without_training_state_and_one_at_a_time(always, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "scratch_bert")
    pushed, may_end = [], threading.Event()

    def publish(directory, repo_id, commit_message, api, revision, subfolder, files):
        may_end.wait()
        assert files == ["checked"]
        pushed.append((repo_id, commit_message, sorted(path.name for path in Path(directory).iterdir()), subfolder))
        if len(pushed) == 2:
            raise ConnectionError("no network")

    monkeypatch.setattr(push, "publish", publish)
    monkeypatch.setattr(push, "public_files", lambda directory: ["checked"])
    (tmp_path / ".push-left-over").mkdir()
    trainer = Pushing(tmp_path, hub_strategy="all_checkpoints", hub_always_push=always)
    trainer.save(1)
    if always:
        threading.Timer(0.1, may_end.set).start()
    trainer.save(2)
    may_end.set()
    trainer.push_in_progress.wait_until_done()
    steps = [1, 2] if always else [1]
    assert pushed == [
        ("tester/model", f"Training in progress, step {step}", ["config.json"], f"checkpoint-{step}") for step in steps
    ]
    assert ("Step 2 is not pushed: the previous push is still running" in caplog.text) == (not always)
    assert ("The push of step 2 failed, training continues: no network." in caplog.text) == always
    assert not list(tmp_path.iterdir())


def test_checkpoint_that_must_not_be_published_is_not_pushed(saved, tmp_path, caplog):
    trainer = Pushing(tmp_path / "run", hub_strategy="every_save")
    checkpoint = Path(shutil.copytree(saved, tmp_path / "run/checkpoint-1"))
    (checkpoint / "README.md").write_text("# A model\n")
    (checkpoint / "LICENSE").symlink_to(tmp_path / "private")
    trainer.state.global_step = 1
    trainer.push_checkpoint(checkpoint)
    assert "Step 1 is not pushed, training continues" in caplog.text and "LICENSE is a link" in caplog.text
    assert trainer.push_in_progress is None and [p.name for p in (tmp_path / "run").iterdir()] == ["checkpoint-1"]
