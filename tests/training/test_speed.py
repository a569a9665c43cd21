"""The speed in the log: tokens without padding, time without evaluations and saves."""

import pytest
import torch
from transformers import TrainerControl, TrainingArguments

from helpers import SMALL
from scratch_bert import ScratchBertConfig, ScratchBertForMaskedLM
from scratch_bert.examples.collator import PretrainingCollator, pack_sequences
from scratch_bert.training import speed
from scratch_bert.training.counting import CountingCollator
from scratch_bert.training.speed import SpeedMeter
from scratch_bert.training.trainer import ScratchBertTrainer


CPU = torch.device("cpu")


class Clock:
    """A clock that stands still, unless it is moved."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("processes", [1, 2])
def test_time_is_that_of_steps_and_what_counts_are_tokens_without_padding(processes, monkeypatch):
    monkeypatch.setattr(speed.time, "perf_counter", clock := Clock())
    meter = SpeedMeter(CPU)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    for _ in range(2):
        meter.resume()
        clock.now += 1
        meter.got_examples()
        meter.count({"attention_mask": mask})
        clock.now += 3
        meter.on_step_end(None, None, TrainerControl())
        clock.now += 1000  # an evaluation
    logged = meter.report(reduce=lambda sums: processes * sums)
    assert logged["speed/tokens_per_second"] == pytest.approx(processes * 2 * 5 / 8)
    assert logged["speed/tokens_per_step"] == processes * 5
    assert logged["speed/data_share"] == pytest.approx(0.25)
    assert logged["speed/memory_mib"] > 10
    assert meter.report(reduce=lambda sums: sums) == {}, "nothing since the last report"
    assert [meter.take_tokens(lambda sums: sums) for _ in range(2)] == [10, 0], "a report takes none"


def test_padded_packed_counted_and_unmasked_batches_count_alike(pairs, tokenizer):
    examples = [pairs[i] for i in range(12)]
    collator = PretrainingCollator(tokenizer)
    batch = collator(examples)
    tokens = sum(len(example["input_ids"]) for example in examples)
    for version in (
        batch,
        pack_sequences(batch, 128, tokenizer.pad_token_id),
        CountingCollator(collator)(examples),
        {"input_ids": torch.ones(1, tokens)},
    ):
        meter = SpeedMeter(CPU)
        meter.count(version)
        assert meter.take_tokens(lambda sums: sums) == tokens


def test_trainer_logs_no_speed_without_a_training(tmp_path):
    logs = {"loss": 1.0}
    model = ScratchBertForMaskedLM(ScratchBertConfig(**SMALL))
    ScratchBertTrainer(model, TrainingArguments(str(tmp_path), report_to=[], use_cpu=True)).log(logs)
    assert not any(name.startswith("speed/") for name in logs)
