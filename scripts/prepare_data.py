#!/usr/bin/env python
"""Prepare pretraining examples from more text than one process can read: jsonl, parquet, CSV or WARC files, locally or on any file
system of fsspec, divided into tasks on this machine, a Slurm cluster or Ray, by datatrove.

Each file gives one parquet file, whatever the number of tasks. Started again, the command makes those that are missing. Train
on them with pretrain.py --prepared_data DIR, with --streaming if they are more than this machine can copy."""

import logging
from pathlib import Path

from scratch_bert.cli import configure_logging, one_line_errors, parse_arguments
from scratch_bert.pretraining.arguments import PreparationArguments, PreparationDataArguments
from scratch_bert.storage import locked


def main(argv: list[str] | None = None) -> None:
    options, hidden = (PreparationDataArguments, PreparationArguments), PreparationDataArguments.unused()
    data_args, args = parse_arguments(*options, description=__doc__, argv=argv, hidden=hidden)
    configure_logging(logging.INFO)
    with one_line_errors(stopped="Stopped. Started again, the command goes on with the files that are missing."):
        try:
            from scratch_bert.pretraining.data.parallel import build_executor
        except ImportError as error:
            raise ImportError(
                f'{error}. Install what this script needs: pip install "scratch_bert[datatrove]"'
            ) from error
        with locked(Path(args.output_dir)):
            build_executor(data_args, args).run()


if __name__ == "__main__":
    main()
