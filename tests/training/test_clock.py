"""Trainings that last for a given time, by a clock that advances by the same time at each reading."""

import json
from itertools import count
from types import SimpleNamespace

import pytest
from training.test_trainer import KeepRates, make_trainer
from transformers import TrainerCallback

from helpers import ROOT, launch, make_batch
from scratch_bert.training import clock
from scratch_bert.training.model_card import training_context


MINUTES = 10 / 60  # 10 seconds


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Train with a clock that reads `speed` seconds later each time, without a final evaluation. Returns the trainer
    and its rates."""

    def train(name, speed, checkpoint=None, *callbacks, **options):
        times = count(1000, speed)
        monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: next(times)))
        rates = KeepRates()
        options = {"max_minutes": MINUTES, "max_steps": -1, "learning_rate": 1.0, "warmup_steps": 0.2} | options
        options = {"save_strategy": "no", "lr_scheduler_type": "linear", "max_grad_norm": 1e-9} | options
        trainer = make_trainer(tmp_path / name, rates, *callbacks, **options)
        if "eval_strategy" not in options:
            trainer.eval_dataset = None
        trainer.train(resume_from_checkpoint=checkpoint)
        return trainer, rates.rates

    return train


class StepTime(TrainerCallback):
    """A clock that only steps of training, of a second each, and of evaluation advance."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(clock, "TIMED_BATCHES", 2)

    def on_step_begin(self, args, state, control, **kwargs):
        self.now += 1

    def of_evaluation(self, trainer, seconds):
        step = trainer.prediction_step

        def slow_step(*args, **kwargs):
            self.now += seconds
            return step(*args, **kwargs)

        trainer.prediction_step = slow_step


@pytest.mark.parametrize(("speed", "steps"), [(1, 10), (0.5, 20), (3, 4)])
def test_warm_up_and_decay_follow_the_clock_at_any_speed(speed, steps, train):
    trainer, rates = train("run", speed)
    shares = [min(step * speed / 10, 1) for step in range(steps)]
    assert rates == pytest.approx([share / 0.2 if share < 0.2 else (1 - share) / 0.8 for share in shares])
    assert trainer.state.global_step == trainer.state.max_steps == steps
    assert trainer.lr_scheduler.get_last_lr()[0] == 0


def test_resume_has_the_rest_of_the_time(train, tmp_path):
    train("run", 1, save_strategy="steps", save_steps=4, learning_rate=1e-3)
    checkpoint = tmp_path / "run" / "checkpoint-4"
    trainer, rates = train("again", 1, str(checkpoint), learning_rate=1e-3)
    used = 5  # seconds in four steps, and the reading for the checkpoint
    assert rates == pytest.approx([1e-3 * (1 - (used + step) / 10) / 0.8 for step in range(5)])
    assert trainer.state.global_step == 9 and trainer.lr_scheduler.get_last_lr()[0] == 0


def test_resume_of_a_finished_run_trains_no_more_and_one_with_more_time_does(train, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 100, "learning_rate": 1e-3}
    train("run", 1, **options)
    checkpoint = str(tmp_path / "run" / "checkpoint-10")  # the last step has one
    assert json.loads((tmp_path / "run" / "checkpoint-10" / "trainer_state.json").read_text())["max_steps"] == 10
    trainer, rates = train("run", 1, checkpoint, **options)
    assert rates == [] and trainer.state.global_step == 10
    trainer, rates = train("longer", 1, checkpoint, **options | {"max_minutes": 2 * MINUTES})
    assert trainer.state.global_step == 10 + 10  # the checkpoint of the last step took no training time


@pytest.mark.parametrize("interval", [3, 5, 100])
def test_final_evaluation_ends_in_time(interval, tmp_path, monkeypatch):
    """Also where an evaluation in the training would leave too little time for it."""
    time = StepTime(monkeypatch)
    options = {"max_minutes": 0.5, "max_steps": -1, "per_device_eval_batch_size": 2, "save_steps": 5}
    options |= {"eval_strategy": "steps", "eval_steps": interval}
    trainer = make_trainer(tmp_path, time, **options)
    time.of_evaluation(trainer, 1)  # four batches, after two to estimate it
    trainer.train()
    assert time.now == 30 and trainer.final_evaluation
    evaluations = [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert evaluations == {3: [3, 6, 9, 12], 5: [5, 10, 16], 100: [24]}[interval]

    step = trainer.state.global_step  # a finished run trains no more
    resumed = make_trainer(tmp_path, time, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert resumed.state.global_step == step


def test_evaluation_that_takes_more_than_half_of_the_time_is_announced(tmp_path, monkeypatch, caplog):
    time = StepTime(monkeypatch)
    trainer = make_trainer(tmp_path, time, max_minutes=0.1, max_steps=-1, per_device_eval_batch_size=2)
    trainer.test_dataset = trainer.eval_dataset
    time.of_evaluation(trainer, 6)
    trainer.train()
    assert trainer.state.global_step == 3  # half of six seconds
    assert "evaluation takes about 0.8 minutes" in caplog.text
    assert "so the run takes 1.2 minutes in all" in caplog.text


def test_number_of_steps_is_estimated_meanwhile(train):
    class KeepEstimates(TrainerCallback):
        found = []

        def on_step_end(self, args, state, control, **kwargs):
            self.found.append(state.max_steps)

    trainer, _ = train("run", 0.7, None, KeepEstimates(), eval_strategy="steps", eval_steps=3, logging_steps=1)
    assert KeepEstimates.found == [11] * 11
    last = trainer.state.log_history[-1]
    assert last["train_samples_per_second"] == pytest.approx(8 * last["train_steps_per_second"], rel=0.01)
    assert [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry] == [3, 6, 9, 11]


def test_log_has_an_entry_every_half_minute_whatever_the_steps(train):
    trainer, _ = train("run", 20, max_minutes=3, logging_steps=100)
    assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == [2, 4, 6, 8]
    trainer, _ = train("silent", 20, max_minutes=3, logging_strategy="no")
    assert not any("loss" in entry for entry in trainer.state.log_history)


def test_card_has_minutes_steps_and_tokens(train, tmp_path):
    """Those of the complete run, also after a resume."""
    cards = []

    def run(name, *args):
        trainer, _ = train(name, 1, *args, save_strategy="steps", save_steps=4)
        context = training_context(trainer, tmp_path / name, {})
        cards.append((context["minutes_used"], trainer.state.global_step, trainer.state.num_input_tokens_seen))

    run("run")
    run("again", str(tmp_path / "run" / "checkpoint-4"))
    tokens = int(make_batch("AutoModelForPreTraining", rows=8)["attention_mask"].sum())
    # 11 readings: 9 steps, and 2 checkpoints before the last.
    assert cards == [(pytest.approx(11 / 60), 9, 9 * tokens)] * 2


@pytest.mark.slow
def test_processes_have_the_same_rates_in_each_of_two_trainings(tmp_path):
    """By the clock of the first one."""
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import json, sys, time
sys.path[:0] = {[str(ROOT / "tests"), str(ROOT)]!r}
from training.test_trainer import KeepRates, make_trainer
from transformers import TrainerCallback

class Slow(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        time.sleep(0.02 * args.process_index)

for number in range(2):
    rates, options = KeepRates(), dict(max_steps=-1, max_minutes=0.02, save_strategy="no", use_cpu=True)
    trainer = make_trainer(f"{tmp_path}/{{number}}", rates, Slow(), **options)
    trainer.train()
    with open(f"{tmp_path}/{{number}}-{{trainer.args.process_index}}.json", "w") as file:
        json.dump([*rates.rates, trainer.lr_scheduler.get_last_lr()[0]], file)
"""
    )
    launch("torch.distributed.run --nproc_per_node 2 --standalone", script)
    for number in range(2):
        first, second = (json.loads((tmp_path / f"{number}-{rank}.json").read_text()) for rank in range(2))
        assert first == second and len(first) > 5 and first[-1] == 0
