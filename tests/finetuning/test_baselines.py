import numpy as np
import pytest
from scipy import sparse

from scratch_bert.corpus.tokenizer_training import train_tokenizer
from scratch_bert.finetuning import baselines
from scratch_bert.finetuning.baselines import baseline_scores, compare, scores_by_baseline
from scratch_bert.finetuning.tasks.multiple_choice import MultipleChoice
from scratch_bert.finetuning.tasks.question_answering import QuestionAnswering
from scratch_bert.finetuning.tasks.sequence_classification import SequenceClassification
from scratch_bert.finetuning.tasks.token_classification import TokenClassification


GOOD = {"text": ["very good", "quite good", "so good", "very bad", "so bad"], "label": ["1", "1", "1", "0", "0"]}


def test_classes_of_one_text(make_task):
    validation = {"text": ["bad", "good", "never bad", "rather good"], "label": ["0", "1", "1", "1"]}
    task = make_task(SequenceClassification, GOOD, validation, test=validation)
    scores = baseline_scores(task)
    f1 = {"majority": pytest.approx(6 / 7), "bag_of_words": pytest.approx(0.8)}  # the third example is wrong
    expected = {}
    for kind in f1:
        for prefix in (f"baseline_{kind}_", f"baseline_{kind}_test_"):
            expected |= {f"{prefix}accuracy": 0.75, f"{prefix}f1": f1[kind]}
    assert {name: scores[name] for name in expected} == expected
    assert scores["baseline_majority_roc_auc"] == 0.5 and scores["baseline_majority_balanced_accuracy"] == 0.5
    assert scores["baseline_majority_average_precision"] == 0.75 < scores["baseline_bag_of_words_average_precision"]
    found = scores_by_baseline({"eval_accuracy": 1.0, **scores})
    assert list(found) == ["majority class", "bag of words"]
    assert found["bag of words"]["accuracy"] == found["majority class"]["test_accuracy"] == 0.75


def test_text_without_spaces_is_a_bag_of_characters(make_task):
    """No text occurs twice, so that words would tell nothing."""
    places = ["房间", "早餐", "服务", "位置", "大堂", "浴室", "前台", "床铺"]
    texts = [f"这家酒店的{place}真的{word}，我们{word}。" for place in places for word in ("很好", "太差")]
    splits = ({"text": part, "label": ["1", "0"] * (len(part) // 2)} for part in (texts[:12], texts[12:]))
    scores = baseline_scores(make_task(SequenceClassification, *splits, tokenizer=train_tokenizer(texts)))
    assert scores["baseline_bag_of_characters_accuracy"] == 1
    assert list(scores_by_baseline(scores)) == ["majority class", "bag of characters"]


def test_numbers_of_pairs(make_task):
    words = ["red", "green", "blue", "grey", "pink", "white"]
    same = {"text": words, "text_pair": words, "label": [5.5] * 6}
    other = {"text": words, "text_pair": words[1:] + words[:1], "label": [0.5] * 6}
    train = {column: values + other[column] for column, values in same.items()}
    task = make_task(SequenceClassification, train, metrics=["pearsonr", "mse"])
    scores = baseline_scores(task)
    assert scores["baseline_mean_pearsonr"] == 0 and scores["baseline_mean_mse"] == 2.5**2
    assert scores["baseline_bag_of_words_pearsonr"] > 0.99 and scores["baseline_bag_of_words_mse"] < 0.1
    assert list(scores_by_baseline(scores)) == ["mean label", "bag of words"]


def test_three_classes_and_several_labels_for_each(make_task):
    three = {"text": ["a cat", "a dog", "a cow", "my cat", "my dog", "my cow"] * 2, "label": list("abcabc") * 2}
    assert baseline_scores(make_task(SequenceClassification, three))["baseline_bag_of_words_accuracy"] == 1
    several = {"text": ["cat", "dog", "cat dog", "cow"] * 4, "label": [["a"], ["b"], ["a", "b"], []] * 4}
    scores = baseline_scores(make_task(SequenceClassification, several))
    assert scores["baseline_majority_accuracy"] == 0.25 and scores["baseline_bag_of_words_accuracy"] == 1


def test_tags_and_choices_have_the_majority_alone(make_task):
    train = {"text": [["the", "cat", "ran"], ["Ada", "ran"]], "label": [["O", "O", "O"], ["B-X", "O"]]}
    validation = {"text": [["Ada", "is", "here"]], "label": [["B-X", "O", "O"]]}
    scores = baseline_scores(make_task(TokenClassification, train, validation))
    assert scores["baseline_majority_accuracy"] == pytest.approx(2 / 3) and scores["baseline_majority_f1"] == 0
    choices = {"text": ["a", "b", "c"], "choices": [["x", "y"]] * 3}
    task = make_task(MultipleChoice, {**choices, "label": [1, 1, 0]}, {**choices, "label": [0, 0, 1]})
    assert baseline_scores(task) == {"baseline_majority_accuracy": pytest.approx(1 / 3)}


def test_answers_have_no_baseline(make_task):
    columns = {"text": ["Ada ran."], "text_pair": ["Who?"], "label": [{"text": ["Ada"], "answer_start": [0]}]}
    assert baseline_scores(make_task(QuestionAnswering, columns)) == {}


def test_features_of_pairs():
    first = sparse.csr_matrix([[0.6, 0.8, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    second = sparse.csr_matrix([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    expected = [
        [0.6, 0.2, 0.0] + [0.0, 0.8, 0.0] + [0.8, 1 / 2, 1],
        [1.0, 0.0, 1.0] + [0.0, 0.0, 0.0] + [0.0, 0, 0],
        [0.0, 0.0, 1.0] + [0.0, 0.0, 0.0] + [0.0, 0, 0],
    ]
    np.testing.assert_allclose(compare(first, second).toarray(), expected, atol=1e-12)


@pytest.mark.parametrize("limit", ["MAX_EXAMPLES", "MAX_CHARACTERS", "MAX_TARGETS"])
def test_little_of_the_training_set_is_used_if_it_is_large(limit, make_task, monkeypatch):
    """One example is left, of one label: the prediction is constant."""
    monkeypatch.setattr(baselines, limit, 1)
    scores = baseline_scores(make_task(SequenceClassification, GOOD))
    assert scores["baseline_bag_of_words_accuracy"] == scores["baseline_majority_accuracy"] == 0.6


def test_training_examples_of_one_label(make_task):
    """As in a damaged file of GLUE, whose labels are known."""
    labels = {"label_names": ("no", "yes"), "problem_type": "single_label_classification"}
    task = make_task(SequenceClassification, {"text": ["a", "b"], "label": ["yes", "yes"]}, GOOD, **labels)
    assert baseline_scores(task)["baseline_bag_of_words_accuracy"] == 0.6


def test_metrics_of_others_are_left_out(make_task):
    """Their code may take no constant prediction."""
    task = make_task(SequenceClassification, GOOD)
    task.metrics = {"own": lambda predictions, references: {"own": 1 / (max(predictions) - min(predictions))}}
    assert baseline_scores(task) == {}
