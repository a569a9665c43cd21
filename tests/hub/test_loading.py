"""Checkpoints are opened with the heads that they have weights for, and rejected if they are damaged."""

import json

import pytest
import torch
from transformers import AutoModelForMaskedLM

from helpers import SMALL, make_bert
from scratch_bert import ScratchBertConfig, ScratchBertForMaskedLM, ScratchBertModel
from scratch_bert.hub.loading import load_config, open_checkpoint, open_pretrained


@pytest.mark.parametrize(
    ("head", "with_nsp", "has_nsp_head", "model_class"),
    [
        ("ForPreTraining", True, True, "BertForPreTraining"),
        ("ForPreTraining", False, False, "BertForMaskedLM"),
        ("ForMaskedLM", True, False, "BertForMaskedLM"),
    ],
)
def test_pretraining_heads_are_found_by_their_weights(head, with_nsp, has_nsp_head, model_class, tmp_path):
    make_bert(head, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    model, found = open_pretrained(str(tmp_path), with_nsp)
    assert found == has_nsp_head and type(model).__name__ == model_class


def test_model_without_an_mlm_head_is_rejected(tmp_path):
    make_bert("ForSequenceClassification", tmp_path)
    with pytest.raises(ValueError, match="has no MLM head: cls.*are missing"):
        open_pretrained(str(tmp_path))


def test_model_of_a_diverged_training_is_rejected(tmp_path):
    model = ScratchBertForMaskedLM(ScratchBertConfig(**SMALL))
    torch.nn.init.constant_(model.bert.encoder.layer[1].output.dense.bias, float("inf"))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="bert.encoder.layer.1.output.dense.bias of .* is not finite"):
        open_checkpoint(AutoModelForMaskedLM, str(tmp_path))


def test_config_that_cannot_be_used_is_named(tmp_path):
    ScratchBertModel(ScratchBertConfig(**SMALL)).save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"auto_map": None}))
    with pytest.raises(ValueError, match="The config.json of .*model cannot be read .*: save the model again"):
        load_config(str(tmp_path / "model"))
