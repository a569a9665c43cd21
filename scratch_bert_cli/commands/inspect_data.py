"""Show the examples that scripts/pretrain.py would train on with the same options: statistics, and a few as text.

All options of pretrain.py are accepted; model and training options have no effect. With --output_dir, write the first
epoch's examples as parquet files, for --prepared_data or for your own scripts."""

import json
import logging
from pathlib import Path

from scratch_bert_options.data import DataOptions
from scratch_bert_options.model import ContinuationOptions, ModelOptions
from scratch_bert_options.preparation import InspectionOptions
from scratch_bert_options.pretraining import PretrainingOptions

from ..command_line import read_options
from ..process import script


@script
def main(argv: list[str] | None = None) -> None:
    groups = (ContinuationOptions, DataOptions, InspectionOptions)
    ignored = (ModelOptions, PretrainingOptions)
    model_args, data_args, args, _, training = read_options(*groups, description=__doc__, argv=argv, ignored=ignored)

    from transformers import set_seed

    from scratch_bert.examples.prepared import write_examples
    from scratch_bert.logs import configure_logging
    from scratch_bert.pretraining.build_model import choose_tokenizer
    from scratch_bert.pretraining.inspection import describe_examples, describe_statistics, example_statistics
    from scratch_bert.pretraining.sources import build_collator, load_data
    from scratch_bert.training.arguments import trainer_options

    configure_logging(logging.ERROR if args.json else logging.INFO)
    trainer_options(training)  # rejects unknown options
    set_seed(args.seed)
    if args.output_dir and (data_args.streaming or data_args.prepared_data):
        raise ValueError("--output_dir can't be used with --streaming or --prepared_data.")
    data = load_data(data_args, args.seed, choose_tokenizer(model_args, data_args).tokenizer)
    collator = build_collator(data_args, data.tokenizer)
    statistics = example_statistics(data, collator, args.sample, args.seed)
    if args.output_dir:
        splits = {"train": data.train_dataset, "validation": data.eval_dataset}
        splits = {split: dataset for split, dataset in splits.items() if dataset is not None}
        write_examples(Path(args.output_dir), splits)
        counts = " and ".join(f"{len(dataset):,} {split}" for split, dataset in splits.items())
        logging.getLogger("scratch_bert").info(f"Wrote {counts} examples to {args.output_dir}")
    if args.json:
        print(json.dumps(statistics, indent=2, allow_nan=False))
        return
    print(f"\n{describe_statistics(statistics)}\n\n{describe_examples(data, collator, args.show)}")
