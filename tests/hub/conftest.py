"""What the tests of publishing share: a model's directory and an empty Hub on loopback."""

import json
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
def embedder(directory):
    """A model's directory as `SentenceTransformer.save_pretrained` writes it."""
    types = {"": "base.modules.transformer.Transformer", "1_Pooling": "sentence_transformer.modules.pooling.Pooling"}
    modules = [
        {"idx": number, "name": f"{number}", "path": path, "type": f"sentence_transformers.{name}"}
        for number, (path, name) in enumerate(types.items())
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling/config.json").write_text('{"embedding_dimension": 32, "pooling_mode": "mean"}')
    (directory / "sentence_bert_config.json").write_text('{"transformer_task": "feature-extraction"}')
    (directory / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "cosine"}')
    return directory


@pytest.fixture
def hub(monkeypatch):
    """An empty Hub, which the client in this process talks to."""
    with LocalHub() as hub:
        hub.connect(monkeypatch)
        yield hub
