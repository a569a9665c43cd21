import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import EvalPrediction, TrainingArguments

from helpers import SMALL
from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining
from scratch_bert.pretraining.collator import PreTrainingCollator
from scratch_bert.pretraining.metrics import PreTrainingMetrics, describe_metrics, unigram_log_probs
from scratch_bert.pretraining.trainer import PreTrainingTrainer


def test_unigrams_are_a_distribution_and_follow_the_counts(corpus, tokenizer):
    log_probs = unigram_log_probs(corpus.token_counts(len(tokenizer)))
    assert log_probs.exp().sum().item() == pytest.approx(1, abs=1e-5)
    the, rare = tokenizer.convert_tokens_to_ids(["the", "[PAD]"])
    expected = ((corpus.tokens == the).sum() + 1) / (len(corpus.tokens) + len(tokenizer))
    assert log_probs[the].exp().item() == pytest.approx(expected, rel=1e-4)
    assert log_probs[rare] == log_probs.min()


def test_evaluation_under_trainer_equals_one_big_batch(pairs, corpus, tokenizer, tmp_path):
    torch.manual_seed(0)
    config = ScratchBertConfig(**{**SMALL, "vocab_size": len(tokenizer), "max_position_embeddings": 128})
    model = ScratchBertForPreTraining(config).eval()
    log_probs = unigram_log_probs(corpus.token_counts(len(tokenizer)))
    metrics = PreTrainingMetrics(log_probs)
    rows = [pairs[i] for i in range(50)]
    trainer = PreTrainingTrainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(tmp_path),
            per_device_eval_batch_size=8,
            batch_eval_metrics=True,
            remove_unused_columns=False,
            use_cpu=True,
            disable_tqdm=True,
        ),
        data_collator=PreTrainingCollator(tokenizer),
        eval_dataset=rows,
        compute_metrics=metrics,
        preprocess_logits_for_metrics=metrics.per_row,
    )
    result = trainer.evaluate()
    assert trainer.evaluate()["eval_mlm_loss"] == result["eval_mlm_loss"]  # the same masks, sums started afresh

    predictions, labels, nsp_logits, nsp_labels = [], [], [], []
    for start in range(0, 50, 8):
        batch = PreTrainingCollator(tokenizer)(rows[start : start + 8])
        with torch.no_grad():
            outputs = model(**batch)
        chosen = batch["labels"] != -100
        predictions.append(outputs.prediction_logits[chosen])
        labels.append(batch["labels"][chosen])
        nsp_logits.append(outputs.seq_relationship_logits)
        nsp_labels.append(batch["next_sentence_label"])
    predictions, labels, nsp_logits, nsp_labels = map(torch.cat, (predictions, labels, nsp_logits, nsp_labels))
    mlm_loss = F.cross_entropy(predictions, labels).item()
    share = nsp_labels.float().mean().item()
    expected = {
        "mlm_loss": mlm_loss,
        "mlm_perplexity": math.exp(mlm_loss),
        "mlm_accuracy": (predictions.argmax(-1) == labels).float().mean().item(),
        "mlm_unigram_loss": -log_probs[labels].mean().item(),
        "nsp_loss": F.cross_entropy(nsp_logits, nsp_labels).item(),
        "nsp_accuracy": (nsp_logits.argmax(-1) == nsp_labels).float().mean().item(),
        "nsp_majority_accuracy": max(share, 1 - share),
        "nsp_majority_loss": -sum(p * np.log(p) for p in (share, 1 - share)),
    }
    for name, value in expected.items():
        assert result[f"eval_{name}"] == pytest.approx(value, rel=1e-4), name


def test_logits_are_reduced_to_a_few_numbers_per_row(tokenizer):
    metrics = PreTrainingMetrics(torch.zeros(50))
    logits = torch.randn(6, 9, 50), torch.randn(6, 2)
    labels = torch.full((6, 9), -100), torch.zeros(6, dtype=torch.long)
    per_row = metrics.per_row(logits, labels)
    assert per_row.shape == (6, len(PreTrainingMetrics.COLUMNS))
    assert per_row.isfinite().all()


def test_without_a_second_objective(tokenizer):
    metrics = PreTrainingMetrics(torch.full((50,), -2.0), next_sentence=False)
    logits, labels = torch.randn(6, 9, 50), torch.full((6, 9), -100)
    labels[:, 3] = 7
    result = metrics(EvalPrediction(metrics.per_row(logits, labels), labels), compute_result=True)
    expected = F.cross_entropy(logits[:, 3], labels[:, 3]).item()
    assert result["mlm_loss"] == pytest.approx(expected, rel=1e-5)
    assert result["mlm_unigram_loss"] == pytest.approx(2.0)
    assert not any("nsp" in name for name in result)
    table = describe_metrics({"model": {f"eval_{name}": value for name, value in result.items()}})
    assert "masked words" in table and "next sentence" not in table
