"""Options of fine-tuning → a task with its data, and a model for it."""

from copy import deepcopy
from importlib import import_module
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel

from scratch_bert_options.commands import command
from scratch_bert_options.declare import reject_non_default
from scratch_bert_options.finetuning import TASKS, FinetuningOptions, TaskOptions

from ..checkpoints.open import is_of_head, named_head, open_checkpoint
from ..corpus.tokenizer import load_tokenizer
from ..hub.conversion import convert_config
from ..logs import logger
from .dataset import Columns, load_splits
from .glue import GLUE
from .metrics import METRICS
from .tasks.base import Task


OTHER_NAMES = {  # as pipelines and others call a task
    **dict.fromkeys(("classification", "text-classification"), "sequence-classification"),
    "sentiment-analysis": "sequence-classification",
    "regression": "sequence-classification, with numbers as labels",
    "ner": "token-classification",
    "extractive-qa": "question-answering",
}

COLUMNS = ("text_column", "text_pair_column", "choices_column")
# Fields of a config that only fine-tuning sets, for `predict`.
FINETUNED = (*COLUMNS, "max_seq_length", "positive_label", "decision_threshold", "doc_stride", "max_answer_length")
FINETUNED += ("has_unanswerable",)


def task_class(name: str) -> type[Task]:
    """By its file: `token-classification` is `TokenClassification` in tasks/token_classification.py."""
    if name not in TASKS:
        other = OTHER_NAMES.get(name)
        hint = f" Use {other}." if other else f" Choose from {', '.join(TASKS)}."
        raise ValueError(f"There is no task {name}.{hint}")
    kind = "sequence-classification" if name in GLUE else name
    module = import_module(f"{__package__}.tasks.{kind.replace('-', '_')}")
    return getattr(module, kind.title().replace("-", ""))


def open_task(
    name: str, model: str, config: PreTrainedConfig, max_seq_length: int | None = None, trust_remote_code: bool = False
) -> Task:
    """The task of this name without examples, with the tokenizer of a model. Raises `ValueError` or `OSError` for a
    tokenizer or a length that does not fit the model."""
    cls, tokenizer = task_class(name), load_tokenizer(model, trust_remote_code, vocab_size=config.vocab_size)
    limit = min(config.max_position_embeddings, tokenizer.model_max_length)
    max_seq_length = max_seq_length or min(limit, cls.default_max_seq_length or limit)
    if max_seq_length > limit:
        raise ValueError(f"max_seq_length is {max_seq_length}, but the model takes {limit} tokens at most.")
    return cls(name, tokenizer, max_seq_length)


def load_task(
    name: str,
    args: TaskOptions,
    options: FinetuningOptions,
    config: PreTrainedConfig,
    data: dict[str, Any] | None = None,
) -> Task:
    """The task of this name, one of `TASKS`, with its data read and checked, for the model of this `config`.

    `data` are splits that `load_splits` takes; without them, the options name files or a dataset. Raises `ValueError`
    or `OSError` for options, data or labels that do not fit the task.
    """
    cls, glue = task_class(name), GLUE.get(name)
    task_options = {} if glue else {option: getattr(args, option) for option in cls.options}
    without_effect = {option for kind in TASKS for option in task_class(kind).options} - task_options.keys()
    if cls.auto_class is not AutoModelForSequenceClassification:
        without_effect.add("classifier_pooling")
    reject_non_default(args, sorted(without_effect), f"with {name}")
    if glue:
        problem_type = "single_label_classification" if glue.labels else "regression"
        task_options = {"problem_type": problem_type, "label_names": glue.labels}
    hub_metrics = [metric for metric in args.metrics or () if metric not in METRICS]
    if hub_metrics and not args.trust_remote_code:
        known = ", ".join(METRICS)
        raise ValueError(f"The metric {hub_metrics[0]} is not one of {known}: --trust_remote_code runs its code.")
    if data and (args.train_file or args.dataset_name):
        raise ValueError("Give only one of data, train_file and dataset_name.")
    if data and "validation" in data:
        reject_non_default(args, ["validation_share", "split_seed"], "with validation examples")

    task = open_task(name, args.model_name_or_path, config, args.max_seq_length, args.trust_remote_code)
    splits = data or {"train": args.train_file, "validation": args.validation_file, "test": args.test_file}
    dataset = (args.dataset_name, args.dataset_config)
    if glue and not (data or args.train_file or args.dataset_name):
        dataset = ("nyu-mll/glue", name)
    columns = find_columns(name, args)
    pairs = len(columns.names.keys() - {"label", "id"}) > 1
    if pairs and getattr(config, "type_vocab_size", 2) == 1 in task.tokenizer("a", "b").get("token_type_ids", ()):
        raise ValueError(
            f"{args.model_name_or_path} has one segment (type_vocab_size is 1), but pairs need two: choose another "
            "model."
        )
    task.load(
        load_splits(columns, splits, dataset),
        metrics=args.metrics or (glue and glue.metrics),
        best_metric=(options.metric_for_best_model or "").removeprefix("eval_"),
        validation_share=args.validation_share,
        seed=args.split_seed,
        dataset_name=dataset[0],
        **task_options,
    )
    for column, names in columns.names.items():
        if (option := f"{column}_column") in COLUMNS and names != [cls.columns[column]]:
            task.model_options[option] = names if column == "choices" else names[0]
    return task


def find_columns(name: str, args: TaskOptions) -> Columns:
    """The columns that the options name, or else the task's usual ones. Raises `ValueError` for an option without
    effect, or a column named twice."""
    cls, glue = task_class(name), GLUE.get(name)
    usual = cls.columns | (dict(zip(("text", "text_pair"), glue.texts, strict=False)) if glue else {})
    requested = {column: getattr(args, f"{column}_column") for column in ("text", "text_pair", "label", "choices")}
    reject_non_default(args, [f"{column}_column" for column in requested.keys() - usual.keys()], f"with {name}")
    names = {column: requested.get(column) or usual[column] for column in usual}
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
            f"{name} is a BERT: it is loaded as scratch_bert. To convert a trained model back: "
            f"{command('convert', 'OUTPUT_DIR', 'BERT', '--to', 'bert')}"
        )
        config = convert_config(config, "scratch_bert")
    config = deepcopy(config)
    changes = {"classifier_pooling": args.classifier_pooling}
    changes |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), args.dropout)
    for field, value in changes.items():
        if value is not None:
            if not hasattr(config, field):
                raise ValueError(f"A {config.model_type} has no {field}: leave out dropout or classifier_pooling.")
            setattr(config, field, value)
    trained_labels = config.id2label if named_head(config) in task.auto_class.__name__ else {}
    given = {"max_seq_length": args.max_seq_length} if args.max_seq_length else {}
    for option in FINETUNED:  # of an earlier fine-tuning
        vars(config).pop(option, None)
    for option, value in {"problem_type": None, **given, **task.model_options}.items():
        setattr(config, option, value)
    if args.random_init:
        logger.info("Random initialisation: only the checkpoint's config and tokenizer are used")
        return task.auto_class.from_config(config, dtype=torch.float32, trust_remote_code=remote), []
    new_heads = ("missing", "of another shape")  # such as those for other labels
    model, new = open_checkpoint(task.auto_class, name, config, new_heads, trust_remote_code=remote)
    named = any(label != f"LABEL_{number}" for number, label in trained_labels.items())  # otherwise taken to fit
    if not new and named and trained_labels != task.model_options.get("id2label", trained_labels):
        logger.warning(
            f"{name} has a head for other labels ({', '.join(trained_labels.values()):.200}): it starts anew"
        )
        head = [weight for weight, _ in model.named_parameters() if is_of_head(weight, model)]
        fresh = dict(task.auto_class.from_config(config, trust_remote_code=remote).named_parameters())
        for weight in head:
            model.get_parameter(weight).data.copy_(fresh[weight])
        return model, head
    logger.info(f"Newly initialised: {', '.join(new)}" if new else "All weights are from the checkpoint")
    return model, new
