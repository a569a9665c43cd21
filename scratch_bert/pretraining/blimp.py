"""BLiMP (Warstadt et al., 2020, https://aclanthology.org/2020.tacl-1.25): which of two sentences, that differ in one
point of grammar, a pretrained model finds more probable."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import datasets
import pandas
from pydantic import StringConstraints
from transformers import BatchEncoding

from scratch_bert_options.evaluation import EvaluationOptions
from scratch_bert_options.schema import check

from ..checkpoints.open import load_config
from ..corpus.tokenizer import load_tokenizer
from ..logs import logger
from ..objectives import OBJECTIVES
from ..text.files import TABLES, find_files, suffix
from ..text.tables import open_dataset, read_table
from ..training.threads import to_accelerator
from .evaluation import open_with_objective
from .minimal_pairs import encode_sentences, pseudo_log_likelihoods


HUB_NAME = "nyu-mll/blimp"
PHENOMENA = {
    "anaphor_agreement", "argument_structure", "binding", "control_raising", "determiner_noun_agreement", "ellipsis",
    "filler_gap_dependency", "irregular_forms", "island_effects", "npi_licensing", "quantifiers",
    "subject_verb_agreement",
}  # fmt: skip
# Name in the data → the phenomenon, one of 12, by the authors' summary and the paper.
RENAMED = {"s-selection": "argument_structure"}
# The authors' summary (raw_results/summary/models_summary.jsonl in their repository), of the full set.
PUBLISHED = {"5-gram": 0.612, "LSTM": 0.698, "Transformer-XL": 0.696, "GPT-2": 0.830}
PUBLISHED_PAIRS = 67_000

Text = Annotated[str, StringConstraints(pattern=r"\S")]
Scores = dict[str, Any]
"""`accuracy`, the mean of the paradigms' accuracies; `pairs`, their number; and both of each of the `phenomena` and
`paradigms`, by name."""


@dataclass
class Pair:
    """A minimal pair: two sentences, its paradigm, and the phenomenon of the paper that this belongs to."""

    sentence_good: Text
    sentence_bad: Text
    UID: Text
    linguistics_term: Text

    def __post_init__(self):
        self.linguistics_term = RENAMED.get(self.linguistics_term, self.linguistics_term)


def evaluate_blimp(args: EvaluationOptions) -> Iterator[tuple[str, Scores]]:
    """The name and the scores of each model, when they are known. Each has its own tokenizer.

    Raises `ValueError` or `OSError`, before anything is computed, for pairs that can't be read or encoded; and for a
    model without an MLM head, or whose outputs overflow.
    """
    pairs = read_pairs(args.suite_data or HUB_NAME)
    encoded = {name: _encode(name, pairs, args.trust_remote_code) for name in args.model_name_or_path}
    for name, (sentences, mask_token_id) in encoded.items():
        model, _ = open_with_objective(OBJECTIVES["none"], name, args.trust_remote_code)
        to_accelerator(model)
        values = pseudo_log_likelihoods(model, sentences, mask_token_id, args.bf16, description=name)
        if not values.isfinite().all():
            raise ValueError(f"A pseudo-log-likelihood of {name} is not finite: its outputs overflow.")
        good, bad = values.view(-1, 2).unbind(1)
        yield name, summarize(pairs, (good > bad).numpy())


def _encode(name: str, pairs: Sequence[Pair], trust_remote_code: bool) -> tuple[BatchEncoding, int]:
    """The tokens of all pairs' sentences by a model's tokenizer, and its mask token."""
    config = load_config(name, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(name, trust_remote_code, vocab_size=config.vocab_size)
    sentences = [sentence for pair in pairs for sentence in (pair.sentence_good, pair.sentence_bad)]
    encoded = encode_sentences(tokenizer, sentences, min(config.max_position_embeddings, tokenizer.model_max_length))
    ids = encoded["input_ids"]
    if unknown := sum(row.count(tokenizer.unk_token_id) for row in ids):
        total = sum(map(len, ids))
        logger.warning(f"{name}: {unknown:,} of {total:,} tokens are unknown to its tokenizer, and are scored as such")
    if same := sum(good == bad for good, bad in zip(ids[::2], ids[1::2], strict=True)):
        logger.warning(
            f"{name}: {same:,} of {len(pairs):,} pairs have the same tokens in both sentences, and count as wrong"
        )
    return encoded, tokenizer.mask_token_id


def read_pairs(name: str) -> list[Pair]:
    """The pairs in a file of JSON lines or another table, in a directory of such files, or in a dataset on the Hub,
    whose configurations are paradigms.

    Raises `ValueError` or `OSError`, which names the file or configuration, for what can't be read or holds no pairs.
    """
    if Path(name).is_dir() or suffix(Path(name)) in TABLES:
        tables = ((str(file), read_table(file, {*Pair.__annotations__})[0]) for file in find_files([name], TABLES))
    else:
        try:
            configs = datasets.get_dataset_config_names(name)
        except RuntimeError as error:  # for a loading script
            raise ValueError(f"The dataset {name} cannot be read: {error}") from error
        tables = ((f"{name}, {config}", open_dataset(name, config)["train"]) for config in configs)
    return [pair for where, table in tables for pair in check(list[Pair], table.to_list(), where)]


def summarize(pairs: Sequence[Pair], correct: Iterable[bool]) -> Scores:
    """The scores of a model: `correct` says whether each pair is right. A phenomenon's accuracy is, like the
    overall one, the mean of its paradigms' accuracies, as in the authors' summary."""
    table = pandas.DataFrame(pairs).assign(correct=list(correct))

    def score(rows: pandas.DataFrame) -> Scores:
        accuracies = rows.groupby("UID")["correct"].mean()
        return {"accuracy": float(accuracies.mean()), "pairs": len(rows)}

    return {
        **score(table),
        "phenomena": {name: score(rows) for name, rows in table.groupby("linguistics_term")},
        "paradigms": {name: score(rows) for name, rows in table.groupby("UID")},
    }


def describe_scores(results: dict[str, Scores]) -> str:
    """Table for the terminal: the accuracies of each model in percent, by phenomenon and overall, and for BLiMP
    published ones."""
    rows = {
        name: [scores["phenomena"][name] for scores in results.values()]
        for name in next(iter(results.values()))["phenomena"]
    }
    is_blimp = rows.keys() <= PHENOMENA
    rows["overall"] = [*results.values()]
    first, width = max(26, *(len(name) + 2 for name in rows)), max(10, *(len(name) + 2 for name in results))
    lines = [f"{'accuracy in %':<{first}}{'pairs':>8}" + "".join(f"{name:>{width}}" for name in results)]
    for name, scores in rows.items():
        accuracies = "".join(f"{100 * score['accuracy']:>{width}.1f}" for score in scores)
        lines.append(f"{name.replace('_', ' '):<{first}}{scores[0]['pairs']:>8,}{accuracies}")
    if is_blimp:
        full = f"the full set of {PUBLISHED_PAIRS:,} pairs (the authors' summary)"
        lines.append(f"\nPublished overall accuracies on {full}:")
        for name, accuracy in PUBLISHED.items():
            lines.append(f"{name:<{first}}{PUBLISHED_PAIRS:>8,}{100 * accuracy:>{width}.1f}")
    return "\n".join(lines)
