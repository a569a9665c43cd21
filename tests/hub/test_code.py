"""The code in a model's directory: what it needs, and its replacement by newer code."""

import json
import shutil
import sys

import pytest
from huggingface_hub import HfApi

from helpers import CODE_FILES, ROOT, edit_config, run_process, run_script
from scratch_bert.hub.code import CODE_NOTE, update_code
from scratch_bert.model.configuration_scratch_bert import CODE_VERSION, OLDEST


@pytest.fixture
def old(tmp_path):
    """A model's directory with the code of commit d23c185."""
    checkpoint = ROOT / "examples/models/interrupted-run/checkpoint-20"
    names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    directory = tmp_path / "old"
    directory.mkdir()
    for file in [*(checkpoint / name for name in names), *checkpoint.glob("*_scratch_bert.py")]:
        shutil.copy(file, directory)
    note = "The model's code is downloaded with the weights and runs on your machine: read it first.\nAnd pin it."
    (directory / "README.md").write_text(f"---\nlicense: mit\n---\n# A model\n\nBefore.\n\n{note}\n\nAfter.\n")
    return directory


def test_update_of_the_code_changes_nothing_but_the_code_and_what_is_said_of_it(old):
    """That the outputs stay is tested in tests/test_frozen_models.py."""
    (old / "my_scratch_bert.py").write_text("class Mine: ...")  # of the user, like the entry
    auto_map = json.loads((old / "config.json").read_text())["auto_map"]
    edit_config(old, auto_map=auto_map | {"AutoModelForCausalLM": "my_scratch_bert.Mine"})
    before = {file.name: file.read_bytes() for file in old.iterdir()}
    update_code(old)
    after = {file.name: file.read_bytes() for file in old.iterdir()}
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        assert after[name] == before[name]
    assert {name for name in after if name.endswith(".py")} == {*CODE_FILES, "my_scratch_bert.py"}
    config, config_before = json.loads(after["config.json"]), json.loads(before["config.json"])
    assert config.pop("code_version") == CODE_VERSION
    assert config == config_before
    assert after["README.md"].decode() == f"---\nlicense: mit\n---\n# A model\n\nBefore.\n\n{CODE_NOTE}\n\nAfter.\n"
    assert after["requirements.txt"].decode() == f"transformers>={OLDEST['transformers']}\ntorch>={OLDEST['torch']}\n"


def test_push_with_updated_code_leaves_none_of_the_old(old, hub, monkeypatch):
    run_script(monkeypatch, "push_to_hub.py", old, "tester/model")
    assert "operations_scratch_bert.py" in HfApi().list_repo_files("tester/model")
    run_script(monkeypatch, "push_to_hub.py", old, "tester/model", "--update_code", "--dry_run")
    assert (old / "operations_scratch_bert.py").exists()
    run_script(monkeypatch, "push_to_hub.py", old, "tester/model", "--update_code")
    files = set(HfApi().list_repo_files("tester/model"))
    assert {name for name in files if name.endswith(".py")} == CODE_FILES and "requirements.txt" in files


def test_an_older_transformers_is_named_in_the_first_line(saved, tmp_path):
    code = "import sys, transformers; transformers.__version__ = '4.57.6'; "
    code += "transformers.AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)"
    result = run_process("-c", code, saved, check=False, HF_HOME=str(tmp_path))
    assert result.stderr.strip().splitlines()[-1] == (
        f"ImportError: This model needs transformers {OLDEST['transformers']} or newer, and 4.57.6 is installed: "
        f"{sys.executable} -m pip install --upgrade transformers"
    )
