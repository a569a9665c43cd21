"""The base of all tasks: labelled examples → the model's inputs; its logits → predictions and scores."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow
import torch
from datasets import Dataset
from pyarrow.compute import list_flatten
from pydantic import BaseModel, ValidationError
from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedConfig, PreTrainedTokenizerBase

from scratch_bert_options.schema import explain

from ...corpus.tokenizer import check_unknown
from ...logs import logger
from ...training.trainer import DivergenceError
from ..metrics import MAIN_SCORES, load_metric


MUCH_TRUNCATED = 0.2  # of the inputs

Tensors = torch.Tensor | tuple[torch.Tensor, ...]
Logits = np.ndarray | tuple[np.ndarray, ...]


class TextRow(BaseModel, strict=True):
    text: str
    text_pair: str = ""


class Task:
    """A task, and its examples: those of a training, by `load`, or rows that a fine-tuned model predicts.

    A kind of task is a subclass in its own file, with the name of the task: `TokenClassification` in
    token_classification.py is `token-classification`. It defines what the first part of this class lists.
    """

    row: ClassVar[type[BaseModel]]
    """The schema of an example."""
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
    one_label: bool = True
    """Whether a text or a word has one label of a set."""
    predicts_tokens: ClassVar[bool] = False
    """Whether the model has logits for each token, not only for each example."""

    def read_config(self, config: PreTrainedConfig) -> None:
        """Take from a fine-tuned model's config what `read_labels` finds in the examples."""

    def predict(self, split: str, logits: tuple[torch.Tensor, ...]) -> dict[str, list | pyarrow.Array]:
        """Columns of predictions and their probabilities for the examples of a split, from the complete logits of its
        features, padded with -inf; arrays where values may not show the type."""
        raise NotImplementedError

    def read_labels(self) -> None:
        """Find the set of labels in the training examples, and the default metrics for them."""

    def hold_out(self, examples: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
        """The examples to train on, and a random share of them for validation."""
        parts = examples.train_test_split(share, seed=seed)
        return parts["train"], parts["test"]

    def class_counts(self) -> np.ndarray | None:
        """(L,) The number of training labels of each class, for weights; None for a task without such classes."""

    def is_unlabelled(self, label: Any) -> bool:
        """Whether a label is a placeholder for an unknown one, as in the Hub's test sets."""
        return label in (None, "", -1)

    def reference(self, row: dict[str, Any]) -> Any:
        """What the prediction for an example is compared with. Raises `ValueError` for a label that is not valid."""
        raise NotImplementedError

    def gold_predictions(self, split: str) -> list:
        """A correct prediction for each example."""
        return self.references[split]

    def constant_predictions(self, split: str) -> list | None:
        """The best predictions that do not depend on the inputs, as a baseline; None for a task without."""
        return None

    def encode(self, split: str) -> Dataset:
        """Tokenize the examples of a split, and add their labels."""
        raise NotImplementedError

    def reduce(self, logits: Tensors, labels: Tensors | None = None) -> Tensors:
        """What `decode` takes of the logits of a batch."""
        return logits

    def decode(self, split: str, logits: Logits) -> list:
        """A prediction for each example of a split, from the logits of all its features, as `reduce` gives them."""
        raise NotImplementedError

    def format_prediction(self, prediction: Any) -> Any:
        """A prediction for readers, with names for label ids."""
        return prediction

    def adapted(self, predictions: list) -> "Task":
        """This task with what the predictions for the validation split decide, such as a threshold, also in its
        `model_options`."""
        return self

    def class_report(self, split: str, predictions: list) -> dict[str, Any] | None:
        """The predictions by class, as `class_report` returns it; None for a task without classes."""

    def for_metric(self, name: str, predictions: list, references: list) -> tuple[list, list]:
        """Predictions and references in the form that the metric `name` takes."""
        return predictions, references

    # ------------------------------------------------------------------------------------------- what all tasks share

    def __init__(self, name: str, tokenizer: PreTrainedTokenizerBase, max_seq_length: int):
        self.name, self.tokenizer, self.max_seq_length = name, tokenizer, max_seq_length
        self.splits: dict[str, Dataset] = {}
        self.references: dict[str, list] = {}
        self.model_options: dict[str, Any] = {}  # the fields that the model's config needs, by `read_labels`
        self.windows: dict[str, tuple] = {}  # where the tokens of each window of a long example come from, by `encode`

    def load(
        self,
        splits: dict[str, Dataset],
        *,
        metrics: Sequence[str] | None = None,
        best_metric: str | None = None,
        validation_share: float = 0.1,
        seed: int = 0,
        dataset_name: str | None = None,
        **options: Any,
    ) -> "Task":
        """The task with the examples to train on. Raises `ValueError` for examples, labels and metrics that do not fit
        together.

        Args:
            splits: `train` and, if there are any, `validation` and `test`, as `load_splits` returns them.
            metrics: Names of metrics, instead of the task's own.
            best_metric: The score that selects the best checkpoint. Default: the main score of the first metric.
            validation_share: Fraction of the training examples to hold out if there are none for validation.
            dataset_name: None if the examples come from files or from memory.
            options: The class's `options`.
        """
        self.splits, self.dataset_name = splits, dataset_name
        for split in splits:
            rows = list(self.parse_rows(split, self.row.model_validate))
            if not any("".join(row.text).strip() for row in rows):  # texts, or lists of words
                raise ValueError(f"{split}: all texts are empty. Name the right column with --text_column.")
            for column in self.text_columns(split):
                if empty := sum(not "".join(getattr(row, column)).strip() for row in rows):
                    logger.warning(f"{split}: {empty:,} of {len(rows):,} examples have no {column.replace('_', ' ')}")
        names = {split: class_names(examples.features.get("label")) for split, examples in splits.items()}
        if other := next((split for split in names if names[split] and names[split] != names["train"]), None):
            raise ValueError(
                f"{other}: the names of the classes, {names[other]}, are not those of train, {names['train']}, in the same "
                "order: align them with Dataset.align_labels_with_mapping."
            )
        self.read_labels(**options)
        if "validation" not in splits and len(splits["train"]) < 2:
            raise ValueError("There is only one training example, so none can be held out: give a validation_file.")
        if "validation" not in splits:  # once the labels are known: a rare label may be held out
            train, validation = self.hold_out(splits["train"], validation_share, seed)
            self.splits = splits | {"train": train, "validation": validation}
        labelled = filter(self._is_labelled, self.splits)
        self.references = {split: list(self.parse_rows(split, self.reference)) for split in labelled}
        self.metrics = {name: load_metric(name) for name in metrics or self.default_metrics}
        try:  # one that does not fit the labels would fail in the first evaluation
            known = ["loss", *self.compute_scores("validation", self.gold_predictions("validation"))]
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"The metrics {', '.join(self.metrics)} do not fit these labels: {error}") from None
        first = next(iter(self.metrics))
        self.best_metric = best_metric or MAIN_SCORES.get(first, first)
        if self.best_metric not in known:
            raise ValueError(f"metric_for_best_model must be one of {', '.join(known)}, got {self.best_metric}.")
        return self

    def parse_rows(self, split: str, parse: Callable[[dict[str, Any]], Any]) -> Iterator[Any]:
        """What `parse` makes of each example; its errors name the example's origin."""
        for row in self.splits[split].to_list():
            try:
                yield parse(row)
            except ValidationError as error:
                raise ValueError(explain(error, row["origin"])) from None
            except ValueError as error:
                raise ValueError(f"{row['origin']}: {error}") from None

    def _is_labelled(self, split: str) -> bool:
        examples = self.splits[split]
        known = "label" in examples.column_names
        return known and (split != "test" or not all(map(self.is_unlabelled, examples["label"])))

    def log_truncated(self, split: str, lengths: Iterable[int]) -> None:
        """Log how many of the inputs of these lengths may have been truncated; not for each chunk of rows to
        predict."""
        lengths = list(lengths)
        full = sum(length == self.max_seq_length for length in lengths)
        if full and self.references:
            found = f"{split}: {full:,} of {len(lengths):,} inputs are truncated to {self.max_seq_length} tokens"
            limit = self.tokenizer.model_max_length
            longer = f"a --max_seq_length of up to {limit} would read more of them"
            if self.max_seq_length >= limit:
                longer = "a model that is pretrained with a longer --max_seq_length would read more of them"
            if full > MUCH_TRUNCATED * len(lengths):
                logger.warning(f"{found}, or have exactly that many: {longer}")
            else:
                logger.info(f"{found}, or have exactly that many")

    @cached_property
    def features(self) -> dict[str, Dataset]:
        """The model's inputs by split, with labels where they are known. Encoded on first use, as it takes minutes."""
        features = {split: self.encode(split) for split in self.splits}
        ids = list_flatten(features["train"].data.column("input_ids"), recursive=True).to_numpy()
        ids = ids[(ids != self.tokenizer.cls_token_id) & (ids != self.tokenizer.sep_token_id)]
        texts = (text if isinstance(text, str) else " ".join(text) for text in self.splits["train"]["text"])
        check_unknown((ids == self.tokenizer.unk_token_id).mean(), texts)
        training = {hash(repr(ids)) for ids in features["train"]["input_ids"]}
        for split in features.keys() - {"train"}:
            shared = [hash(repr(ids)) in training for ids in features[split]["input_ids"]]
            if sum(shared) > 0.01 * len(shared):
                count = f"{sum(shared):,} of {len(shared):,} {split} inputs are training inputs, too"
                logger.warning(f"{count}, which the model may have memorised: remove duplicates")
        return features

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

    @property
    def truncation(self) -> dict[str, Any]:
        return {"truncation": True, "max_length": self.max_seq_length}

    def text_columns(self, split: str) -> list[str]:
        return [column for column in ("text", "text_pair") if column in self.splits[split].column_names]

    def compute_scores(self, split: str, predictions: list, metrics: Iterable[str] | None = None) -> dict[str, float]:
        """The scores of predictions, by all of the task's metrics or by these."""
        scores = {}
        for name in metrics or self.metrics:
            scores |= self.metrics[name](*self.for_metric(name, predictions, self.references[split]))
        return scores

    def compute_metrics(self, outputs: EvalPrediction) -> dict[str, float]:
        """The scores on the validation split, for Trainer."""
        check_logits(outputs.predictions)
        return self.compute_scores("validation", self.decode("validation", outputs.predictions))

    def predictions_file(self, split: str) -> str:
        return f"{split}_predictions.jsonl"

    def write_predictions(self, split: str, predictions: list, directory: Path) -> None:
        """Write a JSON object per example, in order: its origin, the prediction, and the label if known."""
        labels = self.gold_predictions(split) if split in self.references else None
        origins = self.splits[split]["origin"]
        with (directory / self.predictions_file(split)).open("w", encoding="utf-8") as lines:
            for number, (origin, prediction) in enumerate(zip(origins, predictions, strict=True)):
                content = {"origin": origin, "prediction": self.format_prediction(prediction)}
                if labels:
                    content["label"] = self.format_prediction(labels[number])
                lines.write(json.dumps(content, ensure_ascii=False) + "\n")

    def describe(self) -> str:
        """The number of examples, the problem type and the labels, on one line."""
        counts = ", ".join(f"{len(examples):,} {split}" for split, examples in self.splits.items())
        problem_type = self.model_options.get("problem_type", "").replace("_", " ")
        labels = ", ".join(self.model_options.get("id2label", {}).values())
        return "; ".join(filter(None, (f"Examples: {counts}", problem_type, labels and f"labels: {labels:.500}")))


def class_names(feature: Any) -> list[str] | None:
    """Those of a `ClassLabel`, or of lists of them."""
    return getattr(getattr(feature, "feature", feature), "names", None)


def check_logits(logits: Logits) -> None:
    """Raise `DivergenceError` for outputs of a model that are not all finite: metrics fail, or are NaN."""
    if not all(np.isfinite(part).all() for part in (logits if isinstance(logits, tuple) else (logits,))):
        raise DivergenceError(
            "The model's outputs are not finite: the training has diverged, or the checkpoint is damaged. Try a lower "
            "learning rate, or fp32 instead of bf16 or fp16."
        )
