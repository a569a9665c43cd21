"""scripts/finetune.py: its options, what it prints, and how it ends. What it trains is in tests/finetuning/test_run.py."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from helpers import SCRIPTS, failure_of, run_script


SHORT = ["--max_steps", 2, "--per_device_train_batch_size", 4, "--disable_tqdm", "true", "--bf16", "false"]


@pytest.fixture
def finetune(monkeypatch, saved, tmp_path):
    """Run the script in a directory with small files."""
    (tmp_path / "a.csv").write_text("text,label\n" + "a class is an object,good\na class is a name,bad\n" * 10)
    (tmp_path / "unseen.csv").write_text("text,label\na,good\nb,ugly\n")
    monkeypatch.chdir(tmp_path)

    def finetune(task, *options, model=saved):
        options = ["--model_name_or_path", model, "--output_dir", "run", *SHORT, *options]
        run_script(monkeypatch, "finetune.py", task, *options)

    return finetune


@pytest.mark.smoke
def test_finetune_prints_the_metrics(finetune, tmp_path, capsys, caplog):
    finetune("sequence-classification", "--train_file", "a.csv", "--validation_file", "a.csv")
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    printed = capsys.readouterr().out.splitlines()
    assert f"{'':<26}        this model    majority class      bag of words" in printed
    names = ("eval_accuracy", "baseline_majority_accuracy", "baseline_bag_of_words_accuracy")
    assert f"accuracy                  {''.join(f'{metrics[name]:>18.4f}' for name in names)}" in printed
    assert f"loss                      {metrics['eval_loss']:>18.4f}" in printed
    assert not any(line.startswith("runtime") for line in printed)
    assert re.search(r"Device: \w.*, \d+ threads?; precision: fp32\n", caplog.text)
    assert printed[-7].startswith("In run: the model with its tokenizer, its card (README.md), ")
    assert "validation_predictions.jsonl, metrics.json." in printed[-6]
    assert printed[-4] == "Next: predict new rows; show it in the browser; list what would be published:"
    predict = rf"  \S*python {SCRIPTS}/predict.py run --file ROWS.csv --output_file PREDICTIONS.csv"
    assert re.fullmatch(predict, printed[-3])
    assert re.fullmatch(rf"  \S*python {SCRIPTS}/demo.py run", printed[-2])
    assert re.fullmatch(rf"  \S*python {SCRIPTS}/push_to_hub.py run USER/NAME --dry_run", printed[-1])
    assert max(map(len, printed[:-3])) <= 80


def test_finetune_prints_mean_and_standard_deviation_of_seeds(finetune, tmp_path, capsys):
    finetune("sequence-classification", "--train_file", "a.csv", "--validation_file", "a.csv", "--seeds", 1, 2)
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert set(metrics["seeds"]) == {"1", "2"}
    printed = capsys.readouterr().out
    assert f" {metrics['mean']['eval_loss']:.4f} ± {metrics['std']['eval_loss']:.4f}\n" in printed
    assert "In run/seed-*: models, cards and predictions." in printed
    assert re.search(rf"\nNext: .*:\n.*\n  \S*python {SCRIPTS}/demo.py run/seed-1\n", printed)


TEXTS = "sequence-classification --train_file a.csv"
ERRORS = {  # one of each kind: the others are tested where they are raised
    "unknown task": ("classify", "There is no task classify"),
    "unknown label": (f"{TEXTS} --validation_file unseen.csv", "unseen.csv, example 2: the label 'ugly' is not one of the training labels: bad, good"),
    "stride without effect": (f"{TEXTS} --doc_stride 8", "doc_stride has no effect with sequence-classification"),
    "patience without evaluation": (f"{TEXTS} --early_stopping_patience 2 --eval_strategy no --load_best_model_at_end false", "early_stopping_patience counts evaluations"),
    "rate of a head that has no other": (f"{TEXTS} --random_init --head_learning_rate 1e-3", "head_learning_rate has no effect with random_init"),
    "worse checkpoints": (f"{TEXTS} --greater_is_better false", "A greater accuracy is better"),
    "output among the data": ("sequence-classification --train_file .", "output_dir run is in ., whose files are read"),
    "push of several seeds": (f"{TEXTS} --seeds 1 2 --push_to_hub", f"publish it with `…python {SCRIPTS}/push_to_hub.py`."),
}  # fmt: skip


@pytest.mark.parametrize(("command", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_end_with_one_line(command, message, finetune, tmp_path, capsys):
    told = failure_of(capsys, finetune, *command.split())
    assert all(part in told for part in message.split("…"))
    assert not (tmp_path / "run").exists()


def test_script_without_an_installation_says_what_to_do(tmp_path):
    command = [sys.executable, "-S", SCRIPTS / "pretrain.py", "--help"]  # without site-packages
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("error: No module named 'scratch_bert_cli'. Run the Python")


def test_scripts_hide_no_library():
    """Python looks for modules beside the script first."""
    found = {script.name: find_spec(script.stem) for script in SCRIPTS.glob("[!_]*.py")}
    assert not [name for name, spec in found.items() if spec and spec.origin]  # folders such as tests/demo have none
