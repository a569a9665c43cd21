"""What each task makes of labelled rows: inputs of the model, and predictions and figures from its outputs.

A task is built from the rows of all splits. `features` are the model's inputs by split, `model_options` what the
model's config must know; `decode` turns logits into predictions, `figures` compares these with the labels.
"""

import json
import logging
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import ClassLabel, Dataset
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    DataCollatorForMultipleChoice,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedTokenizerBase,
)

from .labelled_data import hold_out
from .task_metrics import METRICS, load_metric


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
            self.names = sorted({_name(value) for value in values}, key=_numbers_by_size)
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
            if label is None or _name(label) not in self.ids:
                known = ", ".join(self.names[:20]) + (", …" if len(self.names) > 20 else "")
                raise ValueError(
                    f"{row}, has the label {label!r}, but the labels of the training rows are: {known}. "
                    "Correct the row, or train on rows with this label."
                )
        return [self.ids[_name(label)] for label in labels]

    @property
    def model_options(self) -> dict[str, Any]:
        return {
            "id2label": dict(enumerate(self.names)),
            "label2id": {name: number for number, name in enumerate(self.names)},
        }


def _name(label: Any) -> str:
    """Whole numbers become fractions in a column with gaps."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _numbers_by_size(name: str) -> tuple:
    return (0, int(name), "") if re.fullmatch(r"-?\d+", name) else (1, 0, name)


class SequenceClassification(Labelled):
    """One or several labels, or a number, for a text or a pair of texts."""

    columns: ClassVar = {"text": "text", "text_pair": None, "label": "label"}
    auto_class = AutoModelForSequenceClassification

    def read_labels(self, problem_type: str | None = None, label_names: Sequence[str] | None = None) -> None:
        labels, feature = self.splits["train"]["label"][:], self.splits["train"].features["label"]
        first = next((label for label in labels if label is not None), None)
        several, number = isinstance(first, list), isinstance(first, float)
        if number and not problem_type and all(label is None or label == label // 1 for label in labels):
            raise ValueError(
                f"The labels are whole numbers written as fractions, such as {first}: say with --problem_type whether "
                "they are numbers to predict or names of classes."
            )
        by_type = "multi_label" if several else "regression" if number else "single_label"
        self.problem_type = problem_type or by_type.removesuffix("_label") + (
            "" if number else "_label_classification"
        )
        if self.problem_type == "regression":
            self.metrics, self.best_metric = ("pearsonr", "spearmanr", "mse"), "pearsonr"
        elif self.problem_type == "multi_label_classification":
            feature = getattr(feature, "feature", None)
            lists = [_several(label) for label in labels]
            values = {value for one in lists for value in one}
            if len({len(one) for one in lists}) == 1 < len(lists[0]) and values <= {0, 1, "0", "1"}:
                raise ValueError(
                    f"The labels are lists of 0 and 1, such as {lists[0]}: give each row the list of its labels' names."
                )
            self.learn_names(list(values), feature, label_names)
            self.metrics, self.best_metric = ("f1_micro", "f1_macro", "accuracy"), "f1_micro"
        else:
            self.learn_names([label for label in labels if label not in (None, "")], feature, label_names)
            if len(self.names) < 2:
                raise ValueError(f"The training rows have no two labels, but {self.names}: there is nothing to learn.")
            self.metrics = ("accuracy", "f1" if len(self.names) == 2 else "f1_macro")

    def labels_of(self, split: str) -> list:
        rows = list(zip(self.splits[split]["row"], self.splits[split]["label"], strict=True))
        if self.problem_type == "regression":
            return [_as_number(label, row) for row, label in rows]
        if self.problem_type == "single_label_classification":
            return [self.ids_of([label], row)[0] for row, label in rows]
        chosen = [set(self.ids_of(_several(labels), row)) for row, labels in rows]
        return [[int(label in ids) for label in range(len(self.names))] for ids in chosen]

    def encode(self, split: str) -> Dataset:
        columns = self.text_columns(split)
        features = self.tokenize(split, lambda batch: self.tokenizer(*(batch[name] for name in columns), **self.cut))
        self.warn_of_cut_rows(split, features)
        if split not in self.references:
            return features
        labels = self.references[split]
        if self.problem_type == "multi_label_classification":
            labels = [[float(one) for one in row] for row in labels]
        return features.add_column("labels", labels)

    def decode(self, split: str, logits: np.ndarray) -> list:
        if self.problem_type == "regression":
            return logits[:, 0].tolist()
        if self.problem_type == "multi_label_classification":
            return (logits > 0).astype(int).tolist()
        return logits.argmax(-1).tolist()

    def describe(self, prediction: Any) -> Any:
        if self.problem_type == "regression":
            return prediction
        if isinstance(prediction, list):
            return [name for name, chosen in zip(self.names, prediction, strict=True) if chosen]
        return self.names[prediction]

    @property
    def model_options(self) -> dict[str, Any]:
        names = {"num_labels": 1} if self.problem_type == "regression" else super().model_options
        return {**names, "problem_type": self.problem_type}


def _several(labels: list | str | None) -> list:
    if isinstance(labels, str):
        return [part.strip() for part in labels.split(",") if part.strip()]
    if not isinstance(labels, list | None):
        raise ValueError(f"Several labels of a row are a list, or a text with commas between them, not {labels!r}.")
    return labels or []


def _as_number(label: Any, row: str) -> float:
    try:
        value = float(label)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{row}, has the label {label!r}, which is no number.")
    return value


def all_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


class TokenClassification(Labelled):
    """A label for each word: it is learnt, and predicted, at the word's first piece (paper, section 5.3). Long rows
    come in parts, so that no word is lost."""

    columns: ClassVar = {"text": "tokens", "label": "ner_tags"}
    auto_class = AutoModelForTokenClassification
    collator_class = DataCollatorForTokenClassification

    def read_labels(self) -> None:
        feature = getattr(self.splits["train"].features["label"], "feature", None)
        lists = [labels for labels in self.splits["train"]["label"] if isinstance(labels, list)]
        self.learn_names([label for labels in lists for label in labels if label is not None], feature)
        if any(name.startswith(("B-", "I-")) for name in self.names):
            self.metrics, self.best_metric = ("seqeval",), "f1"
        self.default = "O" if "O" in self.names else self.names[0]  # of a word that gives no tokens
        self.parts: dict[str, tuple[list[int], list[list[int]]]] = {}  # by split: each part's row, its tokens' words

    def for_metric(self, name: str, predictions: list, references: list) -> tuple[list, list]:
        if name == "seqeval":
            return predictions, references
        return [label for row in predictions for label in row], [label for row in references for label in row]

    def check_rows(self, split: str) -> None:
        rows = self.splits[split]
        for row, words in zip(rows["row"], rows["text"], strict=True):
            if not all_texts(words):
                raise ValueError(f"{row}, must hold a list of words, not {words!r}.")

    def labels_of(self, split: str) -> list[list[str]]:
        rows, result = self.splits[split], []
        for row, words, labels in zip(rows["row"], rows["text"], rows["label"], strict=True):
            if not isinstance(labels, list) or len(words) != len(labels):
                raise ValueError(f"{row}, must hold a list of words and as many labels, not {words!r}, {labels!r}.")
            result.append([self.names[one] for one in self.ids_of(labels, row)])
        return result

    def encode(self, split: str) -> Dataset:
        rows, references = self.splits[split], self.references.get(split)
        encoded = self.tokenizer(rows["text"][:], is_split_into_words=True, return_overflowing_tokens=True, **self.cut)
        row_of = encoded.pop("overflow_to_sample_mapping")
        begins: list[list[int]] = []  # the word that each token begins; -1 for special tokens and further pieces
        seen = set()
        for part, row in enumerate(row_of):
            begins.append([])
            for word in encoded.word_ids(part):
                first = word is not None and (row, word) not in seen
                begins[-1].append(word if first else -1)
                seen.add((row, word))
        self.parts[split] = row_of, begins
        columns = dict(encoded)
        if references:
            columns["labels"] = [
                [IGNORED if word < 0 else self.ids[references[row][word]] for word in words]
                for row, words in zip(row_of, begins, strict=True)
            ]
        return Dataset.from_dict(columns)

    def decode(self, split: str, logits: np.ndarray) -> list[list[str]]:
        predictions = [[self.default] * len(words) for words in self.splits[split]["text"]]
        for row, begins, best in zip(*self.parts[split], logits.argmax(-1), strict=True):
            for token, word in enumerate(begins):
                if word >= 0:
                    predictions[row][word] = self.names[best[token]]
        return predictions


class MultipleChoice(Task):
    """The right one of several endings of a text. `text_pair`, if there is one, stands before each ending."""

    columns: ClassVar = {"text": "text", "text_pair": None, "choices": "choices", "label": "label"}
    auto_class = AutoModelForMultipleChoice
    collator_class = DataCollatorForMultipleChoice

    def check_rows(self, split: str) -> None:
        super().check_rows(split)
        rows = self.splits[split]
        first = rows[0]["choices"]
        for row, choices in zip(rows["row"], rows["choices"], strict=True):
            if not choices or not all_texts(choices):
                raise ValueError(f"{row}, must hold a list of texts to choose from, not {choices!r}.")
            if len(choices) != len(first):
                raise ValueError(f"{row}, must hold as many texts to choose from as the first row, not {choices!r}.")

    def labels_of(self, split: str) -> list[int]:
        rows, result = self.splits[split], []
        for row, choices, label in zip(rows["row"], rows["choices"], rows["label"], strict=True):
            letters = [chr(ord("A") + place) for place in range(len(choices))]
            known = {str(place): place for place in range(len(choices))} | {
                letter: i for i, letter in enumerate(letters)
            }
            if _name(label) not in known:
                raise ValueError(
                    f"{row}, has the label {label!r}, but it must be the number of a choice, from 0, or its letter, from A "
                    f"to {letters[-1]}."
                )
            result.append(known[_name(label)])
        return result

    def encode(self, split: str) -> Dataset:
        rows, names = self.splits[split], self.text_columns(split)
        count = len(rows[0]["choices"])

        def tokenize(batch: dict) -> dict:
            first = [text for text in batch["text"] for _ in range(count)]
            begins = batch["text_pair"] if "text_pair" in names else [""] * len(batch["text"])
            second = [
                f"{begin} {choice}".strip()
                for begin, row in zip(begins, batch["choices"], strict=True)
                for choice in row
            ]
            encoded = self.tokenizer(first, second, **self.cut)
            return {
                name: [flat[at : at + count] for at in range(0, len(flat), count)] for name, flat in encoded.items()
            }

        features = self.tokenize(split, tokenize)
        labels = self.references.get(split, [0] * len(features))  # the collator wants some
        return features.add_column("labels", labels)

    def decode(self, split: str, logits: np.ndarray) -> list[int]:
        return logits.argmax(-1).tolist()
