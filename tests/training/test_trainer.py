"""Ctrl-C in the training of any model; pushes are tested in tests/hub."""

import os
import signal
import threading

import pytest
from transformers import TrainerCallback

from helpers import SMALL, make_batch
from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining
from scratch_bert.training.arguments import CommonArguments
from scratch_bert.training.resume import find_checkpoint
from scratch_bert.training.trainer import ScratchBertTrainer


def make_trainer(output_dir, *callbacks, **options):
    batch = make_batch("AutoModelForPreTraining", rows=8)
    options = {"save_steps": 100, "report_to": [], "disable_tqdm": True, **options}
    return ScratchBertTrainer(
        model=ScratchBertForPreTraining(ScratchBertConfig(**SMALL)),
        args=CommonArguments(output_dir=str(output_dir), max_steps=6, **options),
        train_dataset=[{name: values[row] for name, values in batch.items()} for row in range(8)],
        callbacks=list(callbacks),
    )


class PressCtrlC(TrainerCallback):
    """Before a step, as often as told."""

    def __init__(self, step, times=1):
        self.step, self.times = step, times

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def _handler_is_restored():
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_saves_a_checkpoint_to_resume_from(tmp_path):
    trainer = make_trainer(tmp_path, PressCtrlC(step=3))
    trainer.train()
    assert trainer.interrupted and trainer.state.global_step == 4
    assert (tmp_path / "checkpoint-4" / "model.safetensors").is_file()
    resumed = make_trainer(tmp_path, resume_from_checkpoint="last")
    resumed.train(resume_from_checkpoint=find_checkpoint(resumed.args))
    assert resumed.state.global_step == 6 and not resumed.interrupted


def test_ctrl_c_twice_stops_at_once(tmp_path):
    trainer = make_trainer(tmp_path, PressCtrlC(step=3, times=2))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer.interrupted and trainer.state.global_step == 3
    assert not list(tmp_path.glob("checkpoint-*"))


def test_ctrl_c_means_what_it_did_after_a_failed_training(tmp_path):
    class Fail(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        make_trainer(tmp_path, Fail()).train()


def test_ctrl_c_is_left_alone_in_another_thread(tmp_path):
    trainer = make_trainer(tmp_path)
    thread = threading.Thread(target=trainer.train)
    thread.start()
    thread.join()
    assert trainer.state.global_step == 6 and not trainer.interrupted


def test_latest_metrics_are_those_of_the_log_and_the_results(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.state.log_history = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "eval_loss": 2.5}]
    trainer.results = {"eval_f1": 0.5, "eval_loss": 2.25}
    assert trainer.latest_metrics() == {"step": 2, "loss": 2.0, "eval_loss": 2.25, "eval_f1": 0.5}


def test_model_card_is_written_into_each_directory(tmp_path):
    trainer = make_trainer(tmp_path / "run", save_steps=3)
    trainer.write_card = lambda trainer, directory: (directory / "README.md").write_text(
        f"{trainer.state.global_step}"
    )
    trainer.train()
    trainer.save_model()
    cards = {file.parent.name: file.read_text() for file in (tmp_path / "run").rglob("README.md")}
    assert cards == {"run": "6", "checkpoint-3": "3", "checkpoint-6": "6"}
