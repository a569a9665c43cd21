"""A Gradio Space that shows a published model with the page of scripts/demo.py."""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, SpaceCard
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

from scratch_bert.hub.model_card import TAGS
from scratch_bert.hub.publishing import full_name
from scratch_bert.hub.secrets import check_no_link, find_private, reject_private


ROOT = Path(__file__).parents[1]
# Files and packages that the page imports.
MODULES = (
    "scratch_bert/__init__.py",
    "scratch_bert/atomic.py",
    "scratch_bert/logs.py",
    "scratch_bert/repository.py",
    "scratch_bert/checkpoints",
    "scratch_bert/corpus/__init__.py",
    "scratch_bert/corpus/tokenizer.py",
    "scratch_bert/finetuning/__init__.py",
    "scratch_bert/finetuning/tasks/__init__.py",
    "scratch_bert/finetuning/tasks/spans.py",
    "scratch_bert/model",
    "scratch_bert/text/__init__.py",
    "scratch_bert_demo",
    "scratch_bert_options/__init__.py",
    "scratch_bert_options/commands.py",
    "scratch_bert_options/errors.py",
    "scratch_bert_options/masking.py",
    "scratch_bert_options/outputs.py",
    "scratch_bert_options/schema.py",
    "scratch_bert_options/text_formats.py",
)
# Packages that the page needs, in the versions that are installed here.
REQUIREMENTS = (
    "torch",
    "transformers",
    "huggingface_hub",
    "tokenizers",
    "safetensors",
    "accelerate",
    "filelock",
    "pydantic",
    "gradio",
)
CARD = """---
title: "{title}"
sdk: gradio
sdk_version: {gradio}
python_version: "{python}"
app_file: app.py
models:
- {repo_id}
tags:
- {tag}
---

What [{repo_id}](https://huggingface.co/{repo_id}) predicts, at the commit {revision}. Run it on your own machine:

```
pip install -r requirements.txt
python app.py
```
"""
APP = '''"""Shows {repo_id} at one commit."""

from huggingface_hub import snapshot_download

from scratch_bert_demo.runs import open_models
from scratch_bert_demo.page import build_page, serve


DIRECTORY = "models/{title}"
IGNORED = ["*checkpoint*/*", "snapshots/*"]
snapshot_download("{repo_id}", revision="{revision}", local_dir=DIRECTORY, ignore_patterns=IGNORED)
page = build_page(*open_models([DIRECTORY]))
print(f"Serving on {{serve(page, host=None)}}", flush=True)
page.block_thread()
'''


def space_files(repo_id: str, revision: str) -> dict[str, bytes]:
    """The Space's files by path: app, pinned requirements, card and modules. It loads the model at the commit
    `revision`.

    Raises `ImportError` for a required package that is not installed, and `ValueError` for a module that is a link or
    contains a secret.
    """
    pins = {name: version(name).partition("+")[0] for name in REQUIREMENTS}  # not 2.13.0+cpu
    python = f"{sys.version_info.major}.{sys.version_info.minor}"  # which the pinned versions support
    values = {"repo_id": repo_id, "revision": revision, "title": repo_id.split("/")[-1], "tag": TAGS[-1]}
    files = {
        "README.md": CARD.format(**values, gradio=pins["gradio"], python=python),
        "app.py": APP.format(**values),
        "requirements.txt": "".join(f"{name}=={pin}\n" for name, pin in pins.items()),
    }
    for place in (ROOT / name for name in MODULES):
        for module in place.iterdir() if place.is_dir() else [place]:
            if module.suffix in (".py", ".css"):
                check_no_link(module)
                files[module.relative_to(ROOT).as_posix()] = module.read_text("utf-8")
    for path, text in files.items():
        reject_private(find_private(text, path))
    return {path: text.encode() for path, text in sorted(files.items())}


def check_space(space_id: str, api: HfApi, private: bool = False) -> None:
    """Raise `ValueError` for an existing Space that scratch_bert did not create, or that is public if the model that
    it is to show is `private`."""
    space_id = full_name(space_id, api)
    try:
        public = not api.repo_info(space_id, repo_type="space").private
        tags = SpaceCard.load(space_id, token=api.token).data.tags or []
    except RepositoryNotFoundError:
        return
    except EntryNotFoundError:
        tags = []
    if private and public:
        raise ValueError(f"The Space {space_id} is public, but the model is private: make the Space private, too.")
    if TAGS[-1] not in tags:
        raise ValueError(
            f"The Space {space_id} was not made by scratch_bert: choose another name, or delete it first."
        )


def push_space(space_id: str, repo_id: str, revision: str, api: HfApi) -> CommitInfo:
    """Create or update a Space in one commit; that of a private model is private. Errors are those of `space_files` and
    `check_space`."""
    files, space_id, private = space_files(repo_id, revision), full_name(space_id, api), api.repo_info(repo_id).private
    check_space(space_id, api, private)
    api.create_repo(space_id, repo_type="space", space_sdk="gradio", private=private or None, exist_ok=True)
    stale = set(api.list_repo_files(space_id, repo_type="space")) - files.keys()
    stale = [path for path in sorted(stale) if path.startswith(("scratch_bert/", "scratch_bert_"))]
    operations: list[Any] = [CommitOperationDelete(path) for path in stale]
    operations += [CommitOperationAdd(path, content) for path, content in files.items()]
    return api.create_commit(
        space_id, operations, repo_type="space", commit_message=f"Show {repo_id} at {revision[:8]}"
    )
