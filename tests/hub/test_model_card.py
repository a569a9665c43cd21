"""The cards of a run and of conversions: the Hub accepts them, the metrics are those of the run, the snippets run."""

import ast
import json
import re
import shutil
from pathlib import Path

import pytest
from huggingface_hub import HfApi, ModelCard
from PIL import Image

from helpers import make_bert, run_script, run_without_package
from scratch_bert.hub.code import CODE_NOTE
from scratch_bert.hub.conversion import convert_checkpoint
from scratch_bert.hub.model_card import path_in_card
from scratch_bert.training.clock import Clock


RUN = ["--max_seq_length", 64, "--per_device_train_batch_size", 4, "--eval_steps", 4, "--logging_steps", 2]
RUN += ["--save_steps", 4, "--validation_share", 0.1, "--output_dir"]


def snippets(directory: Path) -> str:
    """All Python of a model's card."""
    blocks = re.findall(r"```python\n(.*?)```", (directory / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 3
    return "".join(blocks)


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
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("here"))
        run_script(patch, "pretrain.py", "--max_steps", 8, "--license", "apache-2.0", *RUN, "runs/my-bert")
        return Path("runs/my-bert").absolute()


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
    assert CODE_NOTE in card.text
    assert "After 8 steps" in card.text
    assert "nothing skipped" in card.text and "8 |" in card.text
    assert Image.open(run / "curves.png").size == (1200, 300)
    assert "(curves.png)" in card.text and "validation loss is with 15% of the tokens masked" in card.text


def test_model_card_shows_held_out_text(run):
    """In its snippets: a sentence with a masked word, and the sentence. Quotes in it are escaped."""
    card = (run / "README.md").read_text()
    masked = ast.literal_eval(re.search(r"^fill_mask\((.*)\)  # the top-5", card, re.MULTILINE)[1])
    pair = ast.literal_eval(re.search(r"^inputs = tokenizer\((.*), return_tensors", card, re.MULTILINE)[1])
    examples = json.loads((run / "snapshots/examples.json").read_text())
    whole = [text.replace("[MASK]", word) for text, word in zip(examples["texts"], examples["answers"], strict=True)]
    assert masked in examples["texts"] and pair[0] != pair[1] and {*pair} <= {*whole}


def test_model_card_of_a_checkpoint(run, hub):
    text = (run / "checkpoint-4" / "README.md").read_text()
    assert "4 of 8 |" in text and "seconds |" not in text
    assert_valid(run / "checkpoint-4" / "README.md", hub)


def test_model_card_changed_by_the_user_is_kept(run, tmp_path, monkeypatch):
    output_dir = Path(shutil.copytree(run, tmp_path / "run"))
    card = output_dir / "README.md"
    written = card.read_text()
    mine = written.replace("# ", "# My ", 1)
    card.write_text(mine)
    once = ["--save_steps", 100, "--eval_steps", 100, "--show_predictions", 0]  # a card at the end alone
    options = ["--resume_from_checkpoint", *RUN, output_dir, *once, "--max_steps"]
    run_script(monkeypatch, "pretrain.py", *options, 10)
    assert card.read_text() == mine
    card.write_text(written)
    run_script(monkeypatch, "pretrain.py", *options, 12)
    assert "seconds since the last resume" in card.read_text()


@pytest.mark.parametrize("head", ["Model", "ForPreTraining", "ForSequenceClassification"])
def test_model_card_of_a_conversion(head, tokenizer, hub, tmp_path):
    make_bert(head, tmp_path / "bert", tokenizer)
    assert not convert_checkpoint(tmp_path / "bert", tmp_path / "without").has_card
    assert not (tmp_path / "without/README.md").exists()
    (tmp_path / "bert/README.md").write_text("---\nlicense: [broken\n---\n# A BERT\n\nOf mine.\n")
    convert_checkpoint(tmp_path / "bert", tmp_path / "other")
    assert_valid(tmp_path / "other/README.md", hub)
    (tmp_path / "bert/README.md").write_text("---\nlicense: mit\nlanguage: de\ntags: [mine]\n---\n# B\n\nOf mine.\n")
    assert convert_checkpoint(tmp_path / "bert", tmp_path / "converted").model_class == f"ScratchBert{head}"
    assert_valid(tmp_path / "converted/README.md", hub)
    data = ModelCard.load(tmp_path / "converted/README.md").data
    assert (data.license, data.language, data.tags) == ("mit", "de", ["mine", "bert", "scratch_bert"])
    assert data.get("base_model") is None  # the source is not a repository of the Hub
    text = (tmp_path / "converted/README.md").read_text()
    assert ('pipeline("fill-mask"' in text) == (head == "ForPreTraining") and "\nOf mine.\n" in text


def test_model_card_snippets_run_where_the_command_did(run, tokenizer, monkeypatch):
    here, code = run.parent.parent, snippets(run)
    monkeypatch.chdir(here)
    card = (run / "README.md").read_text()
    assert 'name = "runs/my-bert"  # the' in card and str(here) not in card
    assert 'name = "runs/my-bert/checkpoint-4"  # the' in (run / "checkpoint-4/README.md").read_text()
    for head in ("Model", "ForSequenceClassification"):
        make_bert(head, here / "bert" / head, tokenizer, max_position_embeddings=64)
        (here / "bert" / head / "README.md").write_text("# A BERT\n")
        convert_checkpoint(here / "bert" / head, Path("converted", head))
        code += snippets(Path("converted", head))
    run_without_package(code, home=here)


@pytest.mark.slow
def test_model_card_of_a_run_that_is_converted_to_bert_and_back(run, hub, monkeypatch):
    """It keeps its results; the snippets are those of a model without code, and then with it again."""
    monkeypatch.chdir(run.parent.parent)
    convert_checkpoint("runs/my-bert", "runs/bert", "bert")
    convert_checkpoint("runs/bert", "runs/back", "scratch_bert")
    cards = {name: Path("runs", name, "README.md").read_text() for name in ("my-bert", "bert", "back")}
    [results] = {re.search(r"(?s)## Results\n.*?(?=## Model)", card)[0] for card in cards.values()}
    assert "NSP accuracy" in results and "Written by a training run" not in cards["bert"] + cards["back"]
    assert not re.search("trust_remote_code|model's code", cards["bert"])
    assert "converted to bert" in cards["bert"] and "converted to bert" not in cards["back"]
    assert cards["back"].count("trust_remote_code=True") == cards["my-bert"].count("trust_remote_code=True")
    data = {name: ModelCard.load(Path("runs", name, "README.md")).data.to_dict() for name in cards}
    assert data["bert"]["tags"] == ["next-sentence-prediction", "bert"]
    for name in ("bert", "back"):
        assert {**data[name], "tags": None} == {**data["my-bert"], "tags": None}
        assert_valid(Path("runs", name, "README.md").absolute(), hub)
        assert Path("runs", name, "curves.png").read_bytes() == (run / "curves.png").read_bytes()
        run_without_package(snippets(Path("runs", name)), home=Path.cwd())


def test_model_card_names_no_directory_outside(tmp_path):
    assert path_in_card(tmp_path / "run") == "run"


def test_model_card_has_the_budget(tmp_path, monkeypatch, text_file):
    options = f"--train_file {text_file} --vocab_size 500 --max_seq_length 32 --output_dir {tmp_path / 'run'}".split()
    monkeypatch.setattr(Clock, "fraction_used", property(lambda clock: float(clock.used > 0)))  # over after a step
    run_script(monkeypatch, "pretrain.py", *options, "--max_minutes", 1, "--snapshots", 1)
    assert "| budget | 1 minute (" in (tmp_path / "run/README.md").read_text()
