"""Multiple choice: one of several endings of a text."""

from typing import ClassVar

import numpy as np
from datasets import Dataset
from transformers import AutoModelForMultipleChoice, DataCollatorForMultipleChoice

from .task import Task, all_texts, label_name


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
            if label_name(label) not in known:
                raise ValueError(
                    f"{row}, has the label {label!r}, but it must be the number of a choice, from 0, or its letter, from A "
                    f"to {letters[-1]}."
                )
            result.append(known[label_name(label)])
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
