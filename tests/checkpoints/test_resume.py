"""What a resume may change; what it must not is tested with checkpoints, in test_saved.py."""

import pytest

from helpers import edit_weights, make_model
from scratch_bert.checkpoints.resume import check_same_weights
from scratch_bert.training.resuming import check_processes


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
    edit_weights(tmp_path, lambda weights: {key: weights[key] for key in weights if "seq_relationship" not in key})
    with pytest.raises(ValueError, match="cannot be resumed from: it has no cls.seq_relationship.bias and 1 more"):
        check_same_weights(model, str(tmp_path))
