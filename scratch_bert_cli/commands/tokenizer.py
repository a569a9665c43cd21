"""Train a tokenizer on a sample of the text, once for all runs, tasks and machines: pass its directory to pretrain and
prepare-data as --tokenizer_name_or_path.

Text and tokenizer options are those of pretrain. All of the text is read; for terabytes, name only some files."""

import os
import tempfile
import time
from pathlib import Path

from scratch_bert_options.preparation import TokenizerPreparationOptions

from ..command_line import read_options
from ..main import print_next
from ..process import script


@script
def main(argv: list[str] | None = None) -> None:
    (args,) = read_options(TokenizerPreparationOptions, description=__doc__, argv=argv)

    from scratch_bert.corpus.tokenizer_training import train_tokenizer
    from scratch_bert.logs import configure_logging
    from scratch_bert.pretraining.sources import find_texts
    from scratch_bert.text.sample import sample_text

    configure_logging()
    start = time.monotonic()
    text, _ = find_texts(args)
    sample = sample_text(text, int(1e6 * args.sample_mb), args.seed, beginnings=args.streaming)
    read = time.monotonic()
    print(
        f"Read {sample.read / 1e6:,.1f} MB of text from {len(text.shards):,} files in {read - start:.1f} s", flush=True
    )
    tokenizer = train_tokenizer([sample.paragraphs], **args.tokenizer_options())  # one list: they are not split again
    seconds, directory = time.monotonic() - read, Path(args.output_dir)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        tokenizer.save_pretrained(Path(scratch, "tokenizer"))
        os.replace(Path(scratch, "tokenizer"), directory)  # complete, or not there
    print(f"Trained a tokenizer of {len(tokenizer):,} entries on {sample.size / 1e6:,.1f} MB in {seconds:.1f} s")
    print(f"In {directory}: {', '.join(sorted(file.name for file in directory.iterdir()))}")
    options = ("--tokenizer_name_or_path", args.output_dir, "--output_dir", "DIRECTORY")
    print_next(
        ("pretrain with it", "pretrain", "--train_file", "YOUR_TEXT", *options),
        ("or tokenize a large corpus first, in parallel", "prepare-data", "--input_dir", "YOUR_JSONL", *options),
    )
