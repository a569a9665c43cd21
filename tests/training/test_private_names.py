"""Private names of transformers, accelerate and torch that the package relies on: a release that changes one fails here, with the
name and the file to look at. The plugin interface of PreTrainedModel (`_init_weights`, `_supports_…`) is not among them."""

import ast
import importlib
import inspect
import pkgutil
from multiprocessing.queues import Queue

import accelerate
import datasets
import pytest
import torch
import transformers
from accelerate.data_loader import DataLoaderShard
from transformers import PreTrainedModel, Trainer
from transformers.utils import PushInProgress

import scratch_bert
from helpers import ROOT


# Methods of Trainer: the parameters that we rely on, and the file that does.
TRAINER, PRETRAINING = "scratch_bert/training/trainer.py", "scratch_bert/pretraining/trainer.py"
OVERRIDDEN = {
    "_determine_best_metric": (["metrics", "trial"], TRAINER),
    "_finalize_training": (["trial", "num_train_samples", "start_time"], TRAINER),
    "_get_train_sampler": (["train_dataset"], PRETRAINING),
    "_load_optimizer_and_scheduler": (["checkpoint"], TRAINER),
    "_save_checkpoint": (["model", "trial"], TRAINER),
}
CALLED = {
    "_get_output_dir": (["trial"], TRAINER),
    "_save_optimizer_and_scheduler": (["output_dir"], TRAINER),
    "_save_rng_state": (["output_dir"], TRAINER),
    "_save_scaler": (["output_dir"], TRAINER),
    "save_model": (["output_dir", "_internal_call"], TRAINER),
    "set_initial_training_values": (
        ["args", "dataloader"],
        TRAINER,
    ),  # public, but its result is an undocumented tuple
    "create_accelerator_and_postprocess": ([], TRAINER),  # these two are public, but without documentation
    "autocast_smart_context_manager": (["cache_enabled"], TRAINER),
}
# Other names: an object that has it, and the file.
SCHEDULER = torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD([torch.zeros(1)], lr=0.1))
OTHERS = {
    "_last_lr": (SCHEDULER, TRAINER),
    "_on_queue_feeder_error": (Queue, "scratch_bert/training/callbacks.py"),
    "_get_default_store": (torch.distributed.distributed_c10d, "scratch_bert/training/callbacks.py"),
    "base_dataloader": (DataLoaderShard([1, 2]), "scratch_bert/training/callbacks.py"),
    "is_done": (PushInProgress, "scratch_bert/training/callbacks.py"),
    "wait_until_done": (PushInProgress, "scratch_bert/training/callbacks.py"),
    "_foreach_add_": (torch, "scratch_bert/pretraining/optimizer.py"),
    "_foreach_lerp": (torch, "scratch_bert/pretraining/optimizer.py"),
    "_foreach_lerp_": (torch, "scratch_bert/pretraining/optimizer.py"),
    "_foreach_mul_": (torch, "scratch_bert/pretraining/optimizer.py"),
    "_fingerprint": (datasets.Dataset.from_dict({"text": ["a"]}), "scratch_bert/text/formats.py"),
    "_from_config": (PreTrainedModel, "scratch_bert/hub/conversion.py"),
}
NAMEDTUPLE = {"_asdict", "_replace"}  # public methods, in spite of their names
VERSIONS = ", ".join(f"{library.__name__} {library.__version__}" for library in (transformers, accelerate, torch))


@pytest.mark.parametrize("name", [*OVERRIDDEN, *CALLED])
def test_methods_of_trainer_have_the_parameters_that_we_rely_on(name):
    expected, file = (OVERRIDDEN | CALLED)[name]
    method = getattr(Trainer, name, None)
    assert method, f"Trainer.{name} no longer exists ({VERSIONS}): {file} relies on it."
    found = list(inspect.signature(method).parameters)[1:]
    assert found == expected, f"Trainer.{name} has other parameters ({VERSIONS}): adapt {file}."


@pytest.mark.parametrize("name", OTHERS)
def test_private_names_of_other_objects_exist(name):
    owner, file = OTHERS[name]
    assert hasattr(owner, name), f"{owner} no longer has {name} ({VERSIONS}): {file} relies on it."


def test_private_methods_of_trainer_that_are_overridden_are_five_at_most_and_listed():
    for package in ("training", "pretraining", "finetuning"):
        for module in pkgutil.iter_modules([ROOT / "scratch_bert" / package]):
            importlib.import_module(f"scratch_bert.{package}.{module.name}")

    def subclasses(parent):
        return [other for child in parent.__subclasses__() for other in (child, *subclasses(child))]

    ours = [child for child in subclasses(Trainer) if child.__module__.startswith(f"{scratch_bert.__name__}.")]
    assert {child.__name__ for child in ours} >= {"ScratchBertTrainer", "PretrainingTrainer"}
    overridden = {
        name
        for child in ours
        for name in vars(child)
        if name.startswith("_") and not name.startswith("__") and hasattr(Trainer, name)
    }
    assert overridden == set(OVERRIDDEN), "List in OVERRIDDEN which private methods of Trainer are overridden."
    assert len(overridden) <= 5, f"{len(overridden)} private methods of Trainer are overridden: use a public hook."


def test_private_names_of_other_libraries_are_all_listed():
    used, own = {}, set()
    for file in (ROOT / "scratch_bert").rglob("*.py"):
        if file.parent.name == "model":  # tests/model/test_compat.py
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                own.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
                if of_self and isinstance(node.ctx, ast.Store):
                    own.add(node.attr)
                used.setdefault(node.attr, file.relative_to(ROOT).as_posix())
    unlisted = used.keys() - own - NAMEDTUPLE - OVERRIDDEN.keys() - CALLED.keys() - OTHERS.keys()
    assert not unlisted, f"List these in CALLED or OTHERS: { ({name: used[name] for name in unlisted}) }"
