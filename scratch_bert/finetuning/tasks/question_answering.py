"""Extractive question answering (paper, sections 4.2 and 4.3): overlapping windows over long contexts, and the best
span across them."""

import json
import logging
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from datasets import Dataset
from pydantic import BaseModel, BeforeValidator
from tokenizers import Encoding
from transformers import AutoModelForQuestionAnswering

from ..readers import Answer
from .base import Task, TextRow


logger = logging.getLogger("scratch_bert")

MAX_QUESTION_LENGTH = 64  # tokens, as in BERT's published code; in short windows, half of them


def _as_records(answers: Any) -> Any:
    """A list of answers, as in SQuAD's own files; in its dataset, it is a dict of lists."""
    if isinstance(answers, dict) and all(isinstance(values, list) for values in answers.values()):
        return [dict(zip(answers, values, strict=True)) for values in zip(*answers.values(), strict=True)]
    return answers


GoldAnswers = Annotated[list[Answer], BeforeValidator(_as_records)]


class QuestionRow(TextRow):
    id: str | int = ""
    label: GoldAnswers | None = None


class AnsweredRow(BaseModel, strict=True):
    label: GoldAnswers


def gold_answers(row: dict[str, Any]) -> list[Answer]:
    return AnsweredRow.model_validate(row).label


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

    def read_labels(self, doc_stride: int | None = None, max_answer_length: int = 30) -> None:
        self.question_length = min(MAX_QUESTION_LENGTH, self.max_seq_length // 2)
        self.doc_stride = self.max_seq_length // 3 if doc_stride is None else doc_stride
        self.max_answer_length = max_answer_length
        minimum = self.question_length + self.doc_stride + 4  # [CLS], two [SEP], and at least one new token
        if self.max_seq_length < minimum:
            raise ValueError(f"max_seq_length must be at least {minimum} with a doc_stride of {self.doc_stride}.")
        for split in self.splits:
            if len(set(self.question_ids(split))) < len(self.splits[split]):
                raise ValueError(f"{split}: several questions have the same id, so predictions would be lost.")
        self.has_unanswerable = not all(self.parse_rows("train", gold_answers))

    def question_ids(self, split: str) -> list[str]:
        """The column `id`, or numbers from 1 if there is none."""
        examples = self.splits[split]
        if "id" in examples.column_names:
            return examples["id"][:]
        return [str(number) for number in range(1, len(examples) + 1)]

    def is_unlabelled(self, label: dict | list[dict] | None) -> bool:
        return not label or label == {"text": [], "answer_start": []} and not self.has_unanswerable

    def reference(self, row: dict[str, Any]) -> list[str]:
        answers = gold_answers(row)
        for answer in answers:
            found = row["text"][answer.answer_start :][: len(answer.text)]
            if found != answer.text:
                raise ValueError(
                    f"the answer {answer.text!r} is not at character {answer.answer_start} of its context, which has "
                    f"{found!r} there. Correct answer_start, or leave the question out."
                )
        return [answer.text for answer in answers]

    def gold_predictions(self, split: str) -> list[str]:
        return [texts[0] if texts else "" for texts in self.references[split]]

    def encode(self, split: str) -> Dataset:
        """The windows over the contexts; `windows` has the example of each, and the characters of the context that
        each of its tokens covers, (W, S, 2), -1 for all other tokens."""
        questions = self._shortened_questions(split)
        answers = list(self.parse_rows(split, gold_answers)) if split in self.references else []

        def split_into_windows(batch: dict, indices: list[int]) -> dict:
            encoded = self.tokenizer(
                [questions[index] for index in indices],
                batch["text"],
                truncation="only_second",
                max_length=self.max_seq_length,
                stride=self.doc_stride,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            offsets, example_of = encoded.pop("offset_mapping"), encoded.pop("overflow_to_sample_mapping")
            segments = (encoded.sequence_ids(window) for window in range(len(offsets)))
            in_context = [
                [span if segment == 1 else (-1, -1) for span, segment in zip(*window, strict=True)]
                for window in zip(offsets, segments, strict=True)
            ]
            columns = {"example": [indices[example] for example in example_of], "offsets": in_context}
            if answers:
                spans = [
                    answer_span(encoded[window], answers[example]) for window, example in enumerate(columns["example"])
                ]
                columns["start_positions"] = [start for start, _ in spans]
                columns["end_positions"] = [end for _, end in spans]
            return {**encoded, **columns}

        features = self.tokenize(split, split_into_windows, with_indices=True)
        padded = np.full((len(features), self.max_seq_length, 2), -1, dtype=np.int32)
        for window, offsets in zip(padded, features["offsets"], strict=True):
            window[: len(offsets)] = offsets
        self.windows[split] = np.array(features["example"]), padded
        return features.remove_columns(["example", "offsets"])

    def _shortened_questions(self, split: str) -> list[str]:
        questions, limit = self.splits[split]["text_pair"][:], self.question_length
        tokens = self.tokenizer(
            questions,
            add_special_tokens=False,
            return_offsets_mapping=True,
            verbose=False,  # it would warn of a length that the model never gets
        )["offset_mapping"]
        if cut := sum(len(offsets) > limit for offsets in tokens):
            logger.warning(f"{split}: {cut:,} of {len(questions):,} questions are cut to their first {limit} tokens")
        return [
            question[: offsets[:limit][-1][1]] if offsets else ""
            for question, offsets in zip(questions, tokens, strict=True)
        ]

    def decode(self, split: str, logits: tuple[np.ndarray, np.ndarray]) -> list[str]:
        example_of, offsets = self.windows[split]
        contexts = self.splits[split]["text"][:]
        in_context = offsets[:, : logits[0].shape[1], 0] >= 0
        scores, first, last = best_spans(*logits, in_context, self.max_answer_length)
        answers, best = [""] * len(contexts), np.full(len(contexts), -np.inf)
        for window in np.argsort(scores, kind="stable"):  # the best window of an example comes last
            example, characters = example_of[window], offsets[window]
            answers[example] = contexts[example][characters[first[window], 0] : characters[last[window], 1]]
            best[example] = scores[window]
        # [CLS] means no answer: its lowest score counts, as a single window with an answer is enough.
        if self.has_unanswerable:
            no_answer = np.full(len(contexts), np.inf)
            np.minimum.at(no_answer, example_of, logits[0][:, 0] + logits[1][:, 0])
            answers = [
                answer if score > null else "" for answer, score, null in zip(answers, best, no_answer, strict=True)
            ]
        return answers

    def write_predictions(self, split: str, predictions: list[str], directory: Path) -> None:
        """Write the answers by question id, as SQuAD's own evaluation script expects them."""
        file = directory / ("predictions.json" if split == "validation" else f"{split}_predictions.json")
        by_id = dict(zip(self.question_ids(split), predictions, strict=True))
        file.write_text(json.dumps(by_id, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def best_spans(
    start: np.ndarray, end: np.ndarray, in_context: np.ndarray, max_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Score, first and last token, (W,) each, of the best span of each window: the highest sum of start and end logit.

    `start`, `end` and `in_context`, which marks the tokens of the context, are (W, S). A span has at most `max_length`
    tokens.
    """
    windows = np.arange(len(start))
    scores, first, last = np.full(len(start), -np.inf), np.zeros(len(start), int), np.zeros(len(start), int)
    for distance in range(min(max_length, start.shape[1])):
        stop = start.shape[1] - distance
        sums = np.where(  # (W, S - distance)
            in_context[:, :stop] & in_context[:, distance:],
            start[:, :stop].astype(np.float64) + end[:, distance:],
            -np.inf,
        )
        at = sums.argmax(1)
        better = sums[windows, at] > scores
        scores[better] = sums[windows, at][better]
        first[better], last[better] = at[better], at[better] + distance
    return scores, first, last


def answer_span(window: Encoding, answers: list[Answer]) -> tuple[int, int]:
    """First and last token of the first gold answer; [CLS] twice if the window does not contain it completely."""
    if not answers:
        return 0, 0
    text, start = answers[0].text, answers[0].answer_start
    start += len(text) - len(text.lstrip())  # spaces have no token
    tokens = [window.char_to_token(character, 1) for character in (start, start + len(text.strip()) - 1)]
    return (0, 0) if None in tokens else tuple(tokens)
