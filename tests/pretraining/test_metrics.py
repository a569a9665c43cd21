import math
import re

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import EvalPrediction, TrainingArguments

from helpers import SMALL
from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining
from scratch_bert.corpus.corpus import TokenizedCorpus
from scratch_bert.corpus.tokenizer_training import train_tokenizer
from scratch_bert.examples.collator import PretrainingCollator
from scratch_bert.objectives import find_objective
from scratch_bert.pretraining.metrics import (
    PretrainingMetrics,
    characters_per_token,
    describe_metrics,
    unigram_log_probs,
)
from scratch_bert.pretraining.trainer import PretrainingTrainer


def test_unigram_baseline_is_a_distribution_that_follows_the_counts(corpus, tokenizer):
    log_probs = unigram_log_probs(corpus.token_counts(len(tokenizer)))
    assert log_probs.exp().sum().item() == pytest.approx(1, abs=1e-5)
    the, rare = tokenizer.convert_tokens_to_ids(["the", "[PAD]"])
    expected = ((corpus.tokens == the).sum() + 1) / (len(corpus.tokens) + len(tokenizer))
    assert log_probs[the].exp().item() == pytest.approx(expected, rel=1e-4)
    assert log_probs[rare] == log_probs.min()


def test_metrics_under_trainer_equal_those_of_one_big_batch(pairs, corpus, tokenizer, tmp_path):
    torch.manual_seed(0)
    config = ScratchBertConfig(**{**SMALL, "vocab_size": len(tokenizer), "max_position_embeddings": 128})
    model = ScratchBertForPreTraining(config).eval()
    log_probs = unigram_log_probs(corpus.token_counts(len(tokenizer)))
    metrics = PretrainingMetrics(log_probs)
    examples = [pairs[i] for i in range(50)]
    options = {"batch_eval_metrics": True, "remove_unused_columns": False, "use_cpu": True, "disable_tqdm": True}
    args = TrainingArguments(str(tmp_path), per_device_eval_batch_size=8, **options)
    parts = {"data_collator": PretrainingCollator(tokenizer), "eval_dataset": examples, "compute_metrics": metrics}
    trainer = PretrainingTrainer(model, args, preprocess_logits_for_metrics=metrics.reduce, **parts)
    shapes = []
    model.cls.predictions.register_forward_hook(lambda module, inputs, output: shapes.append(output.dim()))
    result = trainer.evaluate()
    assert set(shapes) == {2}  # the MLM head is computed at the masked tokens only
    assert trainer.evaluate()["eval_mlm_loss"] == result["eval_mlm_loss"]  # the same masks, sums started afresh
    assert {f"eval_{name}" for name in metrics.names} <= result.keys()

    predictions, labels, nsp_logits, nsp_labels = [], [], [], []
    for start in range(0, 50, 8):
        batch = PretrainingCollator(tokenizer)(examples[start : start + 8])
        with torch.no_grad():
            outputs = model(**batch)
        masked = batch["labels"] != -100
        predictions.append(outputs.prediction_logits[masked])
        labels.append(batch["labels"][masked])
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
        "nsp_accuracy_stderr": (nsp_logits.argmax(-1) == nsp_labels).float().std(correction=0).item()
        / len(nsp_labels) ** 0.5,
        "nsp_majority_loss": -sum(p * np.log(p) for p in (share, 1 - share)),
    }
    for name, value in expected.items():
        assert result[f"eval_{name}"] == pytest.approx(value, rel=1e-4), name


def test_metrics_need_no_float64_on_the_device():
    class OfApplesGPU(torch.Tensor):
        def double(self):
            raise TypeError("the MPS framework doesn't support float64")

        def cpu(self):
            return self.as_subclass(torch.Tensor)

    metrics = PretrainingMetrics(torch.zeros(50), objective="none")
    labels = torch.full((6, 9), 7)
    sums = metrics.reduce(torch.zeros(6, 9, 50), labels)
    result = metrics(EvalPrediction(sums.as_subclass(OfApplesGPU), labels), compute_result=True)
    assert result["mlm_loss"] == pytest.approx(math.log(50))


def test_metrics_of_mlm_alone(tokenizer):
    metrics = PretrainingMetrics(torch.full((50,), -2.0), objective="none")
    logits, labels = torch.randn(6, 9, 50), torch.full((6, 9), -100)
    labels[:, 3] = 7
    result = metrics(EvalPrediction(metrics.reduce(logits, labels), labels), compute_result=True)
    expected = F.cross_entropy(logits[:, 3], labels[:, 3]).item()
    assert result["mlm_loss"] == pytest.approx(expected, rel=1e-5)
    assert result["mlm_unigram_loss"] == pytest.approx(2.0)
    assert not any("nsp" in name for name in result)
    table = describe_metrics({"model": {f"eval_{name}": value for name, value in result.items()}})
    assert "MLM loss" in table and "NSP" not in table


METRICS = {"eval_mlm_loss": 2.5, "eval_mlm_unigram_loss": 5.0, "eval_mlm_perplexity": 12.25, "eval_mlm_accuracy": 0.5}
METRICS |= {"eval_nsp_loss": 0.6, "eval_nsp_majority_loss": 0.7, "eval_nsp_accuracy": 0.75}
METRICS |= {"eval_nsp_accuracy_stderr": 0.0306, "eval_nsp_majority_accuracy": 0.55}


def cells(table):
    return [re.split(r"\s{2,}", line) for line in table.splitlines()]


def test_metrics_of_models_are_columns_beside_the_baseline():
    mlm_only = {name: value + 1 for name, value in METRICS.items() if "mlm" in name}
    table = describe_metrics({"a": METRICS, "a-longer-name": mlm_only}, "nsp")
    assert cells(table) == [
        ["held-out text", "a", "a-longer-name", "baseline"],
        ["MLM loss", "2.500", "3.500", "5.000"],
        ["MLM perplexity", "12.250", "13.250", ""],
        ["MLM accuracy", "0.500", "1.500", ""],
        ["NSP loss", "0.600", "0.700"],
        ["NSP accuracy", "0.750 ± 0.031", "0.550"],
        ["Baselines: unigrams of the training text; majority class."],
    ]
    assert {len(line) for line in table.splitlines()[:-1]} == {20 + 3 * len("a-longer-name  ")}


def test_metrics_table_names_the_objective_and_the_text():
    table = describe_metrics({"model": METRICS}, "sop", "text of a.txt", "the same text")
    assert cells(table)[0] == ["text of a.txt", "model", "baseline"]
    assert cells(table)[4] == ["SOP loss", "0.600", "0.700"]
    assert table.endswith("Baselines: unigrams of the same text; majority class.")


AT_CHANCE = {"eval_nsp_accuracy": 0.56}
MEMORISED = {"nsp_loss": 0.25, "eval_nsp_loss": 1.66, "eval_nsp_accuracy": 0.55}


@pytest.mark.parametrize(
    ("objective", "changed", "evaluated", "trained", "expected"),
    [
        ("nsp", {}, 4000, 1600, ""),
        ("nsp", AT_CHANCE, 4000, 1600, "NSP cannot be distinguished from chance .*per_device_train_batch_size.*"),
        ("nsp", AT_CHANCE, 400, 1600, r".* 400 examples \(±5%\).* 3 to 40 minutes; .* seen 1,600.*longer training.*"),
        ("nsp", AT_CHANCE, 400, 500_000, r"(?!.*longer training).* 400 examples \(±5%\).*"),
        ("nsp", AT_CHANCE, 20, 1600, "20 examples are too few to tell .*validation_share.*"),
        ("nsp", MEMORISED, 20, 1600, "NSP .* have been memorised.*more text.*"),
        ("nsp", {"eval_mlm_loss": 4.6} | AT_CHANCE, 4000, 1600, "MLM is hardly .*max_minutes.* NSP .* 1,600: docs.*"),
        ("sop", AT_CHANCE, 4000, 1600, ""),
        ("none", {"eval_mlm_loss": 4.6}, 4000, 1600, "MLM is hardly better .*"),
        # Both below the unigram baseline, and hardly different.
        ("nsp", {"mlm_loss": 4.41, "eval_mlm_loss": 4.51}, 4000, 1600, "(?!.*memorised).*"),
        ("nsp", {"mlm_loss": 2.9, "eval_mlm_loss": 6.13}, 4000, 1600, r".*memorised.*2\.90.*6\.13.*"),
        ("none", {"loss": 2.9, "eval_mlm_loss": 6.13}, 4000, 1600, r".*memorised.*2\.90.*6\.13.*"),
        ("nsp", MEMORISED, 4000, 1600, r"(?!.*longer).*memorised.*0\.25.*1\.66.*more text.*"),
    ],
)
def test_what_is_not_learned_is_said_with_a_remedy(objective, changed, evaluated, trained, expected):
    metrics = METRICS | {"nsp_loss": 0.69} | changed
    found = find_objective(objective).describe_plateaus(metrics, evaluated, trained, 5000)
    assert re.fullmatch(expected, found, re.DOTALL)


def test_bits_per_character(documents):
    for tokenizer_type in ("wordpiece", "character"):
        tokenizer = train_tokenizer(documents[:20], 300, tokenizer_type=tokenizer_type)
        corpus = TokenizedCorpus.from_documents(documents[:20], tokenizer)
        pieces = tokenizer.convert_ids_to_tokens(corpus.tokens.tolist())
        lengths = [len(re.sub("##|▁", "", piece)) for piece in pieces if piece != "[UNK]"]  # ▁ is a space
        share = characters_per_token(corpus.token_counts(len(tokenizer)), tokenizer)
        assert share == pytest.approx(sum(lengths) / len(lengths))
        metrics = PretrainingMetrics(torch.zeros(300), "none", characters_per_token=share)
        logits, labels = torch.zeros(1, 8, 256), torch.arange(8)[None]  # 8 bits a token
        found = metrics(EvalPrediction(metrics.reduce(logits, labels), labels), compute_result=True)
        assert found["mlm_bits_per_character"] == pytest.approx(8 / share)
        assert list(found) == [name for name in metrics.names if name in found]
