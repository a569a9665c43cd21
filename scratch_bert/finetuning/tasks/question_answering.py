"""Extractive question answering (paper, sections 4.2 and 4.3): overlapping windows over long contexts, and the best
span across them."""

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow
import torch
from datasets import Dataset
from pydantic import BaseModel, BeforeValidator, Field, NonNegativeInt
from sklearn.model_selection import GroupShuffleSplit
from transformers import AutoModelForQuestionAnswering, PreTrainedConfig

from ...logs import logger
from ...text import with_marks
from .base import Task, TextRow


MAX_QUESTION_LENGTH = 64  # tokens, as in BERT's published code; in short windows, half of them


class Answer(BaseModel, strict=True):
    text: Annotated[str, Field(pattern=r"\S")]
    answer_start: NonNegativeInt


def _as_records(answers: Any) -> Any:
    """A list of answers, as in SQuAD's own files; in its dataset, it is a dict of lists."""
    if isinstance(answers, dict) and all(isinstance(values, list) for values in answers.values()):
        return [dict(zip(answers, values, strict=True)) for values in zip(*answers.values(), strict=True)]
    return answers


class QuestionRow(TextRow):
    id: str | int = ""
    label: Annotated[list[Answer] | None, BeforeValidator(_as_records)] = None


def gold_answers(row: dict[str, Any]) -> list[Answer]:
    answers = QuestionRow.model_validate(row).label
    if answers is None:
        raise ValueError("there is no list of answers; an unanswerable question has an empty one.")
    return answers


class QuestionAnswering(Task):
    """The span of a context that answers a question. `label` contains the gold answers, each with its `text` and its
    `answer_start`, a character; a question without answers is unanswerable (SQuAD 2.0)."""

    row = QuestionRow
    columns: ClassVar = {"text": "context", "text_pair": "question", "label": "answers", "id": "id"}
    file_format = "squad"
    options: ClassVar = ("doc_stride", "max_answer_length")
    default_max_seq_length = 384
    auto_class = AutoModelForQuestionAnswering
    default_metrics = ("squad",)
    one_label = False
    predicts_tokens = True

    def set_windows(self, doc_stride: int | None = None, max_answer_length: int = 30) -> None:
        self.question_length = min(MAX_QUESTION_LENGTH, self.max_seq_length // 2)
        self.doc_stride = self.max_seq_length // 3 if doc_stride is None else doc_stride
        self.max_answer_length = max_answer_length
        minimum = self.question_length + self.doc_stride + 4  # [CLS], two [SEP], and at least one new token
        if self.max_seq_length < minimum:
            raise ValueError(f"max_seq_length must be at least {minimum} with a doc_stride of {self.doc_stride}.")

    def read_labels(self, **window_options: Any) -> None:
        self.set_windows(**window_options)
        for split in self.splits:
            if len(set(self.question_ids(split))) < len(self.splits[split]):
                raise ValueError(f"{split}: several questions have the same id, so predictions would be lost.")
        answered = list(map(bool, self.parse_rows("train", gold_answers)))
        if not any(answered):
            raise ValueError("train: no question has an answer. Name the right column with --label_column.")
        self.has_unanswerable = not all(answered)
        validation = self.parse_rows("validation", gold_answers) if "validation" in self.splits else ()
        if not self.has_unanswerable and not all(validation):
            logger.warning(
                "validation: some questions have no answer, as in SQuAD 2.0, but all training questions have one: "
                "the model will answer every question"
            )
        self.model_options = {name: value for name, value in window_options.items() if value is not None}
        self.model_options |= {"has_unanswerable": True} if self.has_unanswerable else {}

    def read_config(self, config: PreTrainedConfig) -> None:
        self.set_windows(getattr(config, "doc_stride", None), getattr(config, "max_answer_length", 30))
        self.has_unanswerable = getattr(config, "has_unanswerable", False)

    def question_ids(self, split: str) -> list[str]:
        """The column `id`, or the examples' origins if there is none."""
        examples = self.splits[split]
        return examples["id" if "id" in examples.column_names else "origin"][:]

    def hold_out(self, examples: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
        """A random share of the contexts with all their questions: the model has not read the others."""
        contexts = examples["text"][:]
        if len(set(contexts)) < 2:
            raise ValueError("All questions are on one context, so none can be held out: give a validation_file.")
        split = GroupShuffleSplit(1, test_size=share, random_state=seed)
        train, validation = next(split.split(contexts, groups=contexts))
        return examples.select(train), examples.select(validation)

    def is_unlabelled(self, label: dict | list[dict] | None) -> bool:
        return not label or label == {"text": [], "answer_start": []} and not self.has_unanswerable

    def reference(self, row: dict[str, Any]) -> list[str]:
        answers = gold_answers(row)
        for answer in answers:
            found = row["text"][answer.answer_start :][: len(answer.text)]
            if found != answer.text:
                raise ValueError(
                    f"at {answer.answer_start}, the context has {found!r}, not the answer {answer.text!r}."
                )
        return [answer.text for answer in answers]

    def gold_predictions(self, split: str) -> list[str]:
        return [texts[0] if texts else "" for texts in self.references[split]]

    def encode(self, split: str) -> Dataset:
        """The windows over the contexts; `windows` has the example of each, and the characters of the context that
        each of its tokens covers, (W, S, 2), -1 for all other tokens."""
        questions = self._shortened_questions(split)
        answers = list(self.parse_rows(split, gold_answers)) if split in self.references else []
        options = {"stride": self.doc_stride, "return_overflowing_tokens": True, "return_offsets_mapping": True}

        def split_into_windows(batch: dict, indices: list[int]) -> dict:
            asked = [questions[index] for index in indices]
            encoded = self.tokenizer(
                asked, batch["text"], **self.truncation | {"truncation": "only_second"}, **options
            )
            offsets = encoded.pop("offset_mapping")
            examples = [indices[number] for number in encoded.pop("overflow_to_sample_mapping")]
            for window, (spans, example) in enumerate(zip(offsets, examples, strict=True)):
                context, segments = batch["text"][example - indices[0]], encoded.sequence_ids(window)
                starts = {start for (start, _), segment in zip(spans, segments, strict=True) if segment == 1}
                offsets[window] = [
                    (start, with_marks(context, end, starts)) if segment == 1 else (-1, -1)
                    for (start, end), segment in zip(spans, segments, strict=True)
                ]
            return {**encoded, "example": examples, "offsets": offsets}

        features = self.tokenize(split, split_into_windows, with_indices=True)
        padded = np.full((len(features), self.max_seq_length, 2), -1, dtype=np.int32)
        for window, offsets in zip(padded, features["offsets"], strict=True):
            window[: len(offsets)] = offsets
        example_of = np.array(features["example"])
        self.windows[split] = example_of, padded
        features = features.remove_columns(["example", "offsets"])
        if not answers:
            return features
        spans, bounds = np.zeros((len(features), 2), dtype=int), np.searchsorted(example_of, range(len(answers) + 1))
        for answer, first, last in zip(answers, bounds, bounds[1:], strict=False):
            if answer:
                spans[first:last] = answer_spans(padded[first:last], answer[0])
        answered = np.array([bool(answer) for answer in answers])
        if lost := int((answered & (np.maximum.reduceat(spans[:, 1], bounds[:-1]) == 0)).sum()):
            logger.warning(
                f"{split}: {lost:,} of {answered.sum():,} answers are longer than a window, or have no token: they "
                "count as unanswerable"
            )
        return features.add_column("start_positions", spans[:, 0]).add_column("end_positions", spans[:, 1])

    def _shortened_questions(self, split: str) -> list[str]:
        questions, limit = self.splits[split]["text_pair"][:], self.question_length
        options = {"add_special_tokens": False, "return_offsets_mapping": True}
        # If it were verbose, it would warn of a length that the model never gets.
        tokens = self.tokenizer(questions, **options, verbose=False)["offset_mapping"]
        if cut := sum(len(offsets) > limit for offsets in tokens):
            logger.warning(f"{split}: {cut:,} of {len(questions):,} questions are cut to their first {limit} tokens")
        return [
            question[: offsets[:limit][-1][1]] if offsets else ""
            for question, offsets in zip(questions, tokens, strict=True)
        ]

    def decode(self, split: str, logits: tuple[np.ndarray, np.ndarray]) -> list[str]:
        _, _, characters = self.find_answers(split, logits)
        contexts = self.splits[split]["text"][:]
        return [context[start:end] for context, (start, end) in zip(contexts, characters.tolist(), strict=True)]

    def find_answers(
        self, split: str, logits: tuple[np.ndarray, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each example the window of its best span, (N,), the span's first and last token there, (N, 2), and where
        it starts and ends in the context, (N, 2): -1 and -1 for no answer."""
        example_of, offsets = self.windows[split]
        count = len(self.splits[split])
        in_context = offsets[:, : logits[0].shape[1], 0] >= 0
        scores, first, last = best_spans(*logits, in_context, self.max_answer_length)
        best = np.zeros(count, int)
        for window in np.argsort(scores, kind="stable"):  # the best window of an example comes last
            best[example_of[window]] = window
        tokens = np.stack((first[best], last[best]), 1)
        characters = np.stack((offsets[best, tokens[:, 0], 0], offsets[best, tokens[:, 1], 1]), 1)
        if self.has_unanswerable:
            # [CLS] means no answer: its lowest score counts, as a single window with an answer is enough.
            no_answer = np.full(count, np.inf)
            np.minimum.at(no_answer, example_of, logits[0][:, 0] + logits[1][:, 0])
            characters[~(scores[best] > no_answer)] = -1
        return best, tokens, characters

    def predict(self, split: str, logits: tuple[torch.Tensor, ...]) -> dict[str, list | pyarrow.Array]:
        """The probability of an answer is that of its first times that of its last token in its window; that of no
        answer is [CLS]'s in the window where it is lowest. Without an answer, `start` and `end` are None."""
        arrays = logits[0].numpy(), logits[1].numpy()
        windows, tokens, characters = self.find_answers(split, arrays)
        first, last = (part.softmax(-1).numpy() for part in logits)  # (W, S) each
        no_answer = np.ones(len(windows))
        np.minimum.at(no_answer, self.windows[split][0], first[:, 0] * last[:, 0])
        found = characters[:, 0] >= 0
        probabilities = np.where(found, first[windows, tokens[:, 0]] * last[windows, tokens[:, 1]], no_answer)
        return {
            "prediction": self.decode(split, arrays),
            "start": pyarrow.array(characters[:, 0], pyarrow.int64(), mask=~found),
            "end": pyarrow.array(characters[:, 1], pyarrow.int64(), mask=~found),
            "probability": probabilities.tolist(),
            "no_answer_probability": no_answer.tolist(),
        }

    def predictions_file(self, split: str) -> str:
        return "predictions.json" if split == "validation" else f"{split}_predictions.json"

    def write_predictions(self, split: str, predictions: list[str], directory: Path) -> None:
        """Write the answers by question id, as SQuAD's own evaluation script expects them."""
        by_id = dict(zip(self.question_ids(split), predictions, strict=True))
        content = json.dumps(by_id, ensure_ascii=False, indent=2)
        (directory / self.predictions_file(split)).write_text(f"{content}\n", encoding="utf-8")


def best_spans(
    start: np.ndarray, end: np.ndarray, in_context: np.ndarray, max_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Score, first and last token, (W,) each, of the best span of each window: the highest sum of start and end logit.

    `start`, `end` and `in_context`, which marks the tokens of the context, are (W, S). A span has at most `max_length`
    tokens.
    """
    scores, first, last = np.full(len(start), -np.inf), np.zeros(len(start), int), np.zeros(len(start), int)
    for distance in range(min(max_length, start.shape[1])):
        stop = start.shape[1] - distance
        allowed = in_context[:, :stop] & in_context[:, distance:]  # (W, S - distance)
        sums = np.where(allowed, start[:, :stop].astype(np.float64) + end[:, distance:], -np.inf)
        at, highest = sums.argmax(1), sums.max(1)
        better = highest > scores
        scores[better], first[better], last[better] = highest[better], at[better], at[better] + distance
    return scores, first, last


def answer_spans(offsets: np.ndarray, answer: Answer) -> np.ndarray:
    """First and last token, (W, 2), of those that overlap an answer, in the windows over its context, whose tokens
    cover the characters `offsets`, (W, S, 2); [CLS] twice in a window that does not contain all of them."""
    start, end = offsets[..., 0], offsets[..., 1]  # (W, S)
    overlap = (start < answer.answer_start + len(answer.text)) & (end > answer.answer_start)
    if not overlap.any():
        return np.zeros((len(offsets), 2), dtype=int)
    is_first, is_last = overlap & (start == start[overlap].min()), overlap & (end == end[overlap].max())
    last = is_last.shape[1] - 1 - is_last[:, ::-1].argmax(1)
    complete = is_first.any(1) & is_last.any(1)
    return np.stack((is_first.argmax(1), last), 1) * complete[:, None]
