"""scripts/inspect_data.py, and what it writes, in scripts/pretrain.py and under the stock Trainer."""

import json

import datasets
import pytest
from transformers import AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments

from helpers import SMALL, run_script
from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data") / "prepared"
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_script(monkeypatch, "inspect_data.py", "--output_dir", directory, "--max_seq_length", 64)
    return directory


def test_the_figures_are_those_of_the_paper(monkeypatch, capsys):
    run_script(monkeypatch, "inspect_data.py", "--json")
    figures = json.loads(capsys.readouterr().out)
    for name, value, tolerance in (
        ("label_0_share", 0.5, 0.02),
        ("masked_share", 0.15, 0.005),
        ("mask_token_share", 0.8, 0.01),
        ("random_token_share", 0.1, 0.01),
        ("kept_token_share", 0.1, 0.01),
    ):
        assert figures[name] == pytest.approx(value, abs=tolerance), name
    for name in ("same_document_negatives", "rows_over_length", "rows_with_an_empty_segment"):
        assert figures[name] == 0, name
    assert figures["tokens_used_share"] > 0.95
    assert figures["length_percentiles"]["100"] == 128


@pytest.mark.parametrize("objective", ["nsp", "none"])
def test_rows_are_shown_as_text(monkeypatch, capsys, objective):
    run_script(monkeypatch, "inspect_data.py", "--rows", "4", "--sample", "50", "--sentence_objective", objective)
    shown = capsys.readouterr().out
    assert shown.count("  A text   [CLS]") == shown.count("  A masked [CLS]") == 4
    assert shown.count("  B text") == (4 if objective == "nsp" else 0)
    assert ("documents" in shown) and ("label 0: B follows A" in shown) == (objective == "nsp")


def test_a_stream_is_shown(monkeypatch, capsys, tmp_path, documents):
    (tmp_path / "text.txt").write_text("\n\n".join("\n".join(document) for document in documents))
    options = ["--train_file", tmp_path / "text.txt", "--streaming", "--sample", "100", "--vocab_size", "1000"]
    run_script(monkeypatch, "inspect_data.py", *options)
    shown = capsys.readouterr().out
    assert "rows looked at" in shown and shown.count("  B text") == 3


def test_prepared_rows_hold_what_they_say(prepared):
    rows = datasets.load_dataset("parquet", data_files=str(prepared / "train.parquet"), split="train")
    assert set(rows.column_names) == {
        "input_ids",
        "token_type_ids",
        "special_tokens_mask",
        "next_sentence_label",
        "document_a",
        "document_b",
    }
    tokenizer = AutoTokenizer.from_pretrained(prepared)
    assert tokenizer.model_max_length == 64
    for row in rows:
        ids = row["input_ids"]
        assert len(ids) <= 64 and ids.count(tokenizer.sep_token_id) == 2
        assert (row["document_a"] == row["document_b"]) == (row["next_sentence_label"] == 0)


def test_prepared_rows_train_as_the_text_would(prepared, tmp_path, monkeypatch):
    options = ["--max_steps", 3, "--logging_steps", 1, "--use_cpu", "--config_overrides", "num_hidden_layers=1"]
    run_script(monkeypatch, "pretrain.py", "--prepared_data", prepared, "--output_dir", tmp_path / "a", *options)
    run_script(monkeypatch, "pretrain.py", "--max_seq_length", 64, "--output_dir", tmp_path / "b", *options)
    a, b = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in "ab")
    assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-6)
    assert a["eval_mlm_loss"] == pytest.approx(b["eval_mlm_loss"], rel=1e-6)


def test_prepared_rows_keep_their_objective(tmp_path, monkeypatch, capsys):
    prepared = tmp_path / "rows[1]"
    run_script(monkeypatch, "inspect_data.py", "--output_dir", prepared, "--sentence_objective", "sop")
    options = ["--max_steps", 1, "--use_cpu", "--config_overrides", "num_hidden_layers=1"]
    run_script(monkeypatch, "pretrain.py", "--prepared_data", prepared, "--output_dir", tmp_path / "a", *options)
    assert "Are A and B in order?" in capsys.readouterr().out
    assert "is in its place after" in (tmp_path / "a" / "README.md").read_text()


def test_prepared_rows_under_the_stock_trainer(prepared, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(prepared)
    config = ScratchBertConfig(**{**SMALL, "vocab_size": len(tokenizer), "max_position_embeddings": 64})
    trainer = Trainer(
        model=ScratchBertForPreTraining(config),
        args=TrainingArguments(output_dir=str(tmp_path), max_steps=2, use_cpu=True, save_strategy="no"),
        train_dataset=datasets.load_dataset("parquet", data_files=str(prepared / "train.parquet"), split="train"),
        data_collator=DataCollatorForLanguageModeling(tokenizer),
    )
    assert trainer.train().training_loss > 0


def test_an_existing_directory_is_not_overwritten(prepared, monkeypatch):
    for arguments, message in (
        (["--output_dir", prepared], "is not empty"),
        (["--output_dir", prepared.parent / "new", "--prepared_data", prepared], "prepared already"),
    ):
        with pytest.raises(SystemExit) as exit:
            run_script(monkeypatch, "inspect_data.py", *arguments)
        assert message in str(exit.value.code)
    assert {file.name for file in prepared.parent.iterdir()} == {"prepared"}
