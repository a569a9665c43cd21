"""What the console shows of a training: plain lines in a pipe, a progress line on a terminal, JSON on request."""

import json
import os
import re
import struct
import subprocess
import sys

import pytest
from transformers import TrainerState

from helpers import SCRIPTS, run_script
from scratch_bert.training.console import JsonLines, PlainLines, describe_entry


SHORT = ["--vocab_size", 500, "--max_seq_length", 32, "--per_device_train_batch_size", 8, "--use_cpu"]
SHORT += ["--max_steps", 4, "--logging_steps", 2, "--eval_steps", 2, "--save_strategy", "no", "--show_predictions", 0]


def test_lines_are_aligned():
    lines = [
        describe_entry({"loss": 6.123456, "mlm_accuracy": 0.01, "epoch": 0.1, "learning_rate": 1e-3}, 5, 1200),
        describe_entry({"loss": 10.5, "mlm_accuracy": 0.123456, "epoch": 1.0, "learning_rate": 1e-3}, 1000, 1200),
        describe_entry({"eval_loss": 6.1, "eval_mlm_unigram_loss": 6.0, "eval_runtime": 1.0}, 1000, 1200),
    ]
    assert [line.rstrip() for line in lines] == [
        "train     5/1,200  loss 6.123    mlm_accuracy 0.01",
        "train 1,000/1,200  loss 10.5     mlm_accuracy 0.1235",
        "eval  1,000/1,200  loss 6.1",
    ]


def test_json_logs_are_all_that_stdout_has_of_a_training(text_file, tmp_path, monkeypatch, capsys):
    options = ["--train_file", text_file, "--output_dir", tmp_path / "run", *SHORT, "--json_logs"]
    run_script(monkeypatch, "pretrain.py", *options)
    shown = capsys.readouterr().out
    entries = [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    assert [entry["step"] for entry in entries if "mlm_loss" in entry] == [2, 4]
    assert [entry["step"] for entry in entries if "eval_mlm_loss" in entry] == [2, 4]
    assert all(entry["speed/tokens_per_second"] > 0 for entry in entries if "mlm_loss" in entry)
    assert "tokens/s" not in shown


def test_json_has_null_for_what_is_not_finite(capsys):
    state = TrainerState(global_step=1, is_world_process_zero=True)
    JsonLines().on_log(None, state, None, logs={"loss": 1.0, "grad_norm": float("inf"), "x": float("nan")})
    assert json.loads(capsys.readouterr().out) == {"loss": 1.0, "grad_norm": None, "x": None, "step": 1}


def test_entries_with_trainers_own_timings_are_shown(capsys):
    state, callback = TrainerState(global_step=1, max_steps=2, is_world_process_zero=True), PlainLines()
    callback.on_train_begin(None, state, None)
    callback.on_log(None, state, None, logs={"loss": 1.0, "train_runtime": 3.0})  # --include_num_input_tokens_seen
    callback.on_log(None, state, None, logs={"train_loss": 1.0, "train_runtime": 3.0})
    assert capsys.readouterr().out == "train 1/2  loss 1\n"


def run_in_terminal(*command) -> str:
    """What Python with these arguments writes to a terminal of 40 lines of 120 characters."""
    import fcntl
    import termios

    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen([sys.executable, *map(str, command)], stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the process has ended
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait() == 0
    return shown.decode()


def what_stays(shown: str) -> list[str]:
    """The lines that a terminal ends with."""
    lines, row, column = [[]], 0, 0
    for code, count, character in re.findall(r"(\x1b\[(\d*)[A-Z])|(.)", shown, re.DOTALL):
        if code:
            assert code[-1] == "A"
            row -= int(count or 1)
        elif character == "\r":
            column = 0
        elif character == "\n":
            row += 1
            lines += [[]] * (row == len(lines))
        else:
            lines[row][column:] = [*" " * (column - len(lines[row])), character, *lines[row][column + 1 :]]
            column += 1
    return ["".join(line).rstrip() for line in lines]


in_terminal = pytest.mark.skipif(os.name != "posix", reason="opens a pseudo-terminal")


@in_terminal
@pytest.mark.slow
def test_terminal_shows_a_progress_line(text_file, tmp_path):
    options = ["--train_file", text_file, "--output_dir", tmp_path / "run", *SHORT]
    text = run_in_terminal(SCRIPTS / "pretrain.py", *options)
    assert re.search(r"100% \|█+\| 4/4 \[00:\d\d<00:00, loss [\d.]+, mlm_accuracy [\d.e-]+, [\d,]+ tokens/s\]", text)
    assert "eval  2/4  loss " in text and "train 4/4  loss " in text
    assert not [line for line in what_stays(text) if "█" in line or "it/s" in line]


@in_terminal
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "progress"),
    [
        ("evaluate_model.py --model_name_or_path MODEL --validation_file TEXT", True),
        ("finetune.py sequence-classification --model_name_or_path MODEL --train_file TABLE --max_steps 2", True),
        ("convert_checkpoint.py MODEL TO --to bert", False),
    ],
)
def test_terminal_keeps_no_progress_bars(command, progress, saved, text_file, tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n" + "a class is an object,good\na class is a name,bad\n" * 20)
    places = {"MODEL": saved, "TEXT": text_file, "TABLE": tmp_path / "a.csv", "TO": tmp_path / "to"}
    script, *options = [places.get(word, word) for word in command.split()]
    options += {"finetune.py": ["--output_dir", tmp_path / "run"], "evaluate_model.py": ["--max_seq_length", 40]}.get(
        script, []
    )
    shown = run_in_terminal(SCRIPTS / script, *options)
    assert ("Evaluation:" in shown) == progress and "Loading weights" not in shown
    assert not [line for line in what_stays(shown) if "█" in line or "it/s" in line]
