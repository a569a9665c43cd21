"""Token classification: a label for each word."""

from typing import ClassVar

import numpy as np
from datasets import Dataset
from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

from .task import IGNORED, Labelled, all_texts


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
