"""A Space: made with the model's push, pinned to its commit, in versions that are installed; and never another's."""

import ast
import importlib.metadata
import sys

import pytest
from huggingface_hub import HfApi, ModelCard

from helpers import run_process, run_script
from hub_server import USER
from scratch_bert.hub.publishing import push_to_hub
from scratch_bert_demo import space as space_module


@pytest.fixture(autouse=True)
def with_gradio(monkeypatch):
    """As if it were installed."""
    versions = importlib.metadata.version
    monkeypatch.setattr(space_module, "version", lambda name: "6.31.0" if name == "gradio" else versions(name))


@pytest.fixture
def push(directory, monkeypatch, hub):
    """Push the directory and a Space by the command, and return the new commit of the model."""

    def push(repo_id: str, space: str, *options: str) -> str:
        run_script(monkeypatch, "push_to_hub.py", directory, repo_id, "--space", space, *options)
        return HfApi().repo_info(repo_id if "/" in repo_id else f"{USER}/{repo_id}").sha

    return push


def test_space_shows_the_commit_that_was_pushed(push, directory, hub):
    commit = push("me/my-bert", "me/my-demo")
    app = hub.read("spaces/me/my-demo", "app.py").decode()
    constants = {node.value for node in ast.walk(ast.parse(app)) if isinstance(node, ast.Constant)}
    assert {"me/my-bert", commit} <= constants
    needed = dict(line.split("==") for line in hub.read("spaces/me/my-demo", "requirements.txt").decode().splitlines())
    assert needed["transformers"] == importlib.metadata.version("transformers")
    assert needed["torch"] == importlib.metadata.version("torch").split("+")[0]
    metadata = ModelCard(hub.read("spaces/me/my-demo", "README.md").decode()).data
    assert metadata["sdk"] == "gradio" and metadata["sdk_version"] == needed["gradio"]
    assert metadata["python_version"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert metadata["app_file"] == "app.py" and metadata["models"] == ["me/my-bert"]
    card = hub.read("me/my-bert", "README.md").decode()
    assert "# A model\n\n[Try it in a Space](https://huggingface.co/spaces/me/my-demo)\n" in card
    assert "Space" not in (directory / "README.md").read_text()


def test_next_push_updates_the_space(push, directory, hub):
    push("my-bert", "my-demo")
    (directory / "LICENSE").write_text("new")
    repository = hub.repositories[f"spaces/{USER}/my-demo"]
    stale = repository.commits[repository.find("main")].files
    stale |= {"scratch_bert/gone.py": stale["app.py"], "mine.txt": stale["app.py"]}
    assert push("my-bert", "my-demo") in hub.read(f"spaces/{USER}/my-demo", "app.py").decode()
    assert len(hub.messages(f"spaces/{USER}/my-demo")) == 3
    files = hub.files(f"spaces/{USER}/my-demo")
    assert "scratch_bert/gone.py" not in files and "mine.txt" in files


@pytest.mark.parametrize("card", [None, b"---\nsdk: gradio\n---\n# Another's\n"])
def test_space_of_another_origin_is_rejected_before_anything_is_sent(card, push, hub):
    api = HfApi()
    api.create_repo("me/theirs", repo_type="space", space_sdk="gradio")
    if card:
        api.upload_file(path_or_fileobj=card, path_in_repo="README.md", repo_id="me/theirs", repo_type="space")
    with pytest.raises(SystemExit, match="me/theirs was not made by scratch_bert"):
        push("me/my-bert", "me/theirs")
    assert "me/my-bert" not in hub.repositories


def test_dry_run_lists_the_space_and_sends_nothing(directory, hub, monkeypatch, capsys):
    run_script(monkeypatch, "push_to_hub.py", directory, "me/my-bert", "--space", "me/my-demo", "--dry_run")
    shown = capsys.readouterr().out
    assert "To be sent to me/my-bert:" in shown and "And to the Space me/my-demo:" in shown
    assert "  app.py\n" in shown and "scratch_bert_demo/page.py" in shown
    assert not hub.requests


def test_space_of_a_private_model_is_private(push, directory, hub):
    push_to_hub(directory, "me/my-bert", private=True)
    push("me/my-bert", "me/my-demo")
    assert hub.repositories["spaces/me/my-demo"].private
    hub.repositories["spaces/me/my-demo"].private = False
    pushed = hub.messages("me/my-bert")
    for repo_id, options in (("me/my-bert", []), ("me/another", ["--private"])):
        with pytest.raises(SystemExit, match="The Space me/my-demo is public, but the model is private"):
            push(repo_id, "me/my-demo", *options)
    assert hub.messages("me/my-bert") == pushed and "me/another" not in hub.repositories


@pytest.mark.parametrize("card", ["---\n# a comment\nlicense: mit\n---\nText.\n", "Text.\n\n```\n# code\n```\n"])
def test_link_to_the_space_is_in_the_text_of_any_card(card, directory, hub):
    (directory / "README.md").write_text(card)
    push_to_hub(directory, "me/my-bert", space="me/my-demo")
    link = "[Try it in a Space](https://huggingface.co/spaces/me/my-demo)"
    assert hub.read("me/my-bert", "README.md").decode() == card.replace("Text.", f"\n{link}\nText.")


@pytest.mark.slow
def test_files_of_the_space_are_all_that_its_page_imports(tmp_path):
    pytest.importorskip("gradio")
    files = space_module.space_files("me/my-bert", "main")
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    # Without the installed package, which would provide what is missing.
    code = """import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in str(finder).lower()]
from scratch_bert_demo import page, runs
print(page)"""
    assert str(tmp_path) in run_process("-c", code, cwd=tmp_path, PYTHONPATH="").stdout
    assert not any(path.startswith(("scratch_bert/training", "scratch_bert/hub", "scripts")) for path in files)


def test_space_gets_no_secret_and_nothing_that_a_link_leads_to(push, tmp_path, monkeypatch):
    package, outside = tmp_path / "scratch_bert", tmp_path / "outside.py"
    package.mkdir()
    (package / "code.py").write_text(f"KEY = 'ghp_{'x' * 36}'\n")
    monkeypatch.setattr(space_module, "ROOT", tmp_path)
    monkeypatch.setattr(space_module, "MODULES", ["scratch_bert"])
    with pytest.raises(SystemExit, match=r"scratch_bert/code.py contains a secret \(GitHub Token\) in line 1"):
        push("me/my-bert", "me/my-demo", "--dry_run")
    (package / "code.py").rename(outside)
    (package / "code.py").symlink_to(outside)
    with pytest.raises(SystemExit, match="code.py is a link, which is not followed"):
        push("me/my-bert", "me/my-demo", "--dry_run")
