"""The cards of a run and of conversions: the Hub accepts them, their metrics are those of the run, their snippets run."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from huggingface_hub import HfApi, ModelCard
from PIL import Image

from helpers import make_bert, run_script, run_without_package
from scratch_bert.hub.conversion import convert_checkpoint
from scratch_bert.hub.model_card import code_hash


RUN = ["--max_seq_length", 64, "--per_device_train_batch_size", 4, "--eval_steps", 4, "--logging_steps", 2]
RUN += ["--save_steps", 4, "--validation_share", 0.1, "--output_dir"]


def run_snippets(*directories: Path, home: Path) -> None:
    """All of the cards' Python, one block after another, where each card's name of the model is a directory."""
    code = ""
    for directory in directories:
        blocks = re.findall(r"```python\n(.*?)```", (directory / "README.md").read_text(), re.DOTALL)
        assert len(blocks) >= 3
        code += "".join(blocks)
        (home / directory.name).symlink_to(directory)
    run_without_package(code, home=home)


def assert_valid(card: Path, hub) -> None:
    HfApi().create_repo("model", exist_ok=True)
    HfApi().upload_file(path_or_fileobj=card, path_in_repo="README.md", repo_id="tester/model")
    assert "POST /api/validate-yaml" in hub.requests and "README.md" in hub.files("tester/model")
    text = card.read_text()
    assert "{{" not in text and "None" not in text and str(card.parent.parent) not in text
    sections = re.split(r"^#+ .*\n", re.sub(r"```.*?```", "code", text, flags=re.DOTALL), flags=re.MULTILINE)[1:]
    assert all(section.strip() for section in sections)


@pytest.fixture(scope="module")
def run(curves, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("runs") / "my-bert"
    with pytest.MonkeyPatch.context() as patch:
        run_script(patch, "pretrain.py", "--max_steps", 8, "--license", "apache-2.0", *RUN, output_dir)
    return output_dir


def test_model_card_of_a_run(run, hub):
    assert_valid(run / "README.md", hub)
    card, metrics = ModelCard.load(run / "README.md"), json.loads((run / "metrics.json").read_text())
    assert card.data.license == "apache-2.0" and card.data.language == "en"
    results = {(result.task_name, result.metric_type): result.metric_value for result in card.data.eval_results}
    assert results == {
        ("Masked language modelling", "perplexity"): pytest.approx(metrics["eval_mlm_perplexity"], abs=1e-4),
        ("Masked language modelling", "accuracy"): pytest.approx(metrics["eval_mlm_accuracy"], abs=1e-4),
        ("Next-sentence prediction", "accuracy"): pytest.approx(metrics["eval_nsp_accuracy"], abs=1e-4),
    }
    for name in ("eval_mlm_loss", "eval_mlm_unigram_loss", "eval_nsp_loss", "eval_nsp_majority_loss"):
        assert f" {metrics[name]:.3f}" in card.text, name
    assert f"begins with\n{code_hash()}" in card.text
    assert "After 8 steps" in card.text
    assert "skipped: nothing" in card.text and "8 |" in card.text
    assert Image.open(run / "curves.png").size == (1200, 300)
    assert "(curves.png)" in card.text


def test_model_card_code_hash_is_that_of_the_files_beside_it(run):
    printed = subprocess.run(f"cat {run}/*.py | sha256sum", shell=True, capture_output=True, text=True).stdout
    assert printed.startswith(code_hash())


def test_model_card_of_a_checkpoint(run, hub):
    text = (run / "checkpoint-4" / "README.md").read_text()
    assert "4 of 8 |" in text and "seconds |" not in text
    assert_valid(run / "checkpoint-4" / "README.md", hub)


def test_model_card_changed_by_the_user_is_kept(run, tmp_path, monkeypatch):
    output_dir = Path(shutil.copytree(run, tmp_path / "run"))
    card = output_dir / "README.md"
    written = card.read_text()
    mine = written.replace("<!-- Written by", "<!-- Once written by") + "\nMine.\n"
    card.write_text(mine)
    options = ["--resume_from_checkpoint", *RUN, output_dir, "--max_steps"]
    run_script(monkeypatch, "pretrain.py", *options, 10)
    assert card.read_text() == mine
    card.write_text(written)
    run_script(monkeypatch, "pretrain.py", *options, 12)
    assert "seconds since the last resume" in card.read_text()


def test_model_card_licence_is_checked_before_training(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run_script(monkeypatch, "pretrain.py", "--license", "Apache 2.0", "--output_dir", tmp_path / "run")
    assert "license must be one of the Hub's identifiers" in capsys.readouterr().err


@pytest.mark.parametrize("head", ["Model", "ForPreTraining", "ForSequenceClassification"])
def test_model_card_of_a_conversion(head, tokenizer, hub, tmp_path):
    make_bert(head, tmp_path / "bert", tokenizer)
    (tmp_path / "bert/README.md").write_text("---\nlicense: [broken\n---\n# A BERT\n")
    convert_checkpoint(tmp_path / "bert", tmp_path / "other")
    assert_valid(tmp_path / "other/README.md", hub)
    (tmp_path / "bert/README.md").write_text("---\nlicense: mit\nlanguage: de\n---\n# A BERT\n")
    assert convert_checkpoint(tmp_path / "bert", tmp_path / "converted").model_class == f"ScratchBert{head}"
    assert_valid(tmp_path / "converted/README.md", hub)
    data = ModelCard.load(tmp_path / "converted/README.md").data
    assert (data.license, data.language) == ("mit", "de")
    assert data.get("base_model") is None  # the source is not a repository of the Hub
    text = (tmp_path / "converted/README.md").read_text()
    assert ('pipeline("fill-mask"' in text) == (head == "ForPreTraining")


def test_model_card_snippets_run(run, tokenizer, tmp_path):
    """Those of a pretraining run and of conversions, in one process."""
    directories = [run]
    for head in ("Model", "ForSequenceClassification"):
        make_bert(head, tmp_path / "bert" / head, tokenizer, max_position_embeddings=64)
        convert_checkpoint(tmp_path / "bert" / head, tmp_path / "converted" / head)
        directories.append(tmp_path / "converted" / head)
    run_snippets(*directories, home=tmp_path)
