"""Private names of transformers, accelerate and torch that the package relies on: a release that changes one fails
here, with the name. Not among them: the model's own, in tests/model/test_compat.py, and the plugin interface of
PreTrainedModel (`_init_weights`)."""

import ast
import importlib
import inspect
import pkgutil
from multiprocessing.queues import Queue

import datasets
import pytest
import torch
import transformers
from accelerate.data_loader import DataLoaderShard
from transformers import PreTrainedModel, Trainer
from transformers.utils import PushInProgress

import scratch_bert
from helpers import ROOT


# Attributes, with an object that has each; the last ones are public, but without documentation.
ATTRIBUTES = {
    "_last_lr": torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD([torch.zeros(1)], lr=0.1)),
    "_on_queue_feeder_error": Queue,
    "_get_default_store": torch.distributed.distributed_c10d,
    "_foreach_add_": torch,
    "_foreach_lerp": torch,
    "_foreach_lerp_": torch,
    "_foreach_mul_": torch,
    "_fingerprint": datasets.Dataset.from_dict({"text": ["a"]}),
    "_from_config": PreTrainedModel,
    "base_dataloader": DataLoaderShard([1, 2]),
    "is_done": PushInProgress,
    "wait_until_done": PushInProgress,
}
IMPORTS = {"torch._utils"}
NAMEDTUPLE = {"_asdict", "_replace"}  # public methods, in spite of their names


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.fixture(scope="module")
def trainers():
    """Our subclasses of Trainer."""
    for package in ("training", "pretraining", "finetuning"):
        for module in pkgutil.iter_modules([ROOT / "scratch_bert" / package]):
            importlib.import_module(f"scratch_bert.{package}.{module.name}")

    def subclasses(parent):
        return {other for child in parent.__subclasses__() for other in (child, *subclasses(child))}

    return [child for child in subclasses(Trainer) if child.__module__.startswith(f"{scratch_bert.__name__}.")]


def names_in_the_package() -> tuple[set[str], set[str], set[str]]:
    """Private names that the package does not define: of `self` and `super()`, of other objects, and of imported
    modules."""
    of_self, of_others, imported, own = set(), set(), set(), set()
    for file in (ROOT / "scratch_bert").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if file.parent.name != "model" else ():
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                private = [alias.name for alias in node.names if is_private(alias.name)]
                imported |= {f"{node.module}.{name}" for name in private} or {node.module}
            elif isinstance(node, ast.Attribute) and is_private(node.attr):
                owner = ast.unparse(node.value)
                if owner == "self" and isinstance(node.ctx, ast.Store):
                    own.add(node.attr)
                (of_self if owner in ("self", "super()") else of_others).add(node.attr)
    private = {name for name in imported if any(map(is_private, name.split(".")))}
    return of_self - own, of_others - own - NAMEDTUPLE, private


def test_private_names_of_other_libraries_exist_and_are_listed():
    of_self, of_others, imported = names_in_the_package()
    assert of_self and all(hasattr(Trainer, name) for name in of_self), of_self
    assert imported == IMPORTS, "Each is a risk: use a public name, or list it."
    assert of_others == {name for name in ATTRIBUTES if is_private(name)}, "As above."
    assert [name for name, owner in ATTRIBUTES.items() if not hasattr(owner, name)] == []


def test_private_methods_of_trainer_that_are_overridden_are_five_at_most(trainers):
    overridden = {name for child in trainers for name in vars(child) if is_private(name) and hasattr(Trainer, name)}
    assert 0 < len(overridden) <= 5, f"Use a public hook instead of one of {sorted(overridden)}."


@pytest.mark.skipif(not transformers.__version__.startswith("5.23."), reason="other versions have other parameters")
def test_overriding_methods_take_the_parameters_of_the_stock_trainer(trainers):
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    overrides = {(child, name): getattr(Trainer, name, None) for child in trainers for name in vars(child)}
    for (child, name), stock in overrides.items():
        method = vars(child)[name]
        if inspect.isfunction(method) and inspect.isfunction(stock) and name != "__init__":
            parameters = inspect.signature(method).parameters.values()
            named = [parameter.name for parameter in parameters if parameter.kind not in variable]
            expected = list(inspect.signature(stock).parameters)
            takes_more = len(named) < len(parameters)
            assert named == (expected[: len(named)] if takes_more else expected), f"Adapt {child.__name__}.{name}."
