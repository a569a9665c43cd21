"""The snippets of docs/clients.md and the clients they are about, each in a process that does not have the package."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch

from helpers import ROOT, SCRIPTS, SMALL, run_without_package
from scratch_bert import (
    ScratchBertConfig,
    ScratchBertForPreTraining,
    ScratchBertForSequenceClassification,
    ScratchBertForTokenClassification,
)


pytestmark = pytest.mark.integrations
PAGE = (ROOT / "docs/integrations.md").read_text(encoding="utf-8")
# The blocks of each section, by its title.
SNIPPETS = {
    section.split("\n", 1)[0]: re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    for section in PAGE.split("\n## ")[1:]
}
CHECKS = """
def open_(auto_class, name, **options):
    return getattr(transformers, auto_class).from_pretrained(name, trust_remote_code=True, **options).eval()

def close(one, two, tolerance=1e-5):
    difference = (torch.as_tensor(one) - torch.as_tensor(two)).abs().max().item()
    assert difference <= tolerance, difference
"""


@pytest.fixture(scope="session")
def models(tmp_path_factory, tokenizer):
    """A directory with the models that the page names, of random weights."""
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    options = {**SMALL, "vocab_size": len(tokenizer), "initializer_range": 0.2}

    def labels(*names):
        return {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}

    for name, model_class, label_names in (
        ("my-bert", ScratchBertForPreTraining, ("LABEL_0", "LABEL_1")),
        ("my-classifier", ScratchBertForSequenceClassification, ("bad", "good")),
        ("my-mnli", ScratchBertForSequenceClassification, ("entailment", "neutral", "contradiction")),
        ("my-tagger", ScratchBertForTokenClassification, ("O", "B-X", "I-X")),
    ):
        model_class(ScratchBertConfig(**options, **labels(*label_names))).save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root


def run_snippets(snippets, models, home, check):
    code = CHECKS + "\n".join([*snippets, check])
    return run_without_package(re.sub(r'"me/(my-\w+)"', rf'"{models}/\1"', code), home=home)


def test_no_snippet_is_left_out():
    assert list(SNIPPETS) == [
        "transformers' pipelines",
        "transformers' Trainer, and its example scripts",
        "accelerate",
        "PEFT: LoRA",
        "sentence-transformers",
        "torch.compile",
        "ONNX, and int8",
        "Types and devices",
    ]


def test_pipelines(models, tmp_path):
    check = """
tokenizer = transformers.AutoTokenizer.from_pretrained("me/my-bert", trust_remote_code=True)
inputs = tokenizer("a class is an object", return_tensors="pt")
close(features, open_("AutoModel", "me/my-bert")(**inputs).last_hidden_state.detach())
logits = open_("AutoModelForSequenceClassification", "me/my-classifier")(**inputs).logits[0]
assert classes[0]["label"] == ["bad", "good"][logits.argmax()]
close(classes[0]["score"], logits.softmax(-1).max())
masked = tokenizer("a class is an [MASK].", return_tensors="pt")
words = open_("AutoModelForMaskedLM", "me/my-bert")(**masked).logits[0, 5].softmax(-1)
assert [guess["token"] for guess in guesses] == words.topk(5).indices.tolist()
words = tokenizer("a class", return_tensors="pt", return_offsets_mapping=True)
spans = words.pop("offset_mapping")[0, 1:-1]
tags = open_("AutoModelForTokenClassification", "me/my-tagger")(**words).logits[0, 1:-1].argmax(-1)
for (start, end), tag in zip(spans, tags):
    assert any(entity["start"] <= start < entity["end"] for entity in entities) == (tag > 0)
"""
    run_snippets(SNIPPETS["transformers' pipelines"][:1], models, tmp_path, check)


def test_zero_shot_pipeline(models, tmp_path):
    check = """
tokenizer = transformers.AutoTokenizer.from_pretrained("me/my-mnli", trust_remote_code=True)
model = open_("AutoModelForSequenceClassification", "me/my-mnli")
pairs = tokenizer(["a class is an object"] * 2, ["This example is programs.", "This example is cooking."], return_tensors="pt", padding=True)
scores = model(**pairs).logits[:, 0].softmax(0)
close([dict(zip(classes["labels"], classes["scores"]))[label] for label in ("programs", "cooking")], scores.detach())
"""
    run_snippets(SNIPPETS["transformers' pipelines"][1:], models, tmp_path, check)


def test_trainer_of_masked_words(models, tmp_path):
    check = """
assert 0 < metrics["eval_loss"] < 100
saved = open_("AutoModelForMaskedLM", "adapted")
close(saved.get_input_embeddings().weight.detach(), model.get_input_embeddings().weight.detach(), 0)
"""
    run_snippets(SNIPPETS["transformers' Trainer, and its example scripts"], models, tmp_path, check)


@pytest.mark.parametrize("auto_class", ["SequenceClassification", "TokenClassification", "QuestionAnswering"])
def test_the_route_of_the_example_scripts(auto_class, models, tmp_path):
    """Config, tokenizer and model by name, then Trainer, as run_glue.py, run_ner.py and run_qa.py do; with and without
    gradient checkpointing, which changes nothing."""
    run_without_package(
        """
        from transformers import AutoConfig, AutoTokenizer, Trainer, TrainingArguments
        name, head, remote = sys.argv[1], sys.argv[2], {"trust_remote_code": True}
        config = AutoConfig.from_pretrained(name, num_labels=3, finetuning_task=head, **remote)
        tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True, **remote)
        row = tokenizer("which object?", "a class is an object", padding="max_length", max_length=16, truncation=True)
        labels = {
            "SequenceClassification": {"label": 2},
            "TokenClassification": {"labels": [-100, *[1] * 9, *[-100] * 6]},
            "QuestionAnswering": {"start_positions": 5, "end_positions": 7},
        }[head]
        losses = []
        for checkpointing in (False, True):
            torch.manual_seed(0)
            model = getattr(transformers, f"AutoModelFor{head}").from_pretrained(
                name, config=config, ignore_mismatched_sizes=False, **remote
            )
            model.train()
            trainer = Trainer(
                model=model,
                args=TrainingArguments(
                    f"out-{checkpointing}", max_steps=3, learning_rate=1e-2, logging_steps=1, use_cpu=True,
                    gradient_checkpointing=checkpointing, per_device_train_batch_size=4, disable_tqdm=True,
                ),
                train_dataset=[{**row, **labels}] * 16,
                processing_class=tokenizer,
            )
            trainer.train()
            losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
            trainer.save_model()
        assert losses[0][-1] < losses[0][0], losses
        assert losses[0] == losses[1], losses
        model = getattr(transformers, f"AutoModelFor{head}").from_pretrained("out-True", **remote)
        """,
        models / "my-bert",
        auto_class,
        home=tmp_path,
    )


def test_accelerate_launch(models, tmp_path):
    rows = "\n".join(f"a class is {word},{label}" for word, label in (("an object", 1), ("a value", 0)) * 40)
    (tmp_path / "train.csv").write_text(f"text,label\n{rows}\n")
    (launch,) = re.findall(r"accelerate (launch --multi_gpu --num_processes 2) scripts/finetune.py sst2", PAGE)
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", *launch.split(), SCRIPTS / "finetune.py"]
    command += ["sequence-classification", "--model_name_or_path", models / "my-bert", "--train_file"]
    command += [tmp_path / "train.csv", "--output_dir", tmp_path / "run", "--num_train_epochs", 2, "--bf16", "false"]
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert result.returncode == 0, result.stderr[-3000:]
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert 0 <= metrics["eval_accuracy"] <= 1
    assert len((tmp_path / "run/validation_predictions.jsonl").read_text().splitlines()) == 8
    state = json.loads(max((tmp_path / "run").glob("checkpoint-*/trainer_state.json")).read_text())
    assert state["global_step"] in (2, 4)  # 72 rows, 64 a step: 2 steps an epoch, where one process would make 3


def test_peft(models, tmp_path):
    train = """
inputs = transformers.AutoTokenizer.from_pretrained("me/my-bert", trust_remote_code=True)(["a class", "an object"], padding=True, return_tensors="pt")
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
losses = []
for _ in range(10):
    losses.append(model(**inputs, labels=torch.tensor([0, 1])).loss)
    losses[-1].backward()
    optimizer.step()
    optimizer.zero_grad()
assert losses[-1] < losses[0]
expected = model.eval()(**inputs).logits.detach()
model.train()
"""
    check = """
close(loaded.eval()(**inputs).logits.detach(), expected)
close(merged.eval()(**inputs).logits.detach(), expected)
sys.modules["peft"] = None
close(open_("AutoModelForSequenceClassification", "merged")(**inputs).logits.detach(), expected)
"""
    snippet = SNIPPETS["PEFT: LoRA"][0]
    before, after = snippet.split("# Train it as any model")
    run_snippets([before, train, "# Train it as any model" + after], models, tmp_path, check)


def test_sentence_transformers(models, tmp_path):
    check = """
assert embeddings.shape == (2, 32)
torch.save(torch.tensor(embeddings), "embeddings.pt")
"""
    run_snippets(SNIPPETS["sentence-transformers"], models, tmp_path, check)
    run_without_package(
        CHECKS
        + """
from sentence_transformers import SentenceTransformer
model = SentenceTransformer("embedder", trust_remote_code=True)
sentences = ["a class is an object", "so is a function"]
close(model.encode(sentences), torch.load("embeddings.pt"))
tokenizer = transformers.AutoTokenizer.from_pretrained("embedder", trust_remote_code=True)
inputs = tokenizer(sentences, padding=True, return_tensors="pt")
states = open_("AutoModel", "embedder")(**inputs).last_hidden_state.detach()
mask = inputs["attention_mask"][..., None]
close(model.encode(sentences), (states * mask).sum(1) / mask.sum(1))
""",
        home=tmp_path,
    )


def test_torch_compile(models, tmp_path):
    run_snippets(SNIPPETS["torch.compile"], models, tmp_path, "close(logits, model(**inputs).logits.detach())")


def test_onnx_and_int8(models, tmp_path):
    check = """
import os
from onnxruntime import InferenceSession
session = InferenceSession("model.onnx")
for texts in (["a"], ["a class", "an object is a class"], ["a class is an object " * 20] * 3 + ["so is a function"]):
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=40, return_tensors="pt")
    (found,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    close(found, reference(**inputs).logits.detach())
close(int8_logits, logits, 0.1 * abs(logits).max())
assert os.path.getsize("model-int8.onnx") < os.path.getsize("model.onnx")
"""
    first, second = SNIPPETS["ONNX, and int8"]
    run_snippets([first, "reference = model", second], models, tmp_path, check)


def test_types_and_devices(models, tmp_path):
    check = """
assert half.dtype == torch.bfloat16 and placed.dtype == torch.float32
tokenizer = transformers.AutoTokenizer.from_pretrained("me/my-bert", trust_remote_code=True)
inputs = tokenizer(["a class is an object", "so is a function"], padding=True, return_tensors="pt")
mask = inputs["attention_mask"][..., None].bool()
states = open_("AutoModel", "me/my-bert")(**inputs).last_hidden_state.detach()
difference = (half.eval()(**inputs).last_hidden_state.detach().float() - states).masked_fill(~mask, 0).abs().max()
assert difference < 0.1, difference
expected = open_("AutoModelForSequenceClassification", "me/my-classifier")(**inputs).logits
close(placed.eval()(**inputs.to(placed.device)).logits.detach().cpu(), expected.detach())
"""
    run_snippets(SNIPPETS["Types and devices"], models, tmp_path, check)
