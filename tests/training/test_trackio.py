"""trackio gets the log of a run, offline, as one run with all its parts."""

import json
import sqlite3

import pytest

from helpers import SCRIPTS, run_process


pytest.importorskip("trackio", reason="needs the extra trackio")
pytestmark = pytest.mark.integrations


def test_training_its_resume_and_its_last_evaluation_are_one_run(text_file, tmp_path):
    output_dir = tmp_path / "runs" / "mine"
    options = ["--train_file", text_file, "--output_dir", output_dir, "--use_cpu", "--report_to", "trackio"]
    options += ["--vocab_size", 500, "--max_seq_length", 32]
    options += ["--logging_steps", 2, "--eval_steps", 2, "--save_steps", 2]
    environment = {"TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    environment |= {"GRADIO_ANALYTICS_ENABLED": "False"}
    run_process(SCRIPTS / "pretrain.py", *options, "--max_steps", 4, "--project", "mine", **environment)
    more = ["--max_steps", 6, "--project", "mine", "--resume_from_checkpoint", "auto"]
    run_process(SCRIPTS / "pretrain.py", *options, *more, **environment)
    (file,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(file) as database:
        rows = database.execute("SELECT run_name, metrics FROM metrics").fetchall()
    assert {name for name, _ in rows} == {"runs/mine"}
    entries = [json.loads(metrics) for _, metrics in rows]
    named = {name for entry in entries for name in entry}
    assert named >= {"train/loss", "train/mlm_accuracy", "eval/mlm_loss", "train/speed/tokens_per_second"}
    steps = [entry["train/global_step"] for entry in entries if "train/loss" in entry]
    assert steps == [2, 4, 6]
