"""Predict new rows with a fine-tuned model: copy a table's rows, or a text file's lines, with the predictions and
their probabilities as new columns. Memory use does not depend on the file's length.

Files are CSV, TSV, JSON Lines or Parquet, by their suffixes; the input may also be .txt. The file - with --format csv
is standard input or output."""

from ..command_line import announce_imports, rows_parser
from ..process import script


@script
def main(argv: list[str] | None = None) -> None:
    parser = rows_parser(__doc__)
    parser.add_argument("--text_column", help="Column of the texts. Default: as in fine-tuning.")
    parser.add_argument("--text_pair_column", help="Column of the second text, or of the question.")
    parser.add_argument("--choices_column", nargs="+", help="A column of lists, or several columns of texts.")
    parser.add_argument("--max_seq_length", type=int, help="Maximum number of tokens. Default: as in fine-tuning.")
    parser.add_argument(
        "--threshold",
        type=float,
        help="Minimum probability for predicting the positive one of two classes. Default: as fine-tuning decided.",
    )
    parser.add_argument("--batch_size", type=int, default=32, help="Rows per batch (%(default)s).")
    options = vars(parser.parse_args(argv))
    if options["batch_size"] < 1:
        parser.error("--batch_size must be positive.")
    announce_imports()

    from scratch_bert.finetuning.prediction import predict_file
    from scratch_bert.logs import configure_logging

    configure_logging()
    predict_file(options.pop("model"), kind=options.pop("format"), **options)
