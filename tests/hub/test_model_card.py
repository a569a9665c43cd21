"""The cards of a real run and of conversions: the Hub takes them, their figures are the run's, their snippets run."""

import json
import re
import subprocess
import sys
from os import environ
from pathlib import Path

import pytest
import transformers
from huggingface_hub import ModelCard
from PIL import Image

from helpers import SMALL, run_script, run_without_package
from hub_server import LocalHub
from scratch_bert import ScratchBertConfig
from scratch_bert.hub.model_card import code_hash


def run_snippets(directory: Path, home: Path) -> None:
    """All of the card's Python, one block after another, where the card's name of the model is a directory."""
    blocks = re.findall(r"```python\n(.*?)```", (directory / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 3
    (home / directory.name).symlink_to(directory)
    run_without_package("".join(blocks), home=home)


def assert_valid(card: Path) -> None:
    with LocalHub() as hub:
        code = """if True:
            import sys
            from huggingface_hub import HfApi
            HfApi().create_repo("model")
            HfApi().upload_file(path_or_fileobj=sys.argv[1], path_in_repo="README.md", repo_id="tester/model")
        """
        subprocess.run([sys.executable, "-c", code, card], env={**environ, **hub.environment}, check=True)
        assert "POST /api/validate-yaml" in hub.requests and "README.md" in hub.files("tester/model")
    text = card.read_text()
    assert "{{" not in text and "None" not in text and str(card.parent.parent) not in text
    sections = re.split(r"^#+ .*\n", re.sub(r"```.*?```", "code", text, flags=re.DOTALL), flags=re.MULTILINE)[1:]
    assert all(section.strip() for section in sections)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("runs") / "my-bert"
    with pytest.MonkeyPatch.context() as patch:
        options = ["--max_steps", 8, "--eval_steps", 4, "--logging_steps", 2, "--save_steps", 4]
        run_script(patch, "pretrain.py", *options, "--license", "apache-2.0", "--output_dir", output_dir)
    return output_dir


def test_card_of_a_run(run):
    assert_valid(run / "README.md")
    card, metrics = ModelCard.load(run / "README.md"), json.loads((run / "metrics.json").read_text())
    assert card.data.license == "apache-2.0" and card.data.language == "en"
    results = {(result.task_name, result.metric_type): result.metric_value for result in card.data.eval_results}
    assert results == {
        ("Masked words", "perplexity"): pytest.approx(metrics["eval_mlm_perplexity"], abs=1e-4),
        ("Masked words", "accuracy"): pytest.approx(metrics["eval_mlm_accuracy"], abs=1e-4),
        ("Next sentence", "accuracy"): pytest.approx(metrics["eval_nsp_accuracy"], abs=1e-4),
    }
    for name in ("eval_mlm_loss", "eval_mlm_unigram_loss", "eval_nsp_loss", "eval_nsp_majority_loss"):
        assert f" {metrics[name]:.3f}" in card.text, name
    assert f"begins\nwith {code_hash()}" in card.text
    assert "After 8 steps" in card.text
    assert "skipped: nothing" in card.text and "8 |" in card.text
    assert Image.open(run / "curves.png").size == (1200, 300)
    assert "(curves.png)" in card.text


def test_code_hash_is_that_of_the_files_beside_the_card(run):
    printed = subprocess.run(f"cat {run}/*.py | sha256sum", shell=True, capture_output=True, text=True).stdout
    assert printed.startswith(code_hash())


def test_snippets_of_a_run(run, tmp_path):
    run_snippets(run, tmp_path)


def test_checkpoints_have_cards(run):
    text = (run / "checkpoint-4" / "README.md").read_text()
    assert "4 of 8 |" in text and "seconds |" not in text
    assert_valid(run / "checkpoint-4" / "README.md")


def test_a_card_that_somebody_has_changed_stays(run, monkeypatch):
    card = run / "checkpoint-4" / "README.md"
    written = card.read_text()
    mine = written.replace("<!-- Written by", "<!-- Once written by") + "\nMine.\n"
    (run / "README.md").write_text(mine)
    options = ["--save_steps", 4, "--eval_steps", 4, "--logging_steps", 2, "--output_dir", run]
    options += ["--resume_from_checkpoint", "--max_steps"]
    run_script(monkeypatch, "pretrain.py", *options, 10)
    assert (run / "README.md").read_text() == mine
    (run / "README.md").write_text(written)
    run_script(monkeypatch, "pretrain.py", *options, 12)
    assert "seconds since the last resume" in (run / "README.md").read_text()


def test_a_licence_that_is_none_is_told_at_once(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run_script(monkeypatch, "pretrain.py", "--license", "Apache 2.0", "--output_dir", tmp_path / "run")
    assert "license must be an identifier" in capsys.readouterr().err


@pytest.mark.parametrize("head", ["Model", "ForPreTraining", "ForSequenceClassification"])
def test_card_of_a_conversion(head, tokenizer, tmp_path, monkeypatch, capsys):
    bert = getattr(transformers, f"Bert{head}")(
        transformers.BertConfig(**SMALL | {"vocab_size": len(tokenizer), "max_position_embeddings": 64})
    )
    bert.save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert/README.md").write_text("---\nlicense: [broken\n---\n# A BERT\n")
    run_script(monkeypatch, "convert_checkpoint.py", tmp_path / "bert", tmp_path / "other")
    assert_valid(tmp_path / "other/README.md")
    (tmp_path / "bert/README.md").write_text("---\nlicense: mit\nlanguage: de\n---\n# A BERT\n")
    run_script(monkeypatch, "convert_checkpoint.py", tmp_path / "bert", tmp_path / "converted")
    assert_valid(tmp_path / "converted/README.md")
    data = ModelCard.load(tmp_path / "converted/README.md").data
    assert (data.license, data.language) == ("mit", "de")
    assert data.get("base_model") is None  # a directory is no model of the Hub
    text = (tmp_path / "converted/README.md").read_text()
    assert f"ScratchBert{head}" in capsys.readouterr().out
    assert ('pipeline("fill-mask"' in text) == (head == "ForPreTraining")
    assert ScratchBertConfig.from_pretrained(tmp_path / "converted").hidden_size == SMALL["hidden_size"]
    if head != "ForPreTraining":  # whose snippets are those of a run
        home = tmp_path / "home"
        home.mkdir()
        run_snippets(tmp_path / "converted", home)
