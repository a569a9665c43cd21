"""Conversion from transformers' BERT to scratch_bert and back: the config changes; tensors and their names stay, except
that BERT stores the bias of its MLM head twice."""

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import BertConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import CONFIG_NAME

from scratch_bert_options.outputs import check_new_dir

from ..atomic import write_json
from ..checkpoints.open import (
    check_finite_weights,
    explain_error,
    find_head,
    find_new_weights,
    first_name,
    load_config,
    load_with_mismatches,
    named_head,
)
from ..corpus.tokenizer import has_tokenizer, load_tokenizer
from ..model import modeling_scratch_bert
from ..model.configuration_scratch_bert import BERT_VALUES, COMPUTE_FIELDS, INITIALIZATION_FIELDS, ScratchBertConfig
from ..repository import read_json
from .model_card import write_conversion_card


CONFIGS = {"bert": BertConfig, "scratch_bert": ScratchBertConfig}
MODELS = {"bert": (transformers, "Bert"), "scratch_bert": (modeling_scratch_bert, "ScratchBert")}  # module, prefix
# Not converted: fields that the target's class sets itself, how the model computes, and how it is initialised.
_NOT_CONVERTED = (
    {*COMPUTE_FIELDS, *INITIALIZATION_FIELDS, "use_cache"}
    | {"model_type", "architectures", "auto_map", "code_version", "transformers_version", "dtype", "_name_or_path"}
    | {"output_attentions", "output_hidden_states", "return_dict"}
)  # fmt: skip


@dataclass
class Conversion:
    model_class: str
    """Name of the result's class."""
    difference: float
    """Largest difference between the outputs of the source and of the result, reloaded from its files, in fp32."""
    has_tokenizer: bool
    has_card: bool
    dropped: list[str]
    """Pooler weights that the head does not use: old versions of transformers saved them with every head."""


def convert_checkpoint(
    source: str | Path, destination: str | Path, to: str = "scratch_bert", revision: str | None = None
) -> Conversion:
    """Write a checkpoint with any head as a model of the type `to`, and its model card, adapted.

    Args:
        source: A directory or a Hub repository.
        destination: A directory, new or empty.
        to: `bert` or `scratch_bert`.
        revision: Branch, tag or commit of the source's repository.

    Raises:
        ValueError, OSError: if the source is of another type, incomplete or damaged, has a tokenizer that is larger
            than the model or an option that the target does not support, if the outputs of the two models differ, or
            if `destination` can't be written. Then nothing is written.
    """
    check_new_dir("destination", Path(destination))
    source, destination = str(source), Path(destination).resolve()
    config = load_config(source, revision)
    if config.model_type not in CONFIGS or config.model_type == to:
        wanted = ", ".join(name for name in CONFIGS if name != to)
        raise ValueError(f"{source} is a model of type {config.model_type}. A conversion to {to} needs type {wanted}.")
    tokenizer = None
    if has_tokenizer(source, revision):
        tokenizer = load_tokenizer(source, revision=revision, vocab_size=config.vocab_size)
    target_config = convert_config(config, to)
    model, dropped = _load_with_head(source, config, revision)
    check_finite_weights(model, source)
    head = type(model).__name__.removeprefix(MODELS[config.model_type][1])
    target_class = _model_class(to, head)
    options: dict[str, Any] = {"add_pooling_layer": False} if head == "Model" and model.pooler is None else {}
    dtype = torch.float32 if getattr(config, "embedding_size", None) else model.dtype  # to multiply embeddings
    target = target_class._from_config(target_config, dtype=dtype, **options)
    target.load_state_dict(_converted_weights(model, to))

    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent) as scratch:
        result = Path(scratch, destination.name)
        target.save_pretrained(result)
        if to == "bert" and head == "ForPreTraining":  # SparseEncoder looks here for a masked LM
            saved = read_json(result / CONFIG_NAME)
            write_json(result / CONFIG_NAME, saved | {"architectures": [target_class.__name__, "BertForMaskedLM"]})
        if tokenizer:
            tokenizer.save_pretrained(result)
        difference, scale = compare_outputs(model, target_class.from_pretrained(result, **options))
        if not difference <= 1e-4 * max(1.0, scale):
            raise ValueError(f"The outputs of the result differ from those of {source} by {difference:.2g}.")
        has_card = write_conversion_card(result, destination, target, difference, source, revision)
        os.replace(result, destination)
    return Conversion(target_class.__name__, difference, tokenizer is not None, has_card, dropped)


def convert_config(config: PreTrainedConfig, to: str) -> PreTrainedConfig:
    """`config` converted to the type `to`. Raises `ValueError` for an option that the type does not support."""
    values = {name: value for name, value in config.to_dict().items() if name not in _NOT_CONVERTED}
    if to == "bert":
        if values["head_dim"] == config.hidden_size / config.num_attention_heads:
            values["head_dim"] = None
        for name, plain in BERT_VALUES.items():
            value = values.pop(name)
            if value != plain and name != "embedding_size":  # whose factors are multiplied
                raise ValueError(f"{name} is {value!r}, which BertConfig does not support: it must be {plain!r}.")
    try:
        return CONFIGS[to](**values)
    except StrictDataclassError as error:
        raise ValueError(f"This {config.model_type}'s config does not fit {to}: {explain_error(error)}") from error


def _converted_weights(model: PreTrainedModel, to: str) -> dict[str, torch.Tensor]:
    """The weights as the type `to` has them: factorised embeddings multiplied out; and of the two biases of its MLM
    head, BERT uses the second."""
    weights = model.state_dict()
    for name in [name for name in weights if name.endswith("projection.weight")]:
        table = name.replace("projection", "decoder" if name.startswith("cls.") else "word_embeddings")
        weights[table] = weights[table].float() @ weights.pop(name).float()
    name, second = "cls.predictions.bias", "cls.predictions.decoder.bias"
    if name not in weights:
        return weights
    if to == "bert":
        return weights | {second: weights[name]}
    return {key: tensor for key, tensor in weights.items() if key != second} | {name: weights[second]}


def _model_class(model_type: str, head: str) -> type[PreTrainedModel]:
    module, prefix = MODELS[model_type]
    return getattr(module, prefix + head)


def _load_with_head(source: str, config: PreTrainedConfig, revision: str | None) -> tuple[PreTrainedModel, list[str]]:
    """The model whose class has exactly the weights in the files, and the names of unused pooler weights."""
    architecture = (config.architectures or [""])[0]
    if named_head(config) == "Model" and architecture.removeprefix("Scratch") not in ("", "BertModel"):
        raise ValueError(f"{source} is a {architecture}, which has no counterpart.")
    config.dtype = None  # else the weights are cast to the dtype that the config names
    options: dict[str, Any] = {"config": config, "revision": revision}
    head = find_head(source, config, revision=revision)
    model_class = _model_class(config.model_type, head)
    _, new = find_new_weights(model_class, source, new_heads=["missing"] * (head == "Model"), **options)
    if new:
        options["add_pooling_layer"] = False
    model, mismatches = load_with_mismatches(model_class, source, dtype="auto", **options)
    dropped = sorted(key for key in mismatches["unexpected"] if re.match(r"(bert\.)?pooler\.", key))
    if unexpected := mismatches["unexpected"].keys() - set(dropped):
        raise ValueError(f"{source} has weights that {model_class.__name__} lacks: {first_name(unexpected)}.")
    return model, dropped


@torch.no_grad()
def compare_outputs(model: PreTrainedModel, other: PreTrainedModel) -> tuple[float, float]:
    """The largest difference between two models' outputs, and the largest output: in fp32, for the real tokens of a
    small random batch."""
    config = model.config
    generator = torch.Generator().manual_seed(0)
    batch_size, length = 4, min(64, config.max_position_embeddings)
    mask = (torch.arange(length) < torch.tensor([length, length // 2, 3, 1])[:, None]).long()
    ids = torch.randint(config.vocab_size, (batch_size, length), generator=generator) * mask
    types = torch.randint(config.type_vocab_size, (batch_size, length), generator=generator) * mask
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    if type(model).__name__.endswith("MultipleChoice"):
        inputs = {name: values[:, None].repeat(1, 2, 1) for name, values in inputs.items()}
    inputs |= {"return_dict": True, "output_hidden_states": False, "output_attentions": False}
    differences, magnitudes = [], []
    outputs = (m.float().eval()(**inputs).to_tuple() for m in (model, other))
    for expected, found in zip(*outputs, strict=True):
        if expected.shape[:2] == mask.shape:  # outputs at padded positions are undefined
            expected, found = expected[mask.bool()], found[mask.bool()]
        differences.append((expected - found).abs().max())
        magnitudes.append(expected.abs().max())
    return torch.stack(differences).max().item(), torch.stack(magnitudes).max().item()  # NaN if there is a NaN
