import sys
from importlib import import_module
from pathlib import Path


def run(script: str) -> None:
    """Run the command that has the name of the script."""
    try:
        command = import_module(f"scratch_bert_cli.commands.{Path(script).stem}")
    except ModuleNotFoundError as error:
        python = "the Python that scratch_bert is installed in, such as .venv/bin/python"
        sys.exit(f"error: {error}. Run {python}, or install it first: see Try it in README.md")
    command.main()
