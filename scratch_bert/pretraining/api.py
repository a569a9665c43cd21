"""Pretraining by one call, from files or from memory."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..cli import from_keywords
from .arguments import DataArguments, ModelArguments, PretrainingArguments
from .run import prepare_pretraining


def pretrain(
    texts: Iterable | str | Path | None = None,
    preset: str | None = None,
    *,
    output_dir: str | Path = "runs/pretrain",
    validation: Iterable | str | Path | None = None,
    **options: Any,
) -> dict[str, float]:
    """Pretrain a BERT as scripts/pretrain.py does, and save it with its tokenizer, code and card in `output_dir`. For example,

        metrics = pretrain(frame, preset="mini", text_column="review", output_dir="runs/mine", max_steps=1000)

    has the NSP accuracy in `metrics["eval_nsp_accuracy"]`.

    `texts` and `validation` are each a file or directory, or `Path`s of several; any iterable of strings, one document each,
    or of lists of sentences; or a `datasets.Dataset`, `IterableDataset` or DataFrame, with `text_column`. A `DatasetDict` gives
    both. Without texts: `train_file`, `dataset_name` or `prepared_data`, or the built-in corpus. `options` are those of
    scripts/pretrain.py, `preset` among them (default: micro).

    Returns the metrics. Raises `ValueError` or `OSError` for options and texts that can't be used, and the errors of
    `PretrainingRun.train`.
    """
    if isinstance(texts, Mapping):
        validation = texts.get("validation") if validation is None else validation
        texts = texts["train"]
    in_memory = {}
    for name, given, option in (("texts", texts, "train_file"), ("eval_texts", validation, "validation_file")):
        files = _as_files(given)
        if files:
            options = {option: files} | options
        elif given is not None:
            in_memory[name] = given
    if "texts" in in_memory:
        sources = [name for name in ("train_file", "dataset_name", "prepared_data", "streaming") if options.get(name)]
        if sources:
            raise ValueError(f"{sources[0]} has no effect with texts in memory: leave it out.")
        options = {"max_seq_length": "128", "vocab_size": 30522} | options  # of any text but the built-in corpus
    options |= {"output_dir": str(output_dir)} | ({"preset": preset} if preset else {})
    arguments = from_keywords(ModelArguments, DataArguments, PretrainingArguments, **options)
    return prepare_pretraining(*arguments, **in_memory).train()


def _as_files(given: Any) -> list[str]:
    """The names of files, if it is one or several `Path`s; otherwise none.

    Raises `ValueError` for a list of strings that are all files: whether these are meant can't be told.
    """
    if isinstance(given, str | Path):
        return [str(given)]
    if isinstance(given, list | tuple) and given and all(isinstance(item, str | Path) for item in given):
        if all(isinstance(item, Path) for item in given):
            return [str(item) for item in given]
        if all(len(str(item)) < 1000 and Path(item).exists() for item in given):
            raise ValueError(
                f"Are these texts, or names of files? For files, give train_file={given!r:.80} or Path objects."
            )
    return []
