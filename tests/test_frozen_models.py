"""What the code of commit d23c185 has written works with its own code and with today's: examples/models/README.md."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from helpers import ROOT, run_script


FROZEN = ROOT / "examples/models"


def test_interrupted_run_resumes_and_ends_as_it_would_have(tmp_path, monkeypatch):
    frozen = FROZEN / "interrupted-run"
    shutil.copytree(frozen / "checkpoint-20", tmp_path / "run/checkpoint-20")
    shutil.copy(frozen / "the-land-of-the-blue-flower.txt", tmp_path)
    monkeypatch.chdir(tmp_path)
    options = (frozen / "options.yaml").resolve()
    run_script(
        monkeypatch, "pretrain.py", shutil.copy(options, tmp_path), "--output_dir", "run", "--resume_from_checkpoint"
    )
    found, expected = load_file("run/model.safetensors"), load_file(frozen / "finished.safetensors")
    start = load_file(frozen / "checkpoint-20/model.safetensors")
    assert found.keys() == expected.keys()

    def distance(one, other):
        return torch.cat([(one[name] - other[name]).flatten() for name in expected]).norm().item()

    # Bit-equal on the machine of the run. Another number of threads changes sums, and 20 steps make more of that.
    assert distance(found, expected) < 0.01 * distance(expected, start)
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    finished = json.loads((frozen / "finished.json").read_text())
    assert {name: metrics[name] for name in finished} == pytest.approx(finished, abs=2e-3)
