import numpy as np
import pytest

from scratch_bert.finetuning.tasks.multiple_choice import MultipleChoice


TEXTS = ["a class is an object", "so is a function", "a module"]


def test_choices_follow_the_text(make_task, tokenizer):
    choices = [["one", "two words"], ["three", "four"], ["five", "six"]]
    columns = {"text": TEXTS, "text_pair": ["It is", "", "Is it"], "choices": choices, "label": ["B", "0", "1"]}
    task = make_task(MultipleChoice, columns)
    assert task.references["train"] == [1, 0, 1]
    expected = tokenizer(TEXTS[0], "It is two words")
    assert task.features["train"][0]["input_ids"][1] == expected["input_ids"]
    assert task.features["train"][0]["token_type_ids"][1] == expected["token_type_ids"]
    assert task.decode("train", np.array([[0, 1], [1, 0], [0, 1]])) == [1, 0, 1]
    batch = task.collator()([task.features["train"][i] for i in range(3)])
    assert batch["input_ids"].shape[:2] == (3, 2) and batch["labels"].tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("second", "label", "message"),
    [
        pytest.param(["a", "b", "c"], "1", "must have as many texts to choose from as the first example", id="more"),
        pytest.param(None, "1", "must have a list of texts to choose from, not None", id="none"),
        pytest.param(["a", None], "1", "must have a list of texts to choose from", id="no text"),
        pytest.param(
            ["a", "b"], "2", "has the label '2', but it must be .* from A to B", id="label beyond the choices"
        ),
    ],
)
def test_choices_that_do_not_fit(second, label, message, make_task):
    columns = {"text": TEXTS[:2], "choices": [["a", "b"], second], "label": ["0", label]}
    with pytest.raises(ValueError, match=f"example 2, {message}"):
        make_task(MultipleChoice, columns)
