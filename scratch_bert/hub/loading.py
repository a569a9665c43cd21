"""Opening checkpoints: config, weights, and which pretraining heads there are."""

import inspect
import pickle
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForPreTraining, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging


WEIGHTS = "model.safetensors"


def load_config(name: str, **options) -> PreTrainedConfig:
    """`AutoConfig.from_pretrained`. Raises `ValueError` or `OSError` that names the file."""
    if name.count("/") != 1 and not Path(name).exists() and Path(name).parent != Path("."):
        raise FileNotFoundError(f"There is no model directory {name}.")  # and no repository has such a name
    try:
        return AutoConfig.from_pretrained(name, **options)
    except (TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"The config.json of {name} cannot be read ({error}): save the model again.") from error


def open_checkpoint(model_class: type, name: str, **options) -> tuple[PreTrainedModel, list[str]]:
    """The model in fp32, and the names of the weights that are randomly initialised: missing in the checkpoint, or of
    another shape there.

    `model_class` is a model's class or an Auto class, `options` are those of its `from_pretrained`. Raises `ValueError`
    if config or weights cannot be read, if a weight is not finite, or if the encoder's weights are not exactly those that
    the config describes.
    """
    if "config" not in options:
        options["config"] = load_config(name, trust_remote_code=options.get("trust_remote_code", False))
    model, mismatches = load_with_mismatches(model_class, name, dtype=torch.float32, **options)
    encoder_weight = re.compile(rf"{re.escape(model.base_model_prefix)}\.(?!pooler\.)")
    for problem, entries in mismatches.items():
        names = [entry for entry in entries if encoder_weight.match(entry)]
        if names:
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ValueError(f"The weights of {name} do not fit its config.json: {names[0]}{others}, {problem}.")
    if weight := find_not_finite(model.named_parameters()):
        raise ValueError(f"The weight {weight} of {name} is not finite: the training that saved it diverged.")
    return model, sorted({entry.split()[0] for entry in mismatches["missing"] + mismatches["of another shape"]})


def open_pretrained(name: str, with_nsp: bool = True, **options) -> tuple[PreTrainedModel, bool]:
    """The model in fp32 with its MLM head, and whether it has an NSP head, too, which is looked for `with_nsp`.

    The weights decide: configs of published BERTs name BertForMaskedLM where there is an NSP head as well. `options` are
    those of `open_checkpoint`. Raises `ValueError` if there is no MLM head.
    """
    if with_nsp:
        with suppress(ValueError):  # an architecture without such a class
            model, missing = open_checkpoint(AutoModelForPreTraining, name, **options)
            if not missing and "next_sentence_label" in inspect.signature(model.forward).parameters:
                return model, True
    model, missing = open_checkpoint(AutoModelForMaskedLM, name, **options)
    if missing:
        raise ValueError(f"{name} has no MLM head: {', '.join(missing)} are missing.")
    return model, False


def load_with_mismatches(model_class: type, name: str, **options) -> tuple[PreTrainedModel, dict[str, list[str]]]:
    """`from_pretrained`, and the weights that are `missing` in the files, `unexpected` or `of another shape`, sorted.

    Raises `ValueError` if the files cannot be read.
    """
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # the callers report the mismatches
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        model, report = model_class.from_pretrained(name, **options)
    except (SafetensorError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"The weights of {name} cannot be read, a file may be truncated: {error}") from None
    finally:
        logging.set_verbosity(verbosity)
    shapes = [f"{key} {tuple(found)} instead of {tuple(wanted)}" for key, found, wanted in report["mismatched_keys"]]
    mismatches = {
        "missing": report["missing_keys"],
        "unexpected": report["unexpected_keys"],
        "of another shape": shapes,
    }
    return model, {problem: sorted(entries) for problem, entries in mismatches.items()}


def find_not_finite(weights: Iterable[tuple[str, torch.Tensor]]) -> str | None:
    """The name of the first weight with a NaN or an infinity."""
    return next((name for name, weight in weights if not weight.isfinite().all()), None)


def is_complete_safetensors(file: Path) -> bool:
    """Whether a safetensors file exists and has the length that its header states."""
    try:
        with safe_open(file, framework="pt"):
            return True
    except (OSError, SafetensorError):
        return False
