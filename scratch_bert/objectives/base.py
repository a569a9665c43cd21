"""Base classes of objectives: pairs of segments, examples, model, losses, metrics, and texts to show."""

import math
from typing import NamedTuple

import datasets
import numpy as np
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..corpus.corpus import TokenizedCorpus
from ..corpus.encoder import ExampleEncoder
from ..model.modeling_scratch_bert import ScratchBertForMaskedLM, ScratchBertForPreTraining
from ..text.formats import WITHOUT_MARKS
from .predictions import mlm_predictions, nsp_predictions


class MetricRow(NamedTuple):
    """A row in tables of results, in the terminal and in the model card."""

    label: str
    metric: str
    baseline: str | None = None
    """The metric of a baseline that needs no model."""
    baseline_name: str = ""


class Objective:
    """A pretraining objective: masked language modelling, and what a subclass adds.

    To add one, subclass this, or `PairClassification` if it predicts a label of two segments: in a module of this
    package, or in your own code with `OBJECTIVES["mine"] = Mine()`. docs/library.md has a complete example.
    """

    name: str
    """Key in `OBJECTIVES`, and value of the option `sentence_objective`."""
    title: str
    description: str
    """Phrase for the error that lists the objectives."""
    model_class: type[PreTrainedModel] = ScratchBertForMaskedLM
    losses: tuple[str, ...] = ()
    """The model's outputs that add up to its loss, for the log; empty if MLM's is the only loss."""
    label_column: str | None = None
    """Column of examples, and argument of the model, with a pair's label: an integer, -100 for none."""
    num_labels: int | None = None
    """Number of labels, which are integers from 0; None to accept any."""
    has_pairs: bool = False
    """Whether examples have two segments, which differ in `token_type_ids`."""
    special_tokens: int = 2
    """Number of special tokens in an example: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]."""
    min_tokens: int = 1
    """Minimum number of tokens in an example, without special tokens."""
    packs: bool = False
    """Whether examples, or columns of them, are packed sequences already, as by `seq_idx`."""
    min_documents: int = 1
    """Minimum number of documents in a corpus."""

    def draw_pairs(
        self,
        corpus: TokenizedCorpus,
        limit: int,
        short_seq_prob: float,
        single_segment_prob: float,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """One pass over the corpus as pairs of segments: (pairs, 5) int64, in any order.

        A pair is `a_start, a_end, b_start, b_end, label`: its segments as spans of `corpus.tokens`, with at most
        `limit` tokens together, and its label. An empty B makes a single segment.
        """
        raise NotImplementedError

    def build_pairs(
        self,
        corpus: TokenizedCorpus,
        max_seq_length: int,
        short_seq_prob: float,
        rng: np.random.Generator,
        single_segment_prob: float = 0.0,
    ) -> np.ndarray:
        """The pairs of `draw_pairs` for sequences of up to `max_seq_length` tokens, in the order of the text."""
        limit = max_seq_length - self.special_tokens
        pairs = np.asarray(self.draw_pairs(corpus, limit, short_seq_prob, single_segment_prob, rng))
        if pairs.ndim != 2 or pairs.shape[1] != 5:
            raise ValueError(f"{self.name}: draw_pairs must give pairs (pairs, 5), but gave {pairs.shape}.")
        return pairs[np.argsort(pairs[:, 0], kind="stable")]

    def check_length(self, max_seq_length: int) -> None:
        """Raise `ValueError` if the length leaves too little room for segments."""
        if max_seq_length < self.special_tokens + self.min_tokens:
            raise ValueError(
                f"max_seq_length must be {self.special_tokens + self.min_tokens} or more, got {max_seq_length}."
            )

    def check(self, corpus: TokenizedCorpus, max_seq_length: int) -> None:
        """Raise `ValueError` if the corpus or the length gives no examples."""
        if corpus.num_documents < self.min_documents:
            raise ValueError(
                f"{self.title} needs {self.min_documents} documents or more, because a random second segment comes "
                f"from another document; this text has {corpus.num_documents}. See how text_format splits it into "
                "documents, or choose another objective."
            )
        self.check_length(max_seq_length)
        (first, last), (start, end) = corpus.documents.T, corpus.document_tokens.T
        limit = max_seq_length - self.special_tokens
        if self.min_tokens > 1 and not ((last - first > 1) | (end - start > limit // 2)).any():
            raise ValueError(
                "No document has two sentences, so no segment follows another. See how text_format and "
                f"sentence_splitter split the text: {WITHOUT_MARKS}. Or choose the objective none."
            )

    def encoder(self, tokenizer: PreTrainedTokenizerBase) -> ExampleEncoder:
        """A function `(tokens, pair) → example`, a dict of the model's inputs as arrays, and the label."""
        return ExampleEncoder(tokenizer, self.label_column)

    def features(self) -> datasets.Features:
        """The columns of an example, as they are written to parquet files."""
        columns = {
            "input_ids": datasets.List(datasets.Value("int32")),
            "token_type_ids": datasets.List(datasets.Value("int8")),
            "special_tokens_mask": datasets.List(datasets.Value("int8")),
        }
        if self.label_column:
            columns[self.label_column] = datasets.Value("int64")
        return datasets.Features(columns)

    def score(self, logits: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """Values of each example from which the metrics are computed: name → (B,).

        `logits` are the model's outputs and `labels` the batch's label columns, MLM's first in both.
        """
        return {}

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        """The metrics, from the sums of the values of `score` over all examples."""
        return {}

    metric_rows: tuple[MetricRow, ...] = ()
    """The metrics to show, in addition to MLM's."""

    def describe_plateaus(self, metrics: dict[str, float], evaluated: int, trained: int, per_minute: float) -> str:
        """What a model has not begun to learn and what helps, or an empty string. `metrics` are the latest of the
        training and of an evaluation on `evaluated` examples, after `trained` examples, at `per_minute` per minute."""
        if metrics["eval_mlm_loss"] < 0.9 * metrics["eval_mlm_unigram_loss"]:
            return ""
        in_training = metrics.get("mlm_loss", metrics.get("loss", math.inf))
        if in_training < 0.9 * min(metrics["eval_mlm_unigram_loss"], metrics["eval_mlm_loss"]):
            return (
                f"The training text has been memorised: its MLM loss is {in_training:.2f}, that of the evaluation text "
                f"{metrics['eval_mlm_loss']:.2f}. What helps: more text, or fewer epochs."
            )
        hardly = "hardly" if metrics["eval_mlm_loss"] < metrics["eval_mlm_unigram_loss"] else "not"
        return (
            f"MLM is {hardly} better than predicting each token by its frequency: train longer (max_minutes, max_steps "
            "or num_train_epochs), or on more text."
        )

    def describe_pairs(self, pairs: np.ndarray) -> str:
        """Phrase on an epoch's pairs (pairs, 5), for the log; empty for none."""
        return ""

    def statistics(self, labels: np.ndarray, documents: np.ndarray) -> dict[str, int]:
        """Noteworthy counts of an epoch, from the labels (pairs,) and the documents of the segments (pairs, 2)."""
        return {}

    def describe_predictions(
        self, model: PreTrainedModel, dataset: Dataset, tokenizer: PreTrainedTokenizerBase, count: int = 4
    ) -> str:
        """Predictions for `count` masked words and as many pairs, as text. Sets the model to evaluation mode."""
        model.eval()
        lines = ["MLM: the masked word, then the top-3 predictions"]
        for context, word, top_k in mlm_predictions(model, dataset, tokenizer, count):
            shown = ", ".join(f"{token} {probability:.0%}" for token, probability in top_k)
            lines += [f"  … {context} …", f"      {word:<16} {shown}"]
        return "\n".join(lines)


class PairClassification(Objective):
    """An objective that predicts a label of two segments: its metrics are loss and accuracy, with the majority class
    as baseline, and the accuracy's standard error. The model returns MLM's logits first, then the pairs' (B, classes).
    """

    label_0: str
    """Phrase for the meaning of label 0."""
    prefix: str
    """Prefix of the metrics' names."""
    has_pairs = True
    special_tokens = 3
    min_tokens = 2

    def score(self, logits: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> dict[str, Tensor]:
        scores, answers = logits[1], labels[1]  # (B, classes), (B,)
        counts = {f"{self.prefix}_label_{label}": answers.eq(label) for label in range(scores.shape[-1])}
        return {
            f"{self.prefix}_loss": F.cross_entropy(scores.float(), answers, reduction="none"),
            f"{self.prefix}_correct": scores.argmax(-1).eq(answers),
        } | counts

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        counts = [count for name, count in sums.items() if name.startswith(f"{self.prefix}_label_")]
        total = max(sum(counts), 1)
        fractions = [count / total for count in counts]
        accuracy = sums[f"{self.prefix}_correct"] / total
        return {
            f"{self.prefix}_loss": sums[f"{self.prefix}_loss"] / total,
            f"{self.prefix}_majority_loss": sum(-part * math.log(part) for part in fractions if part > 0),
            f"{self.prefix}_accuracy": accuracy,
            f"{self.prefix}_accuracy_stderr": math.sqrt(accuracy * (1 - accuracy) / total),
            f"{self.prefix}_majority_accuracy": max(fractions),
        }

    @property
    def metric_rows(self) -> tuple[MetricRow, ...]:  # ty: ignore[incompatible-property-override]: it is never set
        title, prefix = self.name.partition("+")[0].upper(), self.prefix
        return (
            MetricRow(f"{title} loss", f"{prefix}_loss", f"{prefix}_majority_loss", "class prior"),
            MetricRow(f"{title} accuracy", f"{prefix}_accuracy", f"{prefix}_majority_accuracy", "majority class"),
        )

    def describe_pairs(self, pairs: np.ndarray) -> str:
        labels = pairs[:, 4]
        return f"{(labels == 0).sum() / max((labels >= 0).sum(), 1):.0%} of the pairs with label 0 ({self.label_0})"


class NextSentenceHead(PairClassification):
    """A pair classification by BERT's second head, which has two labels."""

    model_class = ScratchBertForPreTraining
    losses = ("mlm_loss", "nsp_loss")
    label_column = "next_sentence_label"
    num_labels = 2
    prefix = "nsp"

    def describe_predictions(
        self, model: PreTrainedModel, dataset: Dataset, tokenizer: PreTrainedTokenizerBase, count: int = 4
    ) -> str:
        lines = [super().describe_predictions(model, dataset, tokenizer, count)]
        lines += [f"{self.name.upper()}: {self.label_0}, yes or no?"]
        for end_of_a, start_of_b, yes, probability in nsp_predictions(model, dataset, tokenizer, count):
            lines += [f"  A: … {end_of_a}", f"  B: {start_of_b} …"]
            lines += [f"      {'yes' if yes else 'no':<16} predicted: {probability:.0%} yes"]
        return "\n".join(lines)
