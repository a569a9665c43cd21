"""Threads of a training beside other processes."""

import json
import logging

import pytest
import torch

from helpers import SIZES
from scratch_bert import pretrain
from scratch_bert.training import threads
from scratch_bert.training.threads import use_free_cores


@pytest.fixture
def default_threads(monkeypatch):
    """Without OMP_NUM_THREADS, on a machine with four cores."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "THREADS", 4)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("load", "expected"),
    [([3, 1, 0, 2], 4), ([100, 3, 0, 2], 3), ([100, 90, 95, 100], 1), ([100] * 4, 1), ([60, 60, 60, 60], 2)],
)
def test_threads_are_the_free_cores(default_threads, monkeypatch, caplog, load, expected):
    monkeypatch.setattr(threads.psutil, "cpu_percent", lambda seconds, percpu: load)
    with caplog.at_level(logging.INFO, "scratch_bert"):
        assert use_free_cores() == torch.get_num_threads() == expected
    assert ("OMP_NUM_THREADS" in caplog.text) == (expected < 4)
    assert use_free_cores(recorded=3) == torch.get_num_threads() == 3  # whatever the load
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    torch.set_num_threads(2)
    assert use_free_cores(recorded=4) == torch.get_num_threads() == 2


def test_a_resumed_run_has_the_threads_of_its_checkpoint(default_threads, monkeypatch, tmp_path, text_file):
    options = {"output_dir": tmp_path / "run", "config_overrides": SIZES, "vocab_size": 500, "max_seq_length": 32}
    options |= {"cache_dir": tmp_path, "save_steps": 1, "validation_share": 0, "snapshots": 0}
    for load, steps, resume in (([100, 100, 100, 0], 1, None), ([0, 0, 0, 0], 2, "auto")):
        monkeypatch.setattr(threads.psutil, "cpu_percent", lambda seconds, percpu, load=load: load)
        pretrain([text_file], max_steps=steps, resume_from_checkpoint=resume, **options)
        record = json.loads((tmp_path / "run" / f"checkpoint-{steps}" / "run.json").read_text())
        assert record["options"]["threads"] == torch.get_num_threads() == 1
