"""Embed texts: the mean of a model's last hidden states over the tokens of each row of a table, or line of a text file.
Memory use does not depend on the file's length.

The input is CSV, TSV, JSON Lines, Parquet or .txt, by its suffix, or standard input with - and --format txt. The output
is .npy (N × H, float32), or .parquet with the input's columns and the column embedding."""

from ..command_line import announce_imports, rows_parser
from ..process import script


@script
def main(argv: list[str] | None = None) -> None:
    parser = rows_parser(__doc__)
    parser.add_argument("--text_column", default="text", help="Column of the texts (%(default)s).")
    parser.add_argument("--normalize", action="store_true", help="Scale to length 1: dot products are cosines.")
    options = vars(parser.parse_args(argv))
    announce_imports()

    from scratch_bert.logs import configure_logging
    from scratch_bert.pretraining.text_files import encode_file

    configure_logging()
    encode_file(options.pop("model"), kind=options.pop("format"), **options)
