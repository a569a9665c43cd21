"""The code that travels with a model: what a card says of it, and its replacement by this version's."""

import json
import re
import shutil
from pathlib import Path

import torch
import transformers

from ..model import CODE_FILES
from ..model.configuration_scratch_bert import CODE_VERSION, OLDEST, complete_map, write_requirements
from ..repository import read_json


NOTE = re.compile(r"The model's code is downloaded with the weights .*?(?=\n\n|\Z)", re.DOTALL)  # of any version
OLD_HASH = re.compile(r" The code's SHA-256 [^.]*\.")
OLD_CODE = {"operations_scratch_bert.py", *(file.name for file in CODE_FILES)}  # of all versions
CODE_NOTE = f"""\
The model's code is downloaded with the weights and runs on your machine: read it first, then pin the commit
that you have read with `revision="…"` in each call. \
It needs transformers {OLDEST["transformers"]} and torch {OLDEST["torch"]} or newer; the newest
that it was tried with are transformers {transformers.__version__} and torch {torch.__version__.partition("+")[0]}."""


def update_code(directory: str | Path) -> None:
    """Replace the code in a scratch_bert model's directory by this version's. Weights and tokenizer keep their bytes.

    Raises `ValueError` or `OSError` if there is no scratch_bert model.
    """
    directory = Path(directory)
    file = directory / "config.json"
    config = read_json(file)
    if config.get("model_type") != "scratch_bert":
        raise ValueError(
            f"{file}: model_type {config.get('model_type')!r} has no code to update: it must be scratch_bert."
        )
    for name in OLD_CODE:
        (directory / name).unlink(missing_ok=True)
    for code in CODE_FILES:
        shutil.copy(code, directory)
    write_requirements(directory)
    config |= {"auto_map": complete_map(config.get("auto_map")), "code_version": CODE_VERSION}
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    card = directory / "README.md"
    if card.is_file():
        card.write_text(NOTE.sub(CODE_NOTE, OLD_HASH.sub("", card.read_text("utf-8"))), "utf-8")
