import pytest

from scratch_bert.finetuning.arguments import FinetuningArguments, TaskArguments
from scratch_bert.finetuning.glue import GLUE
from scratch_bert.finetuning.load import TASKS, task_class
from scratch_bert_cli.finetuning import GLUE_TASKS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"model_name_or_path": None}, "Name the pretrained checkpoint", id="no model"),
        pytest.param({"dataset_name": "x"}, "Give train_file or dataset_name", id="file and dataset"),
        pytest.param({"train_file": None, "test_file": ["a"]}, "need a train_file", id="test file alone"),
        pytest.param({"dataset_config": "x"}, "has no effect without dataset_name", id="dataset_config"),
        pytest.param(
            {"validation_file": ["a"], "validation_share": 0.2},
            "validation_share has no effect with validation_file",
            id="share and file",
        ),
        pytest.param({"validation_share": 2}, "validation_share must be greater than 0 and less than 1", id="share"),
        pytest.param({"seeds": [1, 1]}, "seeds must differ", id="seeds"),
    ],
)
def test_task_arguments_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        TaskArguments(**{"model_name_or_path": "x", "train_file": ["a.csv"], **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"dataloader_drop_last": True}, "dataloader_drop_last must stay False", id="drop_last"),
        pytest.param({"prediction_loss_only": True}, "prediction_loss_only must stay False", id="loss only"),
        pytest.param(
            {"train_sampling_strategy": "group_by_length"}, "would change the order of predictions", id="grouped"
        ),
    ],
)
def test_finetuning_arguments_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        FinetuningArguments(**options)


def test_each_name_of_a_task_has_its_class():
    assert [task_class(name).__name__ for name in TASKS if name not in GLUE] == [
        "SequenceClassification",
        "TokenClassification",
        "QuestionAnswering",
        "MultipleChoice",
    ]
    assert tuple(GLUE) == GLUE_TASKS


def test_finetuning_arguments_leave_the_best_metric_to_the_task():
    args = FinetuningArguments()
    assert args.load_best_model_at_end and args.metric_for_best_model is None and args.greater_is_better is None
    args = FinetuningArguments(metric_for_best_model="mse", greater_is_better=False)
    assert args.metric_for_best_model == "mse" and args.greater_is_better is False
