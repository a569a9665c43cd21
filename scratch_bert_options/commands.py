"""The commands, and their command lines as they run here: in this environment, which need not be activated, and from
the current directory."""

import shlex
import sys
from pathlib import Path
from shutil import which


VERBS = {  # verb of `scratch-bert` → its script, summary
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
    """The command line of a verb: a script, if this program is one of them, otherwise `scratch-bert`."""
    started = Path(sys.argv[0])
    if started.suffix == ".py" and started.with_name("_command.py").is_file():  # beside our scripts
        return command_line("python", started.with_name(f"{VERBS[verb][0]}.py").as_posix(), *arguments)
    return command_line("scratch-bert", verb, *arguments)


def command_line(program: str, *arguments: str) -> str:
    """A call of a program of this environment, by its name, if the shell finds this one, otherwise by its path."""
    path = Path(sys.executable if program == "python" else Path(sys.executable).with_name(program))
    if which(program) != str(path) and path.exists():
        program = (path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path).as_posix()
    return shlex.join([program, *arguments])


def installation(package: str) -> str:
    """The command line that installs a package in this environment."""
    return command_line("python", "-m", "pip", "install", package)
