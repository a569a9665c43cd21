"""Try models on a web page: masked words, next sentences, attention, embeddings, and answers of fine-tuned models.

For the directory of a training run, it also shows predictions at each snapshot. The page is served to this machine
only, and loads nothing from the network."""

import argparse

from scratch_bert_options.commands import installation

from ..command_line import announce_imports
from ..process import script


@script
def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = "A directory or a Hub repository: a scratch_bert or a BERT, with any head."
    parser.add_argument("models", nargs="+", metavar="MODEL", help=kinds)
    parser.add_argument("--port", type=int, help="The port to serve the page on (the first free one from 7860 on).")
    parser.add_argument("--trust_remote_code", action="store_true", help="Run the code that comes with other models.")
    parser.add_argument("--no_browser", action="store_true", help="Don't open the page in a browser.")
    args = parser.parse_args(argv)
    announce_imports()

    from transformers.utils.logging import disable_progress_bar

    from scratch_bert_demo.runs import open_models

    disable_progress_bar()  # of loading weights, which is done for each snapshot

    try:
        from scratch_bert_demo.page import build_page, serve
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}. Install it alongside this package: {installation('gradio')}") from error
    page = build_page(*open_models(args.models, args.trust_remote_code))
    print(f"Serving on {serve(page, args.port, inbrowser=not args.no_browser)} (Ctrl-C to stop)", flush=True)
    page.block_thread()
