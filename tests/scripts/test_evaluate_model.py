"""scripts/evaluate_model.py: the figures of pretraining's own evaluation, the same rows and masks for every model."""

import json

import pytest
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, BertModel

from helpers import SMALL, run_script
from scratch_bert.hub.conversion import convert_checkpoint


@pytest.fixture(scope="module")
def text_file(documents, tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("\n\n".join("\n".join(document) for document in documents[:30]))
    return file


@pytest.fixture
def evaluate(text_file, tmp_path, monkeypatch):
    def run(*models, text=("--train_file", text_file), name="figures.json"):
        options = [*text, "--sentence_splitter", "line", "--cache_dir", tmp_path / "cache", "--max_seq_length", 40]
        options += ["--output_file", tmp_path / name]
        run_script(monkeypatch, "evaluate_model.py", "--model_name_or_path", *models, *options)
        return [json.loads((tmp_path / name).read_text())[str(model)] for model in models]

    return run


def figures(metrics):
    return {name: value for name, value in metrics.items() if name.startswith(("eval_mlm", "eval_nsp"))}


def make_bert(model_class, tokenizer, directory):
    model_class(BertConfig(**{**SMALL, "vocab_size": len(tokenizer)})).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def test_it_gives_what_pretraining_gave(evaluate, text_file, tmp_path, monkeypatch):
    options = [
        "--max_steps",
        3,
        "--bf16",
        "false",
        "--disable_tqdm",
        "true",
        "--vocab_size",
        500,
        "--max_seq_length",
        40,
    ]
    options += ["--cache_dir", tmp_path / "cache", "--sentence_splitter", "line", "--train_file", text_file]
    run_script(monkeypatch, "pretrain.py", *options, "--output_dir", tmp_path / "run")
    (found,) = evaluate(tmp_path / "run")
    expected = figures(json.loads((tmp_path / "run/metrics.json").read_text()))
    assert len(expected) == 8
    assert figures(found) == pytest.approx(expected, rel=1e-5)


def test_a_bert_and_its_conversion_get_the_same(evaluate, text_file, tokenizer, tmp_path, capsys):
    bert = make_bert(BertForPreTraining, tokenizer, tmp_path / "bert")
    convert_checkpoint(str(bert), tmp_path / "ours", "scratch_bert")
    one, two = evaluate(bert, tmp_path / "ours")
    assert figures(one) == pytest.approx(figures(two), rel=1e-5)
    assert one["eval_mlm_unigram_loss"] == two["eval_mlm_unigram_loss"]
    table = capsys.readouterr().out
    assert f"{one['eval_mlm_loss']:.3f}" in table and f"{one['eval_nsp_majority_accuracy']:.3f}" in table
    again = evaluate(bert, name="again.json")[0]
    assert figures(again) == figures(one)
    whole = evaluate(bert, text=("--validation_file", text_file), name="whole.json")[0]
    assert "all of the text" in capsys.readouterr().out
    assert whole["eval_runtime"] > 0 and whole["eval_mlm_loss"] != one["eval_mlm_loss"]


def test_a_model_without_next_sentence_head_gets_the_same_masks(evaluate, tokenizer, tmp_path):
    both = make_bert(BertForPreTraining, tokenizer, tmp_path / "both")
    BertForMaskedLM.from_pretrained(both).save_pretrained(tmp_path / "words")
    tokenizer.save_pretrained(tmp_path / "words")
    one, two = evaluate(both, tmp_path / "words")
    assert "eval_nsp_loss" in one and "eval_nsp_loss" not in two
    assert one["eval_mlm_loss"] == pytest.approx(two["eval_mlm_loss"], rel=1e-6)


def test_without_sentence_objective_words_alone_are_judged(evaluate, text_file, tokenizer, tmp_path):
    bert = make_bert(BertForPreTraining, tokenizer, tmp_path / "bert")
    convert_checkpoint(str(bert), tmp_path / "ours", "scratch_bert")
    one, two = evaluate(bert, tmp_path / "ours", text=("--train_file", text_file, "--sentence_objective", "none"))
    assert "eval_nsp_loss" not in one and figures(one) == pytest.approx(figures(two), rel=1e-5)


def test_prepared_rows_want_their_own_tokenizer(evaluate, text_file, tokenizer, saved, tmp_path, monkeypatch):
    options = ["--cache_dir", tmp_path / "cache", "--max_seq_length", 40, "--train_file", text_file]
    for name, of_rows in (("same", ["--tokenizer_name_or_path", saved]), ("other", ["--vocab_size", len(tokenizer)])):
        run_script(monkeypatch, "inspect_data.py", *options, *of_rows, "--output_dir", tmp_path / name)
    run = ["--model_name_or_path", saved, "--cache_dir", tmp_path / "cache", "--prepared_data"]
    run_script(monkeypatch, "evaluate_model.py", *run, tmp_path / "same")
    with pytest.raises(SystemExit, match="error: The rows in .*other were made with another vocabulary"):
        run_script(monkeypatch, "evaluate_model.py", *run, tmp_path / "other")


@pytest.mark.parametrize("option", [("--tokenizer_name_or_path", "x"), ("--vocab_size", 500), ("--streaming",)])
def test_options_without_effect_are_refused(option, evaluate, saved, text_file, capsys):
    with pytest.raises(SystemExit):
        evaluate(saved, text=("--train_file", text_file, *option))
    assert f"{option[0][2:]} has no effect in an evaluation" in capsys.readouterr().err


def test_what_cannot_be_compared(evaluate, saved, tokenizer, tmp_path):
    (tmp_path / "old.json").write_text("{}")
    encoder = make_bert(BertModel, tokenizer, tmp_path / "encoder")
    other = make_bert(BertForMaskedLM, tokenizer, tmp_path / "other")
    content = json.loads((other / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["zzz"] = vocabulary.pop(max(vocabulary, key=vocabulary.get))
    (other / "tokenizer.json").write_text(json.dumps(content))
    for models, options, message in (
        ([saved, other], {}, "different vocabularies"),
        ([encoder], {}, "encoder has no head for masked words: cls"),
        ([saved], {"text": ("--train_file", "missing.txt")}, "no file or directory missing.txt"),
    ):
        with pytest.raises(SystemExit, match=f"error: .*{message}"):
            evaluate(*models, **options)
    for name in ("old.json", "missing/new.json"):
        with pytest.raises(SystemExit):
            evaluate(saved, name=name)
    assert (tmp_path / "old.json").read_text() == "{}"
