"""Metrics of MLM and of the objective, compared with baselines that need no model."""

import math

import numpy as np
import torch
from torch.nn import functional as F
from transformers import EvalPrediction, PreTrainedTokenizerBase

from ..logs import logger
from ..objectives import MetricRow, Objective, find_objective


def unigram_log_probs(counts: np.ndarray) -> torch.Tensor:
    """Log-probability of each token id from its count in a text, with one added to each count: (vocabulary size,)."""
    counts = np.asarray(counts) + 1
    return torch.from_numpy(np.log(counts / counts.sum())).float()


def characters_per_token(counts: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> float:
    """The mean number of characters, without spaces, of the tokens of a text with these `counts` of ids. Unknown and
    special tokens are left out."""
    decoder = tokenizer.backend_tokenizer.decoder
    pieces = tokenizer.convert_ids_to_tokens([*range(len(counts))])
    texts = (decoder.decode([piece]) if decoder else piece for piece in pieces)  # without marks for spaces
    lengths = np.array([len("".join((text.removeprefix("##") or text).split())) for text in texts])
    counts = np.where(np.isin(np.arange(len(counts)), tokenizer.all_special_ids), 0, counts)
    return float((counts * lengths).sum() / max(counts.sum(), 1))


class PretrainingMetrics:
    """MLM loss, perplexity and accuracy, and the metrics of the objective, for Trainer with `batch_eval_metrics=True`.

    Use the object as `compute_metrics`, and its `reduce` as `preprocess_logits_for_metrics`: each batch is reduced to
    a few sums per example on its device, so no logits are kept. The baselines are computed on the same examples: for
    MLM the cross entropy of the training text's unigrams at the masked positions; for the objective, see its `score`.

    With the text's `characters_per_token`, the MLM loss is also in bits per character, in which models of different
    vocabularies can be compared.
    """

    def __init__(
        self,
        unigram_log_probs: torch.Tensor,
        objective: str | Objective = "nsp",
        characters_per_token: float | None = None,
    ):
        self.unigram_log_probs, self.characters_per_token = unigram_log_probs, characters_per_token
        self.objective = find_objective(objective)
        self.columns: list[str] = []  # names of the sums that `reduce` returns
        self.sums = 0

    @property
    def names(self) -> list[str]:
        """Names of the metrics."""
        rows = [
            row for row in (*MLM_ROWS, *self.objective.metric_rows) if row.metric != BITS or self.characters_per_token
        ]
        return [name for row in rows for name in (row.metric, row.baseline) if name]

    def reduce(self, logits, labels) -> torch.Tensor:
        """Sums per example, (B, columns), of logits and labels, MLM's first: (B, S, V) or (M, V), and (B, S)."""
        logits = logits if isinstance(logits, tuple) else (logits,)
        labels = labels if isinstance(labels, tuple) else (labels,)
        mlm_logits, mlm_labels = logits[0], labels[0]
        masked = mlm_labels.ne(-100)  # (B, S)
        example_index = masked.nonzero()[:, 0]  # (M,): the example of each masked token
        predictions = (mlm_logits if mlm_logits.dim() == 2 else mlm_logits[masked]).float()  # (M, V)
        targets = mlm_labels[masked]  # (M,)

        def sum_by_example(values: torch.Tensor) -> torch.Tensor:  # (M,) → (B,)
            return torch.zeros(len(masked), device=masked.device).index_add_(0, example_index, values.float())

        scores = {
            "mlm_loss": sum_by_example(F.cross_entropy(predictions, targets, reduction="none")),
            "mlm_correct": sum_by_example(predictions.argmax(-1) == targets),
            "mlm_unigram_loss": sum_by_example(-self.unigram_log_probs.to(masked.device)[targets]),
            "mlm_count": masked.sum(-1),
            **self.objective.score(logits, labels),
        }
        self.columns = list(scores)
        return torch.stack([column.float() for column in scores.values()], dim=1)

    def __call__(self, prediction: EvalPrediction, compute_result: bool | None = None) -> dict[str, float]:
        if compute_result is None or not torch.is_tensor(prediction.predictions):
            raise ValueError(
                "PretrainingMetrics sums batches: it needs TrainingArguments(batch_eval_metrics=True) and "
                "Trainer(preprocess_logits_for_metrics=metrics.reduce)."
            )
        sums = prediction.predictions.cpu().double()  # (B, columns); Apple's GPUs have no float64
        self.sums = self.sums + sums.sum(0)
        if not compute_result:
            return {}
        total, self.sums = dict(zip(self.columns, self.sums.tolist(), strict=True)), 0
        if not total["mlm_count"]:
            logger.warning(
                "No token was masked in the evaluation: its MLM metrics mean nothing. Raise mlm_probability."
            )
        masked = max(total["mlm_count"], 1)
        bits = {}
        if self.characters_per_token:
            bits = {BITS: total["mlm_loss"] / masked / math.log(2) / self.characters_per_token}
        return {
            "mlm_loss": total["mlm_loss"] / masked,
            "mlm_unigram_loss": total["mlm_unigram_loss"] / masked,
            "mlm_perplexity": math.exp(min(total["mlm_loss"] / masked, 700)),  # 700: still a finite float
            "mlm_accuracy": total["mlm_correct"] / masked,
            **bits,
        } | self.objective.summarize(total)


BITS = "mlm_bits_per_character"
MLM_ROWS = (
    MetricRow("MLM loss", "mlm_loss", "mlm_unigram_loss", "unigram"),
    MetricRow("MLM perplexity", "mlm_perplexity"),
    MetricRow("MLM accuracy", "mlm_accuracy"),
    MetricRow("MLM bits/character", BITS),
)


def describe_metrics(
    results: dict[str, dict[str, float]],
    objective: str | Objective = "nsp",
    text: str = "held-out text",
    unigrams_of: str = "the training text",
) -> str:
    """Table for the terminal of models evaluated on the same `text`: a column for each model, and for the baseline.
    Accuracies that are means over examples have their standard errors."""
    rows = (*MLM_ROWS, *find_objective(objective).metric_rows)
    first = max(20, len(text) + 2, *(len(row.label) + 2 for row in rows))
    width = max(15, *(len(name) + 2 for name in results))

    def line(label: str, cells: list[str]) -> str:
        return f"{label:<{first}}" + "".join(f"{cell:>{width}}" for cell in cells)

    def values(name: str | None) -> list[str]:
        """The value of a metric for each model, with its standard error, if there is one; empty without the metric."""
        found = [(metrics.get(f"eval_{name}"), metrics.get(f"eval_{name}_stderr")) for metrics in results.values()]
        return ["" if v is None else f"{v:.3f}" if error is None else f"{v:.3f} ± {error:.3f}" for v, error in found]

    lines = [line(text, [*results, "baseline"])]
    for row in rows:
        if any(found := values(row.metric)):
            lines.append(line(row.label, [*found, next(filter(None, values(row.baseline)), "")]))
    others = dict.fromkeys(row.baseline_name for row in rows if row.metric.endswith("accuracy") and row.baseline)
    return "\n".join([*lines, f"Baselines: {'; '.join([f'unigrams of {unigrams_of}', *others])}."])
