"""Signals, faults and resumes in the training of any model; pushes are tested in tests/hub."""

import errno
import json
import logging
import os
import platform
import re
import shutil
import signal
import threading
import time
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback

from helpers import SMALL, launch, make_batch
from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining, atomic
from scratch_bert.checkpoints.output_dir import output_dir_lock, write_metrics
from scratch_bert.checkpoints.saved import BESIDE_WEIGHTS, check_space, find_checkpoint, find_damage
from scratch_bert.training.arguments import make_training_arguments
from scratch_bert.training.trainer import DivergenceError, Interrupted, ScratchBertTrainer
from scratch_bert_options.declare import from_keywords
from scratch_bert_options.training import CommonOptions


def make_trainer(output_dir, *callbacks, **options):
    batch = make_batch("AutoModelForPreTraining", rows=8)
    examples = [{name: values[row] for name, values in batch.items()} for row in range(8)]
    options = {"max_steps": 6, "save_steps": 100, "disable_tqdm": True, **options}
    (training,) = from_keywords(CommonOptions, output_dir=output_dir, **options)
    model, args = ScratchBertForPreTraining(ScratchBertConfig(**SMALL)), make_training_arguments(training, {})
    parts = {"train_dataset": examples, "eval_dataset": examples, "callbacks": list(callbacks)}
    return ScratchBertTrainer(model, args, options=training, **parts)


class SendSignal(TrainerCallback):
    """To this process, before a step, as often as told."""

    def __init__(self, number, step, times=1):
        self.number, self.step, self.times = number, step, times

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            for _ in range(self.times):
                signal.raise_signal(self.number)  # os.kill may reach another thread first, and two signals become one


@pytest.fixture(autouse=True)
def _handler_is_restored():
    # A job in the background ignores the one, under nohup the other.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
    before = [signal.getsignal(number) for number in signals]
    yield
    assert [signal.getsignal(number) for number in signals] == before
    for number, handler in zip((signal.SIGINT, signal.SIGHUP), inherited, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_preemption_and_closed_terminal_save_a_checkpoint_to_resume_from(number, tmp_path):
    trainer = make_trainer(tmp_path, SendSignal(number, step=3), save_only_model=True)
    trainer.train()
    assert trainer.interrupted and trainer.state.global_step == 4
    with pytest.raises(Interrupted, match="Stopped at step 4") as interrupt:
        trainer.raise_if_interrupted()
    assert interrupt.value.exit_code == 128 + number
    assert (tmp_path / "checkpoint-4" / "model.safetensors").is_file()
    resumed = make_trainer(tmp_path, resume_from_checkpoint="auto")
    resumed.train(resume_from_checkpoint=find_checkpoint(resumed.args))
    assert resumed.state.global_step == 6 and not resumed.interrupted


def test_outputs_stay_in_the_precision_of_the_step(tmp_path):
    """accelerate would copy them to fp32, in each step those for all masked tokens."""
    trainer, types = make_trainer(tmp_path, bf16=True, max_steps=1, eval_strategy="steps", eval_steps=1), []
    compute_loss = trainer.compute_loss

    def keep_types(model, inputs, return_outputs=False, **kwargs):
        loss, outputs = compute_loss(model, inputs, return_outputs=True, **kwargs)
        types.append((model.training, loss.dtype, outputs["prediction_logits"].dtype))
        return (loss, outputs) if return_outputs else loss

    trainer.compute_loss = keep_types
    trainer.train()
    assert types == [(True, torch.float32, torch.bfloat16), (False, torch.float32, torch.bfloat16)]


def test_signal_that_nohup_ignores_stays_ignored(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        trainer = make_trainer(tmp_path, SendSignal(signal.SIGHUP, step=3))
        trainer.train()
        assert not trainer.interrupted and trainer.state.global_step == 6
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_time_of_a_training_is_right_when_the_clock_is_set_back(tmp_path, monkeypatch):
    clock = time.time

    class SetClock(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            monkeypatch.setattr(time, "time", lambda: clock() - 3600)

    metrics = make_trainer(tmp_path, SetClock()).train().metrics
    assert 0 < metrics["train_runtime"] < 600 and metrics["train_steps_per_second"] > 0


class InWorkers(torch.utils.data.Dataset):
    """Examples that a data loader's worker fails on, in this way."""

    def __init__(self, examples, fail):
        self.examples, self.fail = examples, fail

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        self.fail()
        return self.examples[index]


with_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="other platforms start workers in another way")


@with_fork
def test_worker_that_dies_ends_the_training_with_the_remedy(tmp_path):
    trainer = make_trainer(tmp_path, dataloader_num_workers=1)
    trainer.train_dataset = InWorkers(trainer.train_dataset, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(
        OSError, match="A process that loads data has died.*lower dataloader_num_workers.*resume_from_checkpoint"
    ):
        trainer.train()


@with_fork
def test_worker_that_cannot_hand_over_a_batch_ends_the_training(tmp_path):
    """The training used to wait for it without end."""
    trainer = make_trainer(tmp_path, dataloader_num_workers=1)
    trainer.data_collator = lambda examples: {"input_ids": threading.Lock()}  # which can't be pickled
    with pytest.raises(TypeError, match="cannot pickle '_thread.lock' object"):
        trainer.train()


EACH_EPOCH = {"per_device_train_batch_size": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}  # of four steps


def test_stop_within_an_epoch_evaluates_nothing_and_keeps_its_checkpoint(tmp_path):
    best = {"metric_for_best_model": "loss", "save_total_limit": 1, "load_best_model_at_end": True}
    trainer = make_trainer(tmp_path, SendSignal(signal.SIGTERM, step=4), **EACH_EPOCH, **best)
    trainer.train()
    assert trainer.interrupted and trainer.state.global_step == 5
    assert [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry] == [4]
    assert find_checkpoint(make_trainer(tmp_path, resume_from_checkpoint="auto").args) == f"{tmp_path}/checkpoint-5"
    state = json.loads((tmp_path / "checkpoint-5" / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == str(tmp_path / "checkpoint-4") and state["best_global_step"] == 4


def test_resume_at_the_last_step_trains_no_other(tmp_path):
    options = {"per_device_train_batch_size": 2, "lr_scheduler_type": "constant"}
    options |= {"save_steps": 2, "save_total_limit": 5}
    whole = make_trainer(tmp_path, **options)
    whole.train()
    again = make_trainer(tmp_path, **options)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert again.state.global_step == 6 and not (tmp_path / "checkpoint-7").exists()
    torch.testing.assert_close(again.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)


def test_resume_of_a_finished_run_keeps_the_metrics_of_its_training(tmp_path):
    metrics = make_trainer(tmp_path, logging_steps=2).train().metrics
    write_metrics(tmp_path, metrics)
    again, last = make_trainer(tmp_path, logging_steps=2), str(tmp_path / "checkpoint-6")
    found = again.train(resume_from_checkpoint=last).metrics
    assert found == metrics and metrics["train_loss"] > 0
    assert again.latest_metrics()["train_loss"] == metrics["train_loss"]
    (tmp_path / "metrics.json").unlink()  # it died before it was written
    found = make_trainer(tmp_path, logging_steps=2).train(resume_from_checkpoint=last).metrics
    assert found["train_loss"] == pytest.approx(metrics["train_loss"], abs=0.01)


def test_resume_from_a_later_step_than_the_last_is_rejected(tmp_path):
    make_trainer(tmp_path).train()
    again = make_trainer(tmp_path, max_steps=-1, num_train_epochs=2)  # of one step each
    with pytest.raises(OSError, match="checkpoint-6 is at step 6, but the run ends at 2: raise --max_steps"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))


def test_sigusr1_saves_a_checkpoint_and_continues(tmp_path):
    trainer = make_trainer(tmp_path, SendSignal(signal.SIGUSR1, step=3))
    trainer.train()
    assert trainer.state.global_step == 6 and not trainer.interrupted
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-6"]


def test_ctrl_c_twice_stops_at_once(tmp_path):
    trainer = make_trainer(tmp_path, SendSignal(signal.SIGINT, step=3, times=2))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer.state.global_step == 3
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
    trainer.write_card = lambda one, directory: (directory / "README.md").write_text(f"{one.state.global_step}")
    trainer.train()
    trainer.save_model()
    cards = {file.parent.name: file.read_text().split("\n")[0] for file in (tmp_path / "run").rglob("README.md")}
    assert cards == {"run": "6", "checkpoint-3": "3", "checkpoint-6": "6"}


class Spoil(TrainerCallback):
    """Makes a weight NaN after a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.step:
            torch.nn.init.constant_(model.bert.pooler.dense.bias, float("nan"))


def test_diverged_training_stops_and_saves_nothing(tmp_path):
    message = (
        r"The loss is nan at step 4: the training has diverged\. The last checkpoint is .*checkpoint-2\. Try a lower"
    )
    with pytest.raises(DivergenceError, match=message):
        make_trainer(tmp_path / "logged", Spoil(3), save_steps=2, logging_steps=1).train()
    assert sorted(path.name for path in (tmp_path / "logged").glob("checkpoint-*")) == ["checkpoint-2"]

    trainer = make_trainer(tmp_path / "saved", Spoil(4), save_steps=4, logging_steps=100)
    with pytest.raises(
        DivergenceError, match="bert.pooler.dense.bias is not finite at step 4.* There is no checkpoint yet"
    ):
        trainer.train()
    with pytest.raises(DivergenceError, match="pooler.dense.bias is not finite"):
        trainer.save_model()
    assert not list((tmp_path / "saved").rglob("*.safetensors"))


def test_metric_that_is_not_finite_stops_a_run_before_it_is_logged(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.log({"grad_norm": float("nan"), "eval_loss": 1.0, "learning_rate": 1.0})
    for name in ("eval_accuracy", "eval_loss", "train_loss"):
        with pytest.raises(DivergenceError, match=f"{name} is inf at step 0: the training has diverged"):
            trainer.log({name: float("inf")})
    assert len(trainer.state.log_history) == 1


def test_cards_and_trackers_that_fail_end_no_run(tmp_path, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise KeyError("of another library")

    monkeypatch.setattr(TensorBoardCallback, "on_log", fail)
    trainer = make_trainer(tmp_path, save_steps=2, logging_steps=1, report_to=["tensorboard"])
    trainer.write_card = fail
    with caplog.at_level(logging.WARNING, "scratch_bert"):
        trainer.train()
        trainer.save_model()
    assert trainer.state.global_step == 6 and (tmp_path / "model.safetensors").exists()
    first, second, last = caplog.messages  # each once
    assert first.startswith("TensorBoardCallback has failed, and the run continues without it: ")
    assert second.startswith("The model card has failed")
    assert "except for TensorBoardCallback ('of another library'); The model card (" in last


def test_disk_that_is_too_small_is_found_before_the_first_step(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, save_steps=2, save_total_limit=1)
    weights = 4 * sum(weight.numel() for weight in trainer.model.parameters())
    needed = 7 * weights + 3 * BESIDE_WEIGHTS  # two checkpoints with AdamW's state, and a model
    too_small = pytest.raises(OSError, match="MB free, but the model and its checkpoints need")
    for free, outcome in ((needed, nullcontext()), (needed - 1, too_small)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        with outcome:
            check_space(trainer.model, trainer.args)


def test_checkpoint_that_cannot_be_written_leaves_the_last_one(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, save_steps=2)
    save = torch.save

    def fill_the_disk(value, file, *args, **kwargs):
        if "checkpoint-4" in str(file) and "optimizer" in str(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        save(value, file, *args, **kwargs)

    monkeypatch.setattr(torch, "save", fill_the_disk)
    message = (
        "checkpoint-4 could not be written to .*No space left on device.*checkpoint-2 is kept. Free some space there"
    )
    with pytest.raises(OSError, match=message):
        trainer.train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2"]
    assert find_damage(tmp_path / "checkpoint-2") is None


def test_checkpoints_and_model_are_never_seen_half_written(tmp_path, monkeypatch):
    """What the names stand for is looked at after each write of a file."""
    seen, sync = [], atomic.sync

    def look(path):
        seen.extend(find_damage(one) for one in tmp_path.glob("checkpoint-*"))
        sync(path)

    monkeypatch.setattr(atomic, "sync", look)
    trainer = make_trainer(tmp_path, save_steps=2, save_total_limit=1)
    trainer.train()
    trainer.save_model()
    assert len(seen) > 20 and set(seen) == {None}
    assert not (tmp_path / ".saving").exists()
    assert {"model.safetensors", "checkpoint-6"} <= {path.name for path in tmp_path.iterdir()}
    files = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != ".lock"]
    assert len({file.stat().st_mode for file in files}) == 1  # all are for the same users


class Scores(TrainerCallback):
    """The best at step 2."""

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        metrics["eval_score"] = {2: 0.9}.get(state.global_step, 0.5)


BEST = {"save_steps": 2, "eval_steps": 2, "eval_strategy": "steps", "load_best_model_at_end": True}
BEST |= {"metric_for_best_model": "score", "greater_is_better": True}


@pytest.mark.parametrize("limit", [1, 2])
def test_best_checkpoint_is_kept_beside_the_last_and_loaded(limit, tmp_path):
    trainer = make_trainer(tmp_path, Scores(), **BEST, save_total_limit=limit)
    trainer.train()
    best = tmp_path / "checkpoint-2"
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-6"]
    saved, weights = load_file(best / "model.safetensors"), trainer.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in saved.items())
    for state in (vars(trainer.state), json.loads((tmp_path / "checkpoint-6/trainer_state.json").read_text())):
        assert state["best_model_checkpoint"] == str(best)
    assert trainer.args.save_total_limit == limit


def test_best_checkpoint_is_kept_where_the_output_directory_was_moved_to(tmp_path):
    options = BEST | {"save_steps": 1, "eval_steps": 1, "save_total_limit": 2}
    make_trainer(tmp_path / "run", Scores(), SendSignal(signal.SIGINT, step=2), **options).train()
    (tmp_path / "run").rename(tmp_path / "moved")
    trainer = make_trainer(tmp_path / "moved", Scores(), **options)
    trainer.train(resume_from_checkpoint=str(tmp_path / "moved" / "checkpoint-3"))
    assert trainer.state.best_model_checkpoint == str(tmp_path / "moved" / "checkpoint-2")
    assert sorted(path.name for path in (tmp_path / "moved").glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-6"]


@pytest.mark.parametrize(("damaged", "elsewhere"), [(False, False), (False, True), (True, False)])
def test_best_checkpoint_is_found_beside_that_of_the_resume_unless_damaged(damaged, elsewhere, tmp_path, caplog):
    make_trainer(tmp_path / "run", Scores(), **BEST, save_total_limit=3).train()
    shutil.move(tmp_path / "run", tmp_path / "moved")
    best, last = (load_file(tmp_path / "moved" / f"checkpoint-{step}" / "model.safetensors") for step in (2, 6))
    if damaged:
        weights = tmp_path / "moved" / "checkpoint-2" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    output_dir = tmp_path / ("other" if elsewhere else "moved")
    trainer = make_trainer(output_dir, Scores(), **BEST, save_total_limit=3)
    trainer.train(resume_from_checkpoint=str(tmp_path / "moved" / "checkpoint-6"))
    found = trainer.model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in (last if damaged else best).items())
    assert ("checkpoint-2, cannot be used, model.safetensors is damaged" in caplog.text) == damaged


def test_best_checkpoint_that_cannot_be_read_is_left_out(tmp_path, caplog, monkeypatch):
    def fail(checkpoint):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(checkpoint))

    monkeypatch.setattr("scratch_bert.checkpoints.saved.find_damage", fail)
    make_trainer(tmp_path, Scores(), **BEST).train()
    assert "checkpoint-2, cannot be used, [Errno 5]" in caplog.text and "the last model is kept" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signal_saves_at_an_evaluation_that_is_not_the_best(number, tmp_path):
    trainer = make_trainer(tmp_path, SendSignal(number, step=3), Scores(), **BEST | {"save_strategy": "best"})
    trainer.train()
    assert (tmp_path / "checkpoint-4").is_dir()


def test_signal_in_the_last_save_still_counts(tmp_path):
    class DuringSave(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            os.kill(os.getpid(), signal.SIGTERM)

    trainer = make_trainer(tmp_path, DuringSave(), save_steps=6)
    trainer.train()
    with pytest.raises(Interrupted, match="Stopped at step 6") as interrupt:
        trainer.raise_if_interrupted()
    assert interrupt.value.exit_code == 128 + signal.SIGTERM


def test_signal_after_the_last_step_lets_a_run_end_that_saves_no_checkpoint_there(tmp_path):
    class DuringEvaluation(TrainerCallback):
        def on_evaluate(self, args, state, control, **kwargs):
            os.kill(os.getpid(), signal.SIGTERM)

    trainer = make_trainer(tmp_path, DuringEvaluation(), save_strategy="no", eval_strategy="steps", eval_steps=6)
    trainer.train()
    trainer.raise_if_interrupted()
    assert trainer.state.global_step == 6


def test_resume_takes_the_intervals_of_its_options(tmp_path):
    make_trainer(tmp_path, save_steps=3).train()
    shutil.rmtree(tmp_path / "checkpoint-6")
    make_trainer(tmp_path, save_steps=1).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert {"checkpoint-4", "checkpoint-5", "checkpoint-6"} <= {path.name for path in tmp_path.iterdir()}


def test_output_directory_is_held_with_its_checkpoint_in_place(tmp_path):
    args = TrainingArguments(str(tmp_path), use_cpu=True)
    gone = output_dir_lock(args, {}, str(tmp_path / "checkpoint-2"))
    with pytest.raises(OSError, match="checkpoint-2 no longer exists: another process resumed this run"), gone:
        pass


def test_resume_takes_the_learning_rate_of_its_options(tmp_path):
    def rates(trainer):
        return [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]

    options = {"save_steps": 3, "logging_steps": 1, "lr_scheduler_type": "linear", "warmup_steps": 0}
    whole = make_trainer(tmp_path / "run", learning_rate=6e-4, **options)
    whole.train()
    for learning_rate in (6e-4, 3e-4):
        changed = {"learning_rate": learning_rate, "weight_decay": 0.2, "adam_beta1": 0.8}
        again = make_trainer(tmp_path / f"again{learning_rate}", **options | changed)
        again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
        assert rates(again) == pytest.approx(rates(whole)[:3] + [r * learning_rate / 6e-4 for r in rates(whole)[3:]])
        groups = again.optimizer.param_groups
        assert [(group["weight_decay"], group["betas"][0]) for group in groups] == [(0.2, 0.8), (0.0, 0.8)]


def test_optimizers_state_that_lacks_weights_is_logged(tmp_path, caplog):
    options = {"save_steps": 2, "max_steps": 2, "optim": "adamw_torch"}
    make_trainer(tmp_path / "run", **options).train()
    checkpoint = tmp_path / "run" / "checkpoint-2"
    content = torch.load(checkpoint / "optimizer.pt")
    content["state"].popitem()
    torch.save(content, checkpoint / "optimizer.pt")
    (checkpoint / "manifest.json").unlink()
    again = make_trainer(tmp_path / "again", **options | {"max_steps": 3})
    again.train(resume_from_checkpoint=str(checkpoint))
    assert "lacks 1 of 46 weights: their averages of the gradients start anew" in caplog.text


def test_schedule_of_a_later_step_is_rejected(tmp_path):
    """It would train with a rate of 0."""
    make_trainer(tmp_path / "run", save_steps=2, max_steps=2).train()
    file = tmp_path / "run" / "checkpoint-2" / "scheduler.pt"
    torch.save(torch.load(file) | {"last_epoch": 10**6}, file)
    with pytest.raises(OSError, match="The schedule in .* is at step 1,000,000, not 2"):
        make_trainer(tmp_path / "again", max_steps=3).train(resume_from_checkpoint=str(file.parent))


class KeepRates(TrainerCallback):
    """The learning rate of each step."""

    def __init__(self):
        self.rates = []

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        self.rates.append(optimizer.param_groups[0]["lr"])


def test_longer_schedule_has_its_own_rate_from_the_first_step_of_a_resume(tmp_path):
    options = {"save_steps": 3, "lr_scheduler_type": "linear", "warmup_steps": 0}
    make_trainer(tmp_path / "short", max_steps=3, **options).train()
    kept, expected = KeepRates(), KeepRates()
    make_trainer(tmp_path / "whole", expected, max_steps=6, **options).train()
    longer = make_trainer(tmp_path / "longer", kept, max_steps=6, **options)
    longer.train(resume_from_checkpoint=str(tmp_path / "short" / "checkpoint-3"))
    assert kept.rates == pytest.approx(expected.rates[3:])


def test_warm_up_beyond_the_end_is_a_warning(tmp_path, caplog):
    make_trainer(tmp_path, max_steps=2, warmup_steps=100).train()
    assert "The warm-up (100 steps) covers the entire run" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("method", ["evaluate", "train"])
def test_processes_end_an_evaluation_and_a_training_together(method, tmp_path):
    """One that exits while gloo's threads still free what it has gathered may be aborted, or hang."""
    script = tmp_path / "script.py"
    script.write_text(f"""
import sys, time
sys.path[:0] = {[str(path) for path in (Path(__file__).parent, Path(__file__).parents[1])]}
from test_trainer import TrainerCallback, make_trainer
class Slow(TrainerCallback):
    def on_train_end(self, *args, **kwargs):
        time.sleep(0 if rank else 5)
trainer = make_trainer({str(tmp_path)!r}, Slow(), use_cpu=True, save_strategy="no")
rank = trainer.args.process_index
trainer.compute_metrics = lambda prediction: time.sleep(0 if rank else 5) or {{}}
trainer.{method}()
open({str(tmp_path)!r} + f"/{{rank}}.txt", "w").write(str(time.time()))
""")
    launch("torch.distributed.run --nproc_per_node 2 --standalone", script)
    first, second = (float((tmp_path / f"{rank}.txt").read_text()) for rank in (0, 1))
    assert abs(first - second) < 2


@pytest.mark.slow
def test_processes_follow_a_signal_to_one_of_them_after_the_same_step(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"""
import json, os, signal, sys
sys.path[:0] = {[str(path) for path in (Path(__file__).parent, Path(__file__).parents[1])]}
from test_trainer import SendSignal, make_trainer
rank = int(os.environ["RANK"])
signals = [SendSignal(signal.SIGUSR1, step=2), SendSignal(signal.SIGTERM, step=20)] if rank == 1 else []
trainer = make_trainer({str(tmp_path / "run")!r}, *signals, use_cpu=True, max_steps=1000)
trainer.train()
json.dump([trainer.interrupted, trainer.state.global_step], open({str(tmp_path)!r} + f"/{{rank}}.json", "w"))
""")
    launch("torch.distributed.run --nproc_per_node 2 --standalone", script)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second and first[0] and 21 <= first[1] <= 24
    saved = sorted(int(path.name.split("-")[1]) for path in (tmp_path / "run").glob("checkpoint-*"))
    assert 3 <= saved[0] <= 6 and saved[1:] == [first[1]]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc has its own settings")
def test_training_reuses_freed_memory_instead_of_getting_new_pages_from_the_kernel(tmp_path):
    import resource

    def page_faults_so_far():
        torch.ones(2**24)  # 64 MiB: 16,384 pages, new ones unless they are kept
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    make_trainer(tmp_path, max_steps=1).train()
    faults = [page_faults_so_far() for _ in range(6)]
    # Others may take memory meanwhile, and leave gaps that are a few bytes too small. A huge page is one of 512.
    assert min(after - before for before, after in pairwise(faults)) < 20
    never = Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    if Path("/sys/kernel/mm/transparent_hugepage").exists() and not never:
        address, smaps = torch.ones(2**24).data_ptr(), Path("/proc/self/smaps").read_text()
        mappings = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) .*?^VmFlags: (.*?)$", smaps, re.MULTILINE | re.DOTALL)
        (flags,) = [flags for start, end, flags in mappings if int(start, 16) <= address < int(end, 16)]
        assert "hg" in flags.split()
