"""Convert a checkpoint from transformers' BERT to scratch_bert or back, and compare the outputs of both."""

import argparse
from pathlib import Path

from ..command_line import announce_imports
from ..process import script


@script
def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "source", help="A directory or a Hub repository: any head, safetensors or .bin, sharded or not."
    )
    parser.add_argument("destination", type=Path, help="The directory to write to, new or empty.")
    parser.add_argument(
        "--to", choices=["bert", "scratch_bert"], default="scratch_bert", help="The type to convert to (%(default)s)."
    )
    parser.add_argument("--revision", help="Branch, tag or commit of the source's repository.")
    args = parser.parse_args(argv)
    announce_imports()

    from scratch_bert.hub.conversion import convert_checkpoint

    conversion = convert_checkpoint(args.source, args.destination, args.to, args.revision)
    if conversion.dropped:
        print(f"Dropped weights that {conversion.model_class} does not use: {', '.join(conversion.dropped)}")
    print(f"Largest difference between the outputs of the two models: {conversion.difference:.1e}")
    if not conversion.has_tokenizer:
        print("The source has no tokenizer: save one in the same directory before you publish the model.")
    if not conversion.has_card:
        print("The source has no model card: write one before you publish the model.")
    print(f"Saved {conversion.model_class} to {args.destination}")
