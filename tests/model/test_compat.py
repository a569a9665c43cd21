"""The shipped code uses private names in one file alone, and computes the same without them."""

import ast
import json
import shutil

import pytest

from helpers import ROOT, run_without_package
from scratch_bert.hub.code import update_code
from scratch_bert.model import CODE_FILES
from scratch_bert.model.compat_scratch_bert import OPTIONAL


# What transformers documents for custom models, and what Python defines.
PLUGIN = {"_init_weights", "_attn_implementation"}


def private_names(source: str) -> set[str]:
    """Names that begin with an underscore, imported or read as attributes; those that the source itself defines are not."""
    used, own = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            used |= set((node.module or "").split(".")) | {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            used |= {part for alias in node.names for part in alias.name.split(".")}
        elif isinstance(node, ast.Attribute):
            (own if isinstance(node.ctx, ast.Store) else used).add(node.attr)
        elif isinstance(node, ast.FunctionDef):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
    return {name for name in used if name.startswith("_") and not name.startswith("__")} - own


@pytest.mark.parametrize("file", CODE_FILES, ids=lambda file: file.name)
def test_private_names_are_in_the_gate_alone(file):
    if not file.name.startswith("compat"):
        assert private_names(file.read_text()) <= PLUGIN


def test_private_names_are_found():
    source = "from torch._C import _x\nimport torch\ntorch._y()\nfrom a.b import _z\nself._own = 1\nself._own"
    assert private_names(source) == {"_C", "_x", "_y", "_z"}


# Opens the models of the directories with some names hidden from the gate, and prints what they compute.
COMPUTE = """
    import importlib, json, types
    from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer, pipeline
    real, hidden = importlib.import_module, set()
    def import_module(name, package=None):
        module = real(name, package)
        if not sys._getframe(1).f_globals["__name__"].endswith("compat_scratch_bert"):
            return module
        return types.SimpleNamespace(**{key: found for key, found in vars(module).items() if f"{name}:{key}" not in hidden})
    importlib.import_module = import_module
    options = {"trust_remote_code": True}
    def compute(directory):
        for name in [name for name in sys.modules if name.startswith("transformers_modules.")]:
            del sys.modules[name]
        tokenizer = AutoTokenizer.from_pretrained(directory, **options)
        batch = tokenizer(["a class is an object, and so on", "a class"], padding=True, return_tensors="pt")
        model = AutoModelForPreTraining.from_pretrained(directory, dtype=torch.float32, **options)
        compat = sys.modules[type(model).__module__.rpartition(".")[0] + ".compat_scratch_bert"]
        assert {name for name, found in compat.OPTIONAL.items() if found is None} == hidden, hidden
        outputs = model.eval()(**batch)
        mask = batch["attention_mask"].bool()
        figures = [*outputs.prediction_logits[mask].flatten().tolist(), *outputs.seq_relationship_logits.flatten().tolist()]
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        model.config.attention_probs_dropout_prob = 0.0
        labels = batch["input_ids"].masked_fill(~mask, -100)
        model(**batch, labels=labels, next_sentence_label=torch.tensor([0, 1])).loss.backward()
        gradients = [parameter.grad.norm().item() for parameter in model.parameters() if parameter.grad is not None]
        fill = pipeline("fill-mask", model=AutoModelForMaskedLM.from_pretrained(directory, dtype=torch.float32, **options), tokenizer=tokenizer)
        answer = [prediction["token"] for prediction in fill(f"a class is {tokenizer.mask_token}")]
        return {"figures": figures + gradients, "answer": answer}
    *directories, sets = sys.argv[1:]
    for names in json.loads(sets):
        hidden = set(names)
        print(json.dumps([compute(directory) for directory in directories]))
"""


@pytest.mark.slow
def test_outputs_gradients_and_answers_are_the_same_without_private_names(saved, tmp_path):
    assert len(OPTIONAL) >= 5 and all(found is not None for found in OPTIONAL.values())
    sets = [[], *([name] for name in OPTIONAL), list(OPTIONAL)]
    frozen = shutil.copytree(ROOT / "examples/models/gutenberg-micro", tmp_path / "frozen")
    update_code(frozen)
    output = run_without_package(COMPUTE, saved, frozen, json.dumps(sets), home=tmp_path)
    expected, *others = map(json.loads, output.splitlines())
    assert len(others) == len(OPTIONAL) + 1 and len(expected[0]["figures"]) > 100
    for names, found in zip(sets[1:], others, strict=True):
        for model, reference in zip(found, expected, strict=True):
            assert model["figures"] == pytest.approx(reference["figures"], rel=1e-4, abs=1e-5), names
            assert model["answer"] == reference["answer"], names
