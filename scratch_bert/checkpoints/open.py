"""Opening checkpoints: the config, the weights, and which heads they have. All models are opened here."""

import inspect
from collections.abc import Collection, Iterable
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_PRETRAINING_MAPPING,
    AutoConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from ..model.modeling_scratch_bert import AUTO_MODELS
from ..repository import find_file, one_line, read_json
from .weights import find_not_finite, find_weights, read_shapes


ENCODER = "encoder"
# Heads, as the names of model classes end, and their Auto classes: "ForMaskedLM" → "AutoModelForMaskedLM", …
AUTO_CLASSES = {model.__name__.removeprefix("ScratchBert"): name for name, model in AUTO_MODELS.items()}
PRETRAINING_HEADS = {"ForPreTraining": MODEL_FOR_PRETRAINING_MAPPING, "ForMaskedLM": MODEL_FOR_MASKED_LM_MAPPING}


def load_config(name: str, revision: str | None = None, trust_remote_code: bool = False) -> PreTrainedConfig:
    """The config of the model in the directory or Hub repository `name`.

    Raises `ValueError` or `OSError` for a config.json that is missing or invalid, and for custom code without
    `trust_remote_code`.
    """
    file = find_file(name, "config.json", revision, required=True)
    try:
        return AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    except (StrictDataclassError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        reason = explain_error(error)
        if "model_type" not in read_json(file):
            reason = 'it has no model_type. If it is a BERT of 2018 or 2019, add "model_type": "bert"'
        raise ValueError(f"{file} cannot be used: {reason}.") from error


def open_checkpoint(
    model_class: type, name: str, config: PreTrainedConfig | None = None, new_heads=("missing",), **options
) -> tuple[PreTrainedModel, list[str]]:
    """The model in fp32, and the names of its weights that are randomly initialised, as in `find_new_weights`.

    `model_class` is a model's class or an Auto class, `options` are those of its `from_pretrained`, `config` replaces
    the checkpoint's own. Raises the errors of `find_new_weights`, and `ValueError` if a weight is not finite.
    """
    config = config or load_config(name, trust_remote_code=options.get("trust_remote_code", False))
    _, new = find_new_weights(model_class, name, config, new_heads, **options)
    model, _ = load_with_mismatches(model_class, name, config=config, dtype=torch.float32, **options)
    check_finite_weights(model, name)
    return model, new


def open_pretrained(
    name: str, config: PreTrainedConfig | None = None, with_nsp: bool = True, **options
) -> tuple[PreTrainedModel, frozenset[str]]:
    """The model in fp32 with the head that `find_head` finds, and what it predicts: MaskedLM, NextSentencePrediction,
    both or nothing, or SequenceClassification, … A fine-tuned model must have all weights of its head.

    Options and errors are those of `open_checkpoint`.
    """
    config = config or load_config(name, trust_remote_code=options.get("trust_remote_code", False))
    head = find_head(name, config, with_nsp, **options)
    new_heads = ("missing",) if head == "Model" else ()
    model, _ = open_checkpoint(getattr(transformers, AUTO_CLASSES[head]), name, config, new_heads, **options)
    predicts = {"Model": [], "ForPreTraining": ["MaskedLM", "NextSentencePrediction"]}
    return model, frozenset(predicts.get(head, [head.removeprefix("For")]))


def find_head(name: str, config: PreTrainedConfig, with_nsp: bool = True, **options) -> str:
    """The head that the checkpoint `name` has, as a key of `AUTO_CLASSES`: "Model" if there is none.

    A fine-tuned head is the one that the config names. For pretraining heads the weights decide, since the configs of
    published BERTs with an NSP head name BertForMaskedLM; the NSP head is looked for `with_nsp`. Raises the errors of
    `find_new_weights`.
    """
    named = named_head(config)
    if named not in (*PRETRAINING_HEADS, "Model"):
        return named
    for head, models in PRETRAINING_HEADS.items():
        auto_class = AUTO_CLASSES[head]
        exists = type(config) in models or auto_class in (getattr(config, "auto_map", None) or {})
        if exists and (with_nsp or head == "ForMaskedLM"):
            model, new = find_new_weights(getattr(transformers, auto_class), name, config, **options)
            has_nsp_head = "next_sentence_label" in inspect.signature(model.forward).parameters
            if not new and has_nsp_head == (head == "ForPreTraining"):
                return head
    return "Model"


def named_head(config: PreTrainedConfig) -> str:
    """The head that a config names, as a key of `AUTO_CLASSES`: "Model" if it is none of these."""
    architecture = (config.architectures or [""])[0]
    return next((head for head in AUTO_CLASSES if head != "Model" and architecture.endswith(head)), "Model")


def check_finite_weights(model: PreTrainedModel, name: str) -> None:
    """Raise `ValueError` if a weight of the model from the directory or Hub repository `name` is not finite."""
    if weight := find_not_finite(model.named_parameters()):
        raise ValueError(f"The weight {weight} of {name} is not finite: the training that saved it diverged.")


def find_new_weights(
    model_class: type, name: str, config: PreTrainedConfig, new_heads: Collection[str] = ("missing",), **options
) -> tuple[PreTrainedModel, list[str]]:
    """The model on the meta device, and the sorted names of the weights that `from_pretrained` would initialise
    randomly: those of heads whose state, as in `part_states`, is one of `new_heads`.

    Raises `ValueError`, which names the weights, if the encoder is not exactly the one that the config describes, or
    if a head is neither complete nor in one of these states; and the errors of `find_weights` and `read_shapes`.
    """
    read_shapes(find_weights(name, options.get("revision")))
    model, mismatches = load_with_mismatches(model_class, name, config=config, device_map="meta", **options)
    for part, state in part_states(model, mismatches).items():
        if state == "complete" or part != ENCODER and state in new_heads:
            continue
        fault = next(
            f"{first_name(weights)}, {problem}"
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
    """The state of each part of the model (encoder, pooler, heads) in the files: `complete`, `missing`, `partial`, or
    with weights `of another shape`; `unexpected` for an encoder that has more weights there."""
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


def _part(weight: str, model: PreTrainedModel) -> str:
    """The part of a model that a weight of this name belongs to: the encoder, the pooler, or a head."""
    first, _, rest = weight.removeprefix(f"{model.base_model_prefix}.").partition(".")
    if first in dict(model.base_model.named_children()):
        return "pooler" if first == "pooler" else ENCODER
    return f"cls.{rest.partition('.')[0]}" if first == "cls" else "head"


def is_of_head(weight: str, model: PreTrainedModel) -> bool:
    """Whether the weight of this name is that of a head."""
    return _part(weight, model) not in (ENCODER, "pooler")


def load_with_mismatches(
    model_class: type[Any], name: str, **options
) -> tuple[PreTrainedModel, dict[str, dict[str, str]]]:
    """`from_pretrained`, and the weights that are `missing` in the files, `of another shape` or `unexpected`: each
    name with its entry in a message. Raises `ValueError` if the model can't be opened."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # the callers report the mismatches
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        model, report = model_class.from_pretrained(name, **options)
    except (OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of any code that a damaged file or a custom model runs
        raise ValueError(f"The model {name} cannot be opened: {explain_error(error)}.") from error
    finally:
        logging.set_verbosity(verbosity)
    shapes = {
        key: f"{key} {tuple(found)} instead of {tuple(wanted)}" for key, found, wanted in report["mismatched_keys"]
    }
    missing, unexpected = ({key: key for key in report[f"{problem}_keys"]} for problem in ("missing", "unexpected"))
    return model, {"missing": missing, "of another shape": shapes, "unexpected": unexpected}


def explain_error(error: BaseException) -> str:
    """An error of a config or a model in one line: its message, and the kind of an error that is not a ValueError."""
    if isinstance(error, StrictDataclassError) and error.__cause__:
        error = error.__cause__
    message = one_line(error).rstrip(".")
    return message if isinstance(error, ValueError) else f"{type(error).__name__}: {message}"


def first_name(names: Iterable[str]) -> str:
    """The first of these names, and the number of others."""
    first, *others = sorted(names)
    return f"{first} and {len(others)} more" if others else first
