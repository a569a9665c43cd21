"""The command `scratch-bert`: a verb for each script."""

import shlex
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from shutil import which

from scratch_bert_options.declare import similar

from .process import script


VERBS = {  # verb → command's file and script, summary
    "pretrain": ("pretrain", "Pretrain a BERT on text, or continue from one."),
    "finetune": ("finetune", "Fine-tune a checkpoint on a task."),
    "predict": ("predict", "Predict new rows with a fine-tuned model."),
    "evaluate": ("evaluate_model", "Evaluate pretrained models on text or minimal pairs."),
    "score": ("score", "Find unusual texts by their pseudo-log-likelihoods."),
    "encode": ("encode", "Embed texts: one vector per text."),
    "inspect-data": ("inspect_data", "Show the examples that pretrain would train on."),
    "tokenizer": ("tokenizer", "Train a tokenizer on a sample of the text."),
    "prepare-data": ("prepare_data", "Preprocess a large corpus in parallel."),
    "convert": ("convert_checkpoint", "Convert a checkpoint from BERT to scratch_bert, or back."),
    "push": ("push_to_hub", "Publish a model on the Hugging Face Hub."),
    "compare": ("compare", "Compare runs: figures over seeds, differences, options, curves."),
    "demo": ("demo", "Try models on a web page."),
}


def command(verb: str, *arguments: str) -> str:
    """The command line of a verb, in the form that this program was started in: a script, or `scratch-bert`."""
    started = Path(sys.argv[0])
    program = ["scratch-bert", verb]
    if started.suffix == ".py":
        python = Path(sys.executable)  # which may not be the one that the shell finds, as under make
        if which("python") == str(python):
            python = Path("python")
        elif python.is_relative_to(Path.cwd()):
            python = python.relative_to(Path.cwd())
        program = [python.as_posix(), started.with_name(f"{VERBS[verb][0]}.py").as_posix()]
    return shlex.join([*program, *arguments])


def print_next(*steps: tuple[str, ...]) -> None:
    """Print command lines that may follow, to be copied. A step is its purpose, a verb and the verb's arguments."""
    print("\nNext:")
    for purpose, verb, *arguments in steps:
        print(f"  {command(verb, *arguments)}  # {purpose}")


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
