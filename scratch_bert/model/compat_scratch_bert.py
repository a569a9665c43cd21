"""The one place for names of torch and transformers that are not public, or not in all versions, each behind a guard.

A pushed checkpoint keeps this code for good, while private names come and go. Where one is missing, the model takes
the plain path that stands beside it: the same outputs, at most slower or less convenient. No other file that travels
with a checkpoint uses a private name. What transformers documents for custom models, such as `_init_weights`,
`_supports_sdpa` and `config._attn_implementation`, is not private.
"""

import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from transformers.masking_utils import create_bidirectional_mask
from transformers.utils import logging

from .configuration_scratch_bert import OLDEST, release


logger = logging.get_logger(__name__)
OPTIONAL: dict[str, Any] = {}  # "module:name" → the object, or None where this version does not have it


def find(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        OPTIONAL[path] = getattr(import_module(module), name, None)
    except ImportError:
        OPTIONAL[path] = None
    return OPTIONAL[path]


def warn_of_versions() -> None:
    """Say once what this version of PyTorch lacks."""
    if missing := [path.partition(":")[2] for path, found in OPTIONAL.items() if found is None]:
        logger.warning_once(
            f"torch {torch.__version__} has no {', '.join(missing)}: the model computes the same, but slower or without "
            "FakeTensorMode. Its publisher can update its code (push_to_hub.py --update_code)."
        )
    if release(torch.__version__) < release(OLDEST["torch"]):
        logger.warning_once(
            f"This model was tried with torch {OLDEST['torch']} and newer, not with {torch.__version__}."
        )


_FakeTensor = find("torch._subclasses.fake_tensor:FakeTensor")
_in_dispatch_mode = find("torch.utils._python_dispatch:is_in_torch_dispatch_mode")
_in_function_transform = find("torch._C:_are_functorch_transforms_active")
_has_global_hook = find("torch.nn.modules.module:_has_any_global_hook")
_softmax_backward = find("torch:_softmax_backward_data")
varlen_attn = find("torch.nn.attention.varlen:varlen_attn")  # public, but new: some builds are without it


# --------------------------------------------------------------------------------- what may depend on a tensor's values


def is_eager(tensor: torch.Tensor) -> bool:
    """Whether this is an ordinary eager tensor: not traced, compiled, transformed by torch.func, fake or meta.

    Only then may shapes and branches depend on its values. Without the names that tell, no tensor counts as
    eager, and the model computes padding.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if _in_dispatch_mode is None or _in_function_transform is None or _in_dispatch_mode() or _in_function_transform():
        return False
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type != "meta"


def can_branch(tensor: torch.Tensor) -> bool:
    """Whether shapes and branches may depend on the values of `tensor`: torch.compile breaks its graph there."""
    return is_eager(tensor) or (torch.compiler.is_compiling() and not torch.compiler.is_exporting())


def has_values(module: torch.nn.Module) -> bool:
    """Whether the parameters can be drawn at random. Without the name that tells, FakeTensorMode builds no model."""
    return _FakeTensor is None or not any(isinstance(parameter, _FakeTensor) for parameter in module.parameters())


# --------------------------------------------------------------------------------------------- who looks into a module

# Hooks of training that read no shapes: by the packages that define them, or by name.
_TRAINING_PACKAGES = ("torch.", "deepspeed.")
_TRAINING_HOOKS = ("output_capturing_hook", "make_inputs_require_grads", "make_inputs_require_grad")


def _observes(hook: Callable) -> bool:
    hook = getattr(hook, "func", hook)  # of a partial
    package = f"{getattr(hook, '__module__', '')}."
    return not package.startswith(_TRAINING_PACKAGES) and getattr(hook, "__name__", "") not in _TRAINING_HOOKS


def _hooks(module: torch.nn.Module) -> list[dict]:
    return [
        hooks
        for hooks in (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
            module._backward_pre_hooks,
        )
        if hooks
    ]


def is_observed(module: torch.nn.Module) -> bool:
    """Whether something looks into `module`: a hook on any of its parts, or on all modules, or a replaced `forward`.

    Takes no longer than PyTorch's own look for hooks at each call of each part. Where PyTorch keeps its hooks
    elsewhere, every module counts as observed.
    """
    if _has_global_hook is None or _has_global_hook():
        return True
    try:
        found, parts = [], [module]
        for part in parts:  # which grows: several times as fast as module.modules()
            if part is None:
                continue
            found += _hooks(part)
            if "forward" in part.__dict__ and "_hf_hook" not in part.__dict__:  # accelerate's, which moves tensors
                return True
            parts += part._modules.values()
    except AttributeError:
        return True
    return any(_observes(hook) for hooks in found for hook in hooks.values())


def is_plain_linear(module: torch.nn.Module) -> bool:
    """Whether a call of `module` is a product with its weight and nothing else: a subclass or a hook, as of PEFT,
    DeepSpeed or quantization, may replace or fetch the weight."""
    if type(module) is not torch.nn.Linear or _has_global_hook is None or _has_global_hook():
        return False
    try:
        watched = _hooks(module) or "forward" in module.__dict__
    except AttributeError:
        return False
    return not watched and is_eager(module.weight)  # read last: DeepSpeed fetches a weight when it is read


# ---------------------------------------------------------------------------------------- operations and conveniences


def softmax_backward(grad: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The gradient of scores (…, n), from the gradient `grad` of their softmax `weights`."""
    if _softmax_backward is not None:
        return _softmax_backward(grad, weights, -1, weights.dtype)
    grad, weights_32 = grad.float(), weights.float()
    return (weights_32 * (grad - (grad * weights_32).sum(-1, keepdim=True))).to(weights.dtype)


# Skips the check of a mask's values, which would sync with a GPU; not in transformers 5.8.
keep_mask = {"allow_is_bidirectional_skip": False}
if keep_mask.keys() - signature(create_bidirectional_mask).parameters.keys():
    keep_mask = {}


def is_loaded(part: torch.nn.Module | torch.Tensor) -> bool:
    """Whether transformers marks this module or weight as loaded. Without the mark, weights are drawn in vain."""
    return getattr(part, "_is_hf_initialized", False)


def registered_class(model_class: type) -> type:
    """The first of a class and its parents that is registered with an Auto class. Without transformers' mark, itself."""
    return next((each for each in model_class.__mro__ if vars(each).get("_auto_class")), model_class)


def warn_of_unsaved_code(model: torch.nn.Module, package: str) -> None:
    """Say once which parts of a model, subclasses of the `package`'s own, another process will not have: an Auto class
    opens their weights with the original code, without an error. FSDP2's subclasses compute the same."""

    def is_own(cls: type) -> bool:
        return cls.__module__.rpartition(".")[0] == package

    foreign = {
        type(part).__name__
        for part in model.modules()
        if not is_own(type(part)) and any(map(is_own, type(part).__mro__)) and not vars(type(part)).get("_auto_class")
    }
    if names := sorted(name for name in foreign if not name.startswith("FSDP")):
        logger.warning_once(
            f"The code of {', '.join(names)} is not saved: Auto classes will open the weights with the original code "
            "and compute something else. Load them into your own class, or register it (register_for_auto_class)."
        )


def bind_remote_code(package: str, classes: Iterable[type]) -> None:
    """Make those of the `classes` that a checkpoint's `package` defines known to dill and torch.jit, as installed ones
    are.

    transformers loads the modules without binding them in their package, where dill looks for them, and under a name
    that contains the code's hash, which TorchScript's parser rejects if it begins with a digit.
    """
    for each in classes:
        parent, _, name = each.__module__.rpartition(".")
        if parent == package and package in sys.modules:
            setattr(sys.modules[package], name, sys.modules[each.__module__])
            each._jit_override_qualname = f"__torch__.scratch_bert.{each.__name__}"
