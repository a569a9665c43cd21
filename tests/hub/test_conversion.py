"""Conversion between transformers' BERT and scratch_bert: every head, old and odd files, and what cannot be converted."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM, BertForPreTraining

from helpers import HEADS, SMALL, num_labels, run_script
from scratch_bert import ScratchBertConfig, ScratchBertForMaskedLM, ScratchBertModel
from scratch_bert.hub.conversion import convert_checkpoint


BERT_HEADS = [model_class.__name__.removeprefix("ScratchBert") for model_class in HEADS.values()]


def make_bert(head: str, directory: Path, **options):
    """A BERT whose weights, biases and norms among them, are all random."""
    config = BertConfig(**SMALL, num_labels=num_labels(head), **options)
    model = getattr(transformers, f"Bert{head}")(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(directory)
    return model


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in directory.glob("*.safetensors") for name, tensor in load_file(file).items()}


def assert_same_bytes(one: dict, two: dict) -> None:
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert tensor.dtype == two[name].dtype, name
        assert tensor.view(torch.uint8).equal(two[name].view(torch.uint8)), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head", BERT_HEADS)
def test_there_and_back(head, dtype, tmp_path):
    make_bert(head, tmp_path / "bert").to(dtype).save_pretrained(tmp_path / "bert")
    there = convert_checkpoint(str(tmp_path / "bert"), tmp_path / "scratch", "scratch_bert")
    back = convert_checkpoint(str(tmp_path / "scratch"), tmp_path / "again", "bert")
    assert (there.model_class, back.model_class) == (f"ScratchBert{head}", f"Bert{head}")
    assert max(there.difference, back.difference) < 1e-5
    assert not there.has_tokenizer
    assert_same_bytes(tensors(tmp_path / "bert"), tensors(tmp_path / "scratch"))
    assert_same_bytes(tensors(tmp_path / "bert"), tensors(tmp_path / "again"))
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("bert", "again")]
    assert configs[0] == configs[1]


def test_published_berts_are_said_to_be_for_masked_words_and_hold_both_heads(tmp_path):
    make_bert("ForPreTraining", tmp_path / "bert")
    config = json.loads((tmp_path / "bert/config.json").read_text())
    (tmp_path / "bert/config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    assert convert_checkpoint(str(tmp_path / "bert"), tmp_path / "to", "scratch_bert").model_class.endswith(
        "PreTraining"
    )
    assert_same_bytes(tensors(tmp_path / "bert"), tensors(tmp_path / "to"))


def test_the_files_say_the_type_of_the_weights(tmp_path):
    make_bert("ForMaskedLM", tmp_path / "bert")
    config = json.loads((tmp_path / "bert/config.json").read_text())
    (tmp_path / "bert/config.json").write_text(json.dumps(config | {"dtype": "float16"}))
    convert_checkpoint(str(tmp_path / "bert"), tmp_path / "to", "scratch_bert")
    assert_same_bytes(tensors(tmp_path / "bert"), tensors(tmp_path / "to"))


def test_config_without_architectures(tmp_path):
    make_bert("ForMaskedLM", tmp_path / "bert")
    config = json.loads((tmp_path / "bert/config.json").read_text())
    del config["architectures"]
    (tmp_path / "bert/config.json").write_text(json.dumps(config))
    assert convert_checkpoint(str(tmp_path / "bert"), tmp_path / "to", "scratch_bert").model_class.endswith("MaskedLM")


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering"])
def test_pooler_that_the_head_does_not_use(head, tmp_path):
    """Old versions of transformers saved one with every head."""
    make_bert(head, tmp_path / "bert")
    weights = load_file(tmp_path / "bert/model.safetensors")
    pooler = {"bert.pooler.dense.weight": torch.zeros(32, 32), "bert.pooler.dense.bias": torch.zeros(32)}
    save_file(weights | pooler, tmp_path / "bert/model.safetensors", metadata={"format": "pt"})
    conversion = convert_checkpoint(str(tmp_path / "bert"), tmp_path / "to", "scratch_bert")
    assert conversion.model_class == f"ScratchBert{head}" and conversion.dropped == sorted(pooler)
    assert_same_bytes(weights, tensors(tmp_path / "to"))


def test_encoder_without_pooler(tmp_path):
    transformers.BertModel(BertConfig(**SMALL), add_pooling_layer=False).save_pretrained(tmp_path / "bert")
    convert_checkpoint(str(tmp_path / "bert"), tmp_path / "to", "scratch_bert")
    assert_same_bytes(tensors(tmp_path / "bert"), tensors(tmp_path / "to"))
    convert_checkpoint(str(tmp_path / "to"), tmp_path / "back", "bert")
    assert_same_bytes(tensors(tmp_path / "bert"), tensors(tmp_path / "back"))


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_the_comparison_sees_what_is_no_number(value, tmp_path):
    model = make_bert("ForMaskedLM", tmp_path / "bert")
    with torch.no_grad():
        model.cls.predictions.bias[3] = value
    model.save_pretrained(tmp_path / "bert")
    if value == -torch.inf:  # the same in both
        assert convert_checkpoint(str(tmp_path / "bert"), tmp_path / "to", "scratch_bert").difference < 1e-5
        return
    with pytest.raises(ValueError, match="differ from those of .* by nan"):
        convert_checkpoint(str(tmp_path / "bert"), tmp_path / "to", "scratch_bert")
    assert not (tmp_path / "to").exists()


def test_config_that_asks_for_other_outputs(tmp_path):
    make_bert("ForMaskedLM", tmp_path / "bert")
    config = json.loads((tmp_path / "bert/config.json").read_text())
    config |= {"output_hidden_states": True, "output_attentions": True, "return_dict": False}
    (tmp_path / "bert/config.json").write_text(json.dumps(config))
    assert convert_checkpoint(str(tmp_path / "bert"), tmp_path / "to", "scratch_bert").difference < 1e-5


def test_old_names_in_a_bin_file(tmp_path):
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
        if "decoder" not in name:  # tied: stands under one name
            assert converted[name].equal(tensor), name


def test_bin_file_that_would_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "run",))

    make_bert("ForMaskedLM", tmp_path / "bert")
    (tmp_path / "bert/model.safetensors").unlink()
    torch.save({"bert.embeddings.word_embeddings.weight": Evil()}, tmp_path / "bert/pytorch_model.bin")
    with pytest.raises(ValueError, match="cannot be read"):
        convert_checkpoint(str(tmp_path / "bert"), tmp_path / "to", "scratch_bert")
    assert not (tmp_path / "run").exists()


def test_shards_and_untied_embeddings(tmp_path):
    model = make_bert("ForMaskedLM", tmp_path / "whole", tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "bert", max_shard_size="20KB")
    assert len(list((tmp_path / "bert").glob("model-*.safetensors"))) > 1
    convert_checkpoint(str(tmp_path / "bert"), tmp_path / "to", "scratch_bert")
    assert_same_bytes(tensors(tmp_path / "whole"), tensors(tmp_path / "to"))
    next((tmp_path / "bert").glob("model-00002-*")).unlink()
    with pytest.raises(OSError, match="model-00002"):
        convert_checkpoint(str(tmp_path / "bert"), tmp_path / "other", "scratch_bert")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"norm_first": True}, "norm_first is True"),
        ({"position_embedding_type": "sinusoidal"}, "position_embedding_type is 'sinusoidal'"),
        ({"head_dim": 16}, "head_dim is 16"),
    ],
)
def test_what_a_bert_cannot_be_told(options, field, tmp_path):
    ScratchBertForMaskedLM(ScratchBertConfig(**SMALL, **options)).save_pretrained(tmp_path / "from")
    with pytest.raises(ValueError, match=field):
        convert_checkpoint(str(tmp_path / "from"), tmp_path / "to", "bert")
    assert not (tmp_path / "to").exists()


def test_head_dim_that_says_what_follows_anyway(tmp_path):
    ScratchBertModel(ScratchBertConfig(**SMALL, head_dim=8)).save_pretrained(tmp_path / "from")
    assert convert_checkpoint(str(tmp_path / "from"), tmp_path / "to", "bert").difference < 1e-5


@pytest.mark.parametrize("damage", ["missing key", "wrong shape", "left over", "cut short"])
def test_damaged_sources(damage, tmp_path):
    make_bert("ForMaskedLM", tmp_path / "bert")
    file = tmp_path / "bert/model.safetensors"
    weights, name = load_file(file), "bert.encoder.layer.1.output.dense.weight"
    if damage == "cut short":
        file.write_bytes(file.read_bytes()[:-1000])
    else:
        if damage == "missing key":
            del weights[name]
        elif damage == "wrong shape":
            weights[name] = weights[name][:-1].clone()
        else:
            name = "bert.encoder.layer.7.output.dense.weight"
            weights[name] = torch.zeros(3)
        save_file(weights, file, metadata={"format": "pt"})
    message = "cut short" if damage == "cut short" else rf"{damage.split()[-1].replace('key', 'missing')}.*{name}"
    with pytest.raises(ValueError, match=message):
        convert_checkpoint(str(tmp_path / "bert"), tmp_path / "to", "scratch_bert")
    assert [path.name for path in tmp_path.iterdir()] == ["bert"]


def test_sources_of_another_kind(tmp_path):
    make_bert("ForMaskedLM", tmp_path / "decoder", is_decoder=True)
    with pytest.raises(StrictDataclassError, match="is_decoder"):
        convert_checkpoint(str(tmp_path / "decoder"), tmp_path / "to", "scratch_bert")
    make_bert("LMHeadModel", tmp_path / "causal")
    with pytest.raises(ValueError, match="BertLMHeadModel, which has no counterpart"):
        convert_checkpoint(str(tmp_path / "causal"), tmp_path / "to", "scratch_bert")
    with pytest.raises(ValueError, match="type bert. To convert to bert, give a scratch_bert"):
        convert_checkpoint(str(tmp_path / "causal"), tmp_path / "to", "bert")
    make_bert("ForMaskedLM", tmp_path / "to")
    with pytest.raises(FileExistsError, match="not empty"):
        convert_checkpoint(str(tmp_path / "causal"), tmp_path / "to", "scratch_bert")


def test_script(tmp_path, tokenizer, monkeypatch, capsys):
    make_bert("ForPreTraining", tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    run_script(monkeypatch, "convert_checkpoint.py", tmp_path / "bert", tmp_path / "to")
    printed = capsys.readouterr().out
    assert "Largest difference" in printed and "ScratchBertForPreTraining is in" in printed
    shutil.rmtree(tmp_path / "bert")
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path / "to")) is ScratchBertForMaskedLM
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "to")
    assert opened("a class").input_ids == tokenizer("a class").input_ids
    with pytest.raises(SystemExit, match="error: .*not empty"):
        run_script(monkeypatch, "convert_checkpoint.py", tmp_path / "to", tmp_path / "to", "--to", "bert")
    run_script(monkeypatch, "convert_checkpoint.py", tmp_path / "to", tmp_path / "back", "--to", "bert")
    assert type(transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "back")) is BertForPreTraining
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path / "back")) is BertForMaskedLM
