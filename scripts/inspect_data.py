#!/usr/bin/env python
"""Show the rows that scripts/pretrain.py would train on, given the same options: figures, and a few rows as text.

With --output_dir, write the first epoch's rows as parquet files, for --prepared_data or for scripts of your own."""

import json
import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import datasets
from transformers import set_seed

from scratch_bert.cli import one_line_errors, option, parse_arguments
from scratch_bert.pretraining.arguments import DataArguments, ModelArguments, PretrainingArguments
from scratch_bert.pretraining.dataset import SentencePairDataset
from scratch_bert.pretraining.inspection import describe_row, describe_statistics, row_statistics
from scratch_bert.pretraining.load import PretrainingData, build_collator, load_data


@dataclass
class InspectionArguments(PretrainingArguments):
    """Those of scripts/pretrain.py are taken, and left unused but for the seed."""

    output_dir: str | None = option("", "Write the rows and the tokenizer to this new directory.")
    rows: int = option(3, "Rows to show as text.")
    sample: int = option(20_000, "Rows to take the figures from, if there are more.")
    json: bool = option(False, "Print the figures as JSON, and nothing else.")


def write_rows(data: PretrainingData, directory: Path) -> None:
    """`train.parquet`, `validation.parquet` if there is held-out text, and the tokenizer; all of it or nothing."""
    if directory.exists() and any(directory.iterdir()):
        raise ValueError(f"The output directory {directory} is not empty. Choose another one.")
    directory.parent.mkdir(parents=True, exist_ok=True)
    columns = {
        "input_ids": datasets.List(datasets.Value("int32")),
        "token_type_ids": datasets.List(datasets.Value("int8")),
        "special_tokens_mask": datasets.List(datasets.Value("int8")),
    }
    if data.sentence_objective != "none":
        columns |= {name: datasets.Value("int64") for name in ("next_sentence_label", "document_a", "document_b")}

    def rows(dataset: SentencePairDataset):
        for row, (a, b) in zip(dataset, dataset.documents().tolist(), strict=True):
            row |= {"document_a": a, "document_b": b}
            yield {name: row[name] for name in columns}

    with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        new = Path(scratch, "new")
        new.mkdir()
        for split, dataset in (("train", data.train_dataset), ("validation", data.eval_dataset)):
            if dataset is not None:
                made = datasets.Dataset.from_generator(
                    rows,
                    gen_kwargs={"dataset": dataset},
                    features=datasets.Features(columns),
                    cache_dir=scratch,
                    fingerprint=split,
                )
                made.to_parquet(str(new / f"{split}.parquet"))
        data.tokenizer.model_max_length = data.max_seq_length
        data.tokenizer.save_pretrained(new)
        (new / "rows.json").write_text(json.dumps({"sentence_objective": data.sentence_objective}) + "\n")
        os.replace(new, directory)


def main() -> None:
    _, data_args, args = parse_arguments(ModelArguments, DataArguments, InspectionArguments, description=__doc__)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("scratch_bert").setLevel(logging.ERROR if args.json else logging.INFO)
    set_seed(args.seed)
    with one_line_errors():
        if args.output_dir and (data_args.streaming or data_args.prepared_data):
            raise ValueError("Only text can be prepared that is neither streamed nor prepared already.")
        data = load_data(data_args, args.seed)
        collator = build_collator(data_args, data.tokenizer)
        statistics = row_statistics(data, collator, args.sample, args.seed)
        if args.output_dir:
            write_rows(data, Path(args.output_dir))
    if args.json:
        print(json.dumps(statistics, indent=2))
        return
    dataset = data.train_dataset
    print(f"\n{describe_statistics(statistics)}")
    if isinstance(dataset, datasets.IterableDataset):
        shown = [(row, None) for row in dataset.take(args.rows)]
    else:
        documents = dataset.documents() if isinstance(dataset, SentencePairDataset) else [None] * len(dataset)
        every = max(len(dataset) // max(args.rows, 1), 1)
        shown = [(dataset[i], documents[i]) for i in range(every // 2, len(dataset), every)][: args.rows]
    for row, documents in shown:
        print(f"\n{describe_row(row, collator, data.tokenizer, documents)}")


if __name__ == "__main__":
    main()
