"""Fine-tuning in one call, from files or from memory."""

from pathlib import Path
from typing import Any

from scratch_bert_options.declare import from_keywords
from scratch_bert_options.errors import plain_errors
from scratch_bert_options.finetuning import FinetuningOptions, TaskOptions

from ..logs import logger, shown_messages
from ..training.seeds import SeedResults
from .dataset import as_splits
from .run import prepare_finetuning


def finetune(
    task: str,
    data: Any,
    model: str | Path,
    *,
    output_dir: str | Path | None = None,
    validation: Any = None,
    test: Any = None,
    **options: Any,
) -> SeedResults:
    """Fine-tune `model`, a directory or a Hub repository, on a task of `TASKS`. For example,

        results = finetune("sequence-classification", frame, "runs/mine", learning_rate=1e-4, num_train_epochs=5)

    has the accuracy in `results.mean["eval_accuracy"]`, and leaves the model in `output_dir`. Messages and results are
    printed unless the application has configured logging.

    Args:
        data, validation, test: Each a file or a list of files, a pandas DataFrame, a `datasets.Dataset` or a dict of
            lists; `data` may also be a `DatasetDict` or a dict with a split `train`, and is None where `dataset_name`
            or a task of GLUE gives the dataset.
        output_dir: Default: runs/finetune-1, or the next number that is free.
        options: Those of scripts/finetune.py.

    Raises:
        ValueError, OSError: For options, data and models that can't be used; and the errors of `FinetuningRun.train`.
    """
    options |= {"model_name_or_path": model, "output_dir": output_dir}
    task_args, training = from_keywords(TaskOptions, FinetuningOptions, **options)
    with shown_messages(), plain_errors():
        run = prepare_finetuning(task, task_args, training, as_splits(data, validation=validation, test=test))
        results = run.train()
        if run.seed_runs[0].args.should_save:
            logger.info(f"\n{run.report(results)}")
    return results
