"""The command `scratch-bert`: a verb for each script."""

import sys
import textwrap
from importlib import import_module
from importlib.metadata import version

from scratch_bert_options.commands import VERBS, command
from scratch_bert_options.declare import similar

from .process import script


def print_next(*steps: tuple[str, ...]) -> None:
    """Print command lines that may follow, to be copied. A step is its purpose, a verb and the verb's arguments."""
    purposes = "; ".join(purpose for purpose, *_ in steps)  # not in comments, which zsh would take for arguments
    print(f"\n{textwrap.fill(f'Next: {purposes}:', 80)}")
    for _, verb, *arguments in steps:
        print(f"  {command(verb, *arguments)}")


@script
def main() -> None:
    verb = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if verb == "--version":
        print(version("scratch_bert"))
        return
    if verb in ("-h", "--help", "help"):
        print("usage: scratch-bert VERB ...\n\nPretrain, fine-tune, evaluate and publish BERTs.\n")
        print("\n".join(f"  {name:<14}{summary}" for name, (_, summary) in VERBS.items()))
        print("\nscratch-bert VERB --help shows the options of a verb.")
        return
    if verb not in VERBS:
        print(f"scratch-bert: error: there is no verb {verb}.{similar(verb, VERBS)}", file=sys.stderr)
        sys.exit(2)
    sys.argv[:2] = [f"scratch-bert {verb}"]  # the name of the program in its messages
    import_module(f"scratch_bert_cli.commands.{VERBS[verb][0]}").main()
