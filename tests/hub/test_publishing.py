"""What is pushed opens again in a process without the package, and holds nothing private: the real client against a
small Hub on loopback."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers import ROOT, SCRIPTS, run_script, run_without_package
from hub_server import TOKEN, Fault, LocalHub
from scratch_bert import ScratchBertForPreTraining
from scratch_bert.hub.publishing import public_files


CODE = {"configuration_scratch_bert.py", "modeling_scratch_bert.py", "operations_scratch_bert.py"}
MODEL = CODE | {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
CARD = """---
license: apache-2.0
---
# A model

name = "directory"  # the directory or the repository that this card is in
name = "mine"
"""


@pytest.fixture
def directory(saved, tmp_path):
    """A model's directory with what a training leaves beside it."""
    directory = Path(shutil.copytree(saved, tmp_path / "model"))
    (directory / "README.md").write_text(CARD)
    (directory / "training_args.bin").write_bytes(b"private")
    (directory / "checkpoint-5").mkdir()
    (directory / "checkpoint-5/optimizer.pt").write_bytes(b"private")
    (directory / "runs").mkdir()
    return directory


@pytest.fixture
def hub():
    with LocalHub() as hub:
        yield hub


def run(hub: LocalHub, script: str, *arguments, check=True, **environment) -> subprocess.CompletedProcess:
    """A script in its own process, as the client reads the Hub's address when it is imported."""
    command = [sys.executable, SCRIPTS / script, *map(str, arguments)]
    result = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **hub.environment, **environment}
    )
    assert not check or result.returncode == 0, result.stderr
    return result


OPEN = """
    from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer, pipeline
    name, options = sys.argv[1], dict(revision=sys.argv[2], trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(name, **options)
    words = AutoModelForMaskedLM.from_pretrained(name, **options)
    model = AutoModelForPreTraining.from_pretrained(name, **options)
    assert type(model).__module__.startswith("transformers_modules"), type(model)
    assert words.state_dict().keys() < model.state_dict().keys()
    assert len(pipeline("fill-mask", model=name, **options)(f"a class is an {tokenizer.mask_token}.")) == 5
    torch.save(model.state_dict(), sys.argv[3])
"""
FINE_TUNE_AND_PUSH = """
    from transformers import AutoModelForPreTraining, AutoTokenizer
    name = sys.argv[1]
    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True)
    model = AutoModelForPreTraining.from_pretrained(name, trust_remote_code=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    inputs = tokenizer("a class is an object", "so is a function", return_tensors="pt")
    for step in range(2):
        labels = {"labels": inputs["input_ids"], "next_sentence_label": torch.tensor([0])}
        model(**inputs, **labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.push_to_hub(name)
    tokenizer.push_to_hub(name)
    torch.save(model.state_dict(), sys.argv[2])
"""


def open_in_fresh_process(hub: LocalHub, repo_id: str, revision: str, home: Path) -> dict[str, torch.Tensor]:
    """Checks that it opens, and gives the weights."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    run_without_package(OPEN, repo_id, revision, home / "weights", home=home, environment=hub.environment)
    return torch.load(home / "weights", weights_only=True)


def assert_weights(opened: dict[str, torch.Tensor], file: Path) -> None:
    saved = load_file(file)
    assert saved.keys() <= opened.keys()
    for name, tensor in saved.items():
        assert opened[name].equal(tensor), name


# ---------------------------------------------------------------------------------------------------- what is sent


def test_nothing_but_the_model_is_public(directory, monkeypatch, capsys):
    assert {file.name for file in public_files(directory)} == MODEL
    run_script(monkeypatch, "push_to_hub.py", directory, "tester/model", "--dry_run")  # no network is needed
    printed = capsys.readouterr().out
    sent, left_out = printed.split("Not sent:")
    assert all(name in sent for name in MODEL)
    assert left_out.split() == ["checkpoint-5,", "runs,", "training_args.bin"]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("config.json", "no config.json: it is no model's directory"),
        ("README.md", "no README.md: write a model card"),
        ("tokenizer_config.json", "no tokenizer_config.json: save the tokenizer"),
        ("model.safetensors", "model.safetensors is missing or cut short"),
        ("tokenizer.json", "no tokenizer.json or vocab.txt: save the tokenizer"),
        ("operations_scratch_bert.py", "no operations_scratch_bert.py: save the model again"),
    ],
)
def test_missing_parts(file, message, directory):
    (directory / file).unlink()
    with pytest.raises(ValueError, match=message):
        public_files(directory)


def test_damaged_weights_and_foreign_configs(directory):
    weights = directory / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-100])
    with pytest.raises(ValueError, match="model.safetensors is missing or cut short"):
        public_files(directory)
    weights.write_bytes(content)
    vocabulary = (directory / "tokenizer.json").read_text()
    (directory / "tokenizer.json").write_text(vocabulary[:-100])
    with pytest.raises(ValueError, match="tokenizer.json cannot be read"):
        public_files(directory)
    (directory / "tokenizer.json").write_text(vocabulary)
    config = json.loads((directory / "config.json").read_text())
    del config["auto_map"]["AutoModelForMaskedLM"]
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="names no code for AutoModelForMaskedLM"):
        public_files(directory)
    with pytest.raises(ValueError, match="There is no directory"):
        public_files(directory / "nowhere")


def test_a_model_of_transformers_own_needs_no_code(directory):
    for file in directory.glob("*.py"):
        file.unlink()
    config = json.loads((directory / "config.json").read_text())
    del config["auto_map"]
    (directory / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    assert {file.name for file in public_files(directory)} == MODEL - CODE
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="names no code for"):
        public_files(directory)


def test_shards(directory):
    ScratchBertForPreTraining.from_pretrained(directory).save_pretrained(directory, max_shard_size="100KB")
    with pytest.raises(ValueError, match="delete the older"):
        public_files(directory)
    (directory / "model.safetensors").unlink()
    files = {file.name for file in public_files(directory)}
    shards = {path.name for path in directory.glob("model-*.safetensors")}
    assert len(shards) > 1
    assert files == MODEL - {"model.safetensors"} | shards | {"model.safetensors.index.json"}
    (directory / min(shards)).unlink()
    with pytest.raises(ValueError, match=f"{min(shards)} is missing"):
        public_files(directory)


@pytest.mark.parametrize(
    ("private", "message"),
    [
        ("trained on /home/ann/texts", "a path of this machine in line 8"),
        (r"trained on C:\Users\ann\texts", "a path of this machine in line 8"),
        ("from host:/home/ann", "a path of this machine in line 8"),
        (f"see {Path.home()}/notes", "a path of this machine in line 8"),
        ("token=hf_" + "x" * 34, "an access token in line 8"),
    ],
)
def test_private_text(private, message, directory):
    (directory / "README.md").write_text(CARD + private.format(directory=directory))
    with pytest.raises(ValueError, match=f"README.md holds {message}") as raised:
        public_files(directory)
    assert "x" * 34 not in str(raised.value)


def test_addresses_are_no_paths(directory):
    text = f"see https://example.org/home/ann, https://example.org{Path.home()}/x and `/homely`"
    (directory / "README.md").write_text(CARD + text)
    config = json.loads((directory / "config.json").read_text())
    config["auto_map"]["AutoTokenizer"] = ["tokens.Tokens", None]  # of no concern
    (directory / "config.json").write_text(json.dumps(config))
    assert {file.name for file in public_files(directory)} == MODEL
    (directory / "config.json").write_text(json.dumps(config | {"_name_or_path": "/mnt/scratch/ann/bert"}))
    with pytest.raises(ValueError, match="config.json holds a path of this machine"):
        public_files(directory)


# ------------------------------------------------------------------------------------------- the script and the Hub


def test_push_and_open(directory, hub, tmp_path):
    printed = run(hub, "push_to_hub.py", directory, "model", "--private", "--tag", "v1").stdout
    assert 'AutoModel.from_pretrained("tester/model", revision="v1", trust_remote_code=True)' in printed
    assert hub.files("tester/model") == MODEL | {".gitattributes"}
    assert hub.repositories["tester/model"].private
    card = hub.read("tester/model", "README.md").decode()
    assert 'name = "tester/model"  # the' in card and 'name = "mine"' in card
    assert_weights(open_in_fresh_process(hub, "tester/model", "v1", tmp_path / "one"), directory / "model.safetensors")
    assert "has a tag v1 already" in run(hub, "push_to_hub.py", directory, "model", "--tag", "v1", check=False).stderr


def test_the_local_hub_answers_as_the_client_expects(hub, tmp_path):
    code = """
        import io
        from huggingface_hub import HfApi, hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
        api = HfApi()
        api.create_repo("model", private=True)
        api.upload_file(path_or_fileobj=b"text", path_in_repo="a/b.txt", repo_id="tester/model")
        api.upload_file(path_or_fileobj=b"weights", path_in_repo="c.bin", repo_id="tester/model")
        assert api.file_exists("tester/model", "c.bin") and not api.file_exists("tester/model", "d.bin")
        assert {item.path for item in api.list_repo_tree("tester/model")} == {".gitattributes", "a", "c.bin"}
        assert {item.path for item in api.list_repo_tree("tester/model", "a")} == {"a/b.txt"}
        for file, content in (("a/b.txt", b"text"), ("c.bin", b"weights")):
            with open(hf_hub_download("tester/model", file), "rb") as stream:
                assert stream.read() == content
        api.create_tag("tester/model", tag="v1")
        api.delete_file("c.bin", "tester/model")
        assert not api.file_exists("tester/model", "c.bin") and api.file_exists("tester/model", "c.bin", revision="v1")
        assert [tag.name for tag in api.list_repo_refs("tester/model").tags] == ["v1"]
        for error, call in (
            (EntryNotFoundError, lambda: hf_hub_download("tester/model", "d.bin")),
            (RevisionNotFoundError, lambda: hf_hub_download("tester/model", "a/b.txt", revision="v2")),
            (RepositoryNotFoundError, lambda: hf_hub_download("tester/none", "a/b.txt")),
            (RepositoryNotFoundError, lambda: api.model_info("tester/model", token=False)),
        ):
            try:
                call()
            except error:
                continue
            raise AssertionError(error)
    """
    environment = {**os.environ, **hub.environment, "HF_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, check=True)
    assert [request for request in hub.requests if request.startswith("GET /lfs/")]  # large files are redirected


@pytest.mark.slow
def test_branches_and_pull_requests(directory, hub, tmp_path):
    run(hub, "push_to_hub.py", directory, "tester/model", "--revision", "trial", "--commit_message", "A trial")
    assert hub.files("tester/model") == {".gitattributes"}
    assert hub.messages("tester/model", "trial") == ["initial commit", "A trial"]
    printed = run(hub, "push_to_hub.py", directory, "tester/model", "--pull_request").stdout
    assert "Pull request: http" in printed
    assert hub.files("tester/model") == {".gitattributes"}
    opened = open_in_fresh_process(hub, "tester/model", "refs/pr/1", tmp_path / "one")
    assert_weights(opened, directory / "model.safetensors")


@pytest.mark.slow
def test_faults_of_the_network_and_of_the_user(directory, hub):
    hub.faults = [Fault("PUT", "/lfs/", 503), Fault("POST", "/preupload/", 502)]
    run(hub, "push_to_hub.py", directory, "tester/model")  # tried again
    assert not any(fault.times for fault in hub.faults)
    before = hub.repositories["tester/model"].find("main")

    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"id2label": {"0": "no", "1": "yes"}}))
    hub.faults = [Fault("POST", "/commit/", 500)]
    result = run(hub, "push_to_hub.py", directory, "tester/model", check=False)
    assert result.returncode == 1 and "500" in result.stderr
    assert "Traceback" not in result.stderr
    assert hub.repositories["tester/model"].find("main") == before

    for repository, environment, message in (
        ("tester/model", {"HF_TOKEN": "hf_wrong"}, "Invalid user token"),
        ("tester/model", {"HF_TOKEN": "", "HF_HOME": str(directory)}, "You are not logged in"),
        ("tester/mo del", {}, "error: "),
        ("tester/model", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "error: "),
    ):
        result = run(hub, "push_to_hub.py", directory, repository, check=False, **environment)
        assert result.returncode == 1 and message in result.stderr and "Traceback" not in result.stderr, result.stderr


@pytest.mark.slow
def test_a_push_replaces_what_the_new_model_does_without(directory, hub, tmp_path):
    run(hub, "push_to_hub.py", directory, "tester/model")
    assert "public already" in run(hub, "push_to_hub.py", directory, "model", "--private", check=False).stderr
    torch.manual_seed(1)
    model = ScratchBertForPreTraining(ScratchBertForPreTraining.from_pretrained(directory).config)
    (directory / "model.safetensors").unlink()
    model.save_pretrained(directory, max_shard_size="100KB")
    run(hub, "push_to_hub.py", directory, "tester/model")
    assert "model.safetensors" not in hub.files("tester/model")
    opened = open_in_fresh_process(hub, "tester/model", "main", tmp_path / "home")
    assert all(opened[name].equal(tensor) for name, tensor in model.state_dict().items())


@pytest.mark.slow
def test_a_push_that_is_cut_off_changes_nothing(directory, hub):
    run(hub, "push_to_hub.py", directory, "tester/model")
    before = hub.repositories["tester/model"].find("main")
    with torch.no_grad():
        model = ScratchBertForPreTraining.from_pretrained(directory)
        model.bert.pooler.dense.bias.fill_(1)
    model.save_pretrained(directory)
    hub.faults = [Fault("PUT", "/lfs/", status=None, delay=3)]
    command = [sys.executable, SCRIPTS / "push_to_hub.py", directory, "tester/model"]
    process = subprocess.Popen(command, env={**os.environ, **hub.environment}, stderr=subprocess.DEVNULL)
    uploads = len([request for request in hub.requests if request.startswith("PUT")])
    deadline = time.monotonic() + 60
    while len([request for request in hub.requests if request.startswith("PUT")]) == uploads:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert hub.repositories["tester/model"].find("main") == before
    run(hub, "push_to_hub.py", directory, "tester/model")
    assert hub.repositories["tester/model"].find("main") != before


@pytest.mark.slow
def test_a_revision_pins_weights_and_code(directory, hub, tmp_path):
    run(hub, "push_to_hub.py", directory, "tester/model", "--tag", "v1")
    with open(directory / "modeling_scratch_bert.py", "a") as code:
        code.write("NEW = True\n")
    run(hub, "push_to_hub.py", directory, "tester/model", "--tag", "v2")
    printed = run_without_package(
        """
        for pins in ({"revision": "v1"}, {"revision": "v2"}, {"revision": "v2", "code_revision": "v1"}):
            model = transformers.AutoModel.from_pretrained("tester/model", trust_remote_code=True, **pins)
            print(hasattr(sys.modules[type(model).__module__], "NEW"))
        """,
        home=tmp_path,
        environment=hub.environment,
    )
    assert printed.split() == ["False", "True", "False"]


def test_without_trust_it_refuses_and_says_what_to_do(directory, hub, tmp_path):
    run(hub, "push_to_hub.py", directory, "tester/model")
    printed = run_without_package(
        """
        for auto_class in ("AutoModel", "AutoTokenizer"):
            try:
                getattr(transformers, auto_class).from_pretrained(sys.argv[1], trust_remote_code=False)
            except ValueError as error:
                print(error)
        """,
        "tester/model",
        home=tmp_path,
        environment=hub.environment,
    )
    assert "trust_remote_code=True" in printed


# --------------------------------------------------------------------------------------------- pushes in training


SHORT_RUN = ["--max_steps", 6, "--save_steps", 2, "--save_total_limit", 10, "--eval_steps", 3, "--logging_steps", 1]


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
def test_every_push_of_a_training_opens(strategy, hub, tmp_path):
    output_dir = tmp_path / "marigolds-files" / "run"
    hub.faults = [Fault("PUT", "/lfs/", 503)]
    run(
        hub,
        "pretrain.py",
        *SHORT_RUN,
        *("--output_dir", output_dir, "--push_to_hub", "--hub_model_id", "tester/model", "--hub_strategy", strategy),
        *("--hub_always_push", "true", "--report_to", "tensorboard", "--hub_private_repo", "true"),
        USER="marigold",
        LOGNAME="marigold",
    )
    in_training = [] if strategy == "end" else [f"Training in progress, step {step}" for step in (2, 4, 6)]
    assert hub.messages("tester/model") == ["initial commit", *in_training, "Model save"]
    assert not list(output_dir.glob(".push-*"))

    repository = hub.repositories["tester/model"]
    commits = [commit for commit, content in repository.commits.items() if content.message != "initial commit"]
    weights = [output_dir / f"checkpoint-{step}/model.safetensors" for step in (2, 4, 6)[: len(in_training)]]
    for commit, file in zip(commits, [*weights, output_dir / "model.safetensors"], strict=True):
        assert_weights(open_in_fresh_process(hub, "tester/model", commit, tmp_path / "home"), file)
    folders = {path.split("/")[0] for path in hub.files("tester/model") if "/" in path}
    steps = {"checkpoint-2", "checkpoint-4", "checkpoint-6"}
    assert folders == {"checkpoint": {"last-checkpoint"}, "all_checkpoints": steps}.get(strategy, set())
    names = {Path(path).name for path in hub.files("tester/model")}
    assert names == MODEL | {".gitattributes", "curves.png"}
    for folder in folders:
        run_without_package(
            """
            from transformers import AutoModelForMaskedLM, AutoTokenizer
            options = dict(subfolder=sys.argv[2], trust_remote_code=True)
            AutoTokenizer.from_pretrained(sys.argv[1], **options)
            AutoModelForMaskedLM.from_pretrained(sys.argv[1], **options)
            """,
            *("tester/model", folder),
            home=tmp_path / "home",
            environment=hub.environment,
        )
    assert_nothing_private(hub, "marigold", str(tmp_path))

    home = tmp_path / "other"
    home.mkdir()
    run_without_package(FINE_TUNE_AND_PUSH, "tester/model", home / "new", home=home, environment=hub.environment)
    opened = open_in_fresh_process(hub, "tester/model", "main", tmp_path / "home")
    trained = torch.load(home / "new", weights_only=True)
    assert all(opened[name].equal(tensor) for name, tensor in trained.items())


@pytest.mark.slow
def test_a_training_outlives_a_hub_that_does_not_answer(hub, tmp_path):
    hub.faults = [Fault("POST", "/commit/", 500, times=4)]  # three pushes in training, and the last
    arguments = ["--output_dir", tmp_path / "run", "--push_to_hub", "--hub_model_id", "tester/model"]
    arguments += ["--hub_revision", "trial", "--hub_always_push", "true"]
    result = run(hub, "pretrain.py", *SHORT_RUN, *arguments, check=False)
    assert result.returncode == 1
    assert result.stderr.count("failed, training goes on") == 3
    assert hub.messages("tester/model", "trial") == ["initial commit"]
    (advice,) = re.findall(r"then: python scripts/push_to_hub.py (.+)", result.stderr)
    assert "Traceback" not in result.stderr
    run(hub, "push_to_hub.py", *shlex.split(advice))
    assert hub.files("tester/model") == {".gitattributes"}
    pushed = hub.read("tester/model", "model.safetensors", revision="trial")
    assert pushed == (tmp_path / "run/model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_hub_that_is_not_there_is_told_before_training(hub, tmp_path):
    options = ["--push_to_hub", "--hub_model_id", "tester/model", "--output_dir", tmp_path / "run"]
    for environment in ({"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_TOKEN": "hf_wrong"}):
        result = run(hub, "pretrain.py", *options, check=False, **environment)
        assert result.returncode == 1 and "error: The Hub cannot be pushed to" in result.stderr
        assert "hf auth login" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.slow
def test_stock_trainer_that_saves_once_before_it_trains(directory, hub, tmp_path):
    """As the README says: then its pushes in training open, too."""
    run(hub, "push_to_hub.py", directory, "tester/model")
    run_without_package(
        """
        from transformers import AutoModelForMaskedLM, AutoTokenizer, Trainer, TrainingArguments
        tokenizer = AutoTokenizer.from_pretrained("tester/model", trust_remote_code=True)
        model = AutoModelForMaskedLM.from_pretrained("tester/model", trust_remote_code=True)
        row = tokenizer("a class is an object")
        rows = [{"input_ids": row["input_ids"], "labels": row["input_ids"]}] * 8
        args = TrainingArguments(
            output_dir="tuned", max_steps=2, save_steps=1, push_to_hub=True, hub_always_push=True, use_cpu=True
        )
        trainer = Trainer(model=model, args=args, train_dataset=rows, processing_class=tokenizer)
        trainer.save_model()
        trainer.train()
        """,
        home=tmp_path,
        environment=hub.environment,
    )
    repository = hub.repositories["tester/tuned"]
    assert hub.messages("tester/tuned")[-1] == "Training in progress, step 2"
    for commit, content in repository.commits.items():
        if content.message != "initial commit":
            run_without_package(
                "transformers.AutoModelForMaskedLM.from_pretrained('tester/tuned', revision=sys.argv[1], trust_remote_code=True)",
                commit,
                home=tmp_path,
                environment=hub.environment,
            )
