"""Opening checkpoints: config, weights, and which heads there are. What opens a model opens it here."""

import inspect
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_PRETRAINING_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from ..repository import find_file, one_line, read_json
from .weights import UNREADABLE, find_not_finite, find_weights, read_shapes


MAX_LABELS = 1_000_000  # a config lists the names of all labels
ENCODER = "encoder"


def load_config(name: str, revision: str | None = None, trust_remote_code: bool = False) -> PreTrainedConfig:
    """The config of the model in the directory or Hub repository `name`.

    Raises `ValueError` or `OSError`, which names the file, for a config.json that is missing or makes no config, and
    for custom code without `trust_remote_code`.
    """
    file = find_file(name, "config.json", revision, required=True)
    check_config(read_json(file), file, trust_remote_code)
    try:
        return AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    except (StrictDataclassError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{file} cannot be used: {reason(error)}. Save the model again.") from error


def check_config(content: dict[str, Any], file: Path, trust_remote_code: bool = False) -> None:
    """Raise `ValueError` for the `content` of a config.json that transformers would not understand."""
    model_type, auto_map = content.get("model_type"), content.get("auto_map", {})
    if not isinstance(auto_map, dict):
        raise ValueError(f"{file}: auto_map is {auto_map!r}, not an object. Save the model again.")
    if model_type is None:
        raise ValueError(
            f'{file} has no model_type, as before 2020: add "model_type": "bert" there if this is a BERT.'
        )
    if not isinstance(model_type, str):
        raise ValueError(f"{file}: model_type is {model_type!r}, not the name of a type of model.")
    if model_type not in CONFIG_MAPPING and not (trust_remote_code and auto_map):
        if auto_map:
            raise ValueError(f"{file}: {model_type} needs custom code, which is not run without trust_remote_code.")
        raise ValueError(f"{file}: there is no model_type {model_type!r} in the installed version of transformers.")
    architectures = content.get("architectures") or []
    if not (isinstance(architectures, list) and all(isinstance(name, str) for name in architectures)):
        raise ValueError(f"{file}: architectures is {architectures!r}, not a list of names.")
    if content.get("quantization_config") is not None:
        raise ValueError(f"{file}: the model is quantized, which is not supported. Save it in fp32, fp16 or bf16.")
    if content.get("transformers_weights") is not None:
        raise ValueError(
            f"{file}: transformers_weights names other weights than those beside it: save the model again."
        )
    labels, names = content.get("num_labels"), content.get("id2label")
    if isinstance(labels, int) and not 1 <= labels <= MAX_LABELS:
        raise ValueError(f"{file}: num_labels is {labels:,}. A model has from 1 to {MAX_LABELS:,} labels.")
    if names is not None and not isinstance(names, dict):
        raise ValueError(f"{file}: id2label is {names!r:.80}, not an object from numbers to names.")
    for field in ("dtype", "torch_dtype"):
        dtype = content.get(field)
        if dtype is not None and not isinstance(getattr(torch, str(dtype).removeprefix("torch."), None), torch.dtype):
            raise ValueError(f"{file}: {field} is {dtype!r}, which is no dtype of PyTorch.")
    if isinstance(names, dict) and sorted(names) != sorted(str(number) for number in range(len(names))):
        raise ValueError(f"{file}: id2label must name the labels 0 to {len(names) - 1}.")


def open_checkpoint(
    model_class: type, name: str, config: PreTrainedConfig | None = None, new_heads=("missing",), **options
) -> tuple[PreTrainedModel, list[str]]:
    """The model in fp32, and the names of its weights that are randomly initialised, as in `find_new_weights`.

    `model_class` is a model's class or an Auto class, `options` are those of its `from_pretrained`, `config` replaces
    the checkpoint's own. Raises the errors of `find_new_weights`, and `ValueError` if a weight is not finite.
    """
    config = config or load_config(name, trust_remote_code=options.get("trust_remote_code", False))
    _, new = find_new_weights(model_class, name, config, new_heads, **options)
    return _load_checked(model_class, name, config, **options), new


def open_pretrained(
    name: str, config: PreTrainedConfig | None = None, with_nsp: bool = True, **options
) -> tuple[PreTrainedModel, frozenset[str]]:
    """The model in fp32, and the pretraining heads that it has weights for: none, MaskedLM, or NextSentencePrediction
    as well, which is looked for `with_nsp`.

    The weights decide: configs of published BERTs name BertForMaskedLM where there is an NSP head as well. Options and
    errors are those of `open_checkpoint`.
    """
    config = config or load_config(name, trust_remote_code=options.get("trust_remote_code", False))
    candidates = [(AutoModelForPreTraining, MODEL_FOR_PRETRAINING_MAPPING, ["MaskedLM", "NextSentencePrediction"])]
    candidates = candidates * with_nsp + [(AutoModelForMaskedLM, MODEL_FOR_MASKED_LM_MAPPING, ["MaskedLM"])]
    for auto_class, classes, heads in candidates:
        if type(config) in classes or auto_class.__name__ in (getattr(config, "auto_map", None) or {}):
            model, new = find_new_weights(auto_class, name, config, **options)
            has_nsp_head = "next_sentence_label" in inspect.signature(model.forward).parameters
            if not new and has_nsp_head == ("NextSentencePrediction" in heads):
                return _load_checked(auto_class, name, config, **options), frozenset(heads)
    return open_checkpoint(AutoModel, name, config, **options)[0], frozenset()


def _load_checked(model_class: type, name: str, config: PreTrainedConfig, **options) -> PreTrainedModel:
    """The model in fp32, after `find_new_weights`. Raises `ValueError` if a weight is not finite."""
    model, _ = load_with_mismatches(model_class, name, config=config, dtype=torch.float32, **options)
    check_finite(model, name)
    return model


def check_finite(model: PreTrainedModel, name: str) -> None:
    """Raise `ValueError` if a weight of the model from the directory or Hub repository `name` is not finite."""
    if weight := find_not_finite(model.named_parameters()):
        raise ValueError(f"The weight {weight} of {name} is not finite: the training that saved it diverged.")


def find_new_weights(
    model_class: type, name: str, config: PreTrainedConfig, new_heads: Collection[str] = ("missing",), **options
) -> tuple[PreTrainedModel, list[str]]:
    """The model without values, on the meta device, and the names of the weights that `from_pretrained` would
    initialise randomly, sorted: those of heads in the states `new_heads`, of those that `part_states` tells apart.

    Raises `ValueError`, which names the weights, if the encoder is not exactly the one that the config describes, or
    if a head is neither complete nor in one of these states; and the errors of `check_weights`.
    """
    check_weights(name, config)
    model, mismatches = load_with_mismatches(model_class, name, config=config, device_map="meta", **options)
    for part, state in part_states(model, mismatches).items():
        if state == "complete" or part != ENCODER and state in new_heads:
            continue
        fault = next(
            f"{some(weights)}, {problem}"
            for problem, entries in mismatches.items()
            if (weights := [entry for weight, entry in entries.items() if _part(weight, model) == part])
        )
        if part == ENCODER:
            others = mismatches["unexpected"] if state == "missing" else ()
            instead = f" Its files have other weights, such as {min(others)}." if others else ""
            raise ValueError(f"The weights of {name} do not fit its config.json: {fault}.{instead}")
        if state == "missing":
            raise ValueError(f"{name} is a {type(model).__name__} without its head: {fault}. Save the model again.")
        raise ValueError(f"A head of {name} is damaged, or not the one that its config.json describes: {fault}.")
    return model, sorted(mismatches["missing"] | mismatches["of another shape"])


def part_states(model: PreTrainedModel, mismatches: dict[str, dict[str, str]]) -> dict[str, str]:
    """Whether each part of the model, the encoder, the pooler and each head, is in the files: `complete`, `missing`,
    `partial`, or complete but for weights `of another shape`. An encoder is `unexpected` if they hold more weights of
    it."""
    problems: dict[str, set[str]] = {}
    for weight in model.state_dict().keys() - model.all_tied_weights_keys.keys():
        problem = next((problem for problem, entries in mismatches.items() if weight in entries), "complete")
        problems.setdefault(_part(weight, model), set()).add(problem)
    if any(_part(weight, model) == ENCODER for weight in mismatches["unexpected"]):
        problems[ENCODER].add("unexpected")
    return {
        part: "partial" if "missing" in found and len(found) > 1 else max(found - {"complete"}, default="complete")
        for part, found in sorted(problems.items(), key=lambda item: (item[0] != ENCODER, item[0]))
    }


def check_weights(name: str, config: PreTrainedConfig, revision: str | None = None) -> None:
    """Raise the errors of `find_weights` and `read_shapes`, and `ValueError` if the config describes a model that is
    far larger than the files: with more layers than they have weights, or wider than any. To build it would take
    hours."""
    shapes = [tuple(weight.shape) for weight in read_shapes(*find_weights(name, revision)).values()]
    widest = max((size for shape in shapes for size in shape), default=0)
    for field, value in config.to_dict().items():
        limit = len(shapes) if "layer" in field else widest if field in ("hidden_size", "intermediate_size") else None
        if limit is not None and isinstance(value, int) and value > limit:
            has = f"{limit:,} weights" if "layer" in field else f"no weight with a dimension above {limit:,}"
            raise ValueError(
                f"The weights of {name} do not fit its config.json: {field} is {value:,}, but it has {has}."
            )


def _part(weight: str, model: PreTrainedModel) -> str:
    """The part of a model that a weight of this name belongs to: the encoder, the pooler, or a head."""
    first, _, rest = weight.removeprefix(f"{model.base_model_prefix}.").partition(".")
    if first in dict(model.base_model.named_children()):
        return "pooler" if first == "pooler" else ENCODER
    return f"cls.{rest.partition('.')[0]}" if first == "cls" else "head"


def reason(error: BaseException) -> str:
    """The message of an error of a config or a model in one line; with the kind of error, unless that tells nothing."""
    if isinstance(error, StrictDataclassError) and error.__cause__:
        error = error.__cause__
    message = one_line(error).rstrip(".")
    return message if isinstance(error, ValueError) else f"{type(error).__name__}: {message}"


def some(names: Iterable[str]) -> str:
    """The first of these names, and the number of others."""
    first, *others = sorted(names)
    return f"{first} and {len(others)} more" if others else first


def load_with_mismatches(
    model_class: type[Any], name: str, **options
) -> tuple[PreTrainedModel, dict[str, dict[str, str]]]:
    """`from_pretrained`, and the weights that are `missing` in the files, `of another shape` or `unexpected`: each
    name with its entry in a message.

    Raises `ValueError` if the files cannot be read.
    """
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # the callers report the mismatches
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        model, report = model_class.from_pretrained(name, **options)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except (*UNREADABLE, ImportError, StrictDataclassError) as error:
        raise ValueError(f"The model {name} cannot be opened: {reason(error)}.") from error
    finally:
        logging.set_verbosity(verbosity)
    shapes = {
        key: f"{key} {tuple(found)} instead of {tuple(wanted)}" for key, found, wanted in report["mismatched_keys"]
    }
    missing, unexpected = ({key: key for key in report[f"{problem}_keys"]} for problem in ("missing", "unexpected"))
    return model, {"missing": missing, "of another shape": shapes, "unexpected": unexpected}
