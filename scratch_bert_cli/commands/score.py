"""Find unusual texts: add to each row of a table, or line of a text file, its pseudo-log-likelihood under a masked
language model, and the tokens that it expects least. Memory use does not depend on the file's length.

Files are CSV, TSV, JSON Lines or Parquet, by their suffixes; the input may also be .txt. The file - with --format txt
is standard input."""

from ..command_line import announce_imports, rows_parser
from ..process import script


@script
def main(argv: list[str] | None = None) -> None:
    parser = rows_parser(__doc__)
    parser.add_argument("--text_column", default="text", help="Column of the texts (%(default)s).")
    parser.add_argument(
        "--fast",
        action="store_true",
        help="Mask an eighth of a text's tokens at a time: an approximation, about 7 times as fast on lines of a log.",
    )
    parser.add_argument(
        "--surprising", type=int, default=3, metavar="K", help="List the K tokens of lowest probability (%(default)s)."
    )
    options = vars(parser.parse_args(argv))
    announce_imports()

    from scratch_bert.logs import configure_logging
    from scratch_bert.pretraining.text_files import score_file

    configure_logging()
    file = options["output_file"]
    unusual = score_file(options.pop("model"), kind=options.pop("format"), **options)
    if file != "-":
        print("The most unusual texts have the lowest per_token, the mean log-probability of a token in nats:")
        for per_token, text in unusual:
            line = " ".join(text.split())
            print(f"{per_token:8.2f}  {line if len(line) <= 70 else f'{line[:68]} …'}")
