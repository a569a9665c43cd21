"""`finetune` in one call, from files or from memory."""

import json
import shutil

import pandas
import pytest
from datasets import Dataset, DatasetDict

from scratch_bert.finetuning.api import finetune


COLUMNS = {"text": ["a class is an object", "a class is a name"] * 8, "label": ["good", "bad"] * 8}
OPTIONS = {"max_steps": 1, "disable_tqdm": True, "bf16": False, "logging_strategy": "no"}


@pytest.fixture
def tune(saved, tmp_path):
    """Fine-tune in `tmp_path`/run, and return the origins of the validation examples."""

    def tune(data, task="sequence-classification", **options):
        results = finetune(task, data, saved, output_dir=tmp_path / "run", **OPTIONS, **options)
        assert 0 <= results.mean["eval_accuracy"] <= 1
        lines = (tmp_path / "run/validation_predictions.jsonl").read_text().splitlines()
        return [json.loads(line)["origin"] for line in lines]

    return tune


TABLES = {
    "dict of lists": COLUMNS,
    "DataFrame": pandas.DataFrame(COLUMNS, index=range(5, 21)),
    "Dataset": Dataset.from_dict(COLUMNS).with_format("torch"),
    "DatasetDict": DatasetDict(train=Dataset.from_dict(COLUMNS)),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_table_in_memory(table, tune, tmp_path):
    validation = pandas.DataFrame(COLUMNS)[:3]
    assert tune(table, validation=validation) == [f"validation, example {number}" for number in (1, 2, 3)]
    assert "data for sequence-classification: 16 train, 3 validation" in (tmp_path / "run/README.md").read_text()


def test_files_with_a_held_out_part_and_splits(tune, tmp_path):
    file = tmp_path / "train.csv"
    pandas.DataFrame(COLUMNS).to_csv(file, index=False)
    origins = tune(str(file), validation_share=0.25)
    assert len(origins) == 4 and all(origin.startswith(f"{file}, example ") for origin in origins)
    shutil.rmtree(tmp_path / "run")
    test = Dataset.from_dict({"text": COLUMNS["text"][:2]})
    assert tune({"train": [file], "validation_matched": COLUMNS, "test": test})[-1] == "validation_matched, example 16"
    assert len((tmp_path / "run/test_predictions.jsonl").read_text().splitlines()) == 2


def test_glue_task_of_a_table(tune):
    columns = {"sentence1": COLUMNS["text"], "sentence2": COLUMNS["text"], "label": [0, 1] * 8}
    assert len(tune(columns, task="rte", validation=columns)) == 16


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        pytest.param({"review": ["x"]}, {}, "train has no column 'text', only review. Name the right one", id="column"),
        pytest.param(COLUMNS, {"validation": pandas.DataFrame()}, "validation contains no examples", id="empty"),
        pytest.param(pandas.Series(["x"]), {}, "train must be files, .* not Series", id="Series"),
        pytest.param(COLUMNS, {"dataset_name": "x"}, "Give only one of data, train_file and dataset_name", id="two sources"),
        pytest.param(COLUMNS, {"validation": COLUMNS, "validation_share": 0.2}, "validation_share has no effect", id="share"),
    ],
)  # fmt: skip
def test_data_and_options_that_do_not_fit(data, options, message, tune):
    with pytest.raises((TypeError, ValueError), match=message):
        tune(data, **options)
