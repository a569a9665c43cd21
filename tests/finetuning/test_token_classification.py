import re

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from scratch_bert.finetuning.tasks.token_classification import IGNORE_INDEX, TokenClassification


@pytest.fixture
def tagged_sentences(documents):
    """Twenty lists of 3 to 60 words of real text, with tags that follow from the word."""
    words = [re.sub(r"\W", "", word) or "x" for word in " ".join(sum(documents[:3], [])).split()]
    rng = np.random.default_rng(0)
    sentences = [[words[i] for i in rng.integers(len(words), size=rng.integers(3, 60))] for _ in range(20)]
    return {"text": sentences, "label": [["B-X" if word[0].isupper() else "O" for word in one] for one in sentences]}


def test_windows_label_each_word_once_at_its_first_token(tagged_sentences, make_task, tokenizer):
    task = make_task(TokenClassification, tagged_sentences, max_seq_length=12)
    features = task.features["train"]
    assert len(features) > len(tagged_sentences["text"])
    assert max(map(len, features["input_ids"])) == 12
    label_ids = [label for labels in features["labels"] for label in labels if label != IGNORE_INDEX]
    assert [task.label_names[label] for label in label_ids] == sum(tagged_sentences["label"], [])
    for window in features:
        tokens = tokenizer.convert_ids_to_tokens(window["input_ids"])
        labelled = [token for token, label in zip(tokens, window["labels"], strict=True) if label != IGNORE_INDEX]
        assert not any(token.startswith("##") or token in ("[CLS]", "[SEP]") for token in labelled)


def test_windows_are_decoded_into_a_tag_for_each_word(tagged_sentences, make_task):
    task = make_task(TokenClassification, tagged_sentences, max_seq_length=12)
    labels = task.features["validation"]["labels"]
    logits = np.full((len(labels), 12, 2), -100.0)  # as Trainer pads them
    for window, window_labels in zip(logits, labels, strict=True):
        for token, label in enumerate(window_labels):
            window[token] = [0.0, 1.0] if label == IGNORE_INDEX else np.eye(2)[label]
    predictions = task.decode("validation", (logits.max(-1), logits.argmax(-1)))
    assert predictions == tagged_sentences["label"]
    assert list(task.metrics) == ["seqeval"] and task.best_metric == "f1"
    expected = {"precision": 1, "recall": 1, "f1": 1, "accuracy": 1}
    assert task.compute_scores("validation", predictions) == expected


def test_part_of_speech_tags_and_a_word_without_tokens(make_task):
    task = make_task(TokenClassification, {"text": [["a", "\u200b", "class"]], "label": [["DET", "X", "NOUN"]]})
    assert list(task.metrics) == ["accuracy"]
    logits = np.zeros((1, 4, 3))
    logits[..., task.label_names.index("NOUN")] = 1
    predictions = task.decode("train", (logits.max(-1), logits.argmax(-1)))
    assert predictions == [["NOUN", task.default_label, "NOUN"]]
    expected = pytest.approx(1 / 3 + (task.default_label == "X") / 3)
    assert task.compute_scores("train", predictions) == {"accuracy": expected}


@pytest.mark.parametrize("names", [["O", "B-X"], ["O", "S-X"], ["O", "S-X", "E-X", "B-X"]])
def test_class_names_of_a_dataset(make_task, names):
    features = Features({"text": List(Value("string")), "label": List(ClassLabel(names=names))})
    examples = Dataset.from_dict({"text": [["a", "b"]], "label": [[0, 1]]}, features=features)
    assert make_task(TokenClassification, examples).references["train"] == [["O", "B-X"]]


def test_entities_of_iob1_begin_with_b(make_task):
    words, tags = [list("abcdef")] * 2, ["I-PER", "I-PER", "B-PER", "O", "I-LOC", "I-PER"]
    expected = ["B-PER", "I-PER", "B-PER", "O", "B-LOC", "B-PER"]
    for given, wanted in (
        (tags, expected),
        (["O", "I-PER", "I-PER", "O", "O", "I-PER"], ["O", "B-PER", "I-PER", "O", "O", "B-PER"]),
    ):
        task = make_task(TokenClassification, {"text": words, "label": [given] * 2})
        assert task.references["train"] == [wanted] * 2 and {*wanted} <= {*task.label_names}


@pytest.mark.parametrize(
    ("tags", "iob2"),
    [
        (["U-X", "O", "B-Y", "I-Y", "L-Y"], ["B-X", "O", "B-Y", "I-Y", "I-Y"]),
        (["S-X", "O", "B-Y", "E-Y", "O"], ["B-X", "O", "B-Y", "I-Y", "O"]),
        (["B", "I", "O", "B", "O"], ["B-ENTITY", "I-ENTITY", "O", "B-ENTITY", "O"]),
        (["B-X", "I-X", "O", "I-Y", "I-Y"], ["B-X", "I-X", "O", "B-Y", "I-Y"]),
        (["NOUN", "O|B", "O", "B", "S"], ["NOUN", "O|B", "O", "B", "S"]),  # of parts of speech
    ],
)
def test_tags_of_every_scheme_are_counted_as_entities(make_task, tags, iob2):
    task = make_task(TokenClassification, {"text": [list("abcde")] * 3, "label": [tags] * 3})
    assert task.references["train"][0] == iob2 and {*task.label_names} == {*iob2}
    if "NOUN" not in tags:
        assert task.compute_scores("train", [iob2, iob2, ["O"] * 5])["recall"] == pytest.approx(2 / 3)
