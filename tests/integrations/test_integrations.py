"""The snippets of docs/integrations.md, in processes without the package, and what they compute."""

import json
import re
from pathlib import Path

import pytest
import torch

from helpers import ROOT, SMALL, launch, run_without_package
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
def as_bert(head, model):
    bert = getattr(transformers, f"Bert{head}")(transformers.BertConfig(**model.config.to_dict() | {"model_type": "bert"})).eval()
    bert.load_state_dict(model.state_dict(), strict=False)
    return bert

def open_(auto_class, name, **options):
    return getattr(transformers, auto_class).from_pretrained(name, trust_remote_code=True, **options).eval()

def close(one, two, tolerance=1e-5):
    difference = (torch.as_tensor(one) - torch.as_tensor(two)).abs().max().item()
    assert difference <= tolerance, difference
"""


@pytest.fixture(scope="session")
def models(tmp_path_factory, tokenizer):
    """A directory with the models that the page names, with random weights."""
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


def run_snippets(*parts, models, home, **environment):
    """Run snippets and checks, one after another, in one process. The page's models are those of the fixture."""
    code = "\n".join([CHECKS, *parts])
    run_without_package(re.sub(r'"me/(my-\w+)"', rf'"{models}/\1"', code), home=home, environment=environment)


def test_snippets_of_all_sections_are_run():
    source = Path(__file__).read_text(encoding="utf-8")
    assert [title for title in SNIPPETS if SNIPPETS[title] and f'SNIPPETS["{title}"]' not in source] == []


def test_pipeline_snippets(models, tmp_path):
    check = """
tokenizer = transformers.AutoTokenizer.from_pretrained("me/my-bert", trust_remote_code=True)
inputs = tokenizer("a class is an object", return_tensors="pt")
close(features, open_("AutoModel", "me/my-bert")(**inputs).last_hidden_state.detach())
logits = open_("AutoModelForSequenceClassification", "me/my-classifier")(**inputs).logits[0]
assert classes[0]["label"] == ["bad", "good"][logits.argmax()]
close(classes[0]["score"], logits.softmax(-1).max())
masked = tokenizer("a class is an [MASK].", return_tensors="pt")
scores = open_("AutoModelForMaskedLM", "me/my-bert")(**masked).logits[0, 5].softmax(-1)
assert [prediction["token"] for prediction in predictions] == scores.topk(5).indices.tolist()
words = tokenizer("a class", return_tensors="pt", return_offsets_mapping=True)
spans = words.pop("offset_mapping")[0, 1:-1]
tags = open_("AutoModelForTokenClassification", "me/my-tagger")(**words).logits[0, 1:-1].argmax(-1)
for (start, end), tag in zip(spans, tags):
    assert any(entity["start"] <= start < entity["end"] for entity in entities) == (tag > 0)
"""
    zero_shot_check = """
tokenizer = transformers.AutoTokenizer.from_pretrained("me/my-mnli", trust_remote_code=True)
model = open_("AutoModelForSequenceClassification", "me/my-mnli")
pairs = tokenizer(["a class is an object"] * 2, ["This example is programs.", "This example is cooking."], return_tensors="pt", padding=True)
scores = model(**pairs).logits[:, 0].softmax(0)
close([dict(zip(classes["labels"], classes["scores"]))[label] for label in ("programs", "cooking")], scores.detach())
"""
    snippet, zero_shot = SNIPPETS["transformers' pipelines"]
    run_snippets(snippet, check, zero_shot, zero_shot_check, models=models, home=tmp_path)


def test_trainer_and_dtype_snippets(models, tmp_path):
    trainer_check = """
assert 0 < metrics["eval_loss"] < 100
saved = open_("AutoModelForMaskedLM", "adapted")
close(saved.get_input_embeddings().weight.detach(), model.get_input_embeddings().weight.detach(), 0)
"""
    dtype_check = """
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
    (trainer,) = SNIPPETS["transformers' Trainer, and its example scripts"]
    (dtype,) = SNIPPETS["Dtypes and devices"]
    run_snippets(trainer, trainer_check, dtype, dtype_check, models=models, home=tmp_path)


def test_trainer_of_the_example_scripts(models, tmp_path):
    """Config, tokenizer and model by name, then Trainer, as in run_glue.py, run_ner.py and run_qa.py; with and without
    gradient checkpointing, which changes nothing."""
    run_without_package(
        """
        from transformers import AutoConfig, AutoTokenizer, Trainer, TrainingArguments
        name, remote = sys.argv[1], {"trust_remote_code": True}
        tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True, **remote)
        inputs = tokenizer("which object?", "a class is an object", padding="max_length", max_length=16, truncation=True)
        for head, labels in (
            ("SequenceClassification", {"label": 2}),
            ("TokenClassification", {"labels": [-100, *[1] * 9, *[-100] * 6]}),
            ("QuestionAnswering", {"start_positions": 5, "end_positions": 7}),
        ):
            config = AutoConfig.from_pretrained(name, num_labels=3, finetuning_task=head, **remote)
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
                        f"{head}-{checkpointing}", max_steps=3, learning_rate=1e-2, logging_steps=1, use_cpu=True,
                        gradient_checkpointing=checkpointing, per_device_train_batch_size=4, disable_tqdm=True,
                    ),
                    train_dataset=[{**inputs, **labels}] * 16,
                    processing_class=tokenizer,
                )
                trainer.train()
                losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
                trainer.save_model()
            assert losses[0][-1] < losses[0][0], (head, losses)
            assert losses[0] == losses[1], (head, losses)
            getattr(transformers, f"AutoModelFor{head}").from_pretrained(f"{head}-True", **remote)
        """,
        models / "my-bert",
        home=tmp_path,
    )


def test_accelerate_launch(models, tmp_path):
    records = "\n".join(f"a class is {word},{label}" for word, label in (("an object", 1), ("a value", 0)) * 40)
    (tmp_path / "train.csv").write_text(f"text,label\n{records}\n")
    (options,) = re.findall(r"accelerate (launch --multi_gpu --num_processes 2) scripts/finetune.py sst2", PAGE)
    arguments = ["sequence-classification", "--model_name_or_path", models / "my-bert", "--train_file"]
    arguments += [tmp_path / "train.csv", "--output_dir", tmp_path / "run", "--num_train_epochs", 2, "--bf16", "false"]
    launch(f"accelerate.commands.accelerate_cli {options}", "finetune.py", *arguments)
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert 0 <= metrics["eval_accuracy"] <= 1
    assert len((tmp_path / "run/validation_predictions.jsonl").read_text().splitlines()) == 8
    state = json.loads(max((tmp_path / "run").glob("checkpoint-*/trainer_state.json")).read_text())
    assert state["global_step"] in (2, 4)  # 72 examples, 64 a step: 2 steps an epoch, where one process would make 3


def test_peft_snippet(models, tmp_path):
    """And new tokens alone, and LoRA on the token embeddings: the same trained parameters, loss and gradients as with BERT."""
    embeddings = """
from peft import LoraConfig, TrainableTokensConfig, get_peft_model
inputs = transformers.AutoTokenizer.from_pretrained("me/my-bert", trust_remote_code=True)(["a class", "an object"], padding=True, return_tensors="pt")
labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
for settings in (
    LoraConfig(target_modules=["query", "value"], trainable_token_indices=[5, 6, 7]),
    TrainableTokensConfig(token_indices=[5, 6, 7], target_modules=["word_embeddings"]),
    LoraConfig(target_modules=["word_embeddings", "query"], r=4),
    LoraConfig(target_modules="all-linear", r=4, modules_to_save=["word_embeddings"]),
):
    results = []
    for own in (True, False):
        model = open_("AutoModelForMaskedLM", "me/my-bert")
        model = model if own else as_bert("ForMaskedLM", model)
        torch.manual_seed(0)
        model = get_peft_model(model, type(settings)(**settings.to_dict()))
        loss = model(**inputs, labels=labels).loss
        loss.backward()
        trained = {name: p.grad for name, p in model.named_parameters() if p.requires_grad and p.grad is not None}
        results.append((loss.item(), sum(g.norm().item() for g in trained.values()), sum(g.numel() for g in trained.values())))
    close(results[0], results[1], 2e-3)
    assert results[0][2] > 0, settings
"""
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
    (snippet,) = SNIPPETS["PEFT: LoRA"]
    before, after = snippet.split("# Train it like any model")
    run_snippets(embeddings, before, train, f"# {after}", check, models=models, home=tmp_path)


def test_sentence_transformers_snippets(models, tmp_path):
    embeddings = """
assert embeddings.shape == (2, 32)
model = SentenceTransformer("embedder", trust_remote_code=True)
sentences = ["a class is an object", "so is a function"]
close(model.encode(sentences), embeddings)
tokenizer = transformers.AutoTokenizer.from_pretrained("embedder", trust_remote_code=True)
inputs = tokenizer(sentences, padding=True, return_tensors="pt")
states = open_("AutoModel", "embedder")(**inputs).last_hidden_state.detach()
mask = inputs["attention_mask"][..., None]
close(embeddings, (states * mask).sum(1) / mask.sum(1))
"""
    ranks = """
pairs = [("a class", "an object"), ("a class", "a value")]
close(CrossEncoder("ranker", trust_remote_code=True).predict(pairs), scores)
tokenizer = transformers.AutoTokenizer.from_pretrained("ranker", trust_remote_code=True)
inputs = tokenizer(*map(list, zip(*pairs)), padding=True, return_tensors="pt")
bert = as_bert("ForSequenceClassification", open_("AutoModelForSequenceClassification", "ranker"))
close(scores, bert(**inputs).logits[:, 0].sigmoid().detach())
"""
    weights = """
tokenizer = transformers.AutoTokenizer.from_pretrained("me/my-bert", trust_remote_code=True)
inputs = tokenizer(["a class is an object", "so is a function"], padding=True, return_tensors="pt")
logits = as_bert("ForMaskedLM", open_("AutoModelForMaskedLM", "me/my-bert"))(**inputs).logits
expected = logits.relu().log1p().mul(inputs["attention_mask"][..., None]).amax(1)
close(weights.to_dense(), expected.detach())
"""
    checks = (embeddings, ranks, weights)
    parts = [part for pair in zip(SNIPPETS["sentence-transformers"], checks, strict=True) for part in pair]
    run_snippets(*parts, models=models, home=tmp_path)


def test_captum_snippet(models, tmp_path):
    """What captum and hooks find in our model is what they find in BERT with its weights."""
    pytest.importorskip("captum")
    (snippet,) = SNIPPETS["Looking into the model: hooks, captum"]
    opened, looked = snippet.split("\n\n\n", 1)
    check = """
assert attributions.shape == (*inputs["input_ids"].shape, 32) and attributions.abs().max() > 1e-3
mask = inputs["attention_mask"].bool()
close(attributions, found[0])
close(states[0][mask], found[1][mask])
"""
    parts = opened, "model = as_bert('ForSequenceClassification', model)", looked, "found = attributions, states[0]"
    run_snippets(*parts, snippet, check, models=models, home=tmp_path)


def test_torch_compile_snippet(models, tmp_path):
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    environment |= {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # else each compiling process imports torch
    parts = *SNIPPETS["torch.compile"], "close(logits, model(**inputs).logits.detach())"
    run_snippets(*parts, models=models, home=tmp_path, **environment)


def test_onnx_and_int8_snippets(models, tmp_path):
    check = """
import os
session = InferenceSession("model.onnx")
for texts in (["a"], ["a class", "an object is a class"], ["a class is an object " * 20] * 3 + ["so is a function"]):
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=40, return_tensors="pt")
    (found,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    close(found, reference(**inputs).logits.detach())
close(int8_logits, logits, 0.1 * abs(logits).max())
assert os.path.getsize("model-int8.onnx") < os.path.getsize("model.onnx")
"""
    export, quantize = SNIPPETS["ONNX, and int8"]
    run_snippets(export, "reference = model", quantize, check, models=models, home=tmp_path)
