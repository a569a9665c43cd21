"""`--seeds` of pretraining: a run for each, on the same held-out text, that resumes."""

import json
import signal
import statistics

import pytest

from helpers import SIZES
from scratch_bert import pretrain
from scratch_bert.checkpoints.resume import read_record
from scratch_bert.pretraining.seeds import report_seeds
from scratch_bert.training.trainer import ScratchBertTrainer


@pytest.fixture
def options(text_file, tmp_path):
    options = {"config_overrides": SIZES, "vocab_size": 500, "max_seq_length": 32, "cache_dir": tmp_path / "cache"}
    options |= {"max_steps": 2, "save_steps": 1, "snapshots": 0, "bf16": False, "disable_tqdm": True}
    return options | {"train_file": [text_file], "output_dir": tmp_path / "runs"}


def test_seeds_differ_in_training_alone_and_resume(options, tmp_path):
    mean = pretrain(**options, seeds=[1, 2])
    metrics = [json.loads((tmp_path / "runs" / f"seed-{seed}" / "metrics.json").read_text()) for seed in (1, 2)]
    assert mean["eval_mlm_loss"] == statistics.mean(one["eval_mlm_loss"] for one in metrics)
    assert metrics[0]["eval_mlm_loss"] != metrics[1]["eval_mlm_loss"]
    records = [read_record(tmp_path / "runs" / f"seed-{seed}") for seed in (1, 2)]
    assert records[0]["held-out text"] == records[1]["held-out text"]
    assert {name for name in records[0] if records[0][name] != records[1][name]} == {"seed"}
    assert SIZES.items() <= records[0].items()  # wherever they are from, or two presets would be compared as one
    saved = json.loads((tmp_path / "runs" / "metrics.json").read_text())
    assert saved["std"]["eval_mlm_loss"] == statistics.stdev(one["eval_mlm_loss"] for one in metrics)
    for name in ("metrics.json", "model.safetensors"):
        (tmp_path / "runs" / "seed-2" / name).unlink()  # as if it had been stopped
    first = (tmp_path / "runs" / "seed-1" / "model.safetensors").stat().st_mtime_ns
    assert pretrain(**options, seeds=[1, 2], resume_from_checkpoint="auto")["eval_mlm_loss"] == mean["eval_mlm_loss"]
    assert (tmp_path / "runs" / "seed-1" / "model.safetensors").stat().st_mtime_ns == first
    assert "±" in report_seeds(tmp_path / "runs")
    with pytest.raises(ValueError, match="seed-1 has a different learning_rate"):
        pretrain(**options, seeds=[1, 3], resume_from_checkpoint="auto", learning_rate=1e-5)
    with pytest.raises(ValueError, match="not empty"):
        pretrain(**options, seeds=[1, 3])
    with pytest.raises(ValueError, match="seed has no effect with seeds"):
        pretrain(**options, seeds=[1, 3], seed=4)


def test_stopped_seeds_name_the_directory_of_all_to_resume(options, tmp_path, monkeypatch):
    training_step = ScratchBertTrainer.training_step

    def press_ctrl_c(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)
        return training_step(*args, **kwargs)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ScratchBertTrainer, "training_step", press_ctrl_c)
    with pytest.raises(KeyboardInterrupt, match="same command with --output_dir runs/pretrain-1 --resume_from"):
        pretrain(**options | {"output_dir": None}, seeds=[1, 2])
