"""scripts/evaluate_model.py: the same examples and masks for every model, BERT and scratch_bert."""

import json
import shutil

import datasets
import pytest
from transformers import BertForMaskedLM, PreTrainedModel

from helpers import make_bert, mlm_and_nsp, run_script
from scratch_bert import ScratchBertForMaskedLM
from scratch_bert.hub.conversion import convert_checkpoint
from scratch_bert.objectives import OBJECTIVES
from scratch_bert.objectives.mlm_only import MaskedLanguageModelling


@pytest.fixture
def evaluate(text_file, tmp_path, monkeypatch):
    def run(*models, text=("--train_file", text_file), name="metrics.json", show=0):
        options = ["--sentence_splitter", "line", "--max_seq_length", 40, "--show_predictions", show]
        options += ["--cache_dir", tmp_path / "cache", "--output_file", tmp_path / name]
        run_script(monkeypatch, "evaluate_model.py", "--model_name_or_path", *models, *text, *options)
        return [json.loads((tmp_path / name).read_text())[str(model)] for model in models]

    return run


@pytest.fixture(scope="module")
def converted(bert, tmp_path_factory):
    """The same as scratch_bert. To be read only."""
    directory = tmp_path_factory.mktemp("converted") / "model"
    convert_checkpoint(str(bert), directory, "scratch_bert")
    return directory


def test_bert_and_its_conversion_get_the_same_metrics(evaluate, bert, converted, capsys):
    one, two = evaluate(bert, converted)
    assert len(mlm_and_nsp(one)) == 10
    assert mlm_and_nsp(one) == pytest.approx(mlm_and_nsp(two), rel=1e-5)
    assert one["eval_mlm_unigram_loss"] == two["eval_mlm_unigram_loss"]
    table = capsys.readouterr().out
    assert f"{one['eval_mlm_loss']:.3f}" in table and f"{one['eval_nsp_majority_accuracy']:.3f}" in table
    again = evaluate(bert, name="again.json")[0]
    assert mlm_and_nsp(again) == mlm_and_nsp(one)


def test_model_of_another_objective_is_a_warning(evaluate, bert, tmp_path, caplog):
    shutil.copytree(bert, tmp_path / "model")
    record = {"fixed": {"sentence objective": "sop"}, "options": {}}
    (tmp_path / "model/run.json").write_text(json.dumps(record))
    evaluate(tmp_path / "model")
    assert "model was pretrained with --sentence_objective sop, but is evaluated with nsp" in caplog.text


def test_models_without_nsp_head_get_the_same_masks_and_show_theirs(evaluate, bert, tokenizer, tmp_path, capsys):
    BertForMaskedLM.from_pretrained(bert).save_pretrained(tmp_path / "mlm")
    tokenizer.save_pretrained(tmp_path / "mlm")
    one, two = evaluate(bert, tmp_path / "mlm", show=3)
    assert "eval_nsp_loss" in one and "eval_nsp_loss" not in two
    assert one["eval_mlm_loss"] == pytest.approx(two["eval_mlm_loss"], rel=1e-6)
    _, both, mlm_alone = capsys.readouterr().out.split("MLM: the masked word")
    assert f"\n{tmp_path / 'mlm'}\n" in both
    assert both.count("[MASK]") == both.count("  B: ") == mlm_alone.count("[MASK]") == 3
    assert "  B: " not in mlm_alone


def test_each_model_is_opened_once(evaluate, bert, converted, monkeypatch):
    opened, load = [], PreTrainedModel.from_pretrained.__func__

    def from_pretrained(cls, name, *args, **options):
        opened.extend([str(name)] * (options.get("device_map") != "meta"))
        return load(cls, name, *args, **options)

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(from_pretrained))
    evaluate(bert, converted, show=1)
    assert opened == [str(bert), str(converted)]


def test_validation_file_alone_is_evaluated_on_completely(evaluate, bert, text_file, capsys):
    (held_out,) = evaluate(bert)
    assert f"\npart of {text_file}  " in capsys.readouterr().out
    (whole,) = evaluate(bert, text=("--validation_file", text_file), name="whole.json")
    assert f"\ntext of {text_file}  " in capsys.readouterr().out
    assert whole["eval_runtime"] > 0 and whole["eval_mlm_loss"] != held_out["eval_mlm_loss"]


def test_text_is_called_held_out_if_the_training_has_not_seen_it(evaluate, text_file, tmp_path, monkeypatch, capsys):
    options = ["--max_seq_length", 40, "--sentence_splitter", "line", "--cache_dir", tmp_path / "cache", "--seed", 1]
    options += ["--max_steps", 1, "--save_strategy", "no", "--vocab_size", 500, "--snapshots", 1]
    text, output_dir = ("--train_file", text_file), tmp_path / "a"
    run_script(monkeypatch, "pretrain.py", *text, *options, "--output_dir", output_dir)
    assert "\nheld-out text  " in capsys.readouterr().out
    evaluate(output_dir, text=text, name="same.json")  # by the default of split_seed
    assert "\nheld-out text  " in capsys.readouterr().out
    evaluate(output_dir, text=(*text, "--seed", 2), name="other.json")
    shown = capsys.readouterr()
    assert f"\npart of {text_file}  " in shown.out and "held-out" not in (shown.out + shown.err).lower()


def test_mlm_alone_is_evaluated_without_sentence_objective(evaluate, bert, converted, text_file):
    one, two = evaluate(bert, converted, text=("--train_file", text_file, "--sentence_objective", "none"))
    assert "eval_nsp_loss" not in one and mlm_and_nsp(one) == pytest.approx(mlm_and_nsp(two), rel=1e-5)


class WithTokenLabels(ScratchBertForMaskedLM):
    """Has an input for each token whose name, like that of all labels, contains "label"."""

    def forward(self, token_label=None, **inputs):
        assert token_label is not None
        return super().forward(**inputs)


class TokenLabels(MaskedLanguageModelling):
    name, model_class = "token-labels", WithTokenLabels

    def features(self):
        return datasets.Features(super().features() | {"token_label": datasets.List(datasets.Value("int8"))})

    def encoder(self, tokenizer):
        encode = super().encoder(tokenizer)
        return lambda *pair: (example := encode(*pair)) | {"token_label": 0 * example["input_ids"]}


def test_labels_of_tokens_are_evaluated(evaluate, converted, monkeypatch, text_file):
    monkeypatch.setitem(OBJECTIVES, "token-labels", TokenLabels())
    text = ["--train_file", text_file, "--sentence_objective"]
    with_labels, without = (evaluate(converted, text=[*text, name], name=name)[0] for name in ("token-labels", "none"))
    assert mlm_and_nsp(with_labels) == pytest.approx(mlm_and_nsp(without))


def test_prepared_examples_need_their_own_tokenizer(text_file, saved, tmp_path, monkeypatch):
    options = ["--cache_dir", tmp_path / "cache", "--max_seq_length", 40, "--train_file", text_file, "--sample", 9]
    for name, tokenizer in (("same", ["--tokenizer_name_or_path", saved]), ("other", ["--vocab_size", 500])):
        run_script(monkeypatch, "inspect_data.py", *options, *tokenizer, "--output_dir", tmp_path / name)
    run = ["--model_name_or_path", saved, "--cache_dir", tmp_path / "cache", "--prepared_data"]
    run_script(monkeypatch, "evaluate_model.py", *run, tmp_path / "same")
    with pytest.raises(SystemExit, match="error: The examples in .*other were made with another vocabulary"):
        run_script(monkeypatch, "evaluate_model.py", *run, tmp_path / "other")


def test_models_of_different_vocabularies_are_not_compared(evaluate, saved, tokenizer, tmp_path):
    make_bert("ForMaskedLM", tmp_path / "other", tokenizer)
    content = json.loads((tmp_path / "other/tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["zzz"] = vocabulary.pop(max(vocabulary, key=vocabulary.get))
    (tmp_path / "other/tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(SystemExit, match="error: .*different vocabularies or segment ids"):
        evaluate(saved, tmp_path / "other")


def test_model_without_mlm_head_is_rejected_and_those_before_it_stay(evaluate, saved, tokenizer, tmp_path, capsys):
    make_bert("Model", tmp_path / "encoder", tokenizer)
    with pytest.raises(SystemExit, match="error: .*encoder has no MLM head"):
        evaluate(saved, tmp_path / "encoder")
    assert "MLM loss" in capsys.readouterr().out
    assert list(json.loads((tmp_path / "metrics.json").read_text())) == [str(saved)]


def test_metrics_that_are_not_finite_are_an_error(evaluate, bert, tokenizer, tmp_path):
    model = BertForMaskedLM.from_pretrained(bert)
    model.cls.predictions.transform.LayerNorm.weight.data.fill_(3e38)
    model.save_pretrained(tmp_path / "large")
    tokenizer.save_pretrained(tmp_path / "large")
    with pytest.raises(SystemExit, match="error: eval_.*loss of .*large is (nan|inf): its outputs overflow"):
        evaluate(tmp_path / "large")
    assert not (tmp_path / "metrics.json").exists()


def test_options_without_effect_are_none(monkeypatch, capsys):
    for arguments in (["--help"], ["--model_name_or_path", "x", "--vocab_size", "1"]):
        with pytest.raises(SystemExit):
            run_script(monkeypatch, "evaluate_model.py", *arguments)
    shown, errors = capsys.readouterr()
    assert "--validation_file" in shown
    assert not any(f"--{option} " in shown for option in ("tokenizer_name_or_path", "vocab_size", "streaming"))
    assert "There is no option vocab_size." in errors
