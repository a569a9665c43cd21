"""Conversion between transformers' BERT and scratch_bert: every head, old and unusual files, and what is rejected."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM, BertForPreTraining

from helpers import HEADS, SMALL, edit_config, edit_weights, make_bert, run_script
from scratch_bert import ScratchBertConfig, ScratchBertForMaskedLM, ScratchBertForPreTraining, ScratchBertModel
from scratch_bert.hub.conversion import convert_checkpoint


BERT_HEADS = [model_class.__name__.removeprefix("ScratchBert") for model_class in HEADS.values()]


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in directory.glob("*.safetensors") for name, tensor in load_file(file).items()}


def assert_same_bytes(one: dict, two: dict) -> None:
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert tensor.dtype == two[name].dtype, name
        assert tensor.view(torch.uint8).equal(two[name].view(torch.uint8)), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("head", BERT_HEADS)
def test_conversion_there_and_back(head, dtype, tmp_path):
    make_bert(head, tmp_path / "bert").to(dtype).save_pretrained(tmp_path / "bert")
    there = convert_checkpoint(str(tmp_path / "bert"), tmp_path / "scratch", "scratch_bert")
    back = convert_checkpoint(str(tmp_path / "scratch"), tmp_path / "again", "bert")
    assert (there.model_class, back.model_class) == (f"ScratchBert{head}", f"Bert{head}")
    assert max(there.difference, back.difference) < 1e-5
    assert not there.has_tokenizer
    assert_same_bytes(tensors(tmp_path / "bert"), tensors(tmp_path / "scratch"))
    assert_same_bytes(tensors(tmp_path / "bert"), tensors(tmp_path / "again"))
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("bert", "again")]
    if head == "ForPreTraining":  # also a masked LM, to libraries that ask the config
        configs[0]["architectures"].append("BertForMaskedLM")
    assert configs[0] == configs[1]


@pytest.mark.parametrize(
    ("head", "config"),
    [
        # Published BERTs name the MLM head alone, but hold the NSP head as well.
        ("ForPreTraining", {"architectures": ["BertForMaskedLM"]}),
        ("ForMaskedLM", {"architectures": None}),
        ("ForMaskedLM", {"dtype": "float16"}),
        ("ForMaskedLM", {"output_hidden_states": True, "output_attentions": True, "return_dict": False}),
    ],
    ids=["another architecture", "no architecture", "another dtype", "other outputs"],
)
def test_conversion_goes_by_the_weights_not_by_the_config(head, config, tmp_path):
    make_bert(head, tmp_path / "bert")
    edit_config(tmp_path / "bert", **config)
    conversion = convert_checkpoint(str(tmp_path / "bert"), tmp_path / "to", "scratch_bert")
    assert conversion.model_class == f"ScratchBert{head}" and conversion.difference < 1e-5
    assert_same_bytes(tensors(tmp_path / "bert"), tensors(tmp_path / "to"))


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering"])
def test_conversion_drops_a_pooler_that_the_head_does_not_use(head, tmp_path):
    """Old versions of transformers saved one with every head."""
    make_bert(head, tmp_path / "bert")
    weights = load_file(tmp_path / "bert/model.safetensors")
    pooler = {"bert.pooler.dense.weight": torch.zeros(32, 32), "bert.pooler.dense.bias": torch.zeros(32)}
    save_file(weights | pooler, tmp_path / "bert/model.safetensors", metadata={"format": "pt"})
    conversion = convert_checkpoint(str(tmp_path / "bert"), tmp_path / "to", "scratch_bert")
    assert conversion.model_class == f"ScratchBert{head}" and conversion.dropped == sorted(pooler)
    assert_same_bytes(weights, tensors(tmp_path / "to"))


def test_conversion_of_an_encoder_without_pooler(tmp_path):
    transformers.BertModel(BertConfig(**SMALL), add_pooling_layer=False).save_pretrained(tmp_path / "bert")
    convert_checkpoint(str(tmp_path / "bert"), tmp_path / "to", "scratch_bert")
    assert_same_bytes(tensors(tmp_path / "bert"), tensors(tmp_path / "to"))
    convert_checkpoint(str(tmp_path / "to"), tmp_path / "back", "bert")
    assert_same_bytes(tensors(tmp_path / "bert"), tensors(tmp_path / "back"))


def test_conversion_of_a_bin_file_with_old_names(tmp_path):
    model = make_bert("ForPreTraining", tmp_path / "bert")
    (tmp_path / "bert/model.safetensors").unlink()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in model.state_dict().items()
        if name != "cls.predictions.decoder.bias"
    }
    old["bert.embeddings.position_ids"] = torch.arange(SMALL["max_position_embeddings"])[None]
    torch.save(old, tmp_path / "bert/pytorch_model.bin")
    convert_checkpoint(str(tmp_path / "bert"), tmp_path / "to", "scratch_bert")
    converted = tensors(tmp_path / "to")
    for name, tensor in model.state_dict().items():
        if "decoder" not in name:  # tied weights are saved under one name
            assert converted[name].equal(tensor), name


def test_conversion_of_sharded_weights_and_untied_embeddings(tmp_path):
    model = make_bert("ForMaskedLM", tmp_path / "whole", tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "bert", max_shard_size="20KB")
    assert len(list((tmp_path / "bert").glob("model-*.safetensors"))) > 1
    convert_checkpoint(str(tmp_path / "bert"), tmp_path / "to", "scratch_bert")
    berts = tensors(tmp_path / "whole")  # with two biases, as transformers ties embeddings and biases or neither
    assert not berts["cls.predictions.bias"].equal(berts["cls.predictions.decoder.bias"])
    berts["cls.predictions.bias"] = berts.pop("cls.predictions.decoder.bias")
    assert_same_bytes(berts, tensors(tmp_path / "to"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("norm_first", True),
        ("position_embedding_type", "sinusoidal"),
        ("head_dim", 16),
        ("classifier_pooling", "mean"),
    ],
)
def test_conversion_rejects_options_that_bert_does_not_support(name, value, tmp_path):
    ScratchBertForMaskedLM(ScratchBertConfig(**SMALL, **{name: value})).save_pretrained(tmp_path / "from")
    with pytest.raises(ValueError, match=f"{name} is {value!r}"):
        convert_checkpoint(str(tmp_path / "from"), tmp_path / "to", "bert")
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
def test_conversion_multiplies_factorised_embeddings(tied, dtype, tmp_path):
    options = {"embedding_size": 16, "tie_word_embeddings": tied, "initializer_range": 0.2}
    for head in (ScratchBertModel, ScratchBertForPreTraining):
        head(ScratchBertConfig(**SMALL, **options)).to(dtype).save_pretrained(tmp_path / "from")
        card = "# A model\n\n| parameters | 1 |\n| options that BERT does not have | `embedding_size=16` |\n"
        (tmp_path / "from/README.md").write_text(card)
        assert convert_checkpoint(tmp_path / "from", tmp_path / head.__name__, "bert").difference < 1e-5
        parameters = sum(map(torch.numel, load_file(tmp_path / head.__name__ / "model.safetensors").values()))
        card = (tmp_path / head.__name__ / "README.md").read_text()
        assert "embedding_size" not in card and f"| parameters | {parameters:,} |" in card


def test_conversion_takes_the_default_head_dim(tmp_path):
    ScratchBertModel(ScratchBertConfig(**SMALL, head_dim=8)).save_pretrained(tmp_path / "from")
    assert convert_checkpoint(str(tmp_path / "from"), tmp_path / "to", "bert").difference < 1e-5


WEIGHT = "bert.encoder.layer.1.output.dense.weight"


@pytest.mark.parametrize(
    ("head", "options", "weights", "to", "message"),
    [
        ("ForMaskedLM", {"is_decoder": True}, {}, "scratch_bert", "is_decoder"),
        ("LMHeadModel", {}, {}, "scratch_bert", "BertLMHeadModel, which has no counterpart"),
        ("ForMaskedLM", {}, {}, "bert", "type bert. A conversion to bert needs type scratch_bert"),
        (
            "ForMaskedLM",
            {},
            {"classifier.bias": torch.zeros(3)},
            "scratch_bert",
            "BertForMaskedLM lacks: classifier.bias",
        ),
        ("ForMaskedLM", {}, {WEIGHT: torch.full((32, 64), torch.inf)}, "scratch_bert", f"{WEIGHT} of .* not finite"),
    ],
    ids=["decoder", "another head", "another type", "weights of another head", "infinite"],
)
def test_conversion_rejects_other_models(head, options, weights, to, message, tmp_path):
    """Others are in test_open.py."""
    make_bert(head, tmp_path / "bert", **options)
    edit_weights(tmp_path / "bert", lambda before: before | weights)
    with pytest.raises(ValueError, match=message):
        convert_checkpoint(str(tmp_path / "bert"), tmp_path / "to", to)
    assert [path.name for path in tmp_path.iterdir()] == ["bert"]


@pytest.mark.smoke
def test_conversion_script(tmp_path, tokenizer, monkeypatch, capsys):
    make_bert("ForPreTraining", tmp_path / "bert", tokenizer)
    run_script(monkeypatch, "convert_checkpoint.py", tmp_path / "bert", tmp_path / "to")
    printed = capsys.readouterr().out
    assert "Largest difference" in printed and "Saved ScratchBertForPreTraining to" in printed
    shutil.rmtree(tmp_path / "bert")
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path / "to")) is ScratchBertForMaskedLM
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "to")
    assert opened("a class").input_ids == tokenizer("a class").input_ids
    with pytest.raises(SystemExit, match="error: .*not empty"):
        run_script(monkeypatch, "convert_checkpoint.py", tmp_path / "to", tmp_path / "to", "--to", "bert")
    run_script(monkeypatch, "convert_checkpoint.py", tmp_path / "to", tmp_path / "back", "--to", "bert")
    assert type(transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "back")) is BertForPreTraining
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path / "back")) is BertForMaskedLM
