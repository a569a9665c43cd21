import json
import re
import unicodedata

import numpy as np
import pytest

from scratch_bert.corpus.tokenizer_training import train_tokenizer
from scratch_bert.finetuning.tasks.question_answering import QuestionAnswering, best_spans


@pytest.fixture
def questions(documents):
    """Ten questions about long contexts, each with an answer of three words from somewhere in it."""
    rng, columns = np.random.default_rng(0), {"text": [], "text_pair": [], "label": [], "id": []}
    long_documents = [document for document in documents if sum(map(len, document)) > 1500]
    for number, document in enumerate(long_documents[:10]):
        context = " ".join(document)[:3000]
        words = [match.span() for match in re.finditer(r"\S+", context)]
        first = int(rng.integers(len(words) - 3))
        start, end = words[first][0], words[first + 2][1]
        columns["text"].append(context)
        columns["text_pair"].append("What " + "is it? " * (number % 40))
        columns["label"].append({"text": [context[start:end]], "answer_start": [start]})
        columns["id"].append(f"q{number}")
    return columns


@pytest.fixture
def make(make_task):
    def make(questions, max_seq_length=100, **options):
        return make_task(QuestionAnswering, questions, max_seq_length=max_seq_length, doc_stride=30, **options)

    return make


def perfect_logits(features, length=100):
    """Start and end logits that point to the labels: to [CLS] in windows without the answer."""
    logits = np.zeros((2, len(features), length))
    for one, name in zip(logits, ("start_positions", "end_positions"), strict=True):
        one[np.arange(len(features)), features[name][:]] = 5.0
    return tuple(logits)


def test_windows_cover_the_context_and_contain_the_answer(questions, make, tokenizer):
    task = make(questions)
    example_of, offsets = task.windows["train"]
    features = task.features["train"]
    assert len(features) == len(example_of) > 3 * len(questions["text"])
    for example, context in enumerate(questions["text"]):
        windows = np.flatnonzero(example_of == example)
        tokens = {tuple(span) for window in windows for span in offsets[window] if span[0] >= 0}
        expected = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        assert tokens == set(expected)
        found = set()
        for window in windows:
            start, end = (features[int(window)][name] for name in ("start_positions", "end_positions"))
            if start:
                found.add(context[offsets[window][start][0] : offsets[window][end][1]])
            else:
                assert end == 0
        assert found == set(questions["label"][example]["text"])


def test_squad_answers_are_decoded_and_written(questions, make, tmp_path):
    task = make(questions)
    # [CLS] has the highest logits in windows without the answer: it must not win over a span of another window.
    answers = task.decode("validation", perfect_logits(task.features["validation"]))
    assert answers == [label["text"][0] for label in questions["label"]]
    assert task.best_metric == "f1"
    assert task.compute_scores("validation", answers) == {"exact_match": 100, "f1": 100}
    task.write_predictions("validation", answers, tmp_path)
    assert json.loads((tmp_path / "predictions.json").read_text()) == dict(zip(questions["id"], answers, strict=True))


def test_questions_without_ids_are_held_out_with_their_context(questions, make, tmp_path):
    del questions["id"]
    columns = {name: [value for value in values for _ in range(3)] for name, values in questions.items()}
    task = make(columns, hold_out=True, validation_share=0.2)
    train, validation = (set(task.splits[split]["text"]) for split in ("train", "validation"))
    assert len(validation) == 2 and len(train) == 8 and not train & validation
    assert len(task.splits["validation"]) == 6
    task.write_predictions("validation", ["answer"] * 6, tmp_path)
    origins = json.loads((tmp_path / "predictions.json").read_text())
    for origin in origins:  # of the file, not of the part
        assert columns["text"][int(re.fullmatch(r"train, example (\d+)", origin)[1]) - 1] in validation
    with pytest.raises(ValueError, match="All questions are on one context"):
        make({name: values[:3] for name, values in columns.items()}, hold_out=True)


def test_squad_unanswerable_question(questions, make):
    questions["label"][0] = {"text": [], "answer_start": []}
    task = make(questions)
    answers = task.decode("validation", perfect_logits(task.features["validation"]))
    assert answers == ["", *(label["text"][0] for label in questions["label"][1:])]
    assert task.compute_scores("validation", answers)["exact_match"] == 100


@pytest.mark.parametrize("text", ["มนุษย์ ทั้งหลาย เกิดมา เสรี", "सभी मनुष्यों को गौरव की", "le cafe\u0301 est la\u0300"])
def test_answers_that_end_in_a_mark_without_a_token(text, make_task):
    """An uncased tokenizer removes vowel signs and accents. What nothing is left of is counted."""
    text += " \u200b"
    uncased = train_tokenizer([text], vocab_size=200, min_frequency=1, lowercase=True, strip_accents=True)
    words = [(match[0], match.start()) for match in re.finditer(r"\S+", text)]
    assert sum(unicodedata.category(word[-1]) in ("Mn", "Mc") for word, _ in words) >= 2
    label = [{"text": [word], "answer_start": [start]} for word, start in words]
    columns = {"text": [text] * len(words), "text_pair": [text[2:]] * len(words), "label": label}
    task = make_task(QuestionAnswering, columns, max_seq_length=100, tokenizer=uncased)
    answers = task.decode("validation", perfect_logits(task.features["validation"]))
    assert answers[:-1] == [word for word, _ in words[:-1]]


def test_answers_that_are_lost_are_counted(questions, make, caplog):
    make(questions)
    assert "count as unanswerable" not in caplog.text
    context = questions["text"][0]
    questions["label"][0] = {"text": [context[:2000]], "answer_start": [0]}
    questions["text"][1] += " \u200b"
    questions["label"][1] = {"text": ["\u200b"], "answer_start": [len(questions["text"][1]) - 1]}
    make(questions)
    assert "train: 2 of 10 answers are longer than a window, or have no token: they count as unanswer" in caplog.text


def test_answers_as_a_list_of_records(questions, make):
    expected = make(questions)
    records = [[{"text": label["text"][0], "answer_start": label["answer_start"][0]}] for label in questions["label"]]
    task = make({**questions, "label": records})
    assert task.references == expected.references
    assert task.features["train"]["start_positions"][:] == expected.features["train"]["start_positions"][:]


def test_squad_test_split_needs_no_answers(questions, make):
    unlabelled = {**questions, "label": [{"text": [], "answer_start": []}] * len(questions["id"])}
    assert set(make(questions, test=unlabelled).references) == {"train", "validation"}


def test_best_spans_are_those_of_an_exhaustive_search():
    rng = np.random.default_rng(0)
    start, end = rng.normal(size=(2, 30, 12))
    in_context = rng.random((30, 12)) < 0.7
    scores, first, last = best_spans(start, end, in_context, max_length=4)
    for window in range(30):
        spans = {
            (i, j): start[window, i] + end[window, j]
            for i in range(12)
            for j in range(i, min(i + 4, 12))
            if in_context[window, i] and in_context[window, j]
        }
        best = max(spans, key=spans.get)
        assert (first[window], last[window]) == best and scores[window] == pytest.approx(spans[best])
