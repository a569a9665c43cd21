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
from scratch_bert.hub.secrets import find_private, reject_private
from scratch_bert.model.configuration_scratch_bert import AUTO_MAP


BIAS = "cls.predictions.bias"


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
    assert left_out.splitlines()[0] == " checkpoint-5, runs, training_args.bin" and "Nothing was sent" in left_out


def with_nan(weights):
    return weights | {BIAS: weights[BIAS] * torch.nan}


def without_head(weights):
    return {name: weight for name, weight in weights.items() if "seq_rel" not in name}


DAMAGED = {
    "no config": (lambda d: (d / "config.json").unlink(), "no config.json: this is not a model's directory"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), "tokenizer"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "has no weights"),
    "no code": (lambda d: (d / "kernels_scratch_bert.py").unlink(), "kernels_scratch_bert.py"),
    "weights": (lambda d: truncate(d / "model.safetensors"), "model.safetensors cannot be read"),
    "config": (lambda d: (d / "config.json").write_text("[]"), "config.json holds a list"),
    "auto_map": (
        lambda d: edit_config(d, auto_map={}),
        "config.json: auto_map: AutoConfig: input should be a valid string",
    ),
    "elsewhere": (
        lambda d: edit_config(d, auto_map=dict.fromkeys(AUTO_MAP, "a--b.C")),
        "config.json: auto_map: AutoConfig: string should match pattern .*, got 'a--b.C'",
    ),
    "class": (
        lambda d: edit_config(d, auto_map=AUTO_MAP | {"AutoModel": "modeling_scratch_bert.Mine"}),
        "modeling_scratch_bert.py has no Mine, which auto_map names",
    ),
    "tokenizer's code": (
        lambda d: edit_config(d, auto_map={**AUTO_MAP, "AutoTokenizer": ["tokens.Tokens", None]}),
        "tokens.py",
    ),
    "word in a docstring": (
        lambda d: edit_config(d, auto_map=AUTO_MAP | {"AutoModel": "modeling_scratch_bert.BERT"}),
        "modeling_scratch_bert.py has no BERT, which auto_map names",
    ),
    "syntax": (
        lambda d: add_code(d, "def"),
        "does not load: invalid syntax .*modeling_scratch_bert.py.* Save the model",
    ),
    "import": (lambda d: add_code(d, "import private_of_mine"), "not found .*: private_of_mine"),
    "module": (lambda d: add_code(d, "from .none import x"), "none.py"),
    "NaN": (lambda d: edit_weights(d, with_nan), f"{BIAS} is not finite, as the training diverged"),
    "vocabulary": (add_token, "tokenizer of .* has 2001 entries, but the model's vocab_size is 2000"),
    "head": (lambda d: edit_weights(d, without_head), "is a ScratchBertForPreTraining without its head: cls.seq_rel"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGED.values(), ids=DAMAGED)
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
        (f"see {Path.home()}/notes", "a local path"),
        ("trained on /scratch/ann/texts", "a local path"),
        ("in ~/texts and elsewhere", "a local path"),
        (r"trained on \\server\texts", "a local path"),
        (r"trained on \\\\server\\texts", "a local path"),  # as in JSON
        ("Authorization: Bearer abc.def-" + "1" * 20, r"a secret \(Authorization\)"),
        ("dapi" + "0a" * 16, r"a secret \(Databricks Token\)"),
        ("DB_PASSWORD=hunter22", r"a secret \(Password\)"),
        ("hf_" + "x" * 34, r"a secret \(Hugging Face Token\)"),
        ("AKIA" + "X" * 16, r"a secret \(AWS Access Key\)"),
        ("sk-ant-api03-" + "x" * 24, r"a secret \(Anthropic Key\)"),
        ("github_pat_" + "x" * 22, r"a secret \(GitHub Token\)"),
        ("WANDB_API_KEY=" + "1a2b" * 10, r"a secret \(Key\)"),
        ("https://ann:xxxx@example.org", r"a secret \(Basic Auth Credentials\)"),
    ],
)
def test_private_text_is_found(text, message):
    with pytest.raises(ValueError, match=f"README.md contains {message} in line 2: remove it") as raised:
        reject_private(find_private(f"# A model\n{text}", "README.md"))
    assert text[-9:] not in str(raised.value)


def test_publish_names_what_is_private_in_all_files(directory):
    with open(directory / "README.md", "a") as card:
        card.write(SECRET)
    edit_config(directory, note="/home/ann/corpus")
    message = r"README.md contains a secret \(GitHub Token\) in line 8; .*config.json contains a local path in line"
    with pytest.raises(ValueError, match=message):
        public_files(directory)


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


def test_publish_does_not_read_the_pixels_of_a_picture(directory):
    pixels = b" C:\\Users\\ann "
    chunks = [(b"IHDR", bytes(13)), (b"IDAT", pixels), (b"tEXt", b"Author\0Ann"), (b"IEND", b"")]

    def write():
        parts = (len(data).to_bytes(4, "big") + kind + data + bytes(4) for kind, data in chunks)
        (directory / "curves.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))

    write()
    assert "curves.png" in names(directory)
    chunks[2] = b"tEXt", b"Source\0" + pixels
    write()
    with pytest.raises(ValueError, match=r"curves.png contains a local path"):
        public_files(directory)


@pytest.mark.parametrize(
    "name", ["curves.png", "kernels_scratch_bert.py", "model.safetensors", "1_Pooling", "1_Pooling/config.json"]
)
def test_publish_follows_no_link(name, embedder):
    file, outside = embedder / name, embedder.parent / "outside"
    if file.exists():
        file.rename(outside)
    else:
        outside.write_bytes(b"private")
    file.symlink_to(outside)
    with pytest.raises(ValueError, match=f"{Path(name).name} is a link, which is not followed"):
        public_files(embedder)


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
        ("1_Pooling/model.safetensors", "", "modules whose folders hold only a config.json"),
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


def test_directory_without_a_name_is_not_the_current_one(directory, monkeypatch, capsys):
    monkeypatch.chdir(directory)
    with pytest.raises(SystemExit):
        run_script(monkeypatch, "push_to_hub.py", "", "tester/model", "--dry_run")
    assert "the name of the directory is empty" in capsys.readouterr().err


def test_publish_tells_urls_from_local_paths(directory):
    with open(directory / "README.md", "a") as card:
        card.write(f"see https://example.org/home/ann, https://example.org{Path.home()}/x and `/homely`")
    assert names(directory) == MODEL_FILES
    labels = ["/people/person/nationality", "/api/users"]
    edit_config(directory, id2label=dict(enumerate(labels)), label2id={label: n for n, label in enumerate(labels)})
    assert names(directory) == MODEL_FILES
    edit_config(directory, tokenizer="/corpora/ann/bert")
    with pytest.raises(ValueError, match="config.json contains a local path"):
        public_files(directory)
    edit_config(directory, tokenizer=None, _name_or_path="/mnt/scratch/ann/bert")
    with pytest.raises(ValueError, match="config.json contains a local path"):
        public_files(directory)
