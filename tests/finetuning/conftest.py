import pytest
from datasets import Dataset


@pytest.fixture
def make_task(tokenizer):
    """Build a task from the columns of its splits. Without any for validation, they are those of training."""

    def make(task_class, train, validation=None, test=None, max_seq_length=40, hold_out=False, **options):
        splits = {"train": train, "validation": validation or train, "test": test}
        if hold_out:
            del splits["validation"]
        examples = {
            split: columns if isinstance(columns, Dataset) else Dataset.from_dict(columns)
            for split, columns in splits.items()
            if columns
        }
        named = {
            split: one.add_column("origin", [f"{split}, example {number}" for number in range(1, len(one) + 1)])
            for split, one in examples.items()
        }
        task = task_class("task", named, tokenizer, max_seq_length)
        task.prepare(**options)
        task.encode_splits()
        return task

    return make
