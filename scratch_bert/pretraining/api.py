"""A complete pretraining run in one call, from files or from memory."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

from scratch_bert_options.data import DataOptions, InMemoryDataOptions
from scratch_bert_options.declare import from_keywords
from scratch_bert_options.errors import plain_errors
from scratch_bert_options.model import ModelOptions
from scratch_bert_options.pretraining import PretrainingOptions, check_nodes

from ..logs import logger, shown_messages
from .run import prepare_pretraining
from .seeds import pretrain_seeds, report_seeds


def pretrain(
    texts: Iterable | str | Path | None = None,
    preset: str | None = None,
    *,
    output_dir: str | Path | None = None,
    validation: Iterable | str | Path | None = None,
    **options: Any,
) -> dict[str, float]:
    """Pretrain a BERT as scripts/pretrain.py does, and save it with its tokenizer, code and card in `output_dir`, by
    default runs/pretrain-1, or the next number that is free. After

        metrics = pretrain(frame, preset="mini", text_column="review", output_dir="runs/mine", max_steps=1000)

    `metrics["eval_nsp_accuracy"]` is the NSP accuracy.

    `texts` and `validation` are a file or directory, or a list of `Path`s; any iterable of strings, one per document,
    or of lists of sentences; or a `datasets.Dataset`, `IterableDataset`, DataFrame or dict of lists, with
    `text_column`. A `DatasetDict` gives both. Without `texts`, an option names the text (`train_file`, `dataset_name`
    or `prepared_data`), or the built-in corpus is used. `preset` (default: micro) and `options` are those of
    scripts/pretrain.py.

    Messages and results are printed; or go to the logger scratch_bert, if the application has configured logging.

    Returns the metrics; with `seeds`, their means. Raises `ValueError` or `OSError` for options and texts that can't be
    used, and the errors of `PretrainingRun.train`.
    """
    if isinstance(texts, Mapping) and options.get("text_column", "text") not in texts:  # splits, and no table
        if "train" not in texts:
            known = shorten(", ".join(map(str, texts)), 200)
            raise ValueError(f"There is no split 'train' and no column text, only {known}: give a list of texts.")
        validation = texts.get("validation") if validation is None else validation
        texts = texts["train"]
    options |= {"output_dir": output_dir, "preset": preset}
    in_memory: dict[str, Any] = {}
    for name, given, option in (("texts", texts, "train_file"), ("eval_texts", validation, "validation_file")):
        files = _as_files(given)
        if given is not None and options.get(option):
            raise ValueError(f"{option} has no effect when texts are given: leave it out.")
        if files:
            options[option] = files
        elif given is not None:  # an iterator could be read only once
            in_memory[name] = list(given) if isinstance(given, Iterator) else given
    data_options = InMemoryDataOptions if "texts" in in_memory else DataOptions
    arguments = from_keywords(ModelOptions, data_options, PretrainingOptions, **options)
    check_nodes(*arguments)
    with shown_messages(), plain_errors():
        if (training := arguments[2]).seeds:
            results = pretrain_seeds(*arguments, **in_memory)
            logger.info(f"\n{report_seeds(training.output_dir)}")
            return results.mean
        run = prepare_pretraining(*arguments, **in_memory)
        metrics = run.train()
        if run.trainer.is_world_process_zero() and logger.isEnabledFor(logging.INFO):
            logger.info(f"\n{run.report(metrics)}")
    return metrics


def _as_files(given: Any) -> list[str]:
    """File names, if `given` is a name or a list of `Path`s; otherwise an empty list.

    Raises `ValueError` for a list of strings that all name files, as it is ambiguous.
    """
    if isinstance(given, str) and len(given) > 255 and not os.path.exists(given):
        raise ValueError("This is a text, not the name of a file: give a list of texts, one for each document.")
    if isinstance(given, str | Path):
        return [str(given)]
    if not isinstance(given, list | tuple) or not given:
        return []
    if all(isinstance(item, Path) for item in given):
        return [str(item) for item in given]
    if all(isinstance(item, str) and os.path.exists(item) for item in given):
        raise ValueError(
            f"These texts are all names of files. To read them, give train_file={given!r:.80} or Path objects."
        )
    return []
