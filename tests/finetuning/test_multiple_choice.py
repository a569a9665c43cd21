import numpy as np

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
    batch = task.collator_class(task.tokenizer)([task.features["train"][i] for i in range(3)])
    assert batch["input_ids"].shape[:2] == (3, 2) and batch["labels"].tolist() == [1, 0, 1]
