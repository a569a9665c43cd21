"""Sparse prediction: in training, the MLM head is computed at the labelled positions alone."""

import pytest
import torch
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

from helpers import SMALL, TOLERANCE, assert_same_gradients, bert_and_ours, make_batch, make_pair


LOGITS = {"AutoModelForPreTraining": "prediction_logits", "AutoModelForMaskedLM": "logits"}


@pytest.mark.parametrize("auto_class", LOGITS)
def test_sparse_prediction_gives_the_loss_and_gradients_of_dense(auto_class):
    model, dense = make_pair(auto_class, other={"sparse_prediction": False})
    batch = make_batch(auto_class, rows=5, length=37)
    mine, expected = model(**batch), dense(**batch)
    torch.testing.assert_close(mine.loss, expected.loss, **TOLERANCE)
    labelled, name = batch["labels"] != -100, LOGITS[auto_class]
    assert mine[name].shape == (labelled.sum(), SMALL["vocab_size"])
    assert expected[name].shape == (5, 37, SMALL["vocab_size"])
    torch.testing.assert_close(mine[name], expected[name][labelled], **TOLERANCE)
    mine.loss.backward()
    expected.loss.backward()
    assert_same_gradients(model, dense)


@pytest.mark.parametrize("auto_class", LOGITS)
def test_sparse_prediction_is_off_without_labels_and_in_evaluation_unless_it_is_asked_for(auto_class):
    model, name = make_pair(auto_class)[0], LOGITS[auto_class]
    batch = make_batch(auto_class)
    labelled, shape = batch["labels"] != -100, (*batch["input_ids"].shape, SMALL["vocab_size"])
    assert model(**batch | {"labels": None})[name].shape == shape
    assert model(**batch, sparse_prediction=False)[name].shape == shape
    model.eval()
    sparse, dense = model(**batch, sparse_prediction=True), model(**batch)
    assert dense[name].shape == shape
    torch.testing.assert_close(sparse[name], dense[name][labelled], **TOLERANCE)
    torch.testing.assert_close(sparse.loss, dense.loss, **TOLERANCE)


def test_mlm_evaluation_of_the_stock_trainer_gives_the_metrics_of_transformers_bert(tokenizer, tmp_path):
    texts = ["the list is sorted in place", "a", "raise an exception if the key is not found in it"] * 5

    def compute_metrics(prediction):
        labelled = prediction.label_ids != -100
        predicted = prediction.predictions.argmax(-1)[labelled]
        return {
            "accuracy": (predicted == prediction.label_ids[labelled]).mean(),
            "mean_logit": prediction.predictions[labelled].mean(),
        }

    metrics = []
    for model in bert_and_ours("ForMaskedLM", vocab_size=len(tokenizer)):
        trainer = Trainer(
            model,
            TrainingArguments(str(tmp_path), per_device_eval_batch_size=4, use_cpu=True, disable_tqdm=True),
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.4, seed=1),
            eval_dataset=[tokenizer(text) for text in texts],
            compute_metrics=compute_metrics,
        )
        metrics.append(trainer.evaluate())
    for name in ("eval_loss", "eval_accuracy", "eval_mean_logit"):
        assert metrics[1][name] == pytest.approx(metrics[0][name], abs=1e-5)
