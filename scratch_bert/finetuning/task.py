"""What each task makes of labelled rows: inputs of the model, and predictions and figures from its outputs.

A task is built from the rows of all splits. `features` are the model's inputs by split, `model_options` what the
model's config must know; `decode` turns logits into predictions, `figures` compares these with the labels.
"""

import json
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import ClassLabel, Dataset
from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedTokenizerBase

from .metrics import METRICS, load_metric
from .readers import hold_out


logger = logging.getLogger("scratch_bert")
IGNORED = -100  # the label of what the loss leaves out


class Task:
    columns: ClassVar[dict[str, str | None]]
    """Our name of each column → its usual name."""
    auto_class: ClassVar[type]
    collator_class: ClassVar[type] = DataCollatorWithPadding
    metrics: tuple[str, ...] = ("accuracy",)
    best_metric: str = "accuracy"
    """The figure that the best checkpoint is chosen by; `loss` is at hand, too."""

    def __init__(
        self,
        splits: dict[str, Dataset],
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
        metrics: Sequence[str] | None = None,
        best_metric: str | None = None,
        validation_share: float = 0.1,
        seed: int = 0,
        **options: Any,
    ):
        self.splits, self.tokenizer, self.max_seq_length = splits, tokenizer, max_seq_length
        for split in splits:
            self.check_rows(split)
        self.read_labels(**options)
        if "validation" not in splits:  # behind the labels: a rare one may be held out
            self.splits = splits | hold_out(splits["train"], validation_share, seed)
        self._metrics = {name: load_metric(name) for name in metrics or self.metrics}
        self.best_metric = best_metric or self.main_figure(metrics[0] if metrics else None)
        self.references = {split: self.labels_of(split) for split in self.splits if self.is_labelled(split)}
        for split in ("train", "validation"):
            if split not in self.references:
                raise ValueError(f"The rows for {split} have no labels: pass --label_column.")
        # What the metrics compute, and whether they can, is known before hours of training.
        known, right = ["loss"], self.right_predictions("validation")
        for name in self._metrics:
            try:
                known += self._figures_of(name, "validation", right)
            except (ValueError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"The metric {name} does not suit these labels: {error} Choose others with --metrics, of "
                    f"{', '.join(METRICS)}."
                ) from None
        if self.best_metric not in known:
            raise ValueError(
                f"There is no figure {self.best_metric!r} to choose the best checkpoint by: name one with "
                f"--metric_for_best_model, of {', '.join(known)}."
            )
        self.features = {split: self.encode(split) for split in self.splits}

    def is_labelled(self, split: str) -> bool:
        rows = self.splits[split]
        if "label" not in rows.column_names:
            return False
        return split != "test" or not all(self.is_blank(label) for label in rows["label"])

    def is_blank(self, label: Any) -> bool:
        """Whether it stands for no label, as in test sets of the Hub."""
        return label in (None, "", -1)

    def read_labels(self) -> None:
        """Find out from the training rows which labels there are."""

    def labels_of(self, split: str) -> list:
        """The right prediction for each row. Raises `ValueError` for a row whose label is none."""
        raise NotImplementedError

    def right_predictions(self, split: str) -> list:
        """A prediction for each row that could not be better."""
        return self.references[split]

    def encode(self, split: str) -> Dataset:
        raise NotImplementedError

    def decode(self, split: str, logits: np.ndarray) -> list:
        """A prediction for each row of the split from the logits of all of its features."""
        raise NotImplementedError

    @property
    def model_options(self) -> dict[str, Any]:
        return {}

    def collator(self):
        return self.collator_class(self.tokenizer)

    def figures(self, split: str, predictions: list) -> dict[str, float]:
        result: dict[str, float] = {}
        for name in self._metrics:
            result |= self._figures_of(name, split, predictions)
        return result

    def _figures_of(self, metric: str, split: str, predictions: list) -> dict[str, float]:
        return self._metrics[metric](*self.for_metric(metric, predictions, self.references[split]))

    def for_metric(self, name: str, predictions: list, references: list) -> tuple[list, list]:
        """Predictions and references as the metric of this name takes them."""
        return predictions, references

    def main_figure(self, metric: str | None) -> str:
        """The figure that the best checkpoint is chosen by: that of the first metric asked for, else the task's own."""
        return {"squad": "f1", "seqeval": "f1", None: self.best_metric}.get(metric, metric)

    def compute_metrics(self, outcome: EvalPrediction) -> dict[str, float]:
        """For Trainer: the figures of the validation rows."""
        return self.figures("validation", self.decode("validation", outcome.predictions))

    def describe(self, prediction: Any) -> Any:
        """A prediction by the names of its labels."""
        return prediction

    def write_predictions(self, split: str, predictions: list, directory: Path) -> Path:
        """One JSON object per row, in their order: which row it is, the prediction, and the label if there is one."""
        file = directory / f"{split}_predictions.jsonl"
        labels, rows = self.references.get(split), self.splits[split]["row"]
        with file.open("w", encoding="utf-8") as lines:
            for number, (row, prediction) in enumerate(zip(rows, predictions, strict=True)):
                content = {"row": row, "prediction": self.describe(prediction)}
                if labels:
                    content["label"] = self.describe(labels[number])
                lines.write(json.dumps(content, ensure_ascii=False) + "\n")
        return file

    def text_columns(self, split: str) -> list[str]:
        return [name for name in ("text", "text_pair") if name in self.splits[split].column_names]

    def check_rows(self, split: str) -> None:
        """Raise `ValueError` for a row whose inputs are none, whatever its label."""
        rows = self.splits[split]
        for name in self.text_columns(split):
            for row, text in zip(rows["row"], rows[name], strict=True):
                if not isinstance(text, str):
                    raise ValueError(
                        f"{row}, holds no text in {name}, but {text!r}. Correct the row, or leave it out."
                    )

    @property
    def cut(self) -> dict[str, Any]:
        return {"truncation": True, "max_length": self.max_seq_length}

    def tokenize(self, split: str, function: Callable, **options: Any) -> Dataset:
        """What `function` makes of batches of rows."""
        rows = self.splits[split]
        return rows.map(
            function,
            batched=True,
            **options,
            remove_columns=rows.column_names,
            keep_in_memory=True,  # a cache would grow with each run
            load_from_cache_file=False,
            new_fingerprint=f"tokenized-{split}",  # else all of this object is hashed for one: minutes
            desc=f"Tokenizing {split}",
        )

    def warn_of_cut_rows(self, split: str, features: Dataset) -> None:
        full = sum(len(ids) == self.max_seq_length for ids in features["input_ids"])
        if full:
            logger.info(
                f"{split}: {full:,} of {len(features):,} rows are cut to {self.max_seq_length} tokens, or just fit"
            )


class Labelled(Task):
    """A task whose labels are of a set that the training rows give, or the option `label_names`."""

    names: list[str]

    def learn_names(self, values: Sequence, feature: Any, label_names: Sequence[str] | None = None) -> None:
        self.class_feature = feature if isinstance(feature, ClassLabel) else None
        if label_names:
            self.names = list(label_names)
        elif self.class_feature:
            self.names = feature.names
        else:
            self.names = sorted({label_name(value) for value in values}, key=_numbers_by_size)
        if not self.names:
            raise ValueError("The training rows have no labels: pass --label_column.")
        self.ids = {name: number for number, name in enumerate(self.names)}
        if label_names:  # GLUE's files have ids where its data set on the Hub has names
            self.ids = {str(number): number for number in range(len(self.names))} | self.ids

    def ids_of(self, labels: Sequence, row: str) -> list[int]:
        """Of the labels in a row, which is called `row`."""
        if self.class_feature:
            names = dict(enumerate(self.class_feature.names))  # -1 is none of them
            labels = [names.get(label, label) for label in labels]
        for label in labels:
            if label is None or label_name(label) not in self.ids:
                known = ", ".join(self.names[:20]) + (", …" if len(self.names) > 20 else "")
                raise ValueError(
                    f"{row}, has the label {label!r}, but the labels of the training rows are: {known}. "
                    "Correct the row, or train on rows with this label."
                )
        return [self.ids[label_name(label)] for label in labels]

    @property
    def model_options(self) -> dict[str, Any]:
        return {
            "id2label": dict(enumerate(self.names)),
            "label2id": {name: number for number, name in enumerate(self.names)},
        }


def label_name(label: Any) -> str:
    """Whole numbers become fractions in a column with gaps."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _numbers_by_size(name: str) -> tuple:
    return (0, int(name), "") if re.fullmatch(r"-?\d+", name) else (1, 0, name)


def all_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
