"""BLiMP (Warstadt et al., 2020, https://aclanthology.org/2020.tacl-1.25): which of two sentences, that differ in one point of
grammar, a pretrained model finds more probable."""

import logging
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from datasets import Dataset
from huggingface_hub import EvalResult

from scratch_bert_options.outputs import check_output_dir

from ..atomic import locked, write_json, write_text
from ..checkpoints.open import load_config, open_pretrained
from ..checkpoints.saved import METRICS_FILE
from ..corpus.tokenizer import check_vocabulary, load_tokenizer
from ..hub.model_card import read_card, with_results
from ..repository import one_line, read_json
from ..text.tables import TABLES, TextError, find_files, open_dataset, read_table, suffix
from .arguments import EvaluationArguments
from .evaluation import check_mlm_heads, overflow_error
from .minimal_pairs import encode_sentences, pseudo_log_likelihoods


logger = logging.getLogger("scratch_bert")

HUB_NAME = "nyu-mll/blimp"
TASK = "Minimal pairs by pseudo-log-likelihood"  # in the metadata of a card
SENTENCES = ["sentence_good", "sentence_bad"]
COLUMNS = [*SENTENCES, "UID", "linguistics_term"]
PHENOMENA = [
    "anaphor_agreement",
    "argument_structure",
    "binding",
    "control_raising",
    "determiner_noun_agreement",
    "ellipsis",
    "filler_gap_dependency",
    "irregular_forms",
    "island_effects",
    "npi_licensing",
    "quantifiers",
    "subject_verb_agreement",
]
# Other names in the data, for what the authors' summary and the paper count among the 12 phenomena.
RENAMED = {"s-selection": "argument_structure"}
# The authors' summary (raw_results/summary/models_summary.jsonl in their repository), of the full set.
PUBLISHED = {"5-gram": 0.612, "LSTM": 0.698, "Transformer-XL": 0.696, "GPT-2": 0.830}
PUBLISHED_PAIRS = 67_000

Scores = dict[str, Any]
"""`accuracy`, the mean of the paradigms' accuracies; `pairs`, their number; and both of each of the `phenomena` and
`paradigms`, by name."""


def evaluate_blimp(args: EvaluationArguments) -> Iterator[tuple[str, Scores]]:
    """The name and the scores of each model, when they are known. Each has its own tokenizer.

    Raises `ValueError` or `OSError`, before anything is computed, for models that can't be evaluated and data that can't be
    read; and `ValueError` for a model whose outputs overflow.
    """
    for name in args.model_name_or_path if args.add_to_card else ():
        check_card(Path(name))
    check_mlm_heads(args)
    pairs = read_pairs(args.suite_data or HUB_NAME)
    if args.add_to_card and (others := set(pairs["linguistics_term"][:]) - set(PHENOMENA)):
        raise ValueError(
            f"add_to_card is for BLiMP, which has no phenomenon {min(others)!r}, as {args.suite_data} has: leave it out."
        )
    sentences = list(chain.from_iterable(zip(*(pairs[column] for column in SENTENCES), strict=True)))
    encoded = {name: _encode(name, sentences, args.trust_remote_code) for name in args.model_name_or_path}
    for name, (tokens, mask_token_id) in encoded.items():
        model, _ = open_pretrained(name, with_nsp=False, trust_remote_code=args.trust_remote_code)
        if torch.accelerator.is_available():
            model.to(torch.accelerator.current_accelerator())
        values = pseudo_log_likelihoods(model, tokens, mask_token_id, args.bf16, description=name)
        if not values.isfinite().all():
            raise overflow_error(f"A pseudo-log-likelihood of {name} is not finite", model, args.bf16)
        good, bad = values.view(-1, 2).unbind(1)
        yield name, summarize(pairs, (good > bad).numpy())


def _encode(name: str, sentences: list[str], trust_remote_code: bool) -> tuple[Any, int]:
    """The tokens of all pairs' sentences by a model's tokenizer, and its mask token."""
    config = load_config(name, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(name, trust_remote_code=trust_remote_code)
    check_vocabulary(tokenizer, config.vocab_size, name)
    try:
        encoded = encode_sentences(
            tokenizer, sentences, min(config.max_position_embeddings, tokenizer.model_max_length)
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    ids = encoded["input_ids"]
    unknown, total = sum(row.count(tokenizer.unk_token_id) for row in ids), sum(map(len, ids))
    if unknown:
        logger.warning(
            f"{name}: {unknown:,} of {total:,} tokens are unknown to its tokenizer, which are scored as such"
        )
    if same := sum(good == bad for good, bad in zip(ids[::2], ids[1::2], strict=True)):
        logger.warning(
            f"{name}: {same:,} of {len(ids) // 2:,} pairs have the same tokens in both sentences, and count as wrong"
        )
    return encoded, tokenizer.mask_token_id


# ------------------------------------------------------------------------------------------------------------------ data


def read_pairs(name: str) -> Dataset:
    """The pairs in a file of JSON lines or another table, in a directory of such files, or in a dataset on the Hub, whose
    configurations are paradigms: the columns of `COLUMNS`, with the names of the paper's phenomena.

    Raises `ValueError` or `OSError`, which names the file or configuration, for what can't be read, lacks a column or
    contains no pairs, and for an empty value.
    """
    if Path(name).exists() or suffix(Path(name)) in TABLES or name.count("/") != 1:
        tables = {str(file): _read_file(file) for file in find_files([name], TABLES)}
    else:
        try:
            configs = datasets.get_dataset_config_names(name)
            tables = {f"{name}, {config}": open_dataset(name, config).get("train") for config in configs}
        except (OSError, ValueError, RuntimeError) as error:
            raise OSError(
                f"The dataset {name} cannot be loaded from the Hub, and there is no such file or directory: {one_line(error)}. "
                "Download it, and name its files with --suite_data."
            ) from None
    checked = [_check_pairs(table, where) for where, table in tables.items()]
    return datasets.concatenate_datasets(checked)


def _read_file(file: Path) -> Dataset:
    if suffix(file) not in TABLES:
        raise TextError(f"{file} is not a table of pairs: give a file of type {', '.join(TABLES)}, gzipped or not.")
    return read_table(file, set(COLUMNS))


def _check_pairs(table: Dataset | None, where: str) -> Dataset:
    if not table:
        raise TextError(f"{where} contains no pairs.")
    for column in COLUMNS:
        if column not in table.column_names:
            raise TextError(
                f"{where} has no column {column!r}, but {', '.join(table.column_names)}. Minimal pairs need {', '.join(COLUMNS)}."
            )
        for number, value in enumerate(table[column], 1):
            if not isinstance(value, str) or not value.strip():
                raise TextError(f"{where}: in record {number}, {column} is {value!r}, not text. Correct or delete it.")
    texts = {column: table[column][:] for column in COLUMNS}
    texts["linguistics_term"] = [RENAMED.get(name, name) for name in texts["linguistics_term"]]
    return Dataset.from_dict(texts)


# --------------------------------------------------------------------------------------------------------------- results


def summarize(pairs: Dataset, correct: Iterable[bool]) -> Scores:
    """The scores of a model: `correct` tells of each pair whether it is right. A phenomenon's accuracy is, like the overall
    one, the mean of its paradigms' accuracies, as in the authors' summary."""
    right = np.asarray(correct, dtype=bool)
    paradigms, phenomena = np.array(pairs["UID"][:]), np.array(pairs["linguistics_term"][:])

    def score(chosen: np.ndarray) -> Scores:
        accuracies = [right[chosen & (paradigms == name)].mean() for name in np.unique(paradigms[chosen])]
        return {"accuracy": float(np.mean(accuracies)), "pairs": int(chosen.sum())}

    return {
        **score(np.full(len(right), True)),
        "phenomena": {name: score(phenomena == name) for name in np.unique(phenomena).tolist()},
        "paradigms": {name: score(paradigms == name) for name in np.unique(paradigms).tolist()},
    }


def describe_scores(results: dict[str, Scores]) -> str:
    """Table for the terminal: the accuracies of each model in percent, by phenomenon and overall, and for BLiMP published
    ones."""
    any_scores = next(iter(results.values()))
    rows = [*any_scores["phenomena"], "overall"]
    first, width = max(26, *(len(row) + 2 for row in rows)), max(10, *(len(name) + 2 for name in results))
    lines = [f"{'accuracy in %':<{first}}{'pairs':>8}" + "".join(f"{name:>{width}}" for name in results)]
    for row in rows:
        found = [scores if row == "overall" else scores["phenomena"][row] for scores in results.values()]
        accuracies = "".join(f"{100 * score['accuracy']:>{width}.1f}" for score in found)
        lines.append(f"{row.replace('_', ' '):<{first}}{found[0]['pairs']:>8,}{accuracies}")
    if not set(rows[:-1]) <= set(PHENOMENA):
        return "\n".join(lines)
    lines.append(
        f"\nPublished overall accuracies on the full set of {PUBLISHED_PAIRS:,} pairs (the authors' summary):"
    )
    lines += [
        f"{name:<{first}}{PUBLISHED_PAIRS:>8,}{100 * accuracy:>{width}.1f}" for name, accuracy in PUBLISHED.items()
    ]
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------------------ model card


def check_card(directory: Path) -> None:
    """Raise `ValueError` or `OSError` if results can't be added to the card and the metrics.json in `directory`."""
    if not directory.is_dir():
        raise ValueError(
            f"add_to_card needs models in local directories, but {directory} is not one: leave out --add_to_card."
        )
    check_output_dir("the model's directory", directory)
    _with_section(directory, [], "")
    _read_other_metrics(directory)


def add_to_card(directory: Path, scores: Scores) -> None:
    """Add the scores to the card and the metrics.json of the model in `directory`, in place of earlier ones. Nothing else in
    these files changes. Raises the errors of `check_card`, and `BlockingIOError` while a training writes there."""
    named = {"overall": scores, **scores["phenomena"]}
    count = f"{scores['pairs']:,} pairs of {len(scores['paradigms'])} paradigm{'s' * (len(scores['paradigms']) != 1)}"
    results = [
        EvalResult(
            task_type="fill-mask",
            task_name=TASK,
            dataset_type=HUB_NAME,
            dataset_name=f"BLiMP ({count})",
            metric_type="accuracy",
            metric_name=f"accuracy, {name.replace('_', ' ')}",
            metric_value=round(score["accuracy"], 4),
        )
        for name, score in named.items()
    ]
    rows = [
        f"| {name.replace('_', ' ')} | {score['pairs']:,} | {100 * score['accuracy']:.1f}% |"
        for name, score in named.items()
    ]
    table = "\n".join(rows)
    published = ", ".join(f"{name} {100 * accuracy:.1f}%" for name, accuracy in PUBLISHED.items())
    section = f"""## BLiMP

Accuracy on {count} of [BLiMP](https://github.com/alexwarstadt/blimp) (Warstadt et al., 2020). A pair is right
if the grammatical sentence has the higher pseudo-log-likelihood (Salazar et al., 2020); the mean is over paradigms.

| phenomenon | pairs | accuracy |
| --- | ---: | ---: |
{table}

Published overall accuracies on the full set of {PUBLISHED_PAIRS:,} pairs: {published}."""
    metrics = {
        "blimp_accuracy" if name == "overall" else f"blimp_{name}_accuracy": score["accuracy"]
        for name, score in named.items()
    }
    with locked(directory):
        write_text(directory / "README.md", _with_section(directory, results, section))
        write_json(directory / METRICS_FILE, _read_other_metrics(directory) | metrics)


def _with_section(directory: Path, results: list[EvalResult], section: str) -> str:
    return with_results(read_card(directory), "BLiMP", TASK, results, section, directory.resolve().name)


def _read_other_metrics(directory: Path) -> dict[str, Any]:
    file = directory / METRICS_FILE
    metrics = read_json(file) if file.exists() else {}
    return {name: value for name, value in metrics.items() if not name.startswith("blimp_")}
