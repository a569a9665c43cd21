import dataclasses
import json

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, BertConfig

from helpers import CODE_FILES, HEADS, SMALL
from scratch_bert import ScratchBertConfig, ScratchBertModel
from scratch_bert.model.configuration_scratch_bert import (
    ARCHITECTURE_FIELDS,
    AUTO_MAP,
    BERT_VALUES,
    COMPUTE_FIELDS,
    INITIALIZATION_FIELDS,
)


def fields(config_class):
    return {field.name for field in dataclasses.fields(config_class)}


def test_fields_that_bert_lacks_have_a_value_at_which_the_model_is_a_bert_and_are_kept_by_a_resume():
    own = fields(ScratchBertConfig) - fields(BertConfig) - {*COMPUTE_FIELDS, *INITIALIZATION_FIELDS}
    assert set(BERT_VALUES) == own and own - {"classifier_pooling"} <= set(ARCHITECTURE_FIELDS)
    assert {name: getattr(ScratchBertConfig(), name) for name in BERT_VALUES} == BERT_VALUES


def test_fields_and_defaults_are_those_of_bert():
    ours, berts = ScratchBertConfig().to_dict(), BertConfig().to_dict()
    decoder_only = {"use_cache", "is_decoder", "add_cross_attention"}
    for field in set(berts) - decoder_only - {"model_type"}:
        assert ours[field] == berts[field], field


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "heads", "millions"),
    [  # the sizes of Google's released models; parameters of the encoder from Turc et al. (2019) and the BERT paper
        ("micro", 2, 128, 4, 4.4),  # not among them: tiny with other heads
        ("tiny", 2, 128, 2, 4.4),
        ("mini", 4, 256, 4, 11.3),
        ("small", 4, 512, 8, 29.1),
        ("medium", 8, 512, 8, 41.7),
        ("base", 12, 768, 12, 110),
        ("large", 24, 1024, 16, 340),
    ],
)
def test_presets(name, layers, hidden, heads, millions):
    config = ScratchBertConfig.from_preset(name)
    assert (config.num_hidden_layers, config.hidden_size) == (layers, hidden)
    assert (config.num_attention_heads, config.intermediate_size) == (heads, 4 * hidden)
    with torch.device("meta"):
        model = ScratchBertModel(config)
    assert model.num_parameters() / 1e6 == pytest.approx(millions, rel=0.02)


def test_preset_overrides_and_unknown_names():
    config = ScratchBertConfig.from_preset("mini", num_hidden_layers=3, norm_first=True)
    assert (config.num_hidden_layers, config.norm_first, config.hidden_size) == (3, True, 256)
    with pytest.raises(ValueError, match=r"'huge'.*micro, tiny, mini, small, medium, base, large"):
        ScratchBertConfig.from_preset("huge")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_attention_heads": 5}, r"hidden_size \(768\).*num_attention_heads \(5\)"),
        ({"hidden_size": "768"}, "hidden_size"),
        ({"head_dim": 0}, "head_dim must be 1 or more, got 0"),
        ({"head_dim": 7, "position_embedding_type": "rotary"}, "Rotary positions need heads of an even size"),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob must be at least 0 and less than 1"),
        ({"classifier_dropout": -0.1}, "classifier_dropout must be at least 0"),
        ({"layer_norm_eps": -1e-5}, "layer_norm_eps must be greater than 0"),
        ({"hidden_act": "gelo"}, r"hidden_act must be one of .*gelu.*'gelo'"),
        ({"position_embedding_type": "relative_key"}, "absolute, sinusoidal, rotary; got 'relative_key'"),
        ({"pad_token_id": 30522}, r"pad_token_id must be None or from 0 to vocab_size - 1 \(30521\)"),
        ({"is_decoder": True}, "encoder only"),
    ],
)
def test_config_rejects_impossible_values_and_names_the_field(values, message):
    with pytest.raises(StrictDataclassError, match=message):
        ScratchBertConfig(**values)
    assert ScratchBertConfig(num_attention_heads=5, head_dim=16).head_dim == 16


@pytest.mark.parametrize("auto_class", HEADS)
def test_auto_map_is_saved_completely_by_every_head(auto_class, tmp_path):
    HEADS[auto_class](ScratchBertConfig(**SMALL)).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == AUTO_MAP
    assert {file.name for file in tmp_path.iterdir()} >= CODE_FILES | {"model.safetensors"}


def test_auto_map_does_not_refer_back_to_a_repository(tmp_path):
    config = ScratchBertConfig(**SMALL, norm_first=True, head_dim=16, num_labels=5)
    # What the Hub's client puts into a config that it read from a repository.
    config.auto_map = {name: f"someone/model--{reference}" for name, reference in AUTO_MAP.items()}
    reread = ScratchBertConfig.from_dict(config.to_dict())
    assert reread.auto_map == AUTO_MAP
    reread.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(loaded, ScratchBertConfig)
    assert (loaded.norm_first, loaded.head_dim, loaded.num_labels) == (True, 16, 5)
