"""In a step on an accelerator, the host waits for nothing that the device has yet to compute.

No accelerator is needed: tensors on the meta device have shapes and no values, so whatever reads a value on the host
fails, but for copies to the device. The model would take its path for tensors without values, and is told to take that of
a GPU."""

import pytest
import torch
import transformers

from helpers import NO_DROPOUT, make_batch
from scratch_bert import ScratchBertConfig
from scratch_bert.examples.collator import pack_sequences
from scratch_bert.model import inputs_scratch_bert as inputs
from scratch_bert.model import kernels_scratch_bert as kernels
from scratch_bert.model import losses_scratch_bert as losses
from scratch_bert.model import padding_scratch_bert as padding
from scratch_bert.pretraining.loss_meter import LossMeter
from scratch_bert.pretraining.optimizer import muon
from scratch_bert.training.counting import CountingCollator
from scratch_bert.training.speed import SpeedMeter


SIZES = {"vocab_size": 120, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 256}
pytestmark = pytest.mark.cpu_branch
META = torch.device("meta")
TASKS = {
    "pretraining": "AutoModelForPreTraining",
    "MLM": "AutoModelForMaskedLM",
    "packed": "AutoModelForPreTraining",
    "classification": "AutoModelForSequenceClassification",
    "tagging": "AutoModelForTokenClassification",
    "question answering": "AutoModelForQuestionAnswering",
    "multiple choice": "AutoModelForMultipleChoice",
}
PRETRAINING = ("pretraining", "MLM", "packed")


@pytest.fixture(params=["varlen_attention", "padded_attention"])
def _gpu_path(request, monkeypatch):
    attention = getattr(kernels, request.param)
    monkeypatch.setattr(padding, "find_attention", lambda *_: attention)
    for module in (padding, inputs, kernels, losses):
        monkeypatch.setattr(module, "is_eager", lambda tensor: True)


def take_step(task: str, counts: bool) -> None:
    auto_class = TASKS[task]
    config = ScratchBertConfig(**SIZES, **NO_DROPOUT, attn_implementation="sdpa")
    model = getattr(transformers, auto_class).from_config(config).bfloat16().to(META).train()
    batch = make_batch(auto_class, rows=16, length=40)
    batch = pack_sequences(batch, 80, 0) if task == "packed" else batch
    if counts:
        batch = CountingCollator(lambda batch: batch, labels=task in PRETRAINING)(batch)
    batch = {name: value.to(META) if torch.is_tensor(value) else value for name, value in batch.items()}
    optimizer, losses, speed = muon(model), LossMeter(["mlm_loss", "nsp_loss"]), SpeedMeter(META)
    speed.count(batch)
    outputs = model(**batch)
    outputs.loss.backward()
    losses.update(outputs, step=0, weight=1.0, add_up=True)
    if outputs.get("seq_relationship_logits") is not None and task != "packed":
        losses.update_accuracy("nsp_accuracy", outputs.seq_relationship_logits, batch["next_sentence_label"])
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


@pytest.mark.usefixtures("_gpu_path")
@pytest.mark.parametrize("task", TASKS)
def test_step_waits_for_nothing(task):
    take_step(task, counts=True)


@pytest.mark.usefixtures("_gpu_path")
@pytest.mark.parametrize("task", TASKS)
def test_step_without_counts_waits(task):
    """Otherwise, the test above could not fail."""
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        take_step(task, counts=False)
