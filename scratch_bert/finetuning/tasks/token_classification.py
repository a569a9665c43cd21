"""Token classification: a label for each word."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import pyarrow
import torch
from datasets import Dataset
from pydantic import BaseModel
from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification, PreTrainedConfig

from ...logs import logger
from ...text import with_marks
from ..class_report import class_report, entity_scores
from .class_labels import ClassLabelTask, Label
from .spans import merge_tags


_ENTITY_TAG = re.compile(r"[BIESLUM](-.+)?|O")  # of IOB, BIOES, BILOU or BMES, perhaps without types
IGNORE_INDEX = -100  # the label of tokens that the loss ignores
SPAN = {"start": pyarrow.int64(), "end": pyarrow.int64(), "label": pyarrow.string(), "text": pyarrow.string()}
SPAN["probability"] = pyarrow.float64()


class TaggedRow(BaseModel, strict=True):
    text: list[str]
    label: list[Label | None] | Label | None = None  # a single one in the Hub's test sets


class UntaggedRow(BaseModel, strict=True):
    text: list[str] | str


def marks_entities(names: Sequence[str]) -> bool:
    """Whether these tags are those of one of the schemes that mark the words of entities."""
    begin = any(name[0] in "BSU" or name.startswith("I-") for name in names)
    return "O" in names and all(map(_ENTITY_TAG.fullmatch, names)) and begin


def to_iob2(tag: str) -> str:
    """A tag of `_ENTITY_TAG` as B-TYPE, I-TYPE or O."""
    return tag if tag == "O" else f"{'B' if tag[0] in 'BSU' else 'I'}-{tag[2:] or 'ENTITY'}"


def begin_entities(tags: Sequence[str]) -> list[str]:
    """Tags whose entities all begin with B-; in IOB1, those after another type or O begin with I-."""
    pairs = zip(["O", *tags], tags, strict=False)
    return [f"B-{tag[2:]}" if tag[0] == "I" and before[2:] != tag[2:] else tag for before, tag in pairs]


class TokenClassification(ClassLabelTask):
    """A label for each word, trained and predicted at its first token (paper, section 5.3). A sentence longer than
    `max_seq_length` is split into several windows, so that no word is lost."""

    row = TaggedRow
    columns: ClassVar = {"text": "tokens", "label": "ner_tags"}
    file_format = "conll"
    auto_class = AutoModelForTokenClassification
    collator_class = DataCollatorForTokenClassification
    predicts_tokens = True

    def read_labels(self) -> None:
        train = self.splits["train"]
        values = [label for labels in train["label"] if isinstance(labels, list) for label in labels]
        feature = train.features["label"]
        self.read_label_names(values, feature)
        self.marks_entities = marks_entities(self.label_names)
        names = [*dict.fromkeys(map(to_iob2, self.label_names))] if self.marks_entities else []
        names += [begin for name in names if name[0] == "I" and (begin := f"B-{name[2:]}") not in names]
        if self.marks_entities and names != self.label_names:
            logger.info("The tags are read as IOB2, which pipelines expect: B- begins an entity, I- continues it")
            self.read_label_names(names, feature, names)
        if self.marks_entities or any(name.startswith(("B-", "I-")) for name in self.label_names):
            self.default_metrics = ("seqeval",)

    def as_name(self, label: Label) -> str:
        return to_iob2(str(label)) if self.marks_entities else super().as_name(label)

    def read_config(self, config: PreTrainedConfig) -> None:
        super().read_config(config)
        self.row = UntaggedRow

    @property
    def default_label(self) -> str:
        """The label of words without tokens."""
        return "O" if "O" in self.label_names else self.label_names[0]

    def has_words(self, split: str) -> bool:
        """Whether the examples are lists of words, not texts."""
        return not isinstance(self.splits[split]["text"][0], str)

    def predict(self, split: str, logits: tuple[torch.Tensor, ...]) -> dict[str, list | pyarrow.Array]:
        """Tags of words, or the labelled spans of texts; see `merge_tags`."""
        probabilities, labels = self.reduce(logits[0].softmax(-1))  # (W, S) each
        if self.has_words(split):
            tags = self.decode(split, (probabilities.numpy(), labels.numpy()))
            return {"prediction": pyarrow.array(tags, pyarrow.list_(pyarrow.string()))}
        texts: list[str] = self.splits[split]["text"][:]
        words: list[list[tuple[int, int, str, float]]] = [[] for _ in texts]
        columns = (*self.windows[split], probabilities.tolist(), labels.tolist())
        for example, first_of, scores, numbers in zip(*columns, strict=True):
            for word, score, number in zip(first_of, scores, numbers, strict=False):  # the last two are padded
                if word >= 0:
                    words[example].append((*self.word_spans[example, word], self.label_names[number], score))
        entities = [
            [
                dict(zip(SPAN, (start, end, label, text[start:end], probability), strict=True))
                for start, end, label, probability in merge_tags(tagged)
            ]
            for text, tagged in zip(texts, words, strict=True)
        ]
        return {"entities": pyarrow.array(entities, pyarrow.list_(pyarrow.struct(SPAN)))}

    def for_metric(self, name: str, predictions: list, references: list) -> tuple[list, list]:
        if name == "seqeval":
            return predictions, references
        return [*chain(*predictions)], [*chain(*references)]

    def class_counts(self) -> np.ndarray:
        counts = Counter(chain(*self.references["train"]))
        return np.array([counts[name] for name in self.label_names])

    def class_report(self, split: str, predictions: list[list[str]]) -> dict[str, Any]:
        """Of entities, if the metrics count them, or else of words."""
        references = self.references[split]
        if "seqeval" in self.metrics:
            return {"classes": entity_scores(references, predictions)}
        return class_report([*chain(*references)], [*chain(*predictions)])

    def reference(self, row: dict[str, Any]) -> list[str]:
        words, labels = row["text"], row["label"]
        if not isinstance(labels, list) or len(words) != len(labels):
            raise ValueError(f"there must be a list of one label for each of its {len(words)} words, not {labels!r}.")
        names = [self.label_names[self.id_of(label)] for label in labels]
        return begin_entities(names) if self.marks_entities else names

    def encode(self, split: str) -> Dataset:
        """The windows; `windows` has the example of each, and the word that each of its tokens begins, -1 for all
        other tokens. The words of a text are those of the tokenizer: `word_spans` has their characters."""
        options = {"is_split_into_words": self.has_words(split), "return_overflowing_tokens": True, **self.truncation}
        encoded = self.tokenizer(self.splits[split]["text"][:], **options)
        example_of = encoded.pop("overflow_to_sample_mapping")
        first_of: list[list[int]] = []
        seen = {(example, None) for example in example_of}  # special tokens are of no word
        for window, example in enumerate(example_of):
            first_of.append([])
            for word in encoded.word_ids(window):
                first_of[-1].append(-1 if (example, word) in seen else word)
                seen.add((example, word))
        self.windows[split] = example_of, first_of
        self.word_spans: dict[tuple[int, int], tuple[int, int]] = {}
        for example, encoding in zip(example_of, encoded.encodings if not self.has_words(split) else (), strict=False):
            text = self.splits[split]["text"][example]
            for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
                if word is not None:
                    first = self.word_spans.get((example, word), (start,))[0]
                    self.word_spans[example, word] = first, with_marks(text, end)
        columns = dict(encoded)
        if references := self.references.get(split):
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
