"""Options of fine-tuning → a task with its data, and a model for it."""

import logging
from copy import deepcopy
from importlib import import_module
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel

from scratch_bert_options.declare import reject_non_default, similar
from scratch_bert_options.finetuning import TASKS, FinetuningOptions, TaskOptions

from ..atomic import checksum
from ..checkpoints.open import open_checkpoint
from ..checkpoints.weights import find_weights
from ..corpus.tokenizer import check_vocabulary, load_tokenizer
from ..hub.conversion import convert_config
from .dataset import Columns, as_splits, load_splits
from .glue import GLUE
from .metrics import METRICS
from .tasks.base import Task


logger = logging.getLogger("scratch_bert")


def task_class(name: str) -> type[Task]:
    """By its file: `token-classification` is `TokenClassification` in tasks/token_classification.py."""
    if name not in TASKS:
        raise ValueError(f"There is no task {name}.{similar(name, TASKS) or ' There are ' + ', '.join(TASKS)}")
    kind = "sequence-classification" if name in GLUE else name
    module = import_module(f"{__package__}.tasks.{kind.replace('-', '_')}")
    return getattr(module, kind.title().replace("-", ""))


def load_task(
    name: str, args: TaskOptions, training_args: FinetuningOptions, config: PreTrainedConfig, data: Any = None
) -> Task:
    """The task of this name, one of `TASKS`, with its data read and checked, for the model of this `config`.

    `data` is what `load_splits` takes; without it, the options name files or a dataset. Raises `ValueError` or
    `OSError` for options, data or labels that do not fit the task.
    """
    cls, glue, data = task_class(name), GLUE.get(name), as_splits(data)
    options = {} if glue else {option: getattr(args, option) for option in cls.options}
    all_options = {option for kind in TASKS for option in task_class(kind).options}
    reject_non_default(args, sorted(all_options - options.keys()), f"with {name}")
    if glue:
        problem_type = "single_label_classification" if glue.labels else "regression"
        options = {"problem_type": problem_type, "label_names": glue.labels}
    hub_metrics = [metric for metric in args.metrics or () if metric not in METRICS]
    if hub_metrics and not args.trust_remote_code:
        raise ValueError(
            f"The metric {hub_metrics[0]} is none of {', '.join(METRICS)}; evaluate would run the code of a Hub "
            "metric: pass --trust_remote_code if you trust it."
        )
    if data and (args.train_file or args.dataset_name):
        raise ValueError("Give data, train_file or dataset_name, not several of them.")
    if "validation" in data:
        reject_non_default(args, ["validation_share"], "with validation examples")

    tokenizer = load_tokenizer(args.model_name_or_path, trust_remote_code=args.trust_remote_code)
    check_vocabulary(tokenizer, config.vocab_size, args.model_name_or_path)
    limit = min(config.max_position_embeddings, tokenizer.model_max_length)
    max_seq_length = args.max_seq_length or min(limit, cls.default_max_seq_length or limit)
    if max_seq_length > limit:
        raise ValueError(f"max_seq_length is {max_seq_length}, but the model takes {limit} tokens at most.")

    files = {"train": args.train_file, "validation": args.validation_file, "test": args.test_file}
    dataset = (args.dataset_name, args.dataset_config)
    if glue and not (data or args.train_file or args.dataset_name):
        dataset = ("nyu-mll/glue", name)
    return cls(
        name,
        load_splits(find_columns(name, args), data or files, dataset),
        tokenizer,
        max_seq_length,
        metrics=args.metrics or (glue and glue.metrics),
        best_metric=(training_args.metric_for_best_model or "").removeprefix("eval_"),
        validation_share=args.validation_share,
        seed=training_args.seed,
        dataset_name=dataset[0],
        **options,
    )


def find_columns(name: str, args: TaskOptions) -> Columns:
    """The columns that the options name, or else the task's usual ones. Raises `ValueError` for an option without
    effect, or a column named twice."""
    cls, glue = task_class(name), GLUE.get(name)
    names = dict(cls.columns)
    if glue:
        names |= dict(zip(("text", "text_pair"), glue.texts, strict=False))
    for column in ("text", "text_pair", "label", "choices"):
        requested = getattr(args, f"{column}_column")
        if requested and column not in names:
            raise ValueError(f"{column}_column has no effect with {name}: leave it out.")
        names[column] = requested or names.get(column)
    lists = {column: source if isinstance(source, list) else [source] for column, source in names.items() if source}
    sources = [source for named in lists.values() for source in named]
    if repeated := next((source for source in sources if sources.count(source) > 1), None):
        raise ValueError(f"The column {repeated!r} is named twice: name another for one of them.")
    return Columns(lists, glue, cls.file_format)


def load_model(task: Task, args: TaskOptions, config: PreTrainedConfig) -> tuple[PreTrainedModel, list[str]]:
    """The checkpoint's model with the task's head, in fp32, and the names of its weights that are newly initialised:
    none if all are (`random_init`). `config` is the checkpoint's. A BERT is loaded as scratch_bert: the weights are
    the same, and what is saved contains the model's code."""
    name, remote = args.model_name_or_path, args.trust_remote_code
    if config.model_type == "bert":
        logger.info(
            f"{name} is a BERT: it is loaded as scratch_bert. scratch-bert-convert --to bert converts the result back."
        )
        config = convert_config(config, "scratch_bert")
    config = deepcopy(config)
    if args.dropout is not None:
        for option in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not hasattr(config, option):
                raise ValueError(f"dropout has no effect: a {config.model_type} has no {option}.")
            setattr(config, option, args.dropout)
    if args.classifier_pooling is not None:
        if config.model_type != "scratch_bert" or task.auto_class is not AutoModelForSequenceClassification:
            raise ValueError(
                "classifier_pooling needs a scratch_bert or a BERT, and a task with a label for each text."
            )
        config.classifier_pooling = args.classifier_pooling
    for option, value in {"problem_type": None, **task.model_options}.items():
        setattr(config, option, value)
    if args.random_init:
        logger.info("Random initialisation: only the checkpoint's config and tokenizer are used")
        return task.auto_class.from_config(config, dtype=torch.float32, trust_remote_code=remote), []
    new_heads = ("missing", "of another shape")  # such as those for other labels
    model, new = open_checkpoint(task.auto_class, name, config, new_heads, trust_remote_code=remote)
    logger.info(f"Newly initialised: {', '.join(new)}" if new else "All weights are from the checkpoint")
    return model, new


def identify_model(config: PreTrainedConfig, args: TaskOptions) -> str:
    """The type and size of the checkpoint's model, given by its config, and checksums of its weights."""
    sizes = (getattr(config, name, None) for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
    size = " × ".join(map(str, (config.model_type, *sizes)))
    if args.random_init:
        return size
    return f"{size}, " + ", ".join(f"CRC-32 {checksum(file):08x}" for file in find_weights(args.model_name_or_path))
