"""Metrics of both objectives, compared with baselines that need no model."""

import math

import numpy as np
import torch
from torch.nn import functional as F
from transformers import EvalPrediction


def unigram_log_probs(counts: np.ndarray) -> torch.Tensor:
    """Log-probability of each token id by its count in a text, one added to each count: (vocabulary size,)."""
    return torch.from_numpy(np.log((counts + 1) / (counts + 1).sum())).float()


class PretrainingMetrics:
    """MLM loss, perplexity and accuracy, NSP loss and accuracy, for Trainer with `batch_eval_metrics=True`.

    Use the object as `compute_metrics`, and its `reduce` as `preprocess_logits_for_metrics`: each batch is reduced to a
    few sums per example on its device, so no logits are kept. The baselines are computed on the same examples: for MLM
    the cross entropy of the training text's unigrams at the masked positions, for NSP the majority class. Without
    `next_sentence` it serves `ScratchBertForMaskedLM`, whose logits and labels are not in tuples.
    """

    COLUMNS = ("mlm_loss", "mlm_correct", "mlm_unigram_loss", "mlm_count", "nsp_loss", "nsp_correct", "nsp_label")

    def __init__(self, unigram_log_probs: torch.Tensor, next_sentence: bool = True):
        self.unigram_log_probs = unigram_log_probs
        self.next_sentence = next_sentence
        self.sums, self.examples = 0, 0

    @property
    def names(self) -> list[str]:
        """Of the metrics."""
        names = ["mlm_loss", "mlm_unigram_loss", "mlm_perplexity", "mlm_accuracy"]
        nsp = ["nsp_loss", "nsp_majority_loss", "nsp_accuracy", "nsp_majority_accuracy"]
        return names + nsp if self.next_sentence else names

    def reduce(self, logits, labels) -> torch.Tensor:
        """Logits (B, S, V), (B, 2) and labels (B, S), (B,) → the sums of each example (B, len(COLUMNS))."""
        nsp_columns = []
        if self.next_sentence:
            (logits, nsp_logits), (labels, next_sentence_label) = logits, labels
            nsp_columns = [
                F.cross_entropy(nsp_logits.float(), next_sentence_label, reduction="none"),
                nsp_logits.argmax(-1) == next_sentence_label,
                next_sentence_label,
            ]
        masked = labels.ne(-100)  # (B, S)
        example_of = masked.nonzero()[:, 0]  # (M,): the example of each masked token
        predictions, targets = logits[masked].float(), labels[masked]  # (M, V), (M,)

        def sum_by_example(values: torch.Tensor) -> torch.Tensor:  # (M,) → (B,)
            return torch.zeros(len(labels), device=labels.device).index_add_(0, example_of, values.float())

        columns = [
            sum_by_example(F.cross_entropy(predictions, targets, reduction="none")),
            sum_by_example(predictions.argmax(-1) == targets),
            sum_by_example(-self.unigram_log_probs.to(labels.device)[targets]),
            masked.sum(-1),
            *nsp_columns,
        ]
        return torch.stack([column.float() for column in columns], dim=1)

    def __call__(self, prediction: EvalPrediction, compute_result: bool) -> dict[str, float]:
        sums = prediction.predictions.double().cpu()  # (B, len(COLUMNS))
        self.sums = self.sums + sums.sum(0)
        self.examples += len(sums)
        if not compute_result:
            return {}
        total, examples = dict(zip(self.COLUMNS, self.sums.tolist(), strict=False)), self.examples
        self.sums, self.examples = 0, 0
        masked = max(total["mlm_count"], 1)
        metrics = {
            "mlm_loss": total["mlm_loss"] / masked,
            "mlm_unigram_loss": total["mlm_unigram_loss"] / masked,
            "mlm_perplexity": math.exp(min(total["mlm_loss"] / masked, 700)),  # 700: still a finite float
            "mlm_accuracy": total["mlm_correct"] / masked,
        }
        if not self.next_sentence:
            return metrics
        shares = [total["nsp_label"] / examples, 1 - total["nsp_label"] / examples]
        return metrics | {
            "nsp_loss": total["nsp_loss"] / examples,
            "nsp_majority_loss": -sum(share * math.log(share) for share in shares if share > 0),
            "nsp_accuracy": total["nsp_correct"] / examples,
            "nsp_majority_accuracy": max(shares),
        }


def describe_metrics(results: dict[str, dict[str, float]], objective: str = "nsp", held_out: bool = True) -> str:
    """Evaluations of models on the same examples as a table for the terminal: a column for each, and for the baseline.

    `objective` is the sentence objective's key. The examples are `held_out` from the text that the unigram baseline is
    estimated on, or all of it.
    """
    width = max(10, *(len(name) + 2 for name in results))
    lines = [
        f"{'held-out text' if held_out else 'all of the text':<20}"
        + "".join(f"{name:>{width}}" for name in [*results, "baseline"])
    ]
    for name, key, baseline in (
        ("MLM loss", "mlm_loss", "mlm_unigram_loss"),
        ("MLM perplexity", "mlm_perplexity", None),
        ("MLM accuracy", "mlm_accuracy", None),
        (f"{objective.upper()} loss", "nsp_loss", "nsp_majority_loss"),
        (f"{objective.upper()} accuracy", "nsp_accuracy", "nsp_majority_accuracy"),
    ):
        found = [metrics.get(f"eval_{key}") for metrics in results.values()]
        if all(value is None for value in found):
            continue
        baselines = [metrics.get(f"eval_{baseline}") for metrics in results.values()]
        found.append(next((value for value in baselines if value is not None), None))
        lines.append(f"{name:<20}" + "".join(f"{'' if value is None else f'{value:.3f}':>{width}}" for value in found))
    text = "the training text" if held_out else "the same text"
    return "\n".join([*lines, f"Baselines: unigrams of {text}; majority class."])
