"""Compare runs: their final and best metrics with mean and deviation over seeds, the paired difference from the first
with its 95% confidence interval, and the options that differ. Also works on unfinished runs.

Runs with the same options except --seed form one group, including those in the subdirectories seed-N of a run with
--seeds."""

import argparse
from pathlib import Path

from scratch_bert_options.commands import installation
from scratch_bert_options.outputs import check_new_file

from ..command_line import announce_imports
from ..process import script


@script
def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="The output directory of pretraining or fine-tuning.")
    parser.add_argument("--output_file", type=Path, help="CSV file to write the table to; it must not exist yet.")
    parser.add_argument("--curves", type=Path, help="PNG file for a plot of the evaluation losses.")
    args = parser.parse_args(argv)
    for option in ("output_file", "curves"):
        if file := getattr(args, option):
            check_new_file(option, file)
    announce_imports()

    from scratch_bert.logs import configure_logging
    from scratch_bert.training.comparison import compare_runs, describe_comparison, draw_curves, read_groups

    configure_logging()
    groups = read_groups(args.runs)
    table = compare_runs(groups)
    print(f"\n{describe_comparison(groups, table)}")
    if args.output_file:
        table.to_csv(args.output_file, index=False)
    if args.curves and not draw_curves(groups, args.curves):
        raise ImportError(f"--curves needs matplotlib: {installation('matplotlib')}")
