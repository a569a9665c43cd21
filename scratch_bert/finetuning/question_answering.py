"""Answers as spans of a text: long contexts in overlapping windows, and the best span of all of them (paper, sections
4.2 and 4.3)."""

import json
from pathlib import Path
from typing import ClassVar

import numpy as np
from datasets import Dataset
from tokenizers import Encoding
from transformers import AutoModelForQuestionAnswering

from .task import Task, all_texts


MAX_QUESTION_LENGTH = 64  # tokens, as in BERT's published code; half of a window in short ones


class QuestionAnswering(Task):
    """Start and end of an answer in a text. `label` holds the right answers, each with its `text` and its
    `answer_start`, a character; a question without any has no answer in its text (SQuAD 2.0)."""

    columns: ClassVar = {"text": "context", "text_pair": "question", "label": "answers", "id": "id"}
    auto_class = AutoModelForQuestionAnswering
    metrics = ("squad",)
    best_metric = "f1"

    def read_labels(self, doc_stride: int | None = None, max_answer_length: int = 30) -> None:
        self.question_length = min(MAX_QUESTION_LENGTH, self.max_seq_length // 2)
        self.doc_stride = self.max_seq_length // 3 if doc_stride is None else doc_stride
        self.max_answer_length = max_answer_length
        least = self.question_length + self.doc_stride + 4  # [CLS], two [SEP], and a token to go on by
        if self.max_seq_length < least:
            raise ValueError(
                f"A window of {self.max_seq_length} tokens has no room for a question of {self.question_length} and an "
                f"overlap of {self.doc_stride}: choose a smaller doc_stride."
            )
        # By split: each window's row, and where in the context its tokens begin and end, -1 for all that is no context.
        self.windows: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.some_unanswered = any(not lists["text"] for lists in self.answers("train"))

    def names_of(self, split: str) -> list[str]:
        """What the questions are called: by their column `id`, else by their numbers."""
        rows = self.splits[split]
        if "id" not in rows.column_names:
            return [str(number) for number in range(1, len(rows) + 1)]
        names = rows["id"][:]
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise ValueError(
                f"{split}: several questions have the id {repeated!r}, so that predictions would be lost."
            )
        return names

    def answers(self, split: str) -> list[dict[str, list]]:
        rows = self.splits[split]
        return [_lists(label, row) for row, label in zip(rows["row"], rows["label"], strict=True)]

    def is_blank(self, label: dict | list[dict] | None) -> bool:
        return not label or label == {"text": [], "answer_start": []} and not self.some_unanswered

    def labels_of(self, split: str) -> list[list[str]]:
        rows = self.splits[split]
        answers = self.answers(split)
        for row, name, context, lists in zip(rows["row"], self.names_of(split), rows["text"], answers, strict=True):
            for text, start in zip(*lists.values(), strict=True):
                found = context[max(start, 0) : start + len(text)]
                if found != text or start < 0:
                    raise ValueError(
                        f"{row}: the answer {text!r} to question {name} is not at character {start} of its context, where "
                        f"{found!r} stands. Correct answer_start, or leave the question out."
                    )
        return [lists["text"] for lists in answers]

    def right_predictions(self, split: str) -> list[str]:
        return [rights[0] if rights else "" for rights in self.references[split]]

    def encode(self, split: str) -> Dataset:
        def windows(batch: dict, indices: list[int]) -> dict:
            questions = [self._shorten(question) for question in batch["text_pair"]]
            encoded = self.tokenizer(
                questions,
                batch["text"],
                truncation="only_second",
                max_length=self.max_seq_length,
                stride=self.doc_stride,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            offsets, source = encoded.pop("offset_mapping"), encoded.pop("overflow_to_sample_mapping")
            columns = {"source": [indices[row] for row in source], "spans": []}
            for window, tokens in enumerate(offsets):
                parts = encoded.sequence_ids(window)
                columns["spans"].append(
                    [span if part == 1 else (-1, -1) for span, part in zip(tokens, parts, strict=True)]
                )
            if split in self.references:
                lists = [_lists(label, row) for row, label in zip(batch["row"], batch["label"], strict=True)]
                answers = [_answer(encoded[window], **lists[row]) for window, row in enumerate(source)]
                columns["start_positions"] = [start for start, _ in answers]
                columns["end_positions"] = [end for _, end in answers]
            return {**encoded, **columns}

        features = self.tokenize(split, windows, with_indices=True)
        padded = np.full((len(features), self.max_seq_length, 2), -1, dtype=np.int32)
        for window, spans in zip(padded, features["spans"], strict=True):
            window[: len(spans)] = spans
        self.windows[split] = np.array(features["source"]), padded
        return features.remove_columns(["source", "spans"])

    def _shorten(self, question: str) -> str:
        offsets = self.tokenizer(question, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        return question[: offsets[: self.question_length][-1][1]] if offsets else ""

    def decode(self, split: str, logits: tuple[np.ndarray, np.ndarray]) -> list[str]:
        row_of, spans = self.windows[split]
        contexts = self.splits[split]["text"][:]
        scores, first, last = best_spans(*logits, spans[:, : logits[0].shape[1], 0] >= 0, self.max_answer_length)
        answers, best = [""] * len(contexts), np.full(len(contexts), -np.inf)
        for window in np.argsort(scores, kind="stable"):  # the best window of a row comes last
            row, tokens = row_of[window], spans[window]
            answers[row] = contexts[row][tokens[first[window], 0] : tokens[last[window], 1]]
            best[row] = scores[window]
        if self.some_unanswered:  # [CLS] stands for no answer; the least such score counts, as any window may hold one
            unanswered = np.full(len(contexts), np.inf)
            np.minimum.at(unanswered, row_of, logits[0][:, 0] + logits[1][:, 0])
            answers = [
                answer if score > none else "" for answer, score, none in zip(answers, best, unanswered, strict=True)
            ]
        return answers

    def write_predictions(self, split: str, predictions: list[str], directory: Path) -> Path:
        """As SQuAD's own evaluation takes them: the answer by the question's id."""
        file = directory / ("predictions.json" if split == "validation" else f"{split}_predictions.json")
        by_name = dict(zip(self.names_of(split), predictions, strict=True))
        file.write_text(json.dumps(by_name, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        return file


def best_spans(
    start: np.ndarray, end: np.ndarray, allowed: np.ndarray, max_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each window the score, first and last token of its best span: the highest sum of the two logits.

    `start`, `end` and `allowed`, the tokens of the context, are (W, S). A span has at most `max_length` tokens.
    """
    windows = np.arange(len(start))
    scores, first, last = np.full(len(start), -np.inf), np.zeros(len(start), int), np.zeros(len(start), int)
    for distance in range(min(max_length, start.shape[1])):
        until = start.shape[1] - distance
        sums = np.where(
            allowed[:, :until] & allowed[:, distance:],
            start[:, :until].astype(np.float64) + end[:, distance:],
            -np.inf,
        )
        at = sums.argmax(1)
        better = sums[windows, at] > scores
        scores[better] = sums[windows, at][better]
        first[better], last[better] = at[better], at[better] + distance
    return scores, first, last


def _lists(answers: dict | list[dict], row: str) -> dict[str, list]:
    """Data sets hold answers as a list of dicts, or as a dict of lists. Raises `ValueError` for what is neither."""
    names = ("text", "answer_start")
    try:
        if isinstance(answers, list):
            answers = {name: [answer[name] for answer in answers] for name in names}
        texts, starts = (answers[name] for name in names)
        if all_texts(texts) and all(isinstance(start, int) for start in starts) and len(texts) == len(starts):
            return {"text": texts, "answer_start": starts}
    except (KeyError, TypeError):
        pass
    raise ValueError(f"{row}, must hold lists of answers: their text and answer_start, a number; not {answers!r}.")


def _answer(window: Encoding, text: list[str], answer_start: list[int]) -> tuple[int, int]:
    """The first and the last token of the first right answer; [CLS] twice if the window does not hold it whole."""
    if not text or not text[0].strip():
        return 0, 0
    start = answer_start[0] + len(text[0]) - len(text[0].lstrip())  # spaces have no token
    tokens = [window.char_to_token(character, 1) for character in (start, start + len(text[0].strip()) - 1)]
    return (0, 0) if None in tokens else tuple(tokens)
