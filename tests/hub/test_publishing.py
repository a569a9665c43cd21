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


def remove_weights(directory: Path, prefix: str) -> None:
    weights = load_file(directory / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if not name.startswith(prefix)}
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})


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


@pytest.mark.parametrize("token", [True, False], ids=["that of the user", "none"])
def test_publish_takes_a_switch_for_the_token(token, directory):
    """As `HfApi(token=True)` does."""
    assert public_files(directory, token) == public_files(directory)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        pytest.param("config.json", "no config.json: this is not a model's directory", id="config"),
        pytest.param("README.md", "no README.md: write a model card", id="card"),
        pytest.param("tokenizer_config.json", "no tokenizer_config.json: save the tokenizer", id="tokenizer config"),
        pytest.param("tokenizer.json", "no tokenizer.json or vocab.txt: save the tokenizer", id="tokenizer"),
        pytest.param(
            "model.safetensors", "model.safetensors is missing: open the model and save it again", id="weights"
        ),
        pytest.param("kernels_scratch_bert.py", "no kernels_scratch_bert.py: save the model again", id="code"),
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
            lambda d: truncate(d / "model.safetensors"), "model.safetensors cannot be read, it is trunc", id="weights"
        ),
        pytest.param(lambda d: truncate(d / "tokenizer.json"), "tokenizer.json cannot be read", id="tokenizer"),
        pytest.param(lambda d: (d / "config.json").write_text("[]"), "config.json holds a list", id="config"),
        pytest.param(lambda d: (d / "tokenizer.json").write_text("[]"), "tokenizer.json holds a list", id="ids"),
        pytest.param(lambda d: (d / "vocab.txt").write_bytes(b"\xff"), "vocab.txt is not UTF-8", id="text"),
        pytest.param(lambda d: (d / "curves.png").write_text("a"), "curves.png is not a PNG", id="picture"),
        pytest.param(lambda d: (d / "README.md").write_text(""), "README.md is empty", id="empty card"),
        pytest.param(
            lambda d: (d / "README.md").write_text("---\nlicense: [mit\n---\n"), "README.md: the metadata", id="card"
        ),
        pytest.param(
            lambda d: edit_config(d, auto_map={k: v for k, v in AUTO_MAP.items() if k != "AutoModelForMaskedLM"}),
            "no auto_map entry for AutoModelForMaskedLM:",
            id="auto_map",
        ),
        pytest.param(lambda d: edit_config(d, auto_map=[1]), r"auto_map is \[1\], not an object", id="auto_map list"),
        pytest.param(
            lambda d: edit_config(d, auto_map=dict.fromkeys(AUTO_MAP, "a--b.C")),
            "auto_map has 'a--b.C' for AutoConfig, not a module and its class",
            id="elsewhere",
        ),
        pytest.param(lambda d: add_code(d, "def"), "modeling_scratch_bert.py is not Python code", id="syntax"),
        pytest.param(lambda d: add_code(d, "return"), "modeling_scratch_bert.py is not Python code", id="compile"),
        pytest.param(
            lambda d: add_code(d, "import private_of_mine"), "imports private_of_mine, which is not", id="import"
        ),
        pytest.param(lambda d: add_code(d, "from ..private import KEY"), "import from '..private'", id="parent"),
        pytest.param(lambda d: add_code(d, "from . import private"), "import from '.'", id="package"),
        pytest.param(lambda d: add_code(d, '"""\nfrom .x import y\n"""'), "import from '.x'", id="docstring"),
        pytest.param(lambda d: add_code(d, "from .none import x"), "has no none.py: save the model", id="module"),
        pytest.param(
            lambda d: edit_weights(d, "cls.predictions.bias", lambda bias: bias.fill_(float("nan"))),
            "cls.predictions.bias is not finite. The training has diverged",
            id="NaN",
        ),
        pytest.param(
            lambda d: edit_weights(d, "bert.embeddings.word_embeddings.weight", lambda weight: weight[:-1]),
            r"do not fit its config.json: bert.embeddings.word_embeddings.weight \(1999, 32\) instead of \(2000, 32\)",
            id="embeddings",
        ),
        pytest.param(
            lambda d: add_token(d),
            "tokenizer of .* has 2001 entries, but the model's vocab_size is 2000",
            id="vocabulary",
        ),
        pytest.param(
            lambda d: edit_weights(d, "cls.predictions.bias", lambda bias: bias.to(torch.int8)),
            "cls.predictions.bias is int8. Quantized weights are not supported",
            id="quantized",
        ),
        pytest.param(
            lambda d: remove_weights(d, "cls.seq_relationship"),
            "is a ScratchBertForPreTraining without its head: cls.seq_relationship.bias and 1 more, missing",
            id="head",
        ),
        pytest.param(lambda d: d.rename(d.parent / "elsewhere"), "model does not exist", id="directory"),
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
        pytest.param("trained on /mnt/nas/texts", "a local path in line 8", id="mounted"),
        pytest.param("see file:///home/ann/texts", "a local path in line 8", id="file URL"),
        pytest.param("trained on D:/data/texts", "a local path in line 8", id="drive"),
        pytest.param("from host:/home/ann", "a local path in line 8", id="remote path"),
        pytest.param(f"see {Path.home()}/notes", "a local path in line 8", id="own home"),
        pytest.param("my own token", "an access token in line 8", id="own token"),
        pytest.param("hf_" + "x" * 34, r"a secret \(Hugging Face Token\) in line 8", id="Hugging Face"),
        pytest.param("AKIA" + "X" * 16, r"a secret \(AWS Access Key\) in line 8", id="AWS"),
        pytest.param("AWS_SECRET_ACCESS_KEY=" + "x1/+" * 10, r"a secret \(Key\) in line 8", id="AWS secret"),
        pytest.param("ghp_" + "x" * 36, r"a secret \(GitHub Token\) in line 8", id="GitHub"),
        pytest.param("github_pat_" + "x" * 82, r"a secret \(GitHub Token\) in line 8", id="GitHub, fine-grained"),
        pytest.param("xoxb-12345678901-123456-" + "x" * 24, r"a secret \(Slack Token\) in line 8", id="Slack"),
        pytest.param("-----BEGIN RSA PRIVATE KEY-----", r"a secret \(Private Key\) in line 8", id="private key"),
        pytest.param("https://ann:xxxx@example.org", r"a secret \(Basic Auth Credentials\) in line 8", id="password"),
    ],
)
def test_publish_rejects_private_text(text, message, directory, monkeypatch):
    with open(directory / "README.md", "a") as card:
        card.write(text)
    with pytest.raises(ValueError, match=f"README.md contains {message}") as raised:
        public_files(directory, token="my own token")
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


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([], "index.json holds a list"),
        ({}, "has no weight_map"),
        ({"weight_map": {"a": None}}, "has no weight_map"),
        ({"weight_map": {"a": "../x.safetensors"}}, "names '../x.safetensors', which is not a file beside it"),
        ({"weight_map": {"a": "training_args.bin"}}, "training_args.bin is not a safetensors file"),
        ({"weight_map": {"a": "x.safetensors"}}, "x.safetensors is missing"),
    ],
)
def test_publish_sends_the_files_of_an_index_only_from_beside_it(index, message, directory):
    (directory / "model.safetensors").rename(directory.parent / "x.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=message):
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
        ("modules.json", "{", "must name a Transformer here"),
        ("modules.json", '{"path": ""}', "must name a Transformer here"),
        ("modules.json", '[{"path": "", "type": "sentence_transformers.models.Router"}]', "must name a Transformer"),
        ("modules.json", modules(".."), "must name a Transformer"),
        ("modules.json", modules("2_None"), "must name a Transformer"),
        ("modules.json", modules("1_Pooling", "mine.Pooling"), "must name a Transformer"),
        ("1_Pooling/config.json", "[]", "1_Pooling/config.json holds a list"),
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
    with pytest.raises(ValueError, match="is a link, which is not followed|must name"):
        public_files(embedder)


@pytest.mark.parametrize(
    ("repository", "options", "message"),
    [
        ("tester/mo del", [], "Repo id must"),
        ("", [], "Repo id must"),
        ("model", ["--space", "a/b/c"], "Repo id must"),
        ("model", ["--revision", "../../x"], "'../../x' cannot be the name of a branch"),
        ("model", ["--revision", "a" * 40], "'a+' cannot be the name of a branch"),
        ("model", ["--revision", ""], "'' cannot be the name of a branch"),
        ("model", ["--tag", "a b..c"], "'a b..c' cannot be the name of a tag"),
        ("model", ["--tag", "refs/tags/v1"], "'refs/tags/v1' cannot be the name of a tag"),
        ("model", ["--tag", "v1.lock"], "'v1.lock' cannot be the name of a tag"),
        ("model", ["--tag", "main"], "main cannot be the name of both a branch and a tag"),
        ("model", ["--commit_message", " "], "The commit message is empty"),
    ],
)
def test_names_are_checked_before_anything_is_sent(repository, options, message, directory, monkeypatch):
    with pytest.raises(SystemExit, match=f"error: {message}"):
        run_script(monkeypatch, "push_to_hub.py", directory, repository, *options, "--dry_run")


def test_directory_without_a_name_is_not_the_current_one(directory, monkeypatch, capsys):
    monkeypatch.chdir(directory)
    with pytest.raises(SystemExit):
        run_script(monkeypatch, "push_to_hub.py", "", "tester/model", "--dry_run")
    assert "the name of the directory is empty" in capsys.readouterr().err


def test_names_that_git_allows(directory, monkeypatch, capsys):
    options = ["--revision", "refs/pr/1", "--tag", "v1.0/β-2"]
    run_script(monkeypatch, "push_to_hub.py", directory, "tester/model", *options, "--dry_run")
    assert "To be sent" in capsys.readouterr().out


def test_publish_tells_urls_from_local_paths(directory):
    with open(directory / "README.md", "a") as card:
        card.write(f"see https://example.org/home/ann, https://example.org{Path.home()}/x and `/homely`")
    edit_config(directory, auto_map={**AUTO_MAP, "AutoTokenizer": ["tokens.Tokens", None]})  # not checked
    assert names(directory) == MODEL_FILES
    edit_config(directory, _name_or_path="/mnt/scratch/ann/bert")
    with pytest.raises(ValueError, match="config.json contains a local path"):
        public_files(directory)
