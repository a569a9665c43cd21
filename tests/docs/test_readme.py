"""README.md is short and fits a terminal; its snippet, and the commands of README and docs/commands.md, run as they stand."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from helpers import ROOT, make_bert, run_script, write_glue


README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
NOT_RUN = {  # pattern of a command's beginning → why
    "make ": "runs the same scripts; `make test` is in .ci/run",
    r"python3 -m venv|\. \.venv|(\.venv/bin/)?pip install": "done by the Makefile and .ci/run",
    "pytest ": "would run this test",
    r"python scripts/pretrain\.py$": "takes minutes: tests/scripts/test_pretrain.py",
    r"python benchmarks/glue\.py": "takes minutes: tests/scripts/test_glue.py",
    r"(\.venv/bin/)?python scripts/demo\.py": "ends with Ctrl-C: tests/scripts/test_demo.py",
    "hf auth login": "needs an account",
    r"python scripts/push_to_hub\.py (?!.*--dry_run)": "pushes to the Hub: tests/hub/test_push.py",
    "docker ": "is not there",
}
SHORTER = {  # part of a command → options that end it in seconds; the first that fits is appended
    "recipes/cpu-hour.yaml": "--max_minutes 0.02",
    "recipes/dialogue.yaml": "--preset micro --max_steps 2",
    "recipes/bert-base.yaml": "--preset micro --max_steps 10 --warmup_steps 1 --gradient_accumulation_steps 1",
    "scripts/pretrain.py": "--max_steps 2",
    "scripts/finetune.py": "--max_steps 2",
}


def commands(page: str) -> list[str]:
    """The lines of the page's code blocks in a shell's or no language, without comments."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    # Without the tree of the code, which begins with its directory.
    text = "".join(
        block for language, block in blocks if language in ("", "sh", "bash") and not block.startswith("scratch_bert/")
    )
    return re.sub(r"[ \t]*#.*", "", text.replace("\\\n", "")).splitlines()


@pytest.fixture
def directory(text_file, tokenizer, tmp_path, monkeypatch):
    """The current directory: with the files that the commands name, and local directories in place of the Hub's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    for name in ("text/a.txt", "more.txt", "text.txt"):
        shutil.copy(text_file, tmp_path / name)
    make_bert("ForMaskedLM", tmp_path / "google-bert/bert-base-uncased", tokenizer, max_position_embeddings=128)
    texts = {"sentence": [f"a {('bad', 'good')[n % 2]} film" for n in range(32)], "idx": range(32)}
    write_glue("sst2", ["negative", "positive"], texts, dict.fromkeys(("train", "validation"), [0, 1] * 16))
    return tmp_path


def test_readme_is_short_and_narrow():
    assert len(README.split()) <= 900
    lines = [line for line in README.splitlines() if not line.startswith(("|", "![")) and "](" not in line]
    assert max(map(len, lines)) <= 80


@pytest.mark.slow
def test_snippet_with_the_stock_trainer_runs_as_it_stands(sentences, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    training = next(snippet for snippet in SNIPPETS if "Trainer(" in snippet)
    for number, name in enumerate(("a.txt", "b.txt", "c.txt")):
        (tmp_path / name).write_text(" ".join(sentences[40 * number : 40 * number + 40]), encoding="utf-8")
    exec(training, {})
    assert float(re.search(r"'train_loss': '?([\d.]+)", capsys.readouterr().out)[1]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("page", [README, COMMANDS], ids=["README.md", "commands.md"])
def test_commands_run_as_they_stand(page, directory, monkeypatch):
    for command in commands(page):
        if not command.strip() or any(re.match(pattern, command) for pattern in NOT_RUN):
            continue
        last = directory / "runs/mine/checkpoint-2"
        if "runs/mine/checkpoint-500" in command and last.is_dir():
            last.rename(last.with_name("checkpoint-500"))
        shorter = next((options for part, options in SHORTER.items() if part in command), "")
        python, script, *arguments = shlex.split(f"{command} {shorter}")
        assert (python, Path(script).parent) == ("python", Path("scripts")), command
        run_script(monkeypatch, Path(script).name, *arguments)
        if "--output_dir" in arguments:
            output = directory / arguments[arguments.index("--output_dir") + 1]
            assert (output / "model.safetensors").is_file(), command


def test_patterns_of_commands_that_are_not_run_are_in_use():
    listed = [*commands(README), *commands(COMMANDS)]
    assert [pattern for pattern in NOT_RUN if not any(re.match(pattern, command) for command in listed)] == []
