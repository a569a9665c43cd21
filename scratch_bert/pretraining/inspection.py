"""Inspection of training examples: statistics over many examples, and a few as text."""

import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import datasets
import numpy as np
import torch
from torch.utils.data import Dataset

from ..corpus.tokenizer import segment_ids
from ..examples.collator import PretrainingCollator
from ..examples.dataset import SentencePairDataset
from ..logs import progress_bar
from .sources import PretrainingData


PERCENTILES = (5, 25, 50, 75, 95, 100)
BATCH_SIZE = 64
EPOCHS = 100  # the maximum to sample from


def example_statistics(
    data: PretrainingData, collator: PretrainingCollator, sample: int = 20_000, seed: int = 0
) -> dict:
    """Statistics of a `sample` of training examples, from several epochs if the first has fewer; see
    `describe_statistics` for their names.

    Lengths count special tokens, fractions of masked tokens don't. Statistics that the data lack are left out. Raises
    `ValueError` if there is no example.
    """
    dataset, objective, tokenizer = data.train_dataset, data.objective, data.tokenizer
    special, segment_b = torch.tensor(tokenizer.all_special_ids), segment_ids(tokenizer)[1]
    lengths, labels, counts, seconds = [], [], Counter(), 0.0
    examples = islice(_examples(dataset, seed), sample)
    with progress_bar("Drawing", "examples", sample) as advance:
        start = time.perf_counter()
        while drawn := list(islice(examples, BATCH_SIZE)):
            batch = collator(drawn)
            seconds += time.perf_counter() - start
            length = batch["attention_mask"].sum(-1)  # (B,)
            lengths += length.tolist()
            if objective.label_column:
                label = batch[objective.label_column]  # (B,)
                labels += label.tolist()
                length_b = batch["token_type_ids"].eq(segment_b).sum(-1) - 1
                counts["empty"] += int((label.ne(-100) & ((length_b < 1) | (length - length_b < 4))).sum())
            ids, is_masked = batch["input_ids"], batch["labels"].ne(-100)  # (B, S)
            original = torch.where(is_masked, batch["labels"], ids)
            counts["maskable"] += int((~torch.isin(original, special)).sum())
            counts["masked"] += int(is_masked.sum())
            counts["replaced"] += int((is_masked & ids.eq(tokenizer.mask_token_id)).sum())
            counts["kept"] += int((is_masked & ids.eq(original)).sum())
            advance(len(drawn))
            start = time.perf_counter()
    if not lengths:
        raise ValueError("The text gives no example.")
    masked = max(counts["masked"], 1)
    statistics = {
        "examples": len(lengths),
        "length_percentiles": dict(zip(PERCENTILES, np.percentile(lengths, PERCENTILES).tolist(), strict=True)),
        "too_long": int((np.array(lengths) > data.max_seq_length).sum()),
        "padding_share": 1 - float(np.mean(lengths)) / data.max_seq_length,
        "masked_share": counts["masked"] / max(counts["maskable"], 1),
        "mask_token_share": counts["replaced"] / masked,
        "random_token_share": (counts["masked"] - counts["replaced"] - counts["kept"]) / masked,
        "kept_token_share": counts["kept"] / masked,
        "tokens_per_second": sum(lengths) / seconds,
    }
    if labels:
        single = labels.count(-100)
        statistics["label_0_share"] = labels.count(0) / max(len(labels) - single, 1)
        statistics |= {"single_segments": single / len(labels), "empty_segments": counts["empty"]}
    if isinstance(dataset, SentencePairDataset):
        dataset.set_epoch(0)
        statistics |= {"examples_per_epoch": len(dataset), "coverage": dataset.coverage()}
        statistics |= objective.statistics(dataset.labels(), dataset.documents())
    return statistics


def _examples(dataset: Dataset, seed: int) -> Iterator[dict]:
    """The examples of a stream, or of epochs in random order."""
    if isinstance(dataset, datasets.IterableDataset):
        yield from dataset
        return
    for epoch in range(EPOCHS):
        dataset.set_epoch(epoch)
        order = np.random.default_rng((seed, epoch)).permutation(len(dataset))
        yield from (dataset[index] for index in order.tolist())


def describe_statistics(statistics: dict) -> str:
    """`example_statistics` as a table for the terminal."""
    names = {
        "examples_per_epoch": ("examples per epoch", "{:,}"),
        "examples": ("examples in the sample", "{:,}"),
        "label_0_share": ("label 0 (fraction)", "{:.4f}"),
        "single_segments": ("single segments (fraction)", "{:.4f}"),
        "same_document_negatives": ("negatives within one document", "{:,}"),
        "empty_segments": ("examples with an empty segment", "{:,}"),
        "too_long": ("examples that are too long", "{:,}"),
        "coverage": ("text coverage of an epoch", "{:.4f}"),
        "masked_share": ("masked tokens (fraction)", "{:.4f}"),
        "mask_token_share": ("  replaced by [MASK]", "{:.4f}"),
        "random_token_share": ("  replaced by a random token", "{:.4f}"),
        "kept_token_share": ("  unchanged", "{:.4f}"),
        "padding_share": ("padding at max_seq_length", "{:.4f}"),
        "tokens_per_second": ("tokens per second, one process", "{:,.0f}"),
    }
    lines = [
        f"{name:<32}{text.format(statistics[key]):>12}" for key, (name, text) in names.items() if key in statistics
    ]
    percentiles = ", ".join(f"{rank}%: {length:.0f}" for rank, length in statistics["length_percentiles"].items())
    return "\n".join([*lines, f"{'length in tokens, percentiles':<32}{percentiles}"])


def describe_examples(data: PretrainingData, collator: PretrainingCollator, count: int) -> str:
    """Training examples as text, spread over an epoch or from the beginning of a stream."""
    dataset = data.train_dataset
    if isinstance(dataset, datasets.IterableDataset):
        return "\n\n".join(_describe_example(example, collator, data) for example in dataset.take(count))
    documents = dataset.documents() if isinstance(dataset, SentencePairDataset) else [()] * len(dataset)
    every = max(len(dataset) // max(count, 1), 1)
    shown = range(every // 2, len(dataset), every)[:count]
    return "\n\n".join(_describe_example(dataset[i], collator, data, *documents[i]) for i in shown)


def _describe_example(example: dict, collator: PretrainingCollator, data: PretrainingData, *documents: int) -> str:
    """The label of an example, the documents of its segments, and each segment before and after masking."""
    batch, label = collator([example]), example.get(data.objective.label_column)
    origin = f", documents {documents[0]} and {documents[1]}" if documents else ""
    lines = [f"{len(example['input_ids'])} tokens{origin}" + ("" if label is None else f", label {label}")]
    for name, segment in zip("AB", segment_ids(data.tokenizer), strict=True):
        inside = np.asarray(example["token_type_ids"]) == segment
        if inside.any():
            for kind, ids in (("text", np.asarray(example["input_ids"])), ("masked", batch["input_ids"][0].numpy())):
                lines.append(f"  {name} {kind:<7}{data.tokenizer.decode(ids[inside].tolist())}")
    return "\n".join(lines)
