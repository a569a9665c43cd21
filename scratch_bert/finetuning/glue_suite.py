"""Fine-tuning on all tasks of GLUE with the same options: the data of each, and a run for it."""

import copy
from dataclasses import fields
from pathlib import Path
from typing import Any

from scratch_bert_cli.glue import GlueArguments
from scratch_bert_options.outputs import check_output_dir

from ..checkpoints.saved import find_checkpoint
from ..text.tables import open_dataset
from .arguments import GlueTrainingArguments, TaskArguments
from .dataset import MissingColumnError
from .glue import GLUE
from .run import FinetuningRun, open_run


def open_glue_runs(glue_args: GlueArguments, args: GlueTrainingArguments) -> dict[str, FinetuningRun]:
    """A run for each task of GLUE, in its subdirectory of `args.output_dir`, with its data read and checked.

    Raises `ValueError` or `OSError` for options, data and output directories that can't be used.
    """
    output_dir = Path(args.output_dir)
    if args.should_save:
        check_output_dir("output_dir", output_dir)
    if args.resume_from_checkpoint is None:
        find_checkpoint(args)  # for its checks
    shared = {option.name for option in fields(TaskArguments)} & {option.name for option in fields(glue_args)}
    task_args = TaskArguments(**{name: getattr(glue_args, name) for name in shared})
    runs = {}
    for task, data in find_glue(glue_args.data, glue_args.tasks).items():
        run_args = copy.deepcopy(args)
        run_args.output_dir, run_args.run_name = str(output_dir / task), f"{args.run_name}/{task}"
        try:
            runs[task] = open_run(task, task_args, run_args, data)
        except MissingColumnError as error:
            raise ValueError(
                f"{error.problem} Is this GLUE's own file of {GLUE[task].title}? Download it again."
            ) from None
        runs[task].keep_models = glue_args.keep_models
        args.fit_learning_rates(runs[task].config, glue_args.random_init)  # for the report; all runs have one model
    return runs


def find_glue(data: str, tasks: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """The splits of these tasks, or of all that are there, as `load_splits` takes them: the lists of files in the folders of a
    directory, or those of nyu-mll/glue on the Hub if `data` is "hub". For MNLI, `test` has the mismatched examples.

    Raises `ValueError` if a task or its file is missing.
    """
    if data == "hub":
        return {task: _splits_on_the_hub(task) for task in GLUE if task in (tasks or GLUE)}
    directory = Path(data)
    if not directory.is_dir():
        raise ValueError(f"There is no directory {data}: pass that of GLUE's folders, or hub.")
    folders = {}
    for folder in sorted(path for path in directory.iterdir() if path.is_dir()):
        task = folder.name.lower().replace("-", "")
        if task in folders:
            raise ValueError(f"{folders[task]} and {folder} are the same task: rename one of them.")
        if task in GLUE:
            folders[task] = folder
    if not folders:
        raise ValueError(f"{data} has none of GLUE's folders: {', '.join(task.title for task in GLUE.values())}.")
    if missing := [task for task in tasks or () if task not in folders]:
        raise ValueError(
            f"{data} has no folder {GLUE[missing[0]].title}, but {', '.join(map(str, folders.values()))}."
        )
    return {task: _files_in(folders[task], task) for task in GLUE if task in (tasks or folders)}


def _splits_on_the_hub(task: str) -> dict[str, Any]:
    splits = open_dataset("nyu-mll/glue", task)
    if task == "mnli":
        names = {"train": "train", "validation": "validation_matched", "test": "validation_mismatched"}
    else:
        names = {"train": "train", "validation": "validation"}  # the labels of test are not public
    return {split: splits[name] for split, name in names.items()}


def _files_in(folder: Path, task: str) -> dict[str, list[Path]]:
    dev = "dev_matched.tsv" if task == "mnli" else "dev.tsv"
    names = {"train": "train.tsv", "validation": dev} | ({"test": "dev_mismatched.tsv"} if task == "mnli" else {})
    files = {}
    for split, name in names.items():
        file = next((folder / found for found in (name, f"{name}.gz") if (folder / found).is_file()), None)
        if file:
            files[split] = [file]
        elif split != "test":
            raise ValueError(f"{folder} has neither {name} nor {name}.gz.")
    return files
