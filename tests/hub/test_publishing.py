"""What a directory must contain to be published, what is left out, and what is rejected."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from helpers import CODE_FILES, MODEL_FILES, run_script
from scratch_bert import ScratchBertForPreTraining
from scratch_bert.hub.publishing import public_files
from scratch_bert.model.configuration_scratch_bert import AUTO_MAP


def names(directory: Path) -> set[str]:
    return {file.name for file in public_files(directory)}


def edit_config(directory: Path, **changes) -> None:
    """Set these fields of config.json; None removes the field."""
    config = json.loads((directory / "config.json").read_text()) | changes
    (directory / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def edit_weights(directory: Path, name: str, edit: Callable[[torch.Tensor], torch.Tensor]) -> None:
    weights = load_file(directory / "model.safetensors")
    weights[name] = edit(weights[name]).contiguous()
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def add_token(directory: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=True)
    config = json.loads((directory / "config.json").read_text())
    tokenizer.add_tokens([f"new{number}" for number in range(1 + config["vocab_size"] - len(tokenizer))])
    tokenizer.save_pretrained(directory)


def test_publish_lists_the_model_files_only(directory, monkeypatch, capsys):
    assert names(directory) == MODEL_FILES
    run_script(monkeypatch, "push_to_hub.py", directory, "tester/model", "--dry_run")  # needs no network
    sent, left_out = capsys.readouterr().out.split("Not sent:")
    assert all(name in sent for name in MODEL_FILES)
    assert left_out.split() == ["checkpoint-5,", "runs,", "training_args.bin"]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        pytest.param("config.json", "no config.json: this is not a model's directory", id="config"),
        pytest.param("README.md", "no README.md: write a model card", id="card"),
        pytest.param("tokenizer_config.json", "no tokenizer_config.json: save the tokenizer", id="tokenizer config"),
        pytest.param("tokenizer.json", "no tokenizer.json or vocab.txt: save the tokenizer", id="tokenizer"),
        pytest.param("model.safetensors", "model.safetensors is missing or truncated", id="weights"),
        pytest.param("operations_scratch_bert.py", "no operations_scratch_bert.py: save the model again", id="code"),
    ],
)
def test_publish_rejects_a_missing_file(file, message, directory):
    (directory / file).unlink()
    with pytest.raises(ValueError, match=message):
        public_files(directory)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(
            lambda d: truncate(d / "model.safetensors"), "model.safetensors is missing or truncated", id="weights"
        ),
        pytest.param(lambda d: truncate(d / "tokenizer.json"), "tokenizer.json cannot be read", id="tokenizer"),
        pytest.param(
            lambda d: edit_config(d, auto_map={k: v for k, v in AUTO_MAP.items() if k != "AutoModelForMaskedLM"}),
            "no auto_map entry for AutoModelForMaskedLM:",
            id="auto_map",
        ),
        pytest.param(
            lambda d: edit_weights(d, "cls.predictions.bias", lambda bias: bias.fill_(float("nan"))),
            "cls.predictions.bias is not finite. The training has diverged",
            id="NaN",
        ),
        pytest.param(
            lambda d: edit_weights(d, "bert.embeddings.word_embeddings.weight", lambda weight: weight[:-1]),
            r"word_embeddings.weight has [\d,]+ rows, but vocab_size in config.json is",
            id="embeddings",
        ),
        pytest.param(
            lambda d: add_token(d),
            r"ids up to [\d,]+, but vocab_size in config.json is .*not the model's",
            id="vocabulary",
        ),
        pytest.param(lambda d: d.rename(d.parent / "elsewhere"), "directory .*model does not exist", id="directory"),
    ],
)
def test_publish_rejects_a_damaged_directory(damage, message, directory):
    damage(directory)
    with pytest.raises(ValueError, match=message):
        public_files(directory)


def test_publish_needs_no_code_for_an_architecture_of_transformers(directory):
    for file in directory.glob("*.py"):
        file.unlink()
    edit_config(directory, auto_map=None)
    with pytest.raises(ValueError, match="no auto_map entry"):
        public_files(directory)
    edit_config(directory, model_type="bert")
    assert names(directory) == MODEL_FILES - CODE_FILES


def test_publish_sharded_weights(directory):
    ScratchBertForPreTraining.from_pretrained(directory).save_pretrained(directory, max_shard_size="100KB")
    with pytest.raises(ValueError, match="delete the older"):
        public_files(directory)
    (directory / "model.safetensors").unlink()
    shards = {path.name for path in directory.glob("model-*.safetensors")}
    assert len(shards) > 1
    assert names(directory) == MODEL_FILES - {"model.safetensors"} | shards | {"model.safetensors.index.json"}
    (directory / min(shards)).unlink()
    with pytest.raises(ValueError, match=f"{min(shards)} is missing"):
        public_files(directory)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("trained on /home/ann/texts", "a local path in line 8", id="home on Linux"),
        pytest.param(r"trained on C:\Users\ann\texts", "a local path in line 8", id="home on Windows"),
        pytest.param("from host:/home/ann", "a local path in line 8", id="remote path"),
        pytest.param(f"see {Path.home()}/notes", "a local path in line 8", id="own home"),
        pytest.param("token=hf_" + "x" * 34, "an access token in line 8", id="token"),
    ],
)
def test_publish_rejects_private_text(text, message, directory):
    with open(directory / "README.md", "a") as card:
        card.write(text)
    with pytest.raises(ValueError, match=f"README.md contains {message}") as raised:
        public_files(directory)
    assert "x" * 34 not in str(raised.value)


def test_publish_tells_urls_from_local_paths(directory):
    with open(directory / "README.md", "a") as card:
        card.write(f"see https://example.org/home/ann, https://example.org{Path.home()}/x and `/homely`")
    edit_config(directory, auto_map={**AUTO_MAP, "AutoTokenizer": ["tokens.Tokens", None]})  # not checked
    assert names(directory) == MODEL_FILES
    edit_config(directory, _name_or_path="/mnt/scratch/ann/bert")
    with pytest.raises(ValueError, match="config.json contains a local path"):
        public_files(directory)
