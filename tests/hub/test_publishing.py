"""What a directory must contain to be published, what is left out, and what is rejected."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from helpers import CODE_FILES, MODEL_FILES, edit_config, edit_weights, run_script, truncate
from scratch_bert import ScratchBertForPreTraining
from scratch_bert.hub.publishing import public_files
from scratch_bert.model.configuration_scratch_bert import AUTO_MAP


BIAS, EMBEDDINGS = "cls.predictions.bias", "bert.embeddings.word_embeddings.weight"


def names(directory: Path) -> set[str]:
    return {file.name for file in public_files(directory)}


def add_code(directory: Path, line: str) -> None:
    with open(directory / "modeling_scratch_bert.py", "a") as code:
        code.write(f"\n{line}\n")


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
        ("config.json", "no config.json: this is not a model's directory"),
        ("README.md", "no README.md: write a model card"),
        ("tokenizer_config.json", "no tokenizer_config.json: save the tokenizer"),
        ("tokenizer.json", "tokenizer"),
        ("model.safetensors", "has no weights"),
        ("kernels_scratch_bert.py", "kernels_scratch_bert.py"),
    ],
)
def test_publish_rejects_a_missing_file(file, message, directory):
    (directory / file).unlink()
    with pytest.raises((ValueError, OSError), match=message):
        public_files(directory)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda d: truncate(d / "model.safetensors"), "model.safetensors cannot be read", id="weights"),
        pytest.param(lambda d: truncate(d / "tokenizer.json"), "tokenizer.json cannot be read", id="tokenizer"),
        pytest.param(lambda d: (d / "config.json").write_text("[]"), "config.json holds a list", id="config"),
        pytest.param(
            lambda d: edit_config(d, auto_map={k: v for k, v in AUTO_MAP.items() if k != "AutoModelForMaskedLM"}),
            "config.json: auto_map: AutoModelForMaskedLM: input should be a valid string",
            id="auto_map",
        ),
        pytest.param(
            lambda d: edit_config(d, auto_map=dict.fromkeys(AUTO_MAP, "a--b.C")),
            "config.json: auto_map: AutoConfig: string should match pattern .*, got 'a--b.C'",
            id="elsewhere",
        ),
        pytest.param(lambda d: add_code(d, "def"), "invalid syntax .*modeling_scratch_bert.py", id="syntax"),
        pytest.param(lambda d: add_code(d, "import private_of_mine"), "not found .*: private_of_mine", id="import"),
        pytest.param(lambda d: add_code(d, "from .none import x"), "none.py", id="module"),
        pytest.param(
            lambda d: edit_weights(d, lambda weights: weights | {BIAS: weights[BIAS] * torch.nan}),
            "cls.predictions.bias is not finite, the training diverged",
            id="NaN",
        ),
        pytest.param(
            lambda d: edit_weights(d, lambda weights: weights | {EMBEDDINGS: weights[EMBEDDINGS][:-1].clone()}),
            r"do not fit its config.json: bert.embeddings.word_embeddings.weight \(1999, 32\) instead of \(2000, 32\)",
            id="embeddings",
        ),
        pytest.param(
            lambda d: add_token(d),
            "tokenizer of .* has 2001 entries, but the model's vocab_size is 2000",
            id="vocabulary",
        ),
        pytest.param(
            lambda d: edit_weights(d, lambda weights: {k: v for k, v in weights.items() if "seq_rel" not in k}),
            "is a ScratchBertForPreTraining without its head: cls.seq_relationship.bias and 1 more, missing",
            id="head",
        ),
    ],
)
def test_publish_rejects_a_damaged_directory(damage, message, directory):
    damage(directory)
    with pytest.raises((ValueError, OSError, ImportError, SyntaxError), match=message):
        public_files(directory)


def test_publish_needs_no_code_for_an_architecture_of_transformers(directory):
    for file in directory.glob("*.py"):
        file.unlink()
    edit_config(directory, auto_map=None, model_type="bert")
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
    with pytest.raises(OSError, match=min(shards)):
        public_files(directory)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trained on /home/ann/texts", "a local path"),
        (r"trained on C:\Users\ann\texts", "a local path"),
        ("trained on /mnt/nas/texts", "a local path"),
        ("see file:///home/ann/texts", "a local path"),
        ("from host:/home/ann", "a local path"),
        (f"see {Path.home()}/notes", "a local path"),
        ("hf_" + "x" * 34, r"a secret \(Hugging Face Token\)"),
        ("AKIA" + "X" * 16, r"a secret \(AWS Access Key\)"),
        ("-----BEGIN RSA PRIVATE KEY-----", r"a secret \(Private Key\)"),
        ("https://ann:xxxx@example.org", r"a secret \(Basic Auth Credentials\)"),
    ],
)
def test_publish_rejects_private_text(text, message, directory):
    with open(directory / "README.md", "a") as card:
        card.write(text)
    with pytest.raises(ValueError, match=f"README.md contains {message} in line 8") as raised:
        public_files(directory)
    assert text[-9:] not in str(raised.value)


SECRET = "ghp_" + "x" * 36


@pytest.mark.parametrize(
    "name", ["LICENSE", "vocab.txt", "curves.png", "special.py", "model.safetensors", "config.json"]
)
def test_publish_searches_every_file_for_secrets(name, directory):
    file = directory / name
    if name == "model.safetensors":
        save_file(load_file(file), file, metadata={"format": "pt", "by": SECRET})
    elif name == "config.json":
        edit_config(directory, note=SECRET)
    else:
        file.write_bytes((b"\x89PNG\r\n\x1a\n" if name == "curves.png" else b"# ") + SECRET.encode())
        add_code(directory, "from .special import *" if name == "special.py" else "")
    with pytest.raises(ValueError, match=rf"{name} contains a secret \(GitHub Token\)"):
        public_files(directory)


@pytest.mark.parametrize(
    "name", ["LICENSE", "vocab.txt", "curves.png", "README.md", "kernels_scratch_bert.py", "model.safetensors"]
)
def test_publish_follows_no_link(name, directory):
    file, outside = directory / name, directory.parent / "outside"
    outside.write_bytes(file.read_bytes() if file.exists() else b"private")
    file.unlink(missing_ok=True)
    file.symlink_to(outside)
    with pytest.raises(ValueError, match=f"{name} is a link, which is not followed"):
        public_files(directory)


def test_publish_sends_the_files_of_an_index_only_if_they_are_weights(directory):
    (directory / "model.safetensors").unlink()
    index = {"weight_map": {"a": "training_args.bin"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="training_args.bin is not a safetensors file"):
        public_files(directory)


def test_publish_sends_the_modules_that_the_code_imports(directory):
    (directory / "special.py").write_text("from .more import x\n")
    (directory / "more.py").write_text("x = 1\n")
    add_code(directory, "from .special import x")
    assert names(directory) == MODEL_FILES | {"special.py", "more.py"}


def modules(path: str, kind: str = "sentence_transformers.models.Pooling") -> str:
    """A modules.json with a Transformer and one more module."""
    return json.dumps([{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": path, "type": kind}])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("1_Pooling/model.safetensors", "", "modules with a config.json alone"),
        ("modules.json", '[{"path": "", "type": "sentence_transformers.models.Router"}]', "must name a Transformer"),
        ("modules.json", modules(".."), "modules.json: 1.path"),
        ("modules.json", modules("1_Pooling", "mine.Pooling"), "modules.json: 1.type"),
        ("1_Pooling/config.json", json.dumps({"token": SECRET}), "1_Pooling/config.json contains a secret"),
    ],
)
def test_publish_rejects_a_sentence_transformer_that_would_be_incomplete(name, content, message, embedder):
    (embedder / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        public_files(embedder)


@pytest.mark.parametrize("name", ["1_Pooling", "1_Pooling/config.json", "modules.json"])
def test_publish_follows_no_link_of_a_sentence_transformer(name, embedder):
    outside = (embedder / name).rename(embedder.parent / "outside")
    (embedder / name).symlink_to(outside)
    with pytest.raises(ValueError, match="is a link, which is not followed"):
        public_files(embedder)


def test_directory_without_a_name_is_not_the_current_one(directory, monkeypatch, capsys):
    monkeypatch.chdir(directory)
    with pytest.raises(SystemExit):
        run_script(monkeypatch, "push_to_hub.py", "", "tester/model", "--dry_run")
    assert "the name of the directory is empty" in capsys.readouterr().err


def test_publish_tells_urls_from_local_paths(directory):
    with open(directory / "README.md", "a") as card:
        card.write(f"see https://example.org/home/ann, https://example.org{Path.home()}/x and `/homely`")
    edit_config(directory, auto_map={**AUTO_MAP, "AutoTokenizer": ["tokens.Tokens", None]})  # not checked
    assert names(directory) == MODEL_FILES
    edit_config(directory, _name_or_path="/mnt/scratch/ann/bert")
    with pytest.raises(ValueError, match="config.json contains a local path"):
        public_files(directory)
