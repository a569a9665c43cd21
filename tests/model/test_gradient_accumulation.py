"""A step's loss and gradient do not depend on how its batch is split: into micro-batches or over processes."""

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from helpers import HEADS, NO_DROPOUT, SMALL, TOLERANCE, make_batch, num_labels
from scratch_bert import ScratchBertConfig, ScratchBertForMaskedLM


BATCH_SIZE = 32
# Trainer passes the count of masked tokens in a step, but not that of sequences: ForPreTraining weighs a micro-batch's
# NSP loss by its share of the masked tokens. These sequences have 3 to 20 tokens, so that shares differ far more than
# in pretraining; 1e-2 holds from BERT's initial weights (up to 2e-2 was seen with weights ten times as large).
LOOSE = {"AutoModelForPreTraining": 1e-2}
PROBLEMS = ["regression", "single_label_classification", "multi_label_classification"]


def train_one_step(auto_class, batch_size, accumulation_steps, problem_type, output_dir):
    """(loss, gradient norm) that the stock Trainer logs for one optimizer step over the same 32 sequences."""
    torch.manual_seed(0)
    scale = 0.02 if auto_class in LOOSE else 0.2  # large: the losses of sequences differ, and a wrong mean shows
    options = {"num_labels": num_labels(auto_class), "problem_type": problem_type, "initializer_range": scale}
    model = HEADS[auto_class](ScratchBertConfig(**SMALL, **NO_DROPOUT, **options))
    batch = make_batch(auto_class, rows=BATCH_SIZE)
    if problem_type == "regression":
        batch["labels"] = torch.randn(BATCH_SIZE, 3, generator=torch.Generator().manual_seed(1))
    elif problem_type == "multi_label_classification":
        batch["labels"] = torch.rand(BATCH_SIZE, 3, generator=torch.Generator().manual_seed(1)).round()

    class GradientNorm(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            self.value = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm().item()

    step = {"max_steps": 1, "logging_steps": 1, "max_grad_norm": 0, "save_strategy": "no", "disable_tqdm": True}
    step |= {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation_steps}
    args = TrainingArguments(str(output_dir), train_sampling_strategy="sequential", use_cpu=True, **step)
    examples = [{name: tensor[i] for name, tensor in batch.items()} for i in range(BATCH_SIZE)]
    norm = GradientNorm()
    trainer = Trainer(model, args, train_dataset=examples, callbacks=[norm])
    trainer.train()
    return trainer.state.log_history[0]["loss"], norm.value


CASES = [(name, None) for name in HEADS if name not in ("AutoModel", "AutoModelForSequenceClassification")]
CASES += [("AutoModelForSequenceClassification", problem_type) for problem_type in PROBLEMS]


@pytest.mark.parametrize(("auto_class", "problem_type"), CASES)
def test_gradient_accumulation_gives_the_loss_and_gradient_of_one_batch(auto_class, problem_type, tmp_path):
    whole_loss, whole_norm = train_one_step(auto_class, BATCH_SIZE, 1, problem_type, tmp_path)
    split_loss, split_norm = train_one_step(auto_class, BATCH_SIZE // 4, 4, problem_type, tmp_path)
    tolerance = LOOSE.get(auto_class, 1e-3)
    assert split_loss == pytest.approx(whole_loss, rel=tolerance)
    assert split_norm == pytest.approx(whole_norm, rel=tolerance)


def test_mean_of_the_gradients_of_processes_is_that_of_one():
    """Each has its share of the sum that is divided by all masked tokens, and DDP takes the mean: Trainer multiplies."""
    model = ScratchBertForMaskedLM(ScratchBertConfig(**SMALL, **NO_DROPOUT)).train()
    batch, gradients = make_batch("AutoModelForMaskedLM", rows=8), []
    masked = (batch["labels"] != -100).sum()
    for processes in (1, 2):
        model.zero_grad()
        for share in zip(*(values.chunk(processes) for values in batch.values()), strict=True):
            (processes * model(**dict(zip(batch, share, strict=True)), num_items_in_batch=masked).loss).backward()
        gradients.append({name: parameter.grad / processes for name, parameter in model.named_parameters()})
    torch.testing.assert_close(*gradients, **TOLERANCE)
