"""What the tests of publishing share: a model's directory and an empty Hub on loopback."""

import shutil
from pathlib import Path

import pytest

from hub_server import LocalHub


CARD = """---
license: apache-2.0
---
# A model

name = "directory"  # the directory or the repository that this card is in
name = "mine"
"""


@pytest.fixture
def directory(saved, tmp_path):
    """A model's directory, with files that a training run leaves beside the model."""
    directory = Path(shutil.copytree(saved, tmp_path / "model"))
    (directory / "README.md").write_text(CARD)
    (directory / "training_args.bin").write_bytes(b"private")
    (directory / "checkpoint-5").mkdir()
    (directory / "checkpoint-5/optimizer.pt").write_bytes(b"private")
    (directory / "runs").mkdir()
    return directory


@pytest.fixture
def hub(monkeypatch):
    """An empty Hub, which the client in this process talks to."""
    with LocalHub() as hub:
        hub.connect(monkeypatch)
        yield hub
