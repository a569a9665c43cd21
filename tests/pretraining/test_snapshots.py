"""Snapshots show a training from its first weights to its last, whatever stops it between, and stay on the machine."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining, AutoTokenizer

from scratch_bert.checkpoints.saved import snapshots_in
from scratch_bert.hub.publishing import public_files
from scratch_bert.pretraining.snapshots import default_count, snapshot_fractions
from scratch_bert.repository import read_json
from scratch_bert_demo.runs import EXAMPLES_SEEN, SECONDS, TOKENS_SEEN, Run


@pytest.fixture
def pretrain(prepare, tmp_path):
    def call(**options):
        prepare(tmp_path / "run", **{"max_steps": 20, "save_steps": 10, "seed": 1} | options).train()
        return tmp_path / "run"

    return call


def steps_of(directory: Path) -> list[int]:
    return [int(snapshot.name) for snapshot in snapshots_in(directory)]


def test_fractions_of_the_training_are_close_together_at_its_beginning():
    fractions = snapshot_fractions(20)
    assert len(fractions) == 20 and fractions[0] == 0 and fractions[-1] == 1
    assert np.allclose(np.diff(np.log(fractions[1:])), np.log(fractions[2] / fractions[1]))
    assert snapshot_fractions(2) == [0, 1] and snapshot_fractions(1) == [1]


def test_default_number_of_snapshots_takes_a_gigabyte_at_most():
    assert default_count(4_400_000) == default_count(25_000_000) == 20
    assert default_count(25_000_001) == default_count(110_000_000) == 0


def test_snapshots_are_models_from_the_first_weights_to_the_last(pretrain):
    directory = pretrain(snapshots=8, logging_steps=5)
    steps = steps_of(directory)
    assert steps[0] == 0 and steps[-1] == 20 and steps == sorted(set(steps)) and 5 <= len(steps) <= 8
    for snapshot in snapshots_in(directory):
        model, tokenizer = AutoModelForPreTraining.from_pretrained(snapshot), AutoTokenizer.from_pretrained(snapshot)
        assert model.config.vocab_size == len(tokenizer) == 500
        log = json.loads((snapshot / "trainer_state.json").read_text())["log_history"]
        assert all(entry["step"] <= int(snapshot.name) for entry in log)
    saved, last = (load_file(path / "model.safetensors") for path in (directory, directory / "snapshots/20"))
    assert saved.keys() == last.keys()
    assert all(torch.equal(weight.bfloat16(), last[name]) for name, weight in saved.items())
    first = load_file(directory / "snapshots/0/model.safetensors")
    assert not any(torch.equal(weight, last[name]) for name, weight in first.items() if "LayerNorm" not in name)
    assert not any("snapshots" in path.parts for path in public_files(directory))
    run = Run(str(directory))
    assert run.amounts() == steps and 2 <= len(run.examples) <= 6
    batch_size = read_json(directory / "run.json")["options"]["global batch size"]
    assert run.amounts(EXAMPLES_SEEN) == [step * batch_size for step in steps]
    tokens, seconds = run.amounts(TOKENS_SEEN), run.amounts(SECONDS)
    assert tokens[0] == seconds[0] == 0 and tokens == sorted(set(tokens)) and seconds == sorted(set(seconds))
    assert tokens[-1] == read_json(directory / "checkpoint-20/trainer_state.json")["num_input_tokens_seen"]
    assert all(text.count("[MASK]") == 1 and word.isalpha() for text, word in run.examples)
    assert len(run.pairs) == 6 and sum(follows for _, _, follows in run.pairs) == 3
    assert not any(
        "[SEP]" in text or "[CLS]" in text
        for text in [*(a for a, _ in run.examples), *(a + b for a, b, _ in run.pairs)]
    )


def test_no_snapshots_are_kept_if_none_are_wanted(pretrain):
    directory = pretrain(snapshots=0, max_steps=2)
    assert steps_of(directory) == [] and not (directory / "snapshots").exists()


def test_resumed_run_keeps_its_snapshots_and_replaces_later_ones(pretrain):
    directory = pretrain(snapshots=8)
    before = steps_of(directory)
    (directory / "metrics.json").unlink()
    (directory / "snapshots/20").rename(directory / "snapshots/19")  # as if it had ended at another step
    for checkpoint in directory.glob("checkpoint-20"):
        checkpoint.rename(directory / "of-another-run")
    pretrain(snapshots=8, resume_from_checkpoint="auto")
    assert steps_of(directory) == before


def test_snapshot_that_cannot_be_written_does_not_end_the_training(pretrain, monkeypatch, caplog):
    def fail(new, place):
        raise OSError("No space left on device")

    monkeypatch.setattr("scratch_bert.pretraining.snapshots.move_into_place", fail)
    with caplog.at_level(logging.WARNING, "scratch_bert"):
        directory = pretrain(snapshots=5, max_steps=5)
    warnings = [record.message for record in caplog.records if "The snapshot has failed" in record.message]
    assert len(warnings) == 1 and "No space left" in warnings[0]
    assert (directory / "model.safetensors").exists() and not (directory / ".saving/snapshots").exists()
