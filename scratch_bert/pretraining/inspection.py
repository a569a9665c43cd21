"""What the training rows look like: figures over many of them, and a few as text."""

import time
from collections.abc import Iterator
from itertools import islice

import datasets
import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from .collator import PreTrainingCollator
from .dataset import PreparedRows, SentencePairDataset
from .load import PretrainingData


PERCENTILES = (5, 25, 50, 75, 95, 100)
BATCH_SIZE = 64
EPOCHS = 100  # to look at, at most


def row_statistics(data: PretrainingData, collator: PreTrainingCollator, sample: int = 20_000, seed: int = 0) -> dict:
    """Figures over a `sample` of training rows, of the first epoch or of several if it is small, as
    `describe_statistics` names them.

    Lengths count special tokens, the shares of masked tokens do not. A figure that the data cannot tell is left out.
    """
    dataset = data.train_dataset
    if isinstance(dataset, datasets.IterableDataset):
        rows, count = iter(dataset), sample
    else:
        rows = _rows_of_epochs(dataset, seed)
        count = min(sample, EPOCHS * len(dataset))
    special = torch.tensor(data.tokenizer.all_special_ids)
    lengths, labels = [], []
    empty = maskable = masked = replaced = kept = 0
    seconds = 0.0
    with tqdm(total=count, desc="Rows", unit=" rows", leave=False, disable=None) as progress:
        while len(lengths) < count:
            start = time.perf_counter()
            examples = list(islice(rows, min(BATCH_SIZE, count - len(lengths))))
            if not examples:
                break
            batch = collator(examples)
            seconds += time.perf_counter() - start
            length = batch["attention_mask"].sum(-1)  # (B,)
            lengths += length.tolist()
            if data.sentence_objective != "none":
                labels += batch["next_sentence_label"].tolist()
                length_b = batch["token_type_ids"].sum(-1) - 1
                empty += int(((length_b < 1) | (length - length_b < 4)).sum())
            chosen = batch["labels"].ne(-100)  # (B, S)
            original = torch.where(chosen, batch["labels"], batch["input_ids"])
            maskable += int((~torch.isin(original, special)).sum())
            masked += int(chosen.sum())
            replaced += int((chosen & batch["input_ids"].eq(data.tokenizer.mask_token_id)).sum())
            kept += int((chosen & batch["input_ids"].eq(original)).sum())
            progress.update(len(examples))
    if not lengths:
        raise ValueError("The text gives no row.")
    statistics = {
        "rows": len(lengths),
        "length_percentiles": dict(zip(PERCENTILES, np.percentile(lengths, PERCENTILES).tolist(), strict=True)),
        "rows_over_length": int((np.array(lengths) > data.max_seq_length).sum()),
        "padding_share": 1 - float(np.mean(lengths)) / data.max_seq_length,
        "masked_share": masked / maskable,
        "mask_token_share": replaced / max(masked, 1),
        "random_token_share": (masked - replaced - kept) / max(masked, 1),
        "kept_token_share": kept / max(masked, 1),
        "tokens_per_second": sum(lengths) / seconds,
    }
    if data.sentence_objective != "none":
        statistics |= {"label_0_share": labels.count(0) / len(labels), "rows_with_an_empty_segment": empty}
    if isinstance(dataset, SentencePairDataset):
        dataset.set_epoch(0)
        statistics |= {"rows_in_an_epoch": len(dataset), "tokens_used_share": dataset.tokens_used()}
        if dataset.objective == "nsp":
            random = dataset.labels() == 1
            same = np.equal(*dataset.documents()[random].T)
            statistics["same_document_negatives"] = int(same.sum())
    return statistics


def _rows_of_epochs(dataset: SentencePairDataset | PreparedRows, seed: int) -> Iterator[dict]:
    for epoch in range(EPOCHS):
        dataset.set_epoch(epoch)
        order = np.random.default_rng((seed, epoch)).permutation(len(dataset))
        yield from (dataset[index] for index in order.tolist())


def describe_statistics(statistics: dict) -> str:
    """`row_statistics` as a table for the terminal."""
    names = {
        "rows_in_an_epoch": ("rows in an epoch", "{:,}"),
        "rows": ("rows looked at", "{:,}"),
        "label_0_share": ("label 0: B follows A", "{:.4f}"),
        "same_document_negatives": ("negatives from A's document", "{:,}"),
        "rows_with_an_empty_segment": ("rows with an empty segment", "{:,}"),
        "rows_over_length": ("rows over the length", "{:,}"),
        "tokens_used_share": ("share of the text in an epoch", "{:.4f}"),
        "masked_share": ("tokens to predict", "{:.4f}"),
        "mask_token_share": ("  replaced by [MASK]", "{:.4f}"),
        "random_token_share": ("  replaced by a random token", "{:.4f}"),
        "kept_token_share": ("  kept", "{:.4f}"),
        "padding_share": ("padding at this length", "{:.4f}"),
        "tokens_per_second": ("tokens per second, this process", "{:,.0f}"),
    }
    lines = [
        f"{name:<32}{text.format(statistics[key]):>12}" for key, (name, text) in names.items() if key in statistics
    ]
    percentiles = ", ".join(f"{share}%: {length:.0f}" for share, length in statistics["length_percentiles"].items())
    return "\n".join([*lines, f"{'tokens in a row, percentiles':<32}{percentiles}"])


def describe_row(row: dict, collator: PreTrainingCollator, tokenizer: PreTrainedTokenizerBase, documents=None) -> str:
    """One row as text: its label, the documents of its segments, and each segment before and after masking."""
    batch = collator([row])
    label = row.get("next_sentence_label")
    where = f", documents {documents[0]} and {documents[1]}" if documents is not None else ""
    lines = [f"{len(row['input_ids'])} tokens{where}" + ("" if label is None else f", label {label}")]
    for name, segment in (("A", 0), ("B", 1)):
        inside = np.asarray(row["token_type_ids"]) == segment
        if inside.any():
            for kind, ids in (("text", np.asarray(row["input_ids"])), ("masked", batch["input_ids"][0].numpy())):
                lines.append(f"  {name} {kind:<7}{tokenizer.decode(ids[inside].tolist())}")
    return "\n".join(lines)
