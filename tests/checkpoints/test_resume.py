"""What a resume may change; what it must not is tested with checkpoints, in test_saved.py."""

import pytest
from safetensors.torch import load_file, save_file

from helpers import make_model
from scratch_bert.checkpoints.resume import check_processes, check_same_weights, merge_hyperparameters


def test_hyperparameters_are_those_requested_and_the_learning_rate_keeps_its_place_in_the_schedule():
    saved = [
        {"params": [0], "lr": 3e-4, "initial_lr": 6e-4, "weight_decay": 0.1, "betas": (0.9, 0.999), "state": 7},
        {"params": [1], "lr": 1e-4, "weight_decay": 0.0},  # a schedule without initial learning rates
        {"params": [2], "lr": 0.0, "initial_lr": 0.0, "eps": 1e-8},
    ]
    requested = [
        {"params": ["a"], "lr": 0.0, "initial_lr": 2e-4, "weight_decay": 0.2, "betas": (0.8, 0.9), "state": 0},
        {"params": ["b"], "lr": 5e-4, "initial_lr": 5e-4, "weight_decay": 0.3},
        {"params": ["c"], "lr": 1e-3, "initial_lr": 1e-3, "eps": 1e-6},
    ]
    before = [dict(group) for group in saved]
    first, second, third = merge_hyperparameters(saved, requested)
    assert first.pop("lr") == pytest.approx(1e-4)
    assert first == {"params": [0], "initial_lr": 2e-4, "weight_decay": 0.2, "betas": (0.8, 0.9), "state": 7}
    assert second == {"params": [1], "lr": 1e-4, "initial_lr": 5e-4, "weight_decay": 0.3}
    assert third == {"params": [2], "lr": 0.0, "initial_lr": 1e-3, "eps": 1e-6}
    assert saved == before
    with pytest.raises(ValueError, match="shorter"):
        merge_hyperparameters(saved, requested[:2])


def test_processes_in_another_number_are_logged_and_another_kind_of_checkpoint_rejected(tmp_path, caplog):
    (tmp_path / "rng_state.pth").touch()
    check_processes(str(tmp_path), "rng_state.pth", fsdp=None)
    assert not caplog.text
    check_processes(str(tmp_path), "rng_state_1.pth", fsdp=None)
    assert "its results will not be bit-identical to those of an uninterrupted run" in caplog.text
    with pytest.raises(OSError, match="was saved without FSDP: resume it in the same way"):
        check_processes(str(tmp_path), "rng_state.pth", fsdp="FULL_STATE_DICT")


def test_checkpoint_without_all_weights_of_the_model_is_rejected(tmp_path):
    """As that of another training: the stock Trainer would keep the random weights."""
    model = make_model()
    model.save_pretrained(tmp_path)
    check_same_weights(model, str(tmp_path))
    weights = load_file(tmp_path / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if "seq_relationship" not in name}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="cannot be resumed from: it has no cls.seq_relationship.bias and 1 more"):
        check_same_weights(model, str(tmp_path))
