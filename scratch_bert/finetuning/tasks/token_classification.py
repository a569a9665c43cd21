"""Token classification: a label for each word."""

import logging
from collections import Counter
from itertools import chain
from typing import ClassVar

import numpy as np
from datasets import Dataset
from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

from ..labels import is_decimal, is_missing
from .base import IGNORE_INDEX, ClassLabelTask, is_text_list


logger = logging.getLogger("scratch_bert")


class TokenClassification(ClassLabelTask):
    """A label for each word, trained and predicted at its first token (paper, section 5.3). A sentence longer than
    `max_seq_length` is split into several windows, so that no word is lost."""

    columns: ClassVar = {"text": "tokens", "label": "ner_tags"}
    file_format = "conll"
    auto_class = AutoModelForTokenClassification
    collator_class = DataCollatorForTokenClassification

    def read_labels(self) -> None:
        feature = getattr(self.splits["train"].features["label"], "feature", None)
        lists = [labels for labels in self.splits["train"]["label"] if isinstance(labels, list)]
        values = [label for labels in lists for label in labels if not is_missing(label)]
        if decimal := next(filter(is_decimal, values), None):
            raise ValueError(f"The label of a word must be its class, not a number such as {decimal}.")
        self.read_label_names(values, feature)
        if len(self.label_names) < 2:
            raise ValueError(
                f"The training examples have only one label, {self.label_names[0]!r}: there is nothing to learn."
            )
        if any(name.startswith(("B-", "I-")) for name in self.label_names):
            self.default_metrics = ("seqeval",)
        elif tag := next((name for name in self.label_names if name.startswith(("b-", "i-"))), None):
            logger.warning(f"{tag!r} is a plain class: the tags of entities begin with B- and I-, in capitals.")
        self.default_label = "O" if "O" in self.label_names else self.label_names[0]  # of words without tokens
        # By split: the example of each window, and the word that each of its tokens begins; -1 for all other tokens.
        self.windows: dict[str, tuple[list[int], list[list[int]]]] = {}

    def for_metric(self, name: str, predictions: list, references: list) -> tuple[list, list]:
        if name == "seqeval":
            return predictions, references
        return [*chain(*predictions)], [*chain(*references)]

    def check_inputs(self, split: str) -> None:
        examples = self.splits[split]
        for origin, words in zip(examples["origin"], examples["text"], strict=True):
            if not is_text_list(words):
                raise ValueError(f"{origin}, must have a list of words, not {words!r}.")
        self.check_empty(split, [not "".join(words).strip() for words in examples["text"]], "no words")

    def references_of(self, split: str) -> list[list[str]]:
        examples, references = self.splits[split], []
        for origin, words, labels in zip(examples["origin"], examples["text"], examples["label"], strict=True):
            if not isinstance(labels, list) or len(words) != len(labels):
                raise ValueError(f"{origin}, must have a list of words and as many labels, not {words!r}, {labels!r}.")
            references.append([self.label_names[label_id] for label_id in self.ids_of(labels, origin)])
        return references

    def encode(self, split: str) -> Dataset:
        encoded = self.tokenizer(
            self.splits[split]["text"][:], is_split_into_words=True, return_overflowing_tokens=True, **self.truncation
        )
        example_of = encoded.pop("overflow_to_sample_mapping")
        first_of: list[list[int]] = []
        seen = set()
        for window, example in enumerate(example_of):
            first_of.append([])
            for word in encoded.word_ids(window):
                is_first = word is not None and (example, word) not in seen
                first_of[-1].append(word if is_first else -1)
                seen.add((example, word))
        self.windows[split] = example_of, first_of
        columns = dict(encoded)
        if split in self.references:
            references = self.references[split]
            columns["labels"] = [
                [IGNORE_INDEX if word < 0 else self.label_ids[references[example][word]] for word in words]
                for example, words in zip(example_of, first_of, strict=True)
            ]
        return Dataset.from_dict(columns)

    def constant_predictions(self, split: str) -> list[list[str]]:
        """The most frequent label of a training word."""
        [(label, _)] = Counter(chain(*self.references["train"])).most_common(1)
        return [[label] * len(labels) for labels in self.references[split]]

    def decode(self, split: str, logits: tuple[np.ndarray, np.ndarray]) -> list[list[str]]:
        predictions = [[self.default_label] * len(words) for words in self.splits[split]["text"]]
        for example, words, label_ids in zip(*self.windows[split], logits[1], strict=True):
            for token, word in enumerate(words):
                if word >= 0:
                    predictions[example][word] = self.label_names[label_ids[token]]
        return predictions
