"""Multiple choice: select the right continuation or answer."""

from typing import ClassVar

import numpy as np
from datasets import Dataset
from transformers import AutoModelForMultipleChoice, DataCollatorForMultipleChoice

from ..labels import as_label_name
from .base import Task, is_text_list


class MultipleChoice(Task):
    """Select the right one of several `choices` for a `text`. `text_pair`, if given, is the beginning of each choice."""

    columns: ClassVar = {"text": "text", "text_pair": None, "choices": "choices", "label": "label"}
    auto_class = AutoModelForMultipleChoice
    collator_class = DataCollatorForMultipleChoice

    def check_inputs(self, split: str) -> None:
        super().check_inputs(split)
        examples = self.splits[split]
        first = examples[0]["choices"]
        for origin, choices in zip(examples["origin"], examples["choices"], strict=True):
            if not choices or not is_text_list(choices):
                raise ValueError(f"{origin}, must have a list of texts to choose from, not {choices!r}.")
            if len(choices) != len(first):
                raise ValueError(
                    f"{origin}, must have as many texts to choose from as the first example, not {choices!r}."
                )
        if len(first) < 2:
            raise ValueError(f"The examples for {split} have one choice: there is nothing to choose from.")
        repeated = [len({choice.strip() for choice in choices}) < len(first) for choices in examples["choices"]]
        self.check_empty(split, repeated, "equal choices", "choices")

    def references_of(self, split: str) -> list[int]:
        examples, references = self.splits[split], []
        count = len(examples[0]["choices"])
        letters = [chr(ord("A") + position) for position in range(count)]
        positions = {name: position for position in range(count) for name in (str(position), letters[position])}
        for origin, label in zip(examples["origin"], examples["label"], strict=True):
            if as_label_name(label) not in positions:
                raise ValueError(
                    f"{origin}, has the label {label!r}, but it must be the number of a choice, from 0, or its letter, "
                    f"from A to {letters[-1]}."
                )
            references.append(positions[as_label_name(label)])
        return references

    def encode(self, split: str) -> Dataset:
        count = len(self.splits[split][0]["choices"])

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
        labels = self.references.get(split, [0] * len(features))  # the collator requires labels
        return features.add_column("labels", labels)

    def constant_predictions(self, split: str) -> list[int]:
        """The most frequent position of the right choice in training."""
        return [int(np.bincount(self.references["train"]).argmax())] * len(self.references[split])

    def decode(self, split: str, logits: np.ndarray) -> list[int]:
        return logits.argmax(-1).tolist()
