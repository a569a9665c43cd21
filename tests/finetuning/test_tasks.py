import json
import re

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from scratch_bert.finetuning.multiple_choice import MultipleChoice
from scratch_bert.finetuning.question_answering import QuestionAnswering, best_spans
from scratch_bert.finetuning.sequence_classification import SequenceClassification
from scratch_bert.finetuning.task import IGNORED
from scratch_bert.finetuning.token_classification import TokenClassification


def splits_of(**columns):
    """The same rows to train and to validate on."""
    rows = Dataset.from_dict(columns)
    return {"train": rows, "validation": rows}


def make(task_class, tokenizer, splits, max_seq_length=40, **options):
    named = {
        split: rows.add_column("row", [f"{split}, row {number}" for number in range(1, len(rows) + 1)])
        for split, rows in splits.items()
    }
    return task_class(named, tokenizer, max_seq_length, **options)


TEXTS = ["a class is an object", "so is a function", "a module"]


# ------------------------------------------------------------------------------------------- sequence classification


@pytest.mark.parametrize(
    ("labels", "problem_type", "names", "references"),
    [
        (["no", "yes", "no"], "single_label_classification", ["no", "yes"], [0, 1, 0]),
        ([10, 9, 10], "single_label_classification", ["9", "10"], [1, 0, 1]),
        (["10", "9", "1"], "single_label_classification", ["1", "9", "10"], [2, 1, 0]),
        ([True, False, True], "single_label_classification", ["False", "True"], [1, 0, 1]),
        ([0.5, 1.0, -2.0], "regression", None, [0.5, 1.0, -2.0]),
        ([["a", "b"], [], ["b"]], "multi_label_classification", ["a", "b"], [[1, 1], [0, 0], [0, 1]]),
    ],
)
def test_labels_say_what_the_problem_is(labels, problem_type, names, references, tokenizer):
    task = make(SequenceClassification, tokenizer, splits_of(text=TEXTS, label=labels))
    assert task.problem_type == problem_type
    assert task.references["train"] == references
    options = task.model_options
    assert options["problem_type"] == problem_type
    if names is None:
        assert options["num_labels"] == 1
    else:
        assert options["id2label"] == dict(enumerate(names)) and options["label2id"][names[1]] == 1
    assert task.features["train"]["labels"][:] == references


def test_texts_and_pairs_are_encoded_as_the_tokenizer_does(tokenizer):
    task = make(
        SequenceClassification, tokenizer, splits_of(text=TEXTS, text_pair=TEXTS[::-1], label=["a", "b", "a"]), 9
    )
    for number, row in enumerate(task.features["validation"]):
        expected = tokenizer(TEXTS[number], TEXTS[-1 - number], truncation=True, max_length=9)
        assert {name: row[name] for name in expected} == dict(expected)


def test_class_names_of_a_data_set_and_rows_without_label_to_predict(tokenizer):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["minus", "plus"])})
    rows = Dataset.from_dict({"text": TEXTS, "label": [1, 0, 1]}, features=features)
    unlabelled = Dataset.from_dict({"text": TEXTS, "label": [-1, -1, -1]}, features=features)
    task = make(SequenceClassification, tokenizer, {"train": rows, "validation": rows, "test": unlabelled})
    assert task.references == {"train": [1, 0, 1], "validation": [1, 0, 1]}
    assert "labels" not in task.features["test"].column_names
    assert [task.describe(one) for one in task.decode("test", np.array([[0, 1], [1, 0]]))] == ["plus", "minus"]


def test_a_label_of_minus_one_is_no_class(tokenizer):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["minus", "plus"])})
    rows = Dataset.from_dict({"text": TEXTS, "label": [1, 0, -1]}, features=features)
    with pytest.raises(ValueError, match="train, row 3, has the label -1"):
        make(SequenceClassification, tokenizer, {"train": rows, "validation": rows})
    numbers = Dataset.from_dict({"text": TEXTS, "label": [1.0, 0.5, 2.0]})
    unlabelled = Dataset.from_dict({"text": TEXTS, "label": [-1.0] * 3})
    task = make(SequenceClassification, tokenizer, {"train": numbers, "validation": numbers, "test": unlabelled})
    assert "test" not in task.references


def test_the_best_checkpoint_is_that_of_the_first_metric_asked_for(tokenizer):
    splits = splits_of(text=TEXTS, label=["a", "b", "a"])
    assert make(SequenceClassification, tokenizer, splits).best_metric == "accuracy"
    metrics = ("matthews_correlation", "accuracy")
    assert make(SequenceClassification, tokenizer, splits, metrics=metrics).best_metric == "matthews_correlation"
    assert make(SequenceClassification, tokenizer, splits, best_metric="loss").best_metric == "loss"
    message = "no figure 'acuracy' .*: name one with --metric_for_best_model, of loss, accuracy, f1"
    with pytest.raises(ValueError, match=message):
        make(SequenceClassification, tokenizer, splits, best_metric="acuracy")
    with pytest.raises(ValueError, match="The metric f1 does not suit these labels: .* Choose others .* f1_macro"):
        make(SequenceClassification, tokenizer, splits_of(text=TEXTS, label=["a", "b", "c"]), metrics=["f1"])
    for metric in ("seqeval", "squad"):
        with pytest.raises(ValueError, match=f"The metric {metric} does not suit these labels"):
            make(SequenceClassification, tokenizer, splits, metrics=[metric])


def test_a_rare_label_may_be_held_out(tokenizer):
    texts, labels = [str(number) for number in range(20)], [*"ab" * 9, "a", "rare"]
    for seed in range(20):
        task = make(
            SequenceClassification,
            tokenizer,
            {"train": Dataset.from_dict({"text": texts, "label": labels})},
            seed=seed,
        )
        assert task.names == ["a", "b", "rare"]
        assert [len(task.features[split]) for split in ("train", "validation")] == [18, 2]
        if 2 in task.references["validation"]:
            return
    raise AssertionError("no seed has held it out")


def test_several_labels_in_one_text(tokenizer):
    splits = splits_of(text=TEXTS, label=["a, b", "", "b"])
    task = make(SequenceClassification, tokenizer, splits, problem_type="multi_label_classification")
    assert task.references["train"] == [[1, 1], [0, 0], [0, 1]]
    predictions = task.decode("train", np.array([[1.0, -1.0], [-1.0, -1.0], [2.0, 1.0]]))
    assert [task.describe(one) for one in predictions] == [["a"], [], ["a", "b"]]
    assert task.figures("train", predictions)["accuracy"] == pytest.approx(1 / 3)
    assert make(SequenceClassification, tokenizer, splits_of(text=TEXTS, label=[None, ["a"], ["b", "a"]])).references[
        "train"
    ] == [[0, 0], [1, 0], [1, 1]]


def test_names_of_glue_and_their_ids(tokenizer):
    names = ("negative", "positive")
    task = make(
        SequenceClassification, tokenizer, splits_of(text=TEXTS, label=["1", "negative", "0"]), label_names=names
    )
    assert task.references["train"] == [1, 0, 0]


def test_classes_that_a_gap_has_made_fractions(tokenizer):
    rows = {
        split: Dataset.from_dict({"text": TEXTS, "label": labels})
        for split, labels in (("train", [10.0, 2.0, 2.0]), ("validation", [2, 2, 10]))
    }
    task = make(SequenceClassification, tokenizer, rows, problem_type="single_label_classification")
    assert task.names == ["2", "10"] and task.references == {"train": [1, 0, 0], "validation": [0, 0, 1]}


def test_bad_labels_and_texts_are_named(tokenizer):
    train = Dataset.from_dict({"text": TEXTS, "label": ["a", "b", "a"]})
    for rows, message in (
        (
            {"text": TEXTS, "label": ["a", "c", "a"]},
            "validation, row 2, has the label 'c', but the labels .* are: a, b",
        ),
        ({"text": TEXTS, "label": ["a", "0", "a"]}, "validation, row 2, has the label '0'"),
        ({"text": TEXTS, "label": ["a", None, "a"]}, "validation, row 2, has the label None"),
        ({"text": ["x", "y", None], "label": ["a", "b", "a"]}, "validation, row 3, holds no text in text, but None"),
    ):
        with pytest.raises(ValueError, match=message):
            make(SequenceClassification, tokenizer, {"train": train, "validation": Dataset.from_dict(rows)})
    with pytest.raises(ValueError, match="no two labels"):
        make(SequenceClassification, tokenizer, splits_of(text=TEXTS, label=["a", "a", "a"]))
    for labels, message in (
        ([1.0, 0.0, None], "whole numbers written as fractions, such as 1.0: say with --problem_type"),
        ([[], [], []], "The training rows have no labels: pass --label_column"),
        ([[1, 0], [0, 0], [1, 1]], r"lists of 0 and 1, such as \[1, 0\]: give each row the list of its labels' names"),
    ):
        with pytest.raises(ValueError, match=message):
            make(SequenceClassification, tokenizer, splits_of(text=TEXTS, label=labels))
    for labels in (["1,0", "0,0", "1,1"], [1, 2, 3]):
        with pytest.raises(ValueError, match="lists of 0 and 1|with commas between them, not 1"):
            splits = splits_of(text=TEXTS, label=labels)
            make(SequenceClassification, tokenizer, splits, problem_type="multi_label_classification")
    for label in ("high", "nan", "inf"):
        with pytest.raises(ValueError, match=f"row 1, has the label '{label}', which is no number"):
            make(SequenceClassification, tokenizer, splits_of(text=["x"], label=[label]), problem_type="regression")


# ---------------------------------------------------------------------------------------------- token classification


@pytest.fixture
def sentences(documents):
    """Words of real text, in rows of 3 to 60, with tags that follow from the word."""
    words = [re.sub(r"\W", "", word) or "x" for word in " ".join(sum(documents[:3], [])).split()]
    rng, rows = np.random.default_rng(0), []
    while len(rows) < 20:
        length = int(rng.integers(3, 60))
        rows.append([words[int(i)] for i in rng.integers(len(words), size=length)])
    return rows, [["B-X" if word[0].isupper() else "O" for word in row] for row in rows]


def test_each_word_has_its_label_at_its_first_piece_once(sentences, tokenizer):
    words, tags = sentences
    task = make(TokenClassification, tokenizer, splits_of(text=words, label=tags), max_seq_length=12)
    features = task.features["train"]
    assert len(features) > len(words)  # long rows come in parts
    assert max(map(len, features["input_ids"])) == 12
    labels = [label for row in features["labels"] for label in row if label != IGNORED]
    assert [task.names[label] for label in labels] == sum(tags, [])
    for row in features:
        tokens = tokenizer.convert_ids_to_tokens(row["input_ids"])
        labelled = [token for token, label in zip(tokens, row["labels"], strict=True) if label != IGNORED]
        assert not any(token.startswith("##") or token in ("[CLS]", "[SEP]") for token in labelled)


def test_predictions_go_back_to_their_words(sentences, tokenizer):
    words, tags = sentences
    task = make(TokenClassification, tokenizer, splits_of(text=words, label=tags), max_seq_length=12)
    labels = task.features["validation"]["labels"]
    logits = np.full((len(labels), 12, 2), -100.0)  # as Trainer pads them
    for row, row_labels in zip(logits, labels, strict=True):
        for token, label in enumerate(row_labels):
            row[token] = [0.0, 1.0] if label == IGNORED else np.eye(2)[label]
    predictions = task.decode("validation", logits)
    assert predictions == tags
    assert task.figures("validation", predictions) == {"precision": 1, "recall": 1, "f1": 1, "accuracy": 1}


def test_words_without_tokens_and_tags_that_are_no_entities(tokenizer):
    task = make(
        TokenClassification, tokenizer, splits_of(text=[["a", "\u200b", "class"]], label=[["DET", "X", "NOUN"]])
    )
    assert task.metrics == ("accuracy",)
    logits = np.zeros((1, 4, 3))
    logits[..., task.names.index("NOUN")] = 1
    predictions = task.decode("train", logits)
    assert predictions == [["NOUN", task.default, "NOUN"]]
    assert task.figures("train", predictions) == {"accuracy": pytest.approx(1 / 3 + (task.default == "X") / 3)}


def test_rows_of_words_and_tags_must_match(tokenizer):
    good = Dataset.from_dict({"text": [["a", "b"]], "label": [["O", "B-X"]]})
    for rows, message in (
        ({"text": [["a", "b"]], "label": [["O"]]}, "validation, row 1, must hold a list of words and as many labels"),
        ({"text": [["a", "b"]], "label": [None]}, "validation, row 1, must hold a list of words and as many labels"),
        ({"text": [["a", None]], "label": [["O", "O"]]}, "validation, row 1, must hold a list of words"),
        ({"text": [["a", "b"]], "label": [["O", "B-Y"]]}, "validation, row 1, has the label 'B-Y'"),
    ):
        with pytest.raises(ValueError, match=message):
            make(TokenClassification, tokenizer, {"train": good, "validation": Dataset.from_dict(rows)})
    features = Features({"text": List(Value("string")), "label": List(ClassLabel(names=["O", "B-X"]))})
    named = Dataset.from_dict({"text": [["a", "b"]], "label": [[0, 1]]}, features=features)
    assert make(TokenClassification, tokenizer, {"train": named, "validation": named}).references["train"] == [
        ["O", "B-X"]
    ]


# ------------------------------------------------------------------------------------------------ question answering


@pytest.fixture
def questions(documents):
    """Questions about long contexts, each with an answer of a few words from somewhere in it."""
    rng, rows = np.random.default_rng(0), {"text": [], "text_pair": [], "label": [], "id": []}
    for number, document in enumerate(document for document in documents if sum(map(len, document)) > 1500):
        context = " ".join(document)[:3000]
        words = [match.span() for match in re.finditer(r"\S+", context)]
        first = int(rng.integers(len(words) - 3))
        start, end = words[first][0], words[first + 2][1]
        rows["text"].append(context)
        rows["text_pair"].append("What " + "is it? " * (number % 40))
        rows["label"].append({"text": [context[start:end]], "answer_start": [start]})
        rows["id"].append(f"q{number}")
        if number == 9:
            break
    return rows


def qa(tokenizer, rows, **options):
    return make(QuestionAnswering, tokenizer, splits_of(**rows), 100, doc_stride=30, **options)


def test_windows_cover_the_context_and_hold_the_answers(questions, tokenizer):
    task = qa(tokenizer, questions)
    row_of, spans = task.windows["train"]
    features = task.features["train"]
    assert len(features) == len(row_of) > 3 * len(questions["text"])
    for row, context in enumerate(questions["text"]):
        tokens = {tuple(span) for window in np.flatnonzero(row_of == row) for span in spans[window] if span[0] >= 0}
        assert tokens == set(
            tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        )
        found = set()
        for window in np.flatnonzero(row_of == row):
            start, end = features[int(window)]["start_positions"], features[int(window)]["end_positions"]
            if start:
                found.add(context[spans[window][start][0] : spans[window][end][1]])
            else:
                assert end == 0
        assert found == set(questions["label"][row]["text"])


def test_the_right_logits_give_the_right_answers(questions, tokenizer, tmp_path):
    task = qa(tokenizer, questions)
    features = task.features["validation"]
    length = max(map(len, features["input_ids"]))
    logits = [np.zeros((len(features), length)) for _ in range(2)]
    for name, values in zip(("start_positions", "end_positions"), logits, strict=True):
        for window, position in enumerate(features[name]):
            values[window, position] = 5.0  # [CLS] where there is no answer: that must not win over the others
    answers = task.decode("validation", tuple(logits))
    assert answers == [label["text"][0] for label in questions["label"]]
    assert task.figures("validation", answers) == {"exact_match": 100, "f1": 100}
    file = task.write_predictions("validation", answers, tmp_path)
    assert file.name == "predictions.json"
    assert json.loads(file.read_text()) == dict(zip(questions["id"], answers, strict=True))


def test_questions_to_predict_need_no_answers_but_names_of_their_own(questions, tokenizer):
    rows = Dataset.from_dict(questions)
    blank = Dataset.from_dict({**questions, "label": [{"text": [], "answer_start": []}] * len(rows)})
    splits = {"train": rows, "validation": rows, "test": blank}
    task = make(QuestionAnswering, tokenizer, splits, 100, doc_stride=30)
    assert set(task.references) == {"train", "validation"}
    with pytest.raises(ValueError, match="several questions have the id 'q1'"):
        qa(tokenizer, {**questions, "id": ["q1"] * len(rows)})


def test_a_question_may_have_no_answer(questions, tokenizer):
    questions["label"][0] = {"text": [], "answer_start": []}
    task = qa(tokenizer, questions)
    features = task.features["validation"]
    logits = [np.zeros((len(features), 100)) for _ in range(2)]
    for name, values in zip(("start_positions", "end_positions"), logits, strict=True):
        for window, position in enumerate(features[name]):
            values[window, position] = 5.0
    answers = task.decode("validation", tuple(logits))
    assert answers == ["", *(label["text"][0] for label in questions["label"][1:])]
    assert task.figures("validation", answers)["exact_match"] == 100


def test_the_best_span_is_that_of_all_spans():
    rng = np.random.default_rng(0)
    start, end = rng.normal(size=(2, 30, 12))
    allowed = rng.random((30, 12)) < 0.7
    scores, first, last = best_spans(start, end, allowed, max_length=4)
    for window in range(30):
        spans = {
            (i, j): start[window, i] + end[window, j]
            for i in range(12)
            for j in range(i, min(i + 4, 12))
            if allowed[window, i] and allowed[window, j]
        }
        best = max(spans, key=spans.get)
        assert (first[window], last[window]) == best and scores[window] == pytest.approx(spans[best])


@pytest.mark.parametrize("answers", [None, "Ada", {"text": ["Ada"], "answer_start": []}, {"text": ["Ada"]}])
def test_answers_that_are_none(answers, tokenizer):
    rows = Dataset.from_dict({"text": ["One Ada ran."], "text_pair": ["Who?"], "label": [answers]})
    with pytest.raises(ValueError, match="train, row 1, must hold lists of answers: their text and answer_start"):
        make(QuestionAnswering, tokenizer, {"train": rows, "validation": rows}, 100, doc_stride=30)


def test_an_answer_that_is_not_in_its_context(questions, tokenizer):
    questions["label"][3]["answer_start"][0] += 1
    with pytest.raises(
        ValueError, match=r"train, row 4: the answer '.*' to question q3 is not at character \d+ of its context"
    ):
        qa(tokenizer, questions)
    with pytest.raises(ValueError, match="no room for a question of 20 and an overlap of 30"):
        make(QuestionAnswering, tokenizer, splits_of(**questions), 40, doc_stride=30)


# --------------------------------------------------------------------------------------------------- multiple choice


def test_each_choice_stands_behind_the_text(tokenizer):
    choices = [["one", "two words"], ["three", "four"], ["five", "six"]]
    rows = {"text": TEXTS, "text_pair": ["It is", "", "Is it"], "choices": choices, "label": ["B", "0", "1"]}
    task = make(MultipleChoice, tokenizer, splits_of(**rows))
    assert task.references["train"] == [1, 0, 1]
    expected = tokenizer(TEXTS[0], "It is two words")
    assert task.features["train"][0]["input_ids"][1] == expected["input_ids"]
    assert task.features["train"][0]["token_type_ids"][1] == expected["token_type_ids"]
    assert task.decode("train", np.array([[0, 1], [1, 0], [0, 1]])) == [1, 0, 1]
    batch = task.collator()([task.features["train"][i] for i in range(3)])
    assert batch["input_ids"].shape[:2] == (3, 2) and batch["labels"].tolist() == [1, 0, 1]


def test_choices_must_be_as_many_in_each_row_and_hold_the_label(tokenizer):
    for choices, label, message in (
        ([["a", "b"], ["a", "b", "c"]], ["0", "1"], "row 2, must hold as many texts to choose from as the first row"),
        ([["a", "b"], None], ["0", "1"], "row 2, must hold a list of texts to choose from, not None"),
        ([["a", "b"], ["a", None]], ["0", "1"], "row 2, must hold a list of texts to choose from"),
        ([["a", "b"], ["a", "b"]], ["0", "2"], "row 2, has the label '2', but it must be .* from A to B"),
    ):
        with pytest.raises(ValueError, match=message):
            make(MultipleChoice, tokenizer, splits_of(text=TEXTS[:2], choices=choices, label=label))
