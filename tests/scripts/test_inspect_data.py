"""scripts/inspect_data.py, and what it writes, in scripts/pretrain.py and with the stock collator."""

import json
import re

import datasets
import pytest
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

from helpers import failure_of, run_script


FEW = ["--sample", 50]  # the statistics of many are tested in tests/pretraining/test_inspection.py
SHORT_RUN = ["--use_cpu", "--config_overrides", "num_hidden_layers=1", "--save_strategy", "no"]


@pytest.fixture(scope="module")
def prepared(text_file, tmp_path_factory):
    """Prepared examples of the text file. To be read only."""
    directory = tmp_path_factory.mktemp("data") / "prepared"
    options = ["--train_file", text_file, "--output_dir", directory, "--max_seq_length", 64]
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_script(monkeypatch, "inspect_data.py", *options, *FEW)
    return directory


def test_option_that_nobody_has_is_an_error(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="error: There is no option validation_split"):
        run_script(monkeypatch, "inspect_data.py", "--validation_split", "0.2")


def test_statistics_alone_are_printed_as_json(monkeypatch, capsys):
    run_script(monkeypatch, "inspect_data.py", "--json", "--sample", 1000)
    shown = capsys.readouterr()
    statistics = json.loads(shown.out)
    assert (statistics["examples"], statistics["too_long"], statistics["empty_segments"]) == (1000, 0, 0)
    assert statistics["label_0_share"] == pytest.approx(0.5, abs=0.05)
    assert statistics["masked_share"] == pytest.approx(0.3, abs=0.01)
    assert statistics["length_percentiles"]["100"] == 64


def test_statistics_and_examples_are_shown_of_a_stream(monkeypatch, capsys, text_file):
    options = ["--train_file", text_file, "--streaming", *FEW, "--vocab_size", 500, "--stream_buffer", 20]
    run_script(monkeypatch, "inspect_data.py", *options)
    shown = capsys.readouterr().out
    assert "examples in the sample" in shown and shown.count("  B text") == 3


def test_prepared_examples_train_as_the_text_would(prepared, text_file, tmp_path, monkeypatch):
    text = ["--train_file", text_file, "--max_seq_length", 64]
    options = [*SHORT_RUN, "--max_steps", 3, "--per_device_train_batch_size", 8]
    run_script(monkeypatch, "pretrain.py", "--prepared_data", prepared, "--output_dir", tmp_path / "a", *options)
    run_script(monkeypatch, "pretrain.py", *text, "--output_dir", tmp_path / "b", *options)
    a, b = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in "ab")
    assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-6)
    assert a["eval_mlm_loss"] == pytest.approx(b["eval_mlm_loss"], rel=1e-6)


def test_prepared_examples_keep_their_objective(text_file, saved, tmp_path, monkeypatch, capsys):
    prepared = tmp_path / "prepared[1]"
    text = ["--train_file", text_file, "--tokenizer_name_or_path", saved, "--max_seq_length", 32]
    run_script(monkeypatch, "inspect_data.py", *text, "--output_dir", prepared, "--sentence_objective", "sop", *FEW)
    options = ["--prepared_data", prepared, "--output_dir", tmp_path / "a", "--max_steps", 1, *SHORT_RUN]
    run_script(monkeypatch, "pretrain.py", *options)
    assert "SOP: A and B are in order, yes or no?" in capsys.readouterr().out
    assert "Sentence-order prediction, for the segments A and B:" in (tmp_path / "a" / "README.md").read_text()


def test_prepared_examples_are_read_by_the_stock_collator(prepared):
    file = str(prepared / "train" / "examples.parquet")
    examples = datasets.load_dataset("parquet", data_files=file, split="train")
    batch = DataCollatorForLanguageModeling(AutoTokenizer.from_pretrained(prepared))([*examples.select(range(4))])
    assert batch["input_ids"].shape == batch["labels"].shape and {"token_type_ids", "next_sentence_label"} < {*batch}
    assert (batch["labels"] == -100)[batch["attention_mask"] == 0].all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output_dir", "prepared", *FEW], "is not empty"),
        (["--output_dir", "new", "--prepared_data", "prepared"], "can't be used with --streaming or --prepared_data"),
    ],
)
def test_output_directory_is_not_written_to(arguments, message, prepared, monkeypatch, capsys):
    monkeypatch.chdir(prepared.parent)
    before = {file: file.stat().st_mtime_ns for file in prepared.parent.rglob("*")}
    shown = failure_of(capsys, run_script, monkeypatch, "inspect_data.py", *arguments)
    assert re.search(f"error: .*{message}", shown)
    assert {file: file.stat().st_mtime_ns for file in prepared.parent.rglob("*")} == before


def test_help_leaves_out_the_options_without_effect(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run_script(monkeypatch, "inspect_data.py", "--help")
    shown = capsys.readouterr().out
    assert "--train_file" in shown and "--seed" in shown and "--output_dir" in shown
    assert "--learning_rate" not in shown and "--preset" not in shown
