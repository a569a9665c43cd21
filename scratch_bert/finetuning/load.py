"""From the options of fine-tuning to a task with its rows, and a model to train on them."""

import logging
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel

from ..cli import refuse
from ..hub.conversion import convert_config, open_checkpoint
from ..tokenizer import load_tokenizer
from .arguments import TaskArguments
from .glue import GLUE
from .metrics import METRICS
from .multiple_choice import MultipleChoice
from .question_answering import QuestionAnswering
from .readers import Columns, load_splits
from .sequence_classification import SequenceClassification
from .task import Task
from .token_classification import TokenClassification


logger = logging.getLogger("scratch_bert")

TASKS: dict[str, type[Task]] = {
    "sequence-classification": SequenceClassification,
    "token-classification": TokenClassification,
    "question-answering": QuestionAnswering,
    "multiple-choice": MultipleChoice,
    **dict.fromkeys(GLUE, SequenceClassification),
}
# Of one kind of tasks alone.
OPTIONS: dict[str, type[Task]] = {
    "problem_type": SequenceClassification,
    "doc_stride": QuestionAnswering,
    "max_answer_length": QuestionAnswering,
}


def load_task(name: str, args: TaskArguments, seed: int, best_metric: str | None = None) -> Task:
    """The rows that the options name, read and tokenized.

    Raises `ValueError` or `OSError` for rows, columns and labels that do not fit the task.
    """
    task_class, glue = TASKS[name], GLUE.get(name)
    config = AutoConfig.from_pretrained(args.model_name_or_path, trust_remote_code=args.trust_remote_code)
    tokenizer = load_tokenizer(args.model_name_or_path, trust_remote_code=args.trust_remote_code)
    options: dict[str, Any] = {}
    for option, of in OPTIONS.items():
        if of is task_class and not glue:
            options[option] = getattr(args, option)
        else:
            refuse(args, [option], f"with {name}")
    if glue:
        problem_type = "single_label_classification" if glue.labels else "regression"
        options = {"problem_type": problem_type, "label_names": glue.labels}
    foreign = [metric for metric in args.metrics or () if metric not in METRICS]
    if foreign and not args.trust_remote_code:
        raise ValueError(
            f"The metric {foreign[0]} is none of {', '.join(METRICS)}; evaluate would run the code that comes with it: "
            "pass --trust_remote_code if you trust it."
        )
    files = {"train": args.train_file, "validation": args.validation_file, "test": args.test_file}
    dataset = (args.dataset_name, args.dataset_config)
    if glue and not args.train_file and not args.dataset_name:
        dataset = ("nyu-mll/glue", name)
    splits = load_splits(find_columns(name, args), files, dataset)
    limit = min(config.max_position_embeddings, tokenizer.model_max_length)
    max_seq_length = args.max_seq_length or (min(384, limit) if task_class is QuestionAnswering else limit)
    if max_seq_length > limit:
        raise ValueError(f"max_seq_length is {max_seq_length}, but the model takes {limit} tokens at most.")
    metrics = args.metrics or (glue and glue.metrics)
    task = task_class(splits, tokenizer, max_seq_length, metrics, best_metric, args.validation_share, seed, **options)
    counts = ", ".join(f"{len(rows):,} {split}" for split, rows in task.splits.items())
    labels = ", ".join(task.model_options.get("id2label", {}).values())
    kind = task.model_options.get("problem_type", "").replace("_", " ")
    logger.info(f"Rows: {counts}" + (f"; {kind}" if kind else "") + (f"; labels: {labels}" if labels else ""))
    return task


def find_columns(name: str, args: TaskArguments) -> Columns:
    """What the columns are called: as the options say, else as usual for the task."""
    task_class, glue = TASKS[name], GLUE.get(name)
    names = dict(task_class.columns)
    if glue:
        names |= dict(zip(("text", "text_pair"), glue.texts, strict=False))
    for ours in ("text", "text_pair", "label", "choices"):
        told = getattr(args, f"{ours}_column")
        if told and ours not in names:
            raise ValueError(f"{ours}_column has no effect with {name}: leave it out.")
        names[ours] = told or names.get(ours)
    twice = [ours for ours, column in names.items() if column and list(names.values()).count(column) > 1]
    if twice:
        raise ValueError(f"One column, {names[twice[0]]!r}, is named for {' and '.join(twice)}: name another for one.")
    return Columns(
        {ours: column if isinstance(column, list) else [column] for ours, column in names.items() if column},
        glue,
        from_conll=task_class is TokenClassification,
        from_squad=task_class is QuestionAnswering,
    )


def load_model(task: Task, args: TaskArguments) -> PreTrainedModel:
    """The checkpoint's model with the task's head, in fp32. A BERT is opened as scratch_bert: the same weights, and what
    is saved carries its code."""
    name, remote = args.model_name_or_path, args.trust_remote_code
    config = AutoConfig.from_pretrained(name, trust_remote_code=remote)
    if config.model_type == "bert":
        logger.info(
            f"{name} is a BERT: it is opened as scratch_bert. convert_checkpoint.py --to bert turns the result back."
        )
        config = convert_config(config, "scratch_bert")
    if args.dropout is not None:
        for option in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not hasattr(config, option):
                raise ValueError(f"dropout cannot be set: a {config.model_type} has no {option}.")
            setattr(config, option, args.dropout)
    for option, value in {"problem_type": None, **task.model_options}.items():
        setattr(config, option, value)
    if args.random_weights:
        logger.info("All weights are random: nothing of the checkpoint but its config and tokenizer is used")
        return task.auto_class.from_config(config, dtype=torch.float32, trust_remote_code=remote)
    model, new = open_checkpoint(task.auto_class, name, config=config, trust_remote_code=remote)
    logger.info(f"New, with random weights: {', '.join(new) if new else 'nothing'}")
    return model
