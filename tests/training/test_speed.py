"""The speed in the log: operations counted as PyTorch counts them, time without evaluations and saves, a peak measured once."""

import json

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForPreTraining, TrainingArguments

from helpers import SMALL
from scratch_bert import ScratchBertConfig, ScratchBertForMaskedLM
from scratch_bert.examples.collator import PretrainingCollator, pack_sequences
from scratch_bert.training import speed
from scratch_bert.training.counting import CountingCollator
from scratch_bert.training.speed import SpeedMeter, known_matrix_peak, matrix_peak, useful_flops
from scratch_bert.training.trainer import ScratchBertTrainer


@pytest.mark.parametrize("options", [{}, {"intermediate_size": 48, "num_hidden_layers": 3}])
def test_operations_are_those_that_pytorch_counts_in_transformers_bert(options):
    model = BertForPreTraining(BertConfig(**{**SMALL, **options}, attn_implementation="eager"))
    ids = torch.randint(5, 100, (3, 12))
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(ids)
    nsp_head = 2 * 3 * 2 * SMALL["hidden_size"]
    expected = useful_flops(ScratchBertConfig(**{**SMALL, **options}), 3 * 12, 3 * 12**2, 3, 3 * 12)
    assert counter.get_total_flops() == expected + nsp_head


def test_attention_of_another_head_size_is_counted():
    config = ScratchBertConfig(**{**SMALL, "head_dim": 16})  # twice as much as 32 / 4
    one_token = 4 * 32 * 64 + 2 * 32 * 64 + 2 * 64
    assert useful_flops(config, 1, 1, 0, 0) == 2 * 2 * one_token


class Clock:
    """A clock that stands still, unless it is moved."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(speed.time, "perf_counter", clock)
    return clock


def test_time_is_that_of_steps_and_what_counts_are_tokens_without_padding(clock):
    config = ScratchBertConfig(**SMALL)
    meter = SpeedMeter(config, torch.device("cpu"), peak=1e6)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    for _ in range(2):
        meter.resume()
        clock.now += 1
        meter.got_examples()
        meter.count({"attention_mask": mask}, predicted=2)
        clock.now += 3
        meter.pause()
        clock.now += 1000  # an evaluation
    logged = meter.report(reduce=lambda sums: sums)
    assert logged["speed/tokens_per_second"] == pytest.approx(2 * 5 / 8)
    assert logged["speed/data_share"] == pytest.approx(0.25)
    assert logged["speed/mfu"] == pytest.approx(3 * 2 * useful_flops(config, 5, 9 + 4, 2, 2) / 8 / 1e6)
    assert logged["speed/memory_mib"] > 10
    assert meter.report(reduce=lambda sums: sums) == {}, "nothing since the last report"


def test_processes_add_up(clock):
    config = ScratchBertConfig(**SMALL)
    logged = []
    for reduce in (lambda sums: sums, lambda sums: 2 * sums):
        meter = SpeedMeter(config, torch.device("cpu"), peak=1e6)
        meter.resume()
        meter.got_examples()
        meter.count({"attention_mask": torch.ones(2, 4, dtype=torch.long)}, predicted=3)
        clock.now += 2
        logged.append(meter.report(reduce))
    one, two = logged
    assert two["speed/tokens_per_second"] == pytest.approx(2 * one["speed/tokens_per_second"])
    assert two["speed/mfu"] == pytest.approx(one["speed/mfu"])


def test_padded_packed_and_counted_batches_count_alike(pairs, tokenizer):
    examples = [pairs[i] for i in range(12)]
    collator = PretrainingCollator(tokenizer)
    batch = collator(examples)
    meters = []
    for version in (batch, pack_sequences(batch, 128, tokenizer.pad_token_id), CountingCollator(collator)(examples)):
        meters.append(SpeedMeter(ScratchBertConfig(**SMALL), torch.device("cpu"), peak=1.0))
        meters[-1].count(version, predicted=0)
    lengths = np.array([len(example["input_ids"]) for example in examples])
    for meter in meters:
        assert meter.counts.tolist() == [lengths.sum(), (lengths**2).sum(), 12, 0]


@pytest.mark.parametrize(("name", "tera"), [("NVIDIA L4", 121), ("NVIDIA L40S", 362), ("NVIDIA H100 80GB HBM3", 989)])
def test_peak_of_a_known_gpu_is_the_published_one(name, tera, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    assert known_matrix_peak("cuda", torch.bfloat16) == tera * 1e12


def test_trainer_logs_and_counts_without_a_training(tmp_path):
    logs = {"loss": 1.0}
    model = ScratchBertForMaskedLM(ScratchBertConfig(**SMALL))
    ScratchBertTrainer(model, TrainingArguments(str(tmp_path), report_to=[], use_cpu=True)).log(logs)
    assert not any(name.startswith("speed/") for name in logs)
    meter = SpeedMeter(model.config, torch.device("cpu"), peak=1.0)
    meter.count({"input_ids": torch.ones(2, 3, dtype=torch.long)}, predicted=0)
    assert meter.counts.tolist() == [6, 18, 2, 0]


def test_peak_is_measured_once_and_moves_no_random_generator(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "HF_HOME", str(tmp_path))
    matrix_peak.cache_clear()
    monkeypatch.setattr(speed, "SHAPES", [(64, 64, 64)])
    state = torch.get_rng_state()
    peak = known_matrix_peak("cpu", torch.float32)
    assert peak > 1e6 and torch.equal(torch.get_rng_state(), state)
    file = tmp_path / "scratch_bert" / "matrix_peak.json"
    (key,) = json.loads(file.read_text())
    assert "threads, torch.float32" in key
    file.write_text(json.dumps({key: 12.5}))
    assert known_matrix_peak("cpu", torch.float32) == 12.5
    for damaged in ("", "[]", '{"' + key + '": null}'):
        file.write_text(damaged)
        assert known_matrix_peak("cpu", torch.float32) == peak, damaged
    matrix_peak.cache_clear()


def test_peak_without_a_place_to_keep_it_is_measured(tmp_path, monkeypatch):
    (tmp_path / "scratch_bert").write_text("no directory")
    monkeypatch.setattr(speed, "HF_HOME", str(tmp_path))
    monkeypatch.setattr(speed, "SHAPES", [(64, 64, 64)])
    matrix_peak.cache_clear()
    assert known_matrix_peak("cpu", torch.float32) > 1e6
    matrix_peak.cache_clear()
