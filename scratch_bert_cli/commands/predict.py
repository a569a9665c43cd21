"""Predict new rows with a fine-tuned model: the rows of a table, or the lines of a text file, with its predictions and
their probabilities as new columns. Files of any length take the same memory.

Files are CSV, TSV, JSON Lines or Parquet, by their suffixes; the input may also be .txt. With - and --format csv, they
are standard input or output."""

from ..command_line import announce_imports, rows_parser
from ..process import script


@script
def main(argv: list[str] | None = None) -> None:
    parser = rows_parser(__doc__)
    parser.add_argument("--text_column", help="Default: as in fine-tuning, such as text.")
    parser.add_argument("--text_pair_column", help="The second text, or the question.")
    parser.add_argument("--choices_column", nargs="+", help="A column of lists, or several of texts.")
    parser.add_argument("--max_seq_length", type=int, help="Default: that of fine-tuning.")
    parser.add_argument(
        "--threshold",
        type=float,
        help="Predict the positive one of two classes from this probability on. Default: as fine-tuning decided.",
    )
    parser.add_argument("--batch_size", type=int, default=32, help="(%(default)s)")
    options = vars(parser.parse_args(argv))
    if options["batch_size"] < 1:
        parser.error("--batch_size must be positive.")
    announce_imports()

    from scratch_bert.finetuning.prediction import predict_file
    from scratch_bert.logs import configure_logging

    configure_logging()
    predict_file(options.pop("model"), kind=options.pop("format"), **options)
