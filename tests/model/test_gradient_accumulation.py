"""The stock Trainer gives the same loss and gradient at batch 32 × 1 accumulation step and 8 × 4, for every head."""

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from helpers import HEADS, SMALL, make_batch, num_labels
from scratch_bert import ScratchBertConfig


ROWS = 32
# Trainer tells a model how many masked tokens a step has, but not how many rows: ForPreTraining weighs a micro-batch's
# NSP loss by its share of the masked tokens. These rows are 3 to 20 tokens long, so that shares differ far more than
# in pretraining; 1e-2 holds from BERT's initial weights (up to 2e-2 was seen with weights ten times as large).
TOLERANCE = {"AutoModelForPreTraining": 1e-2}
PROBLEMS = ["regression", "single_label_classification", "multi_label_classification"]


def train_one_step(auto_class, rows, accumulation_steps, problem_type, output_dir):
    """(loss, gradient norm) that the stock Trainer logs for one optimizer step over the same 32 rows."""
    torch.manual_seed(0)
    model = HEADS[auto_class](
        ScratchBertConfig(
            **SMALL,
            num_labels=num_labels(auto_class),
            problem_type=problem_type,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            # Large, so that the rows' losses differ and a wrong mean shows.
            initializer_range=0.02 if auto_class in TOLERANCE else 0.2,
        )
    )
    batch = make_batch(auto_class, rows=ROWS)
    if problem_type == "regression":
        batch["labels"] = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(1))
    elif problem_type == "multi_label_classification":
        batch["labels"] = torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(1)).round()

    class GradientNorm(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            self.value = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm().item()

    norm = GradientNorm()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(output_dir),
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=accumulation_steps,
            max_steps=1,
            logging_steps=1,
            max_grad_norm=0,
            save_strategy="no",
            train_sampling_strategy="sequential",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=[{name: tensor[i] for name, tensor in batch.items()} for i in range(ROWS)],
        callbacks=[norm],
    )
    trainer.train()
    return trainer.state.log_history[0]["loss"], norm.value


CASES = [(name, None) for name in HEADS if name not in ("AutoModel", "AutoModelForSequenceClassification")]
CASES += [("AutoModelForSequenceClassification", problem_type) for problem_type in PROBLEMS]


@pytest.mark.parametrize(("auto_class", "problem_type"), CASES)
def test_loss_and_gradient_do_not_depend_on_accumulation(auto_class, problem_type, tmp_path):
    whole_loss, whole_norm = train_one_step(auto_class, ROWS, 1, problem_type, tmp_path)
    split_loss, split_norm = train_one_step(auto_class, ROWS // 4, 4, problem_type, tmp_path)
    print(f"\n{auto_class} {problem_type or ''}: loss {whole_loss:.5f} {split_loss:.5f}, ", end="")
    print(f"gradient norm {whole_norm:.5f} {split_norm:.5f}")
    tolerance = TOLERANCE.get(auto_class, 1e-3)
    assert split_loss == pytest.approx(whole_loss, rel=tolerance)
    assert split_norm == pytest.approx(whole_norm, rel=tolerance)
