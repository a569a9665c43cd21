"""Embed texts: the mean of a model's last hidden states over the tokens of each row of a table, or line of a text file.
Files of any length take the same memory.

The input is CSV, TSV, JSON Lines, Parquet or .txt, by its suffix, or standard input with - and --format txt. The output
is .npy (N × H, float32), or .parquet with the input's columns and the column embedding."""

import argparse

from ..command_line import announce_imports
from ..process import script


@script
def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="The output directory of a training, or a Hub repository.")
    parser.add_argument("--file", required=True, help="The texts; - is standard input.")
    parser.add_argument("--output_file", required=True, help="A .npy or .parquet file that does not exist yet.")
    parser.add_argument("--format", choices=["csv", "tsv", "jsonl", "txt"], help="Of standard input.")
    parser.add_argument("--text_column", default="text", help="(%(default)s)")
    parser.add_argument("--normalize", action="store_true", help="Vectors of length 1: dot products are cosines.")
    parser.add_argument("--bf16", action="store_true", help="Compute in bf16.")
    parser.add_argument("--trust_remote_code", action="store_true", help="Run the code in the model's repository.")
    options = vars(parser.parse_args(argv))
    announce_imports()

    from scratch_bert.logs import configure_logging
    from scratch_bert.pretraining.text_files import encode_file

    configure_logging()
    encode_file(options.pop("model"), kind=options.pop("format"), **options)
