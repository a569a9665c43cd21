"""The base of all tasks: labelled examples → the model's inputs; its logits → predictions and scores."""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import torch
from datasets import Dataset
from pydantic import BaseModel, ValidationError
from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedTokenizerBase

from scratch_bert_options.schema import explain

from ...training.trainer import DivergenceError
from ..metrics import MAIN_SCORES, load_metric


logger = logging.getLogger("scratch_bert")

Tensors = torch.Tensor | tuple[torch.Tensor, ...]
Logits = np.ndarray | tuple[np.ndarray, ...]


class Row(BaseModel, strict=True):
    """The schema of an example. A kind of task extends it by its columns."""

    origin: str
    """Where the example comes from: a file or a split, and its number there."""


class TextRow(Row):
    text: str
    text_pair: str = ""


def parse_row(schema: type[Row], row: dict[str, Any]) -> Row:
    """Raises `ValueError` with the row's origin, the field and the reason."""
    try:
        return schema.model_validate(row)
    except ValidationError as error:
        raise ValueError(explain(error, row["origin"])) from None


class Task:
    """A task and its examples, checked and ready to train on.

    A kind of task is a subclass in its own file, with the name of the task: `TokenClassification` in
    token_classification.py is `token-classification`. It defines what the first part of this class lists.
    """

    row: ClassVar[type[Row]]
    columns: ClassVar[dict[str, str | None]]
    """Task's column → its usual name in tables and datasets."""
    file_format: ClassVar[str | None] = None
    """Format of files other than tables: `conll` or `squad`."""
    options: ClassVar[tuple[str, ...]] = ()
    """Fields of `TaskOptions` that are specific to this kind of task: arguments of `read_labels`."""
    default_max_seq_length: ClassVar[int | None] = None
    """Used where the model's limit is larger."""
    auto_class: ClassVar[type]
    collator_class: ClassVar[type] = DataCollatorWithPadding
    default_metrics: tuple[str, ...] = ("accuracy",)

    def __init__(
        self,
        name: str,
        splits: dict[str, Dataset],
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
        *,
        metrics: Sequence[str] | None = None,
        best_metric: str | None = None,
        validation_share: float = 0.1,
        seed: int = 0,
        dataset_name: str | None = None,
        **options: Any,
    ):
        """Raises `ValueError` for examples, labels and metrics that do not fit together.

        Args:
            splits: `train` and, if there are any, `validation` and `test`, as `load_splits` returns them.
            metrics: Names of metrics, instead of the task's own.
            best_metric: The score that selects the best checkpoint. Default: the main score of the first metric.
            validation_share: Fraction of the training examples to hold out if there are none for validation.
            dataset_name: None if the examples come from files or from memory.
            options: The class's `options`.
        """
        self.name, self.splits, self.dataset_name = name, splits, dataset_name
        self.tokenizer, self.max_seq_length = tokenizer, max_seq_length
        for examples in splits.values():
            columns = examples[:]
            for row in zip(*columns.values(), strict=True):
                parse_row(self.row, dict(zip(columns, row, strict=True)))
        self.model_options: dict[str, Any] = {}
        """The fields that the model's config needs. Set by `read_labels`."""
        self.read_labels(**options)
        if "validation" not in splits:  # once the labels are known: a rare label may be held out
            parts = splits["train"].train_test_split(validation_share, seed=seed)
            self.splits = splits | {"train": parts["train"], "validation": parts["test"]}
        self.references = {split: self.references_of(split) for split in self.splits if self._is_labelled(split)}
        """The labels that predictions are compared with, by split."""
        self.windows: dict[str, tuple] = {}
        """For tasks that split long examples, by split: where the tokens of each window come from. Set by `encode`."""
        self.metrics = {name: load_metric(name) for name in metrics or self.default_metrics}
        try:  # one that does not fit the labels would fail in the first evaluation
            known = ["loss", *self.compute_scores("validation", self.gold_predictions("validation"))]
        except (ValueError, TypeError, AttributeError) as error:
            names = ", ".join(self.metrics)
            raise ValueError(
                f"The metrics {names} do not fit these labels: {error} Choose others with --metrics."
            ) from None
        first = next(iter(self.metrics))
        self.best_metric = best_metric or MAIN_SCORES.get(first, first)
        if self.best_metric not in known:
            raise ValueError(f"metric_for_best_model must be one of {', '.join(known)}, got {self.best_metric}.")

    @cached_property
    def features(self) -> dict[str, Dataset]:
        """The model's inputs by split, with labels where they are known. Encoded on first use, as it takes minutes."""
        features = {split: self.encode(split) for split in self.splits}
        training = {hash(repr(ids)) for ids in features["train"]["input_ids"]}
        shared = [hash(repr(ids)) in training for ids in features["validation"]["input_ids"]]
        if sum(shared) > 0.01 * len(shared):
            logger.warning(
                f"{sum(shared):,} of {len(shared):,} validation inputs are training inputs, too, so the metrics "
                "measure what is memorised: remove duplicates"
            )
        return features

    # ----------------------------------------------------------------------------------- what a kind of task defines

    def read_labels(self) -> None:
        """Find the set of labels in the training examples, and the default metrics for them."""

    def is_unlabelled(self, label: Any) -> bool:
        """Whether a label is a placeholder for an unknown one, as in the Hub's test sets."""
        return label in (None, "", -1)

    def references_of(self, split: str) -> list:
        """The reference of each example. Raises `ValueError` for a label that is not valid."""
        raise NotImplementedError

    def gold_predictions(self, split: str) -> list:
        """A correct prediction for each example."""
        return self.references[split]

    def encode(self, split: str) -> Dataset:
        """Tokenize the examples of a split, and add their labels."""
        raise NotImplementedError

    def reduce(self, logits: Tensors, labels: Tensors | None = None) -> Tensors:
        """What `decode` takes of the logits of a batch."""
        return logits

    def decode(self, split: str, logits: Logits) -> list:
        """A prediction for each example of a split, from the logits of all its features, as `reduce` gives them."""
        raise NotImplementedError

    def constant_predictions(self, split: str) -> list | None:
        """The best predictions that do not depend on the inputs, as a baseline; None for a task without."""
        return None

    def format_prediction(self, prediction: Any) -> Any:
        """A prediction for readers, with names for label ids."""
        return prediction

    def for_metric(self, name: str, predictions: list, references: list) -> tuple[list, list]:
        """Predictions and references in the form that the metric `name` takes."""
        return predictions, references

    # ------------------------------------------------------------------------------------------- what all tasks share

    def _is_labelled(self, split: str) -> bool:
        examples = self.splits[split]
        if "label" not in examples.column_names:
            return False
        return split != "test" or not all(map(self.is_unlabelled, examples["label"]))

    def compute_scores(self, split: str, predictions: list, metrics: Iterable[str] | None = None) -> dict[str, float]:
        """The scores of predictions, by all of the task's metrics or by these."""
        scores = {}
        for name in metrics or self.metrics:
            scores |= self.metrics[name](*self.for_metric(name, predictions, self.references[split]))
        return scores

    def compute_metrics(self, outputs: EvalPrediction) -> dict[str, float]:
        """The scores on the validation split, for Trainer. Raises `DivergenceError` for predictions that are not
        finite."""
        check_logits(outputs.predictions)
        return self.compute_scores("validation", self.decode("validation", outputs.predictions))

    def write_predictions(self, split: str, predictions: list, directory: Path) -> Path:
        """Write a JSON object per example, in order: its origin, the prediction, and the label if known. Returns the
        file."""
        file = directory / f"{split}_predictions.jsonl"
        labels, origins = self.references.get(split), self.splits[split]["origin"]
        with file.open("w", encoding="utf-8") as lines:
            for number, (origin, prediction) in enumerate(zip(origins, predictions, strict=True)):
                content = {"origin": origin, "prediction": self.format_prediction(prediction)}
                if labels:
                    content["label"] = self.format_prediction(labels[number])
                lines.write(json.dumps(content, ensure_ascii=False) + "\n")
        return file

    def collator(self):
        return self.collator_class(self.tokenizer)

    def text_columns(self, split: str) -> list[str]:
        return [column for column in ("text", "text_pair") if column in self.splits[split].column_names]

    @property
    def truncation(self) -> dict[str, Any]:
        return {"truncation": True, "max_length": self.max_seq_length}

    def tokenize(self, split: str, function: Callable, **options: Any) -> Dataset:
        """The features that `function` computes from batches of examples."""
        examples = self.splits[split]
        return examples.map(
            function,
            batched=True,
            **options,
            remove_columns=examples.column_names,
            keep_in_memory=True,  # a cache would grow with each run
            load_from_cache_file=False,
            new_fingerprint=f"tokenized-{split}",  # by default, all of this object would be hashed: minutes
            desc=f"Tokenizing {split}",
        )

    def checksum(self, split: str) -> int:
        """CRC-32 of the token ids and of the references, in their order."""
        value = crc32(repr(self.references[split]).encode())
        for ids in self.features[split]["input_ids"]:
            value = crc32(repr(ids).encode(), value)
        return value

    def describe(self) -> str:
        """The number of examples, the problem type and the labels, on one line."""
        counts = ", ".join(f"{len(examples):,} {split}" for split, examples in self.splits.items())
        problem_type = self.model_options.get("problem_type", "").replace("_", " ")
        labels = ", ".join(self.model_options.get("id2label", {}).values())
        return "; ".join(filter(None, (f"Examples: {counts}", problem_type, labels and f"labels: {labels:.500}")))


def check_logits(logits: Logits) -> None:
    """Raise `DivergenceError` for outputs of a model that are not all finite: metrics fail, or are NaN."""
    if not all(np.isfinite(part).all() for part in (logits if isinstance(logits, tuple) else (logits,))):
        raise DivergenceError(
            "The model's outputs are not finite: its weights are too large, as the training has diverged, or those of "
            "the checkpoint are damaged. Try a lower learning rate, or fp32 instead of bf16 or fp16."
        )
