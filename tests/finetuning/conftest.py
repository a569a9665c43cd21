import pytest
from datasets import Dataset


@pytest.fixture
def make_task(tokenizer):
    """Build a task from the columns of its splits. Without any for validation, they are those of training."""
    usual = tokenizer

    def make(kind, train, validation=None, test=None, max_seq_length=40, hold_out=False, tokenizer=usual, **options):
        splits = {"train": train, "validation": None if hold_out else validation or train, "test": test}
        examples = {}
        for split, columns in splits.items():
            if columns:
                one = columns if isinstance(columns, Dataset) else Dataset.from_dict(columns)
                origins = [f"{split}, example {number}" for number in range(1, len(one) + 1)]
                examples[split] = one.add_column("origin", origins)
        task = kind("task", tokenizer, max_seq_length).load(examples, **options)
        assert task.features.keys() == task.splits.keys()
        return task

    return make
