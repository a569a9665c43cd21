"""TensorBoard gets the model's graph and predictions, and pushes run in the background; the other callbacks are tested with the
trainers that they belong to, and pushes to a Hub in tests/hub."""

import logging
import shutil
import threading
from pathlib import Path

import pytest
import transformers
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter
from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

from helpers import make_model
from scratch_bert import ScratchBertForMaskedLM, ScratchBertForPreTraining
from scratch_bert.training import callbacks
from scratch_bert.training.callbacks import PushCallback, TensorBoardRunCallback


@pytest.mark.parametrize(
    ("model_class", "options"),
    [
        (ScratchBertForPreTraining, {}),
        (ScratchBertForPreTraining, {"norm_first": True, "position_embedding_type": "sinusoidal"}),
        (ScratchBertForMaskedLM, {"attn_implementation": "eager"}),
    ],
)
def test_graph_has_every_module_and_nothing_is_changed(model_class, options, tmp_path, recwarn, caplog):
    model = make_model(model_class, **options).train()
    callback = TensorBoardRunCallback(SummaryWriter(tmp_path), graph=True)
    arguments = TrainingArguments(tmp_path), TrainerState(is_world_process_zero=True), TrainerControl()
    transformers.utils.logging.enable_propagation()
    callback.on_train_begin(*arguments, model=model)
    transformers.utils.logging.disable_propagation()
    callback.on_train_end(*arguments)
    assert model.training and not recwarn.list and not caplog.records
    assert transformers.logging.get_verbosity() == logging.WARNING
    events = EventAccumulator(str(tmp_path)).Reload()
    names = [node.name for node in events.Graph().node]
    for part in ("word_embeddings", "ModuleList[layer]/ScratchBertLayer[1]", "[predictions]", "Linear[decoder]"):
        assert any(f"{model_class.__name__}/" in name and part in name for name in names), part
    assert "model_config/text_summary" in events.Tags()["tensors"]


class PushingTrainer:
    """The part of a trainer that `PushCallback` needs."""

    def __init__(self, output_dir, **options):
        self.args = TrainingArguments(str(output_dir), report_to=[], use_cpu=True, **options)
        self.hub_model_id, self.push_in_progress = "tester/model", None
        self.callback_handler = CallbackHandler([], None, None, None, None)
        self.callback = PushCallback(self)
        self.callback.on_train_begin(self.args, TrainerState(), TrainerControl())

    def save(self, step):
        checkpoint = Path(self.args.output_dir, f"checkpoint-{step}")
        checkpoint.mkdir(parents=True)
        for name in ("config.json", "optimizer.pt", "rng_state.pth", "training_args.bin"):
            (checkpoint / name).touch()
        self.callback.on_save(self.args, TrainerState(global_step=step), TrainerControl())
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

    monkeypatch.setattr(callbacks, "publish", publish)
    monkeypatch.setattr(callbacks, "public_files", lambda directory, token: ["checked"])
    (tmp_path / ".push-left-over").mkdir()
    trainer = PushingTrainer(tmp_path, hub_strategy="all_checkpoints", hub_always_push=always)
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
    assert ("The push of step 2 failed, training continues. ConnectionError: no network" in caplog.text) == always
    assert not list(tmp_path.iterdir())


def test_checkpoint_that_must_not_be_published_is_not_pushed(saved, tmp_path, caplog):
    trainer = PushingTrainer(tmp_path / "run", hub_strategy="every_save")
    checkpoint = Path(shutil.copytree(saved, tmp_path / "run/checkpoint-1"))
    (checkpoint / "README.md").write_text("# A model\n")
    (checkpoint / "LICENSE").symlink_to(tmp_path / "private")
    trainer.callback.on_save(trainer.args, TrainerState(global_step=1), TrainerControl())
    assert "Step 1 is not pushed, training continues" in caplog.text and "LICENSE is a link" in caplog.text
    assert trainer.push_in_progress is None and [path.name for path in (tmp_path / "run").iterdir()] == [
        "checkpoint-1"
    ]
