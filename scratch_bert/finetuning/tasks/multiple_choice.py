"""Multiple choice: select the right continuation or answer."""

from typing import Any, ClassVar

import numpy as np
import pyarrow
import torch
from datasets import Dataset
from pydantic import Field
from transformers import AutoModelForMultipleChoice, DataCollatorForMultipleChoice

from .base import Task, TextRow
from .class_labels import as_label_name


class ChoiceRow(TextRow):
    choices: list[str] = Field(min_length=2)
    label: str | int | float | None = None


class MultipleChoice(Task):
    """Select the right one of several `choices` for a `text`. `text_pair`, if given, is the beginning of each."""

    row = ChoiceRow
    columns: ClassVar = {"text": "text", "text_pair": None, "choices": "choices", "label": "label"}
    auto_class = AutoModelForMultipleChoice
    collator_class = DataCollatorForMultipleChoice

    def predict(self, split: str, logits: tuple[torch.Tensor, ...]) -> dict[str, list | pyarrow.Array]:
        probabilities = logits[0].softmax(-1)  # (N, C)
        return {
            "prediction": self.decode(split, logits[0].numpy()),
            "probability": probabilities.amax(-1).tolist(),
            "probabilities": probabilities.tolist(),
        }

    def reference(self, row: dict[str, Any]) -> int:
        label, letters = as_label_name(row["label"]), [chr(ord("A") + number) for number in range(len(row["choices"]))]
        for number, letter in enumerate(letters):
            if label in (letter, str(number)):
                return number
        raise ValueError(
            f"the label {label!r} is neither a choice's number, from 0, nor its letter, from A to {letters[-1]}."
        )

    def encode(self, split: str) -> Dataset:
        counts = {len(choices) for choices in self.splits[split]["choices"]}
        if len(counts) > 1:
            raise ValueError(
                f"All examples for {split} must have the same number of choices, not {min(counts)} to {max(counts)}."
            )
        [count] = counts

        def tokenize(batch: dict) -> dict:
            texts = [text for text in batch["text"] for _ in range(count)]
            beginnings = batch.get("text_pair", [""] * len(batch["text"]))
            choices = [
                f"{beginning} {choice}".strip()
                for beginning, choices in zip(beginnings, batch["choices"], strict=True)
                for choice in choices
            ]
            encoded = self.tokenizer(texts, choices, **self.truncation)
            return {
                name: [flat[start : start + count] for start in range(0, len(flat), count)]
                for name, flat in encoded.items()
            }

        features = self.tokenize(split, tokenize)
        self.log_truncated(split, (len(ids) for choices in features["input_ids"] for ids in choices))
        labels = self.references.get(split, [0] * len(features))  # the collator requires labels
        return features.add_column("labels", labels)

    def constant_predictions(self, split: str) -> list[int]:
        """The most frequent position of the right choice in training."""
        return [int(np.bincount(self.references["train"]).argmax())] * len(self.references[split])

    def decode(self, split: str, logits: np.ndarray) -> list[int]:
        return logits.argmax(-1).tolist()
