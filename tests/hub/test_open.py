"""Checkpoints are opened with the heads that they have weights for, and rejected if they are damaged."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, BertConfig, BertForPreTraining

from helpers import SMALL, edit_config, edit_weights, make_bert, truncate
from scratch_bert import ScratchBertConfig, ScratchBertForMaskedLM
from scratch_bert.checkpoints.open import load_config, open_checkpoint, open_pretrained
from scratch_bert.checkpoints.weights import find_weights
from scratch_bert.corpus.tokenizer import load_tokenizer


def edited(edit: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Path], None]:
    """A damage: an edit of the weights."""
    return lambda directory: edit_weights(directory, edit)


def without(*parts: str) -> Callable[[Path], None]:
    """Weights with one of these parts in their names are removed."""
    return edited(lambda weights: {k: v for k, v in weights.items() if not any(part in k for part in parts)})


def changed(name: str, edit: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    return edited(lambda weights: weights | {name: edit(weights[name])})


def configured(**changes) -> Callable[[Path], None]:
    return lambda directory: edit_config(directory, **changes)


def pickled(content: Any = None) -> Callable[[Path], None]:
    """The weights are in a pickle, or this content instead of them."""

    def damage(directory):
        file = directory / "model.safetensors"
        torch.save(content or load_file(file), directory / "pytorch_model.bin")
        file.unlink()

    return damage


def indexed(index: Any) -> Callable[[Path], None]:
    def damage(directory):
        (directory / "model.safetensors").unlink()
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))

    return damage


def sharded(directory: Path, as_pickles: bool = False) -> None:
    BertForPreTraining.from_pretrained(directory).save_pretrained(directory, max_shard_size="60KB")
    (directory / "model.safetensors").unlink()
    if as_pickles:
        for file in directory.glob("*.safetensors"):
            torch.save(load_file(file), file.with_suffix(".bin"))
            file.unlink()
        index = directory / "model.safetensors.index.json"
        (directory / "pytorch_model.bin.index.json").write_text(index.read_text().replace(".safetensors", ".bin"))
        index.unlink()


def unchanged(directory: Path) -> None: ...


class Malicious:
    def __reduce__(self):
        return (pytest.fail, ("a pickle's code has run",))


WEIGHT = "bert.encoder.layer.1.output.dense.weight"


@pytest.fixture
def model(bert, tmp_path):
    """A copy of `bert`."""
    return Path(shutil.copytree(bert, tmp_path / "model"))


@pytest.mark.parametrize("change", [unchanged, pickled(), sharded, partial(sharded, as_pickles=True)])
def test_weights_in_files_of_any_kind_are_opened(change, model, bert):
    change(model)
    opened, heads = open_pretrained(str(model))
    assert heads == {"MaskedLM", "NextSentencePrediction"}
    for name, weight in load_file(bert / "model.safetensors").items():
        assert opened.state_dict()[name].equal(weight), name


@pytest.mark.parametrize(
    ("change", "with_nsp", "heads", "model_class"),
    [
        (unchanged, True, {"MaskedLM", "NextSentencePrediction"}, "BertForPreTraining"),
        (unchanged, False, {"MaskedLM"}, "BertForMaskedLM"),
        (without("seq_relationship", "pooler"), True, {"MaskedLM"}, "BertForMaskedLM"),
        (without("cls."), True, set(), "BertModel"),
        (without("cls.", "pooler"), True, set(), "BertModel"),
    ],
)
def test_pretraining_heads_are_found_by_their_weights(change, with_nsp, heads, model_class, model):
    change(model)
    edit_config(model, architectures=["BertForMaskedLM"])
    opened, found = open_pretrained(str(model), with_nsp=with_nsp)
    assert found == heads and type(opened).__name__ == model_class


@pytest.mark.parametrize("head", ["SequenceClassification", "NextSentencePrediction", "MultipleChoice"])
def test_fine_tuned_heads_are_found_by_the_config(head, tmp_path):
    make_bert(f"For{head}", tmp_path)
    opened, found = open_pretrained(str(tmp_path))
    assert found == {head} and type(opened).__name__ == f"BertFor{head}"


DAMAGED = {
    "missing": (without(WEIGHT), f"{WEIGHT}, missing"),
    "prefix": (
        edited(lambda weights: {f"module.{name}": weight for name, weight in weights.items()}),
        "missing. Its files have other weights, such as module.bert.embeddings",
    ),
    "shape": (changed(WEIGHT, lambda weight: weight[:-1].clone()), rf"{WEIGHT} \(31, 64\) instead of \(32, 64\)"),
    "fewer layers": (configured(num_hidden_layers=1), "bert.encoder.layer.1.* and 15 more, unexpected"),
    "part of a head": (without("predictions.transform.dense.bias"), "A head of .* is damaged.*transform.dense"),
    "head that is named": (
        configured(architectures=["BertForTokenClassification"]),
        "BertForTokenClassification without its head: classifier.bias and 1 more, missing",
    ),
    "int8": (changed(WEIGHT, lambda weight: weight.to(torch.int8)), f"{WEIGHT} is int8. Quantized weights are not"),
    "adapter": (lambda directory: (directory / "adapter_config.json").write_text("{}"), "is an adapter .* merge it"),
    "truncated": (lambda directory: truncate(directory / "model.safetensors"), "model.safetensors cannot be read"),
    "none": (lambda directory: (directory / "model.safetensors").unlink(), "neither model.safetensors nor"),
    "training state": (pickled({"model": {}, "step": 1}), "pytorch_model.bin cannot be read: .* named tensors"),
    "code": (pickled({WEIGHT: Malicious()}), "pytorch_model.bin cannot be read: .* named tensors"),
    "shard outside": (indexed({"weight_map": {WEIGHT: "../model.safetensors"}}), "index.json: weight_map.* pattern"),
    "shard missing": (indexed({"weight_map": {WEIGHT: "one.safetensors"}}), "one.safetensors"),
    "no config": (lambda directory: (directory / "config.json").unlink(), "has no config.json"),
    "field": (configured(num_hidden_layers="two"), "config.json cannot be used: .*'num_hidden_layers' expected int"),
    "custom code": (
        configured(model_type="xyz", auto_map={"AutoConfig": "xyz.Config"}),
        "config.json cannot be used: .*trust_remote_code=True",
    ),
    "no heads": (configured(num_attention_heads=0), "cannot be opened: ZeroDivisionError"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_model_is_rejected_with_the_name_of_what_is_wrong(damage, message, model):
    damage(model)
    with pytest.raises((ValueError, OSError), match=message) as raised:
        open_pretrained(str(model))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "There is no model directory"),
        (__file__, "test_open.py is a file: name the directory"),
        ("no/such/place", "There is no model directory no/such/place"),
        ("../nowhere", "There is no model directory ../nowhere"),
    ],
)
@pytest.mark.parametrize("open_it", [load_config, load_tokenizer, find_weights])
def test_name_of_no_model_is_rejected(name, message, open_it):
    with pytest.raises((ValueError, OSError), match=message):
        open_it(name)


@pytest.mark.parametrize("open_it", [load_config, load_tokenizer, find_weights])
def test_name_in_a_directory_that_exists_is_not_looked_for_on_the_hub(open_it, hub, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    requests = len(hub.requests)
    with pytest.raises(
        FileNotFoundError, match="no model directory runs/early: runs is a directory here.* wait for its"
    ):
        open_it("runs/early")
    assert len(hub.requests) == requests


def test_bert_of_2018_without_a_model_type(model):
    edit_config(model, model_type=None)
    with pytest.raises(ValueError, match='it has no model_type. If it is a BERT of 2018 .*, add "model_type": "bert"'):
        load_config(str(model))


def test_checkpoints_of_a_run_without_a_model_are_named(model):
    run = model.parent / "run"
    run.mkdir()
    with pytest.raises(FileNotFoundError, match="run has no config.json, which save_pretrained and Trainer write"):
        load_config(str(run))
    shutil.copytree(model, run / "checkpoint-20")
    shutil.copytree(model, run / "seed-1")
    with pytest.raises(OSError, match="has no config.json, but these in it have: seed-1, checkpoint-20"):
        load_config(str(run))


def test_heads_of_other_labels_are_new_only_where_that_is_wanted(tokenizer, tmp_path):
    make_bert("ForSequenceClassification", tmp_path, tokenizer)
    config = BertConfig.from_pretrained(tmp_path, num_labels=5)
    model, new = open_checkpoint(
        AutoModelForSequenceClassification, str(tmp_path), config, ["missing", "of another shape"]
    )
    assert new == ["classifier.bias", "classifier.weight"] and model.classifier.out_features == 5
    with pytest.raises(ValueError, match=r"A head of .* classifier.bias \(3,\) instead of \(5,\)"):
        open_checkpoint(AutoModelForSequenceClassification, str(tmp_path), config)


def test_model_of_a_diverged_training_is_rejected(tmp_path):
    model = ScratchBertForMaskedLM(ScratchBertConfig(**SMALL))
    torch.nn.init.constant_(model.bert.encoder.layer[1].output.dense.bias, float("inf"))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="bert.encoder.layer.1.output.dense.bias of .* is not finite"):
        open_checkpoint(AutoModelForMaskedLM, str(tmp_path))
