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


SHORT = [
    "--vocab_size",
    500,
    "--max_seq_length",
    32,
    "--per_device_train_batch_size",
    8,
    "--use_cpu",
    "--max_steps",
    4,
]
SHORT += ["--logging_steps", 2, "--eval_steps", 2, "--save_strategy", "no", "--show_predictions", 0]


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


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="opens a pseudo-terminal")
def test_terminal_shows_a_progress_line(text_file, tmp_path):
    options = ["--train_file", text_file, "--output_dir", tmp_path / "run", *SHORT]
    import fcntl
    import termios

    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))  # 40 lines of 120 characters
    command = [sys.executable, SCRIPTS / "pretrain.py", *options]
    process = subprocess.Popen(list(map(str, command)), stdout=theirs, stderr=theirs)
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
    text = shown.decode()
    assert re.search(
        r"100% \|█+\| 4/4 \[00:\d\d<00:00, loss [\d.]+, mlm_accuracy [\d.e-]+, [\d,]+ tokens/s, MFU \d+%\]", text
    )
    assert "eval  2/4  loss " in text and "train 4/4  loss " in text
