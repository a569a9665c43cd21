"""Preprocess a corpus too large for one process into pretraining examples: jsonl, parquet, CSV or WARC files, local
or on any fsspec file system, which datatrove divides among tasks on this machine, a Slurm cluster or Ray.

Each file becomes one parquet file, whatever the number of tasks; the same command adds missing ones later. Train on
them with pretrain.py --prepared_data DIR, plus --streaming if they do not fit on this machine's disk."""

from pathlib import Path

from scratch_bert_options.commands import installation
from scratch_bert_options.preparation import PreparationDataOptions, PreparationOptions

from ..command_line import read_options
from ..process import script


@script
def main(argv: list[str] | None = None) -> None:
    groups = (PreparationOptions, PreparationDataOptions)
    args, data_args = read_options(*groups, description=__doc__, argv=argv)

    from scratch_bert.atomic import locked
    from scratch_bert.logs import configure_logging

    configure_logging()
    try:
        from ..parallel import build_executor
    except ImportError as error:
        raise ImportError(f"{error}. Install it alongside this package: {installation('datatrove')}") from error
    with locked(Path(args.output_dir)):
        build_executor(data_args, args).run()
