"""The base of all tasks: labelled examples → the model's inputs; its logits → predictions and scores."""

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import torch
from datasets import ClassLabel, Dataset
from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedTokenizerBase

from ...training.trainer import DivergenceError
from ..dataset import hold_out
from ..labels import as_label_name, check_labels, is_missing, list_labels
from ..metrics import MAIN_SCORES, METRICS, load_metric


logger = logging.getLogger("scratch_bert")
IGNORE_INDEX = -100  # the label of tokens that the loss ignores


@dataclass(eq=False)
class Task:
    """A task and its examples. `prepare` sets `references`, the labels that predictions are compared with, by split,
    and `encode_splits` sets `features`, the model's inputs; `model_options` are the fields that the model's config
    needs. `decode` turns logits into predictions, `compute_scores` evaluates them. A kind of task defines the steps
    that differ: `check_inputs`, `read_labels`, `references_of` and `encode`."""

    name: str
    splits: dict[str, Dataset]
    tokenizer: PreTrainedTokenizerBase
    max_seq_length: int
    dataset_name: str | None = None
    """None if the examples come from files or from memory."""

    columns: ClassVar[dict[str, str | None]]
    """Task's column → its usual name in tables and datasets."""
    file_format: ClassVar[str | None] = None
    """Format of files other than tables: `conll` or `squad`."""
    options: ClassVar[tuple[str, ...]] = ()
    """Fields of `TaskArguments` that are specific to this kind of task: arguments of `read_labels`."""
    default_max_seq_length: ClassVar[int | None] = None
    """Used where the model's limit is larger."""
    auto_class: ClassVar[type]
    collator_class: ClassVar[type] = DataCollatorWithPadding
    default_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    def prepare(
        self,
        metrics: Sequence[str] | None = None,
        best_metric: str | None = None,
        validation_share: float = 0.1,
        seed: int = 0,
        **options: Any,
    ) -> None:
        """Check the examples, labels and metrics, in steps that each use the results of earlier ones.

        `options` are the class's `options`. Raises `ValueError` for what does not fit together; the message names the
        example.
        """
        for split in self.splits:
            self.check_inputs(split)
        self.read_labels(**options)
        if "validation" not in self.splits:  # once the labels are known: a rare label may be held out
            self.splits = self.splits | hold_out(self.splits["train"], validation_share, seed)
        self.references = self.find_references()
        self.metrics = {name: load_metric(name) for name in metrics or self.default_metrics}
        self.best_metric = self.choose_best_metric(best_metric)

    def encode_splits(self) -> None:
        """Set the `features` of all splits, and their checksums. Raises `ValueError` for labels that do not fit the
        tokens."""
        self.features = {split: self.encode(split) for split in self.splits}
        self.checksums = {split: self._checksum(split) for split in self.references}
        self._warn_of_overlap()
        counts = ", ".join(f"{len(examples):,} {split}" for split, examples in self.splits.items())
        problem_type = self.model_options.get("problem_type", "").replace("_", " ")
        labels = list_labels(list(self.model_options.get("id2label", {}).values()))
        logger.info("; ".join(filter(None, (f"Examples: {counts}", problem_type, labels and f"labels: {labels}"))))

    # ----------------------------------------------------------------------------------- what a kind of task defines

    def check_inputs(self, split: str) -> None:
        """Raise `ValueError` for an example without valid inputs, whatever its label, and if all of a column are
        empty."""
        examples = self.splits[split]
        for column in self.text_columns(split):
            for origin, text in zip(examples["origin"], examples[column], strict=True):
                if not isinstance(text, str):
                    raise ValueError(f"{origin}, has no text in {column}, but {text!r}. Correct it, or leave it out.")
            self.check_empty(split, [not text.strip() for text in examples[column]], f"an empty {column}", column)

    def check_empty(self, split: str, is_empty: list[bool], problem: str, column: str = "text") -> None:
        """Warn of the examples that are empty. Raises `ValueError` if all are."""
        if all(is_empty):
            raise ValueError(f"All examples for {split} have {problem}: name the right column with --{column}_column.")
        if any(is_empty):
            first = self.splits[split]["origin"][is_empty.index(True)]
            logger.warning(
                f"{split}: {sum(is_empty):,} of {len(is_empty):,} examples have {problem}, the first is {first}: correct "
                "them, or leave them out"
            )

    def read_labels(self) -> None:
        """Find the set of labels in the training examples, and the default metrics for them."""

    def is_blank(self, label: Any) -> bool:
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

    def reduce(
        self, logits: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """What `decode` takes of the logits of a batch."""
        return logits

    def decode(self, split: str, logits: np.ndarray | tuple[np.ndarray, ...]) -> list:
        """A prediction for each example of a split, from the logits of all its features, as `reduce` gives them."""
        raise NotImplementedError

    def constant_predictions(self, split: str) -> list | None:
        """The best predictions for a split that do not depend on the inputs, as a baseline; None for a task without."""
        return None

    def format_prediction(self, prediction: Any) -> Any:
        """A prediction for readers, with names for label ids."""
        return prediction

    @property
    def model_options(self) -> dict[str, Any]:
        return {}

    def for_metric(self, name: str, predictions: list, references: list) -> tuple[list, list]:
        """Predictions and references in the form that the metric `name` takes."""
        return predictions, references

    # ------------------------------------------------------------------------------------------- what all tasks share

    def find_references(self) -> dict[str, list]:
        """The references of every split with labels. Raises `ValueError` if they are missing for training or
        validation."""
        labelled = [split for split in self.splits if self._is_labelled(split)]
        for split in ("train", "validation"):
            if split not in labelled:
                raise ValueError(f"The examples for {split} have no labels: pass --label_column.")
        return {split: self.references_of(split) for split in labelled}

    def _is_labelled(self, split: str) -> bool:
        examples = self.splits[split]
        if "label" not in examples.column_names:
            return False
        return split != "test" or not all(self.is_blank(label) for label in examples["label"])

    def choose_best_metric(self, requested: str | None) -> str:
        """The score that selects the best checkpoint: `requested`, or the main score of the first metric.

        Computes all metrics once, so that a metric that does not fit the labels fails before the training.
        """
        known, gold = ["loss"], self.gold_predictions("validation")
        for name in self.metrics:
            try:
                scores = self._compute(name, "validation", gold)
                if undefined := [score for score, value in scores.items() if not math.isfinite(value)]:
                    raise ValueError(f"{undefined[0]} is {scores[undefined[0]]}.")
                known += scores
            except (ValueError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"The metric {name} does not fit these labels: {error} Choose others with --metrics, of "
                    f"{', '.join(METRICS)}."
                ) from None
        first = next(iter(self.metrics))
        best = requested or MAIN_SCORES.get(first, first)
        if best not in known:
            raise ValueError(
                f"There is no metric {best!r} to select the best checkpoint by: name one with --metric_for_best_model, "
                f"of {', '.join(known)}."
            )
        return best

    def compute_scores(self, split: str, predictions: list, metrics: Iterable[str] | None = None) -> dict[str, float]:
        """The scores of predictions, by all of the task's metrics or by these."""
        scores = (self._compute(metric, split, predictions) for metric in metrics or self.metrics)
        return {name: value for values in scores for name, value in values.items()}

    def _compute(self, metric: str, split: str, predictions: list) -> dict[str, float]:
        return self.metrics[metric](*self.for_metric(metric, predictions, self.references[split]))

    def compute_metrics(self, outputs: EvalPrediction) -> dict[str, float]:
        """The scores on the validation split, for Trainer. Raises `DivergenceError` for predictions that are not
        finite."""
        check_finite(outputs.predictions)
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

    def _checksum(self, split: str) -> int:
        """CRC-32 of the token ids and of the references, in their order."""
        value = crc32(repr(self.references[split]).encode())
        for ids in self.features[split]["input_ids"]:
            value = crc32(repr(ids).encode(), value)
        return value

    def _warn_of_overlap(self) -> None:
        training = {hash(repr(ids)) for ids in self.features["train"]["input_ids"]}
        shared = [hash(repr(ids)) in training for ids in self.features["validation"]["input_ids"]]
        if sum(shared) > 0.01 * len(shared):
            logger.warning(
                f"{sum(shared):,} of {len(shared):,} validation inputs are training inputs, too, so the metrics measure what is "
                "memorised: remove duplicates"
            )

    def log_truncated(self, split: str, features: Dataset) -> None:
        full = sum(len(ids) == self.max_seq_length for ids in features["input_ids"])
        if full:
            logger.info(
                f"{split}: {full:,} of {len(features):,} examples are truncated to {self.max_seq_length} tokens, or have "
                "exactly as many"
            )


def check_finite(logits: np.ndarray | tuple[np.ndarray, ...]) -> None:
    """Raise `DivergenceError` for outputs of a model that are not all finite: metrics fail, or are NaN."""
    if not all(np.isfinite(part).all() for part in (logits if isinstance(logits, tuple) else (logits,))):
        raise DivergenceError(
            "The model's outputs are not finite: its weights are too large, as the training has diverged, or those of "
            "the checkpoint are damaged. Try a lower learning rate, or fp32 instead of bf16 or fp16."
        )


class ClassLabelTask(Task):
    """A task with a closed set of labels, `label_names`; an id is a position in it."""

    label_names: list[str]

    def read_label_names(self, values: Sequence, feature: Any, label_names: Sequence[str] | None = None) -> None:
        """Set the names: `label_names`, or those of a `ClassLabel` feature, or the labels' `values`, sorted."""
        self.class_feature = feature if isinstance(feature, ClassLabel) else None
        self.class_names = dict(enumerate(getattr(self.class_feature, "names", ())))  # -1 has none
        if label_names:
            self.label_names = list(label_names)
        elif self.class_feature:
            self.label_names = feature.names
        else:
            check_labels(values)
            self.label_names = sorted({as_label_name(value) for value in values}, key=_numeric_order)
        if not self.label_names:
            raise ValueError("The training examples have no labels: pass --label_column.")
        self.label_ids = {name: number for number, name in enumerate(self.label_names)}
        if label_names:  # GLUE's files have ids where its dataset on the Hub has names
            self.label_ids = {str(number): number for number in range(len(self.label_names))} | self.label_ids

    def ids_of(self, labels: Sequence, origin: str) -> list[int]:
        """The ids of the labels of an example. Raises `ValueError` for an unknown one."""
        if self.class_feature:
            labels = [self.class_names.get(label, label) for label in labels]
        for label in labels:
            if is_missing(label):
                raise ValueError(f"{origin}, has no label, but {label!r}. Correct it, or leave the example out.")
            if as_label_name(label) not in self.label_ids:
                known = ", ".join(self.label_names[:20]) + (", …" if len(self.label_names) > 20 else "")
                raise ValueError(
                    f"{origin}, has the label {label!r}, but the labels of the training examples are: {known}. "
                    "Correct it, or train on examples with this label."
                )
        return [self.label_ids[as_label_name(label)] for label in labels]

    def reduce(
        self, logits: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The highest logits and their classes. With thousands of classes, all logits of a split would not fit into
        memory."""
        return tuple(logits.max(-1))

    @property
    def model_options(self) -> dict[str, Any]:
        return {
            "id2label": dict(enumerate(self.label_names)),
            "label2id": {name: number for number, name in enumerate(self.label_names)},
        }


def _numeric_order(name: str) -> tuple:
    return (0, int(name), "") if re.fullmatch(r"-?\d+", name) else (1, 0, name)


def is_text_list(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
