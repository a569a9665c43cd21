"""Commands that a command prints as the next ones: each of them runs as it stands, on what the command left behind."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import run_script


pytestmark = pytest.mark.slow
PROGRAM = Path(sys.executable).with_name("scratch-bert")
SMALL = ["--vocab_size", 300, "--max_seq_length", 32, "--max_steps", 2, "--use_cpu"]


@pytest.fixture(autouse=True)
def directory(text_file, tmp_path, monkeypatch):
    """The current directory, with the files that stand in printed commands."""
    monkeypatch.chdir(tmp_path)
    rows = "text,label\n" + "a class is an object,good\na class is a name,bad\n" * 10
    for name in ("YOUR.csv", "ROWS.csv"):
        Path(name).write_text(rows)
    Path("YOUR.txt").write_text("a class is an object\na class is a name\n")
    Path("YOUR_TEXT").mkdir()
    shutil.copy(text_file, "YOUR_TEXT")
    Path("YOUR_JSONL").mkdir()
    documents = Path(text_file).read_text().split("\n\n")
    Path("YOUR_JSONL/text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a script; returns the arguments of the commands that it prints under "Next:", by their scripts."""

    def run(name: str, *arguments) -> dict[str, list[str]]:
        run_script(monkeypatch, name, *arguments)
        _, found, after = capsys.readouterr().out.partition("\nNext: ")
        commands = [shlex.split(line) for line in after.splitlines() if line.startswith("  ")]
        for python, script, *_ in commands:
            assert Path(shutil.which(python)).samefile(sys.executable) and Path(script).is_file()
        return {Path(script).name: rest for _, script, *rest in commands} if found else {}

    return run


@pytest.fixture
def demo(monkeypatch):
    """Run scripts/demo.py up to where it waits for Ctrl-C."""
    gradio = pytest.importorskip("gradio")
    monkeypatch.setattr("webbrowser.open", lambda *_: True)
    monkeypatch.setattr(gradio.Blocks, "block_thread", lambda page: page.close())
    return lambda arguments: run_script(monkeypatch, "demo.py", *arguments)


def test_pretrain_to_push(run, demo, capsys):
    after_pretraining = run("pretrain.py", "--output_dir", "runs/mine", *SMALL)
    assert after_pretraining.keys() == {"demo.py", "finetune.py", "score.py", "push_to_hub.py"}
    run("score.py", *after_pretraining["score.py"])
    assert not run("push_to_hub.py", *after_pretraining["push_to_hub.py"])
    after_finetuning = run("finetune.py", *after_pretraining["finetune.py"])
    assert after_finetuning.keys() == {"predict.py", "demo.py", "push_to_hub.py"}
    run("predict.py", *after_finetuning["predict.py"])
    assert Path("PREDICTIONS.csv").read_text().startswith("text,label,prediction,")
    run("push_to_hub.py", *after_finetuning["push_to_hub.py"])
    for commands in (after_pretraining, after_finetuning):
        demo(commands["demo.py"])
        assert re.search(r"Serving on http://127\.0\.0\.1:\d+", capsys.readouterr().out)


def test_seeds_to_their_comparison(run):
    next_commands = run("pretrain.py", "--output_dir", "runs/seeds", *SMALL, "--seeds", 1, 2)
    run("pretrain.py", "--output_dir", "OTHER", *SMALL, "--seeds", 1, 2, "--learning_rate", 1e-4)
    assert not run("compare.py", *next_commands["compare.py"])


def test_tokenizer_to_both_of_its_users(run):
    next_commands = run("tokenizer.py", "--train_file", "YOUR_TEXT", "--vocab_size", 300, "--output_dir", "tokenizer")
    assert next_commands.keys() == {"pretrain.py", "prepare_data.py"}
    assert run("pretrain.py", *next_commands["pretrain.py"], "--max_steps", 2)
    pytest.importorskip("datatrove")
    shutil.rmtree("DIRECTORY")
    run("prepare_data.py", *next_commands["prepare_data.py"])


@pytest.mark.skipif(not PROGRAM.exists(), reason="the package is not installed here")
def test_next_command_of_the_installed_program_runs_in_a_shell():
    """Where the environment is not activated."""
    environment = os.environ | {"PATH": os.defpath}

    def shell(line: str) -> str:
        return subprocess.run(line, shell=True, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    printed = shell(f"{PROGRAM} tokenizer --train_file YOUR_TEXT --vocab_size 300 --output_dir tokenizer")
    purposes, pretrain = printed.partition("\nNext: ")[2].splitlines()[:2]
    assert purposes.endswith(":") and pretrain.startswith(f"  {PROGRAM} pretrain ")
    assert f":\n  {PROGRAM} demo DIRECTORY\n" in shell(f"{pretrain} --max_steps 2").partition("\nNext: ")[2]
