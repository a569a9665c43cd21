import sys
from importlib import import_module
from pathlib import Path


def run(script: str) -> None:
    """Run the command that has the name of the script."""
    try:
        command = import_module(f"scratch_bert_cli.commands.{Path(script).stem}")
    except ModuleNotFoundError as error:
        sys.exit(
            f"error: {error}. Install scratch_bert first: pip install . or, in a virtual environment .venv, make test"
        )
    command.main()
