"""Inspection of training examples: statistics over many examples, and a few as text."""

import time
from collections.abc import Iterator
from itertools import islice

import datasets
import numpy as np
import torch
from tqdm.auto import tqdm

from ..corpus.tokenizer import segment_ids
from ..examples.collator import PretrainingCollator
from ..examples.dataset import SentencePairDataset
from ..examples.prepared import PreprocessedDataset
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
    dataset, objective = data.train_dataset, data.objective
    if isinstance(dataset, datasets.IterableDataset):
        examples, count = iter(dataset), sample
    else:
        examples, count = _epochs(dataset, seed), min(sample, EPOCHS * len(dataset))
    special, segment_b = torch.tensor(data.tokenizer.all_special_ids), segment_ids(data.tokenizer)[1]
    lengths, labels = [], []
    empty = maskable = masked = replaced = kept = 0
    seconds = 0.0
    with tqdm(total=count, desc="Examples", unit=" examples", leave=False, disable=None) as progress:
        while len(lengths) < count:
            start = time.perf_counter()
            drawn = list(islice(examples, min(BATCH_SIZE, count - len(lengths))))
            if not drawn:
                break
            batch = collator(drawn)
            seconds += time.perf_counter() - start
            length = batch["attention_mask"].sum(-1)  # (B,)
            lengths += length.tolist()
            if objective.label_column:
                label = batch[objective.label_column]
                labels += label.tolist()
                length_b = batch["token_type_ids"].eq(segment_b).sum(-1) - 1
                is_pair = label.ne(-100)
                empty += int((is_pair & ((length_b < 1) | (length - length_b < 4))).sum())
            is_masked = batch["labels"].ne(-100)  # (B, S)
            original = torch.where(is_masked, batch["labels"], batch["input_ids"])
            maskable += int((~torch.isin(original, special)).sum())
            masked += int(is_masked.sum())
            replaced += int((is_masked & batch["input_ids"].eq(data.tokenizer.mask_token_id)).sum())
            kept += int((is_masked & batch["input_ids"].eq(original)).sum())
            progress.update(len(drawn))
    if not lengths:
        raise ValueError("The text gives no example.")
    if not maskable:
        raise ValueError("The examples hold special tokens alone, such as [UNK]: there is nothing to predict.")
    statistics = {
        "examples": len(lengths),
        "length_percentiles": dict(zip(PERCENTILES, np.percentile(lengths, PERCENTILES).tolist(), strict=True)),
        "too_long": int((np.array(lengths) > data.max_seq_length).sum()),
        "padding_share": 1 - float(np.mean(lengths)) / data.max_seq_length,
        "masked_share": masked / maskable,
        "mask_token_share": replaced / max(masked, 1),
        "random_token_share": (masked - replaced - kept) / max(masked, 1),
        "kept_token_share": kept / max(masked, 1),
        "tokens_per_second": sum(lengths) / seconds,
    }
    if labels:
        single = labels.count(-100)
        label_0 = labels.count(0) / max(len(labels) - single, 1)
        statistics |= {"label_0_share": label_0, "single_segments": single / len(labels), "empty_segments": empty}
    if isinstance(dataset, SentencePairDataset):
        dataset.set_epoch(0)
        statistics |= {"examples_per_epoch": len(dataset), "coverage": dataset.coverage()}
        statistics |= objective.statistics(dataset.labels(), dataset.documents())
    return statistics


def _epochs(dataset: SentencePairDataset | PreprocessedDataset, seed: int) -> Iterator[dict]:
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
        shown = [(example, None) for example in dataset.take(count)]
    else:
        documents = dataset.documents() if isinstance(dataset, SentencePairDataset) else [None] * len(dataset)
        every = max(len(dataset) // max(count, 1), 1)
        shown = [(dataset[i], documents[i]) for i in range(every // 2, len(dataset), every)][:count]
    return "\n\n".join(_describe_example(example, collator, data, documents) for example, documents in shown)


def _describe_example(
    example: dict,
    collator: PretrainingCollator,
    data: PretrainingData,
    documents: np.ndarray | None,  # (2,)
) -> str:
    """The label of an example, the documents of its segments, and each segment before and after masking."""
    batch = collator([example])
    label = example.get(data.objective.label_column)
    origin = f", documents {documents[0]} and {documents[1]}" if documents is not None else ""
    lines = [f"{len(example['input_ids'])} tokens{origin}" + ("" if label is None else f", label {label}")]
    for name, segment in zip("AB", segment_ids(data.tokenizer), strict=True):
        inside = np.asarray(example["token_type_ids"]) == segment
        if inside.any():
            for kind, ids in (("text", np.asarray(example["input_ids"])), ("masked", batch["input_ids"][0].numpy())):
                lines.append(f"  {name} {kind:<7}{data.tokenizer.decode(ids[inside].tolist())}")
    return "\n".join(lines)
