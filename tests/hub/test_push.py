"""Every push opens again in a process without the package, and contains nothing private: the real client, and a small
Hub on loopback."""

import re
import shlex
import shutil
import socket
import textwrap
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi, constants
from safetensors.torch import load_file

from helpers import MODEL_FILES, ROOT, run_script, run_without_package
from hub_server import DROPPED, TOKEN, Fault, LocalHub
from scratch_bert import ScratchBertForPreTraining
from scratch_bert.checkpoints.open import open_pretrained
from scratch_bert.checkpoints.weights import find_weights
from scratch_bert.hub.publishing import publish, push_to_hub
from scratch_bert_options import network


REPOSITORY_FILES = MODEL_FILES | {".gitattributes"}
OPEN = """
    from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer, pipeline

    def open_revision(name, revision, file):
        options = dict(revision=revision, trust_remote_code=True)
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        mlm_model = AutoModelForMaskedLM.from_pretrained(name, **options)
        model = AutoModelForPreTraining.from_pretrained(name, **options)
        assert type(model).__module__.startswith("transformers_modules"), type(model)
        assert mlm_model.state_dict().keys() < model.state_dict().keys()
        assert len(pipeline("fill-mask", model=name, **options)(f"a class is an {tokenizer.mask_token}.")) == 5
        torch.save(model.state_dict(), file)

    name, *revisions = sys.argv[1:]
"""
OPEN_ALL = """
    for revision in revisions:
        open_revision(name, revision, revision.replace("/", "-"))
"""


def open_revisions(hub: LocalHub, repo_id: str, *revisions: str, home: Path, before="", after="") -> list[dict]:
    """The weights of these revisions, opened by a fresh process that runs more code `before` and `after`."""
    home.mkdir(exist_ok=True)
    code = "\n".join(textwrap.dedent(part) for part in (OPEN, before, OPEN_ALL, after))
    run_without_package(code, repo_id, *revisions, home=home, environment=hub.environment)
    return [torch.load(home / revision.replace("/", "-"), weights_only=True) for revision in revisions]


def assert_weights(opened: dict[str, torch.Tensor], file: Path) -> None:
    saved = load_file(file)
    assert saved.keys() <= opened.keys()
    for name, tensor in saved.items():
        assert opened[name].equal(tensor), name


def change_weights(directory: Path, **options) -> dict[str, torch.Tensor]:
    """Save the model with other weights, which are returned; `options` are those of save_pretrained."""
    model = ScratchBertForPreTraining.from_pretrained(directory)
    with torch.no_grad():
        model.bert.pooler.dense.bias.add_(1)
    (directory / "model.safetensors").unlink()
    model.save_pretrained(directory, **options)
    return model.state_dict()


@pytest.mark.smoke
def test_push_script(directory, hub, monkeypatch, capsys):
    run_script(monkeypatch, "push_to_hub.py", directory, "model", "--private", "--tag", "v1")
    printed = capsys.readouterr().out
    assert 'AutoModel.from_pretrained("tester/model", revision="v1", trust_remote_code=True)' in printed
    assert hub.repositories["tester/model"].private
    assert hub.files("tester/model") == REPOSITORY_FILES
    card = hub.read("tester/model", "README.md").decode()
    assert 'name = "tester/model"  # the' in card and 'name = "mine"' in card


def test_published_model_is_opened_and_checked_as_a_directory_is(directory, hub):
    push_to_hub(directory, "tester/model")
    (file,) = find_weights("tester/model")
    assert file.read_bytes() == (directory / "model.safetensors").read_bytes()
    _, heads = open_pretrained("tester/model")
    assert heads == {"MaskedLM", "NextSentencePrediction"}
    with pytest.raises(OSError, match="tester/nothing is not a directory, and could not be downloaded from the Hub"):
        open_pretrained("tester/nothing")


def test_push_sends_all_of_a_sentence_transformer(embedder, hub, monkeypatch, capsys):
    run_script(monkeypatch, "push_to_hub.py", embedder, "tester/model")
    sent, left_out = capsys.readouterr().out.split("Not sent:")
    assert "1_Pooling/config.json" in sent and "1_Pooling" not in left_out
    modules = {"modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"}
    assert hub.files("tester/model") == REPOSITORY_FILES | modules | {"1_Pooling/config.json"}
    for name in (*modules, "1_Pooling/config.json", "config.json"):
        assert hub.read("tester/model", name) == (embedder / name).read_bytes(), name
    (embedder / "modules.json").unlink()
    push_to_hub(embedder, "tester/model")
    assert "modules.json" not in hub.files("tester/model")


def test_push_script_to_a_branch_or_a_pull_request(directory, hub, monkeypatch, capsys):
    options = ["--revision", "trial", "--commit_message", "A trial"]
    run_script(monkeypatch, "push_to_hub.py", directory, "tester/model", *options)
    assert hub.messages("tester/model", "trial") == ["initial commit", "A trial"]
    run_script(monkeypatch, "push_to_hub.py", directory, "tester/model", "--pull_request")
    assert "Pull request: http" in capsys.readouterr().out
    assert hub.files("tester/model") == {".gitattributes"}
    push_to_hub(directory, "tester/model")
    run_script(monkeypatch, "push_to_hub.py", directory, "tester/model", "--pull_request")
    assert "already has these files" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.smoke
def test_push_opens_at_every_revision(directory, hub, tmp_path):
    """Tags, branches, pull requests; the revision pins weights and code, and a push replaces all earlier weights."""
    old = directory.rename(tmp_path / "old")
    shutil.copytree(old, directory)
    push_to_hub(old, "tester/model", tag="v1")
    new = change_weights(directory, max_shard_size="100KB")
    with open(directory / "modeling_scratch_bert.py", "a") as code:
        code.write("NEW = True\n")
    push_to_hub(directory, "tester/model", create_pr=True)
    push_to_hub(directory, "tester/model", revision="trial")
    push_to_hub(directory, "tester/model", tag="v2")
    assert "model.safetensors" not in hub.files("tester/model")

    before = """
        for auto_class in (transformers.AutoConfig, transformers.AutoModel):
            try:
                auto_class.from_pretrained(name, trust_remote_code=False)
            except ValueError as error:
                assert "trust_remote_code=True" in str(error), error
            else:
                raise AssertionError(auto_class)
    """
    after = """
        for pins, new in (
            ({"revision": "v1"}, False),
            ({"revision": "v2"}, True),
            ({"revision": "v2", "code_revision": "v1"}, False),
        ):
            model = transformers.AutoModel.from_pretrained(name, trust_remote_code=True, **pins)
            assert hasattr(sys.modules[type(model).__module__], "NEW") == new, pins
    """
    revisions = ["v1", "refs/pr/1", "trial", "v2", "main"]
    first, *rest = open_revisions(hub, "tester/model", *revisions, home=tmp_path / "home", before=before, after=after)
    assert_weights(first, old / "model.safetensors")
    for weights in rest:
        assert all(weights[name].equal(tensor) for name, tensor in new.items())


def test_push_retries_and_succeeds_completely_or_not_at_all(directory, hub, monkeypatch):
    hub.faults = [Fault("PUT", "/lfs/", 503), Fault("POST", "/preupload/", 502)]
    push_to_hub(directory, "tester/model")  # tried again
    assert not any(fault.times for fault in hub.faults)
    before = hub.repositories["tester/model"].find("main")
    change_weights(directory)
    hub.faults = [Fault("POST", "/commit/", 500)]
    with pytest.raises(SystemExit, match="error: .*500"):
        run_script(monkeypatch, "push_to_hub.py", directory, "tester/model")
    assert hub.repositories["tester/model"].find("main") == before


@pytest.mark.parametrize(
    ("repository", "options", "message"),
    [
        ("tester/mo del", [], "Repo id must"),
        ("model", ["--private"], "tester/model is already public"),
        ("model", ["--pull_request", "--tag", "v1"], "A pull request"),
        ("model", ["--tag", "v1"], "tester/model already has a tag v1"),
        ("model", ["--revision", ""], "'' cannot be a branch or a tag"),  # a variable that is not set
        ("model", ["--revision", "a..b"], "'a..b' cannot be"),
        ("model", ["--tag", "v 1", "--dry_run"], "'v 1' cannot be"),
        ("model", ["--commit_message", "hf_" + "x" * 34, "--dry_run"], "commit_message contains a secret"),
        ("model", ["--tag", "v1.lock", "--dry_run"], "'v1.lock' cannot be"),
        ("model", ["--tag", "main", "--dry_run"], "The tag main has the name of a branch"),
    ],
)
def test_push_rejects_options(repository, options, message, directory, hub, monkeypatch):
    push_to_hub(directory, "tester/model", tag="v1")
    pushed = hub.messages("tester/model")
    with pytest.raises(SystemExit, match=f"error: {message}"):
        run_script(monkeypatch, "push_to_hub.py", directory, repository, *options)
    assert hub.messages("tester/model") == pushed


@pytest.mark.parametrize(
    ("token", "endpoint", "message"),
    [
        ("hf_wrong", None, "error: .*(Invalid|401)"),
        ("", None, "error: .*hf auth login"),
        (TOKEN, "http://127.0.0.1:9", "error: .*Connection refused"),
    ],
    ids=["wrong token", "no token", "no network"],
)
def test_push_without_access(token, endpoint, message, directory, hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "ENDPOINT", endpoint or hub.endpoint)
    with pytest.raises(SystemExit, match=f"(?s){message}"):
        run_script(monkeypatch, "push_to_hub.py", directory, "tester/model")
    assert not hub.repositories


def test_push_after_an_outage(directory, hub, monkeypatch):
    api = HfApi(token=TOKEN)
    api.create_repo("tester/model")
    monkeypatch.setattr(network, "PATIENCE", -1)  # one failure
    hub.faults = [Fault("GET", "", DROPPED)]
    with pytest.raises(OSError, match="127.0.0.1 has failed"):
        publish(directory, "tester/model", api)
    publish(directory, "tester/model", api)
    assert hub.messages("tester/model") == ["initial commit", "Upload model"]


# --------------------------------------------------------------------------------------------- pushes in training


@pytest.fixture
def run_options(documents, tmp_path):
    """A run of six steps on a small text, saved at every second one."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join("\n".join(document[:10]) for document in documents[:20]))
    options = ["--train_file", text, "--vocab_size", 500, "--max_seq_length", 32, "--per_device_train_batch_size", 4]
    options += ["--max_steps", 6, "--save_steps", 2, "--save_total_limit", 10, "--eval_steps", 3, "--logging_steps", 1]
    return [*options, "--push_to_hub", "--hub_model_id", "tester/model", "--hub_always_push", "true"]


def assert_nothing_private(hub: LocalHub, *strings: str) -> None:
    """No local path, user, host or token in any object of any commit."""
    for content in hub.objects.values():
        for string in (TOKEN, str(ROOT), *strings):
            assert string.encode() not in content, string
    host = re.compile(rf"\b{re.escape(socket.gethostname())}\b".encode())
    for repository in hub.repositories.values():
        for commit in repository.commits.values():
            for path, oid in commit.files.items():
                assert path.endswith((".safetensors", "tokenizer.json", ".png")) or not host.search(hub.objects[oid])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["every_save", "checkpoint", "all_checkpoints", "end"])
def test_push_in_training_opens_at_every_commit(strategy, hub, run_options, tmp_path, monkeypatch, curves):
    output_dir = tmp_path / "marigolds-files" / "run"
    monkeypatch.setenv("USER", "marigold")
    monkeypatch.setenv("LOGNAME", "marigold")
    hub.faults = [Fault("PUT", "/lfs/", 503)]
    options = ["--hub_strategy", strategy, "--report_to", "tensorboard", "--hub_private_repo", "true"]
    run_script(monkeypatch, "pretrain.py", *run_options, *options, "--output_dir", output_dir)
    steps = [] if strategy == "end" else [2, 4, 6]
    in_training = [f"Training in progress, step {step}" for step in steps]
    assert hub.messages("tester/model") == ["initial commit", *in_training, "Model save"]
    assert not list(output_dir.glob(".push-*"))
    folders = {path.split("/")[0] for path in hub.files("tester/model") if "/" in path}
    named = {"checkpoint": {"last-checkpoint"}, "all_checkpoints": {f"checkpoint-{step}" for step in steps}}
    assert folders == named.get(strategy, set())
    assert {Path(path).name for path in hub.files("tester/model")} == REPOSITORY_FILES | {"curves.png"}
    assert_nothing_private(hub, "marigold", str(tmp_path))

    commits = hub.repositories["tester/model"].commits
    revisions = [commit for commit, content in commits.items() if content.message != "initial commit"]
    after = f"""
        for folder in {sorted(folders)}:
            options = dict(subfolder=folder, trust_remote_code=True)
            AutoTokenizer.from_pretrained(name, **options)
            AutoModelForMaskedLM.from_pretrained(name, **options)

        # Fine-tune it, push it with transformers' own methods, and open it again.
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True)
        model = AutoModelForPreTraining.from_pretrained(name, trust_remote_code=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        inputs = tokenizer("a class is an object", "so is a function", return_tensors="pt")
        for step in range(2):
            labels = {{"labels": inputs["input_ids"], "next_sentence_label": torch.tensor([0])}}
            model(**inputs, **labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.push_to_hub(name)
        tokenizer.push_to_hub(name)
        open_revision(name, "main", "main")
        opened = torch.load("main")
        assert all(opened[key].equal(tensor) for key, tensor in model.state_dict().items())
    """
    opened = open_revisions(hub, "tester/model", *revisions, home=tmp_path / "home", after=after)
    directories = [*(output_dir / f"checkpoint-{step}" for step in steps), output_dir]
    for weights, directory in zip(opened, directories, strict=True):
        assert_weights(weights, directory / "model.safetensors")


@pytest.mark.slow
def test_push_failures_do_not_stop_training(hub, run_options, tmp_path, monkeypatch, caplog):
    hub.faults = [Fault("POST", "/commit/", 500, times=4)]  # three pushes in training, and the last
    with pytest.raises(SystemExit) as stopped:
        run_script(monkeypatch, "pretrain.py", *run_options, "--output_dir", tmp_path / "run", "--hub_revision=trial")
    assert caplog.text.count("failed, training continues") == 3
    assert hub.messages("tester/model", "trial") == ["initial commit"]
    (advice,) = re.findall(r"then run: \S*python \S+push_to_hub\.py (.+)", str(stopped.value))
    run_script(monkeypatch, "push_to_hub.py", *shlex.split(advice))
    assert hub.files("tester/model") == {".gitattributes"}
    pushed = hub.read("tester/model", "model.safetensors", revision="trial")
    assert pushed == (tmp_path / "run/model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("token", ["hf_wrong", ""])
def test_push_access_is_checked_before_training(token, hub, run_options, tmp_path, monkeypatch):
    HfApi(token=TOKEN).create_repo("tester/model")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(SystemExit, match="(?s)error: Cannot push to the Hub.*hf auth login"):
        run_script(monkeypatch, "pretrain.py", *run_options, "--output_dir", tmp_path / "run")


@pytest.mark.slow
def test_push_by_the_stock_trainer_opens_if_it_saves_before_training(directory, hub, tmp_path):
    """As docs/publishing.md recommends."""
    push_to_hub(directory, "tester/model")
    run_without_package(
        """
        from transformers import AutoModelForMaskedLM, AutoTokenizer, Trainer, TrainingArguments
        tokenizer = AutoTokenizer.from_pretrained("tester/model", trust_remote_code=True)
        model = AutoModelForMaskedLM.from_pretrained("tester/model", trust_remote_code=True)
        input_ids = tokenizer("a class is an object")["input_ids"]
        # One step: the stock trainer pushes files while the next step's save writes them.
        args = TrainingArguments(output_dir="tuned", max_steps=1, save_steps=1, push_to_hub=True, use_cpu=True)
        dataset = [{"input_ids": input_ids, "labels": input_ids}] * 8
        trainer = Trainer(model=model, args=args, train_dataset=dataset, processing_class=tokenizer)
        trainer.save_model()
        trainer.train()
        """,
        home=tmp_path,
        environment=hub.environment,
    )
    assert hub.messages("tester/tuned")[-1] == "Training in progress, step 1"
    commits = hub.repositories["tester/tuned"].commits
    revisions = [commit for commit, content in commits.items() if content.message != "initial commit"]
    open_revisions(hub, "tester/tuned", *revisions, home=tmp_path / "home")
