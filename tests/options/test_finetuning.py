import pytest

from scratch_bert.finetuning.arguments import finetuning_arguments
from scratch_bert_options.declare import from_keywords
from scratch_bert_options.finetuning import FinetuningOptions, TaskOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"dataset_name": "x"}, "Give train_file or dataset_name", id="file and dataset"),
        pytest.param({"train_file": None, "test_file": ["a"]}, "need a train_file", id="test file alone"),
        pytest.param(
            {"validation_file": ["a"], "validation_share": 0.2},
            "validation_share has no effect with validation_file",
            id="share and file",
        ),
        pytest.param({"seeds": [1, 1]}, "seeds must differ", id="seeds"),
    ],
)
def test_task_arguments_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        TaskOptions(**{"model_name_or_path": "x", "train_file": ["a.csv"], **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataloader_drop_last": True}, "dataloader_drop_last must stay False: it would drop examples to predict"),
        ({"train_sampling_strategy": "group_by_length"}, "another would change the order of predictions"),
        ({"do_train": "false"}, "do_train must stay True: to use a trained model, run `.*scratch-bert evaluate"),
        ({"label_names": "x"}, "label_names must stay None: the model names its labels"),
        (
            {"eval_strategy": "no"},
            "load_best_model_at_end needs evaluations: set it to false, or eval_strategy to steps or epoch",
        ),
        (
            {"save_strategy": "no"},
            "load_best_model_at_end requires the save and eval strategy to match, except when --save_strategy=.best.",
        ),
    ],
)
def test_options_of_trainer_that_do_not_fit(options, message):
    (training,) = from_keywords(FinetuningOptions, **options)
    with pytest.raises(ValueError, match=message):
        finetuning_arguments(training)
