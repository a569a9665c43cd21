#!/usr/bin/env python
"""Convert a checkpoint from transformers' BERT to scratch_bert or back, and compare the outputs of both."""

import argparse
import sys
from functools import partial
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError

from scratch_bert.hub.conversion import CONFIGS, convert_checkpoint
from scratch_bert.hub.model_card import write_conversion_card


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "source", help="A directory or a Hub repository: any head, safetensors or .bin, in shards or not."
    )
    parser.add_argument("destination", type=Path, help="The directory to write; it must not exist yet, or be empty.")
    parser.add_argument(
        "--to", choices=list(CONFIGS), default="scratch_bert", help="What to convert to (scratch_bert)."
    )
    parser.add_argument("--revision", help="Branch, tag or commit of the source's repository.")
    args = parser.parse_args()
    write_card = None
    if args.to == "scratch_bert":
        write_card = partial(write_conversion_card, source=args.source, revision=args.revision)
    try:
        conversion = convert_checkpoint(args.source, args.destination, args.to, args.revision, write_card)
    except (ImportError, OSError, ValueError, StrictDataclassError) as error:
        sys.exit(f"error: {error}")
    if conversion.dropped:
        print(f"Left out, as a {conversion.model_class} has no use for it: {', '.join(conversion.dropped)}")
    print(f"Largest difference between the outputs of the two: {conversion.difference:.1e}")
    if not conversion.has_tokenizer:
        print("The source has no tokenizer: save one in the same directory before you publish it.")
    if not write_card:
        print("There is no model card with it: write one before you publish it, with the source's licence.")
    print(f"{conversion.model_class} is in {args.destination}")


if __name__ == "__main__":
    main()
