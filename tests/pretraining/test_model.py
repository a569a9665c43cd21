"""Continued pretraining: from transformers' BERT and from our own models, with more positions and more tokens."""

import logging
import shutil

import pytest
import torch
import transformers
from transformers import AutoTokenizer, BertForPreTraining, DistilBertConfig, DistilBertModel

from helpers import edit_weights, make_bert, make_inputs
from scratch_bert import ScratchBertConfig, ScratchBertForMaskedLM, ScratchBertForPreTraining
from scratch_bert.hub.conversion import convert_checkpoint


@pytest.fixture
def run(prepare, tmp_path):
    """A prepared run of two steps that continues from a model."""
    return lambda model, output="run", **options: prepare(
        tmp_path / output, model_name_or_path=model, **{"max_steps": 2, "save_steps": 1} | options
    )


@pytest.fixture
def words(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("Zyxomycin\n\nthe\n##zyxitis\nzyxomycin\n", encoding="utf-8")
    return file


def log_of(caplog, make):
    with caplog.at_level(logging.INFO, logger="scratch_bert"):
        made = make()
    return made, caplog.text


@torch.no_grad()
def outputs(model, vocab_size, length=30):
    model.eval()
    model.config.unpad_inputs = False
    return model(**make_inputs(length=length, vocab_size=vocab_size)).to_tuple()


def test_continuing_from_a_bert_starts_with_its_outputs_and_ends_as_a_bert(run, bert, tokenizer, tmp_path, caplog):
    prepared, log = log_of(caplog, lambda: run(bert))
    assert "All weights are from the checkpoint" in log
    model = prepared.trainer.model
    assert isinstance(model, ScratchBertForPreTraining) and model.config.hidden_dropout_prob == 0
    assert prepared.data.tokenizer.get_vocab() == tokenizer.get_vocab()
    expected = outputs(BertForPreTraining.from_pretrained(bert), len(tokenizer))
    torch.testing.assert_close(outputs(model, len(tokenizer)), expected, rtol=0, atol=1e-5)
    assert prepared.train()["eval_mlm_loss"] > 0
    assert "pretrained further, from a local pretrained model, by" in (tmp_path / "run" / "README.md").read_text()
    convert_checkpoint(tmp_path / "run", tmp_path / "back", to="bert")
    back = BertForPreTraining.from_pretrained(tmp_path / "back")
    for one, two in zip(outputs(back, len(tokenizer)), outputs(prepared.trainer.model, len(tokenizer)), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path / "back").get_vocab() == tokenizer.get_vocab()


def test_head_that_the_model_does_not_have_starts_anew(run, tokenizer, tmp_path, caplog):
    make_bert("ForMaskedLM", tmp_path / "bert", tokenizer)
    prepared, log = log_of(caplog, lambda: run(tmp_path / "bert"))
    (line,) = (line for line in log.splitlines() if "Newly initialised" in line)
    assert all(name in line for name in ("bert.pooler.dense.weight", "cls.seq_relationship.weight"))
    assert "cls.predictions" not in line and "encoder" not in line
    assert isinstance(prepared.trainer.model, ScratchBertForPreTraining)


def test_encoder_that_is_not_complete_is_not_trained_further(run, saved, tmp_path):
    name, damaged = "bert.encoder.layer.0.output.dense.bias", shutil.copytree(saved, tmp_path / "damaged")
    edit_weights(damaged, lambda weights: {key: weights[key] for key in weights if key != name})
    with pytest.raises(ValueError, match=f"do not fit its config.json: {name}, missing"):
        run(damaged)


def test_nsp_head_is_left_behind_by_another_objective(run, saved):
    model = run(saved, sentence_objective="none", mlm_probability=0.2).trainer.model
    assert isinstance(model, ScratchBertForMaskedLM)


def test_positions_that_are_added_are_copies_of_the_first_ones(run, bert, tokenizer):
    model = run(bert, max_seq_length=100).trainer.model
    old = BertForPreTraining.from_pretrained(bert).bert.embeddings.position_embeddings.weight  # (40, H)
    assert model.config.max_position_embeddings == 100
    new = model.bert.embeddings.position_embeddings.weight
    assert torch.equal(new, torch.cat([old, old, old[:20]]))
    expected = outputs(BertForPreTraining.from_pretrained(bert), len(tokenizer))
    torch.testing.assert_close(outputs(model, len(tokenizer)), expected, rtol=0, atol=1e-5)
    outputs(model, len(tokenizer), length=100)


def test_sinusoidal_positions_continue_as_sinusoids():
    config = ScratchBertConfig.from_preset("tiny", position_embedding_type="sinusoidal", max_position_embeddings=16)
    model = ScratchBertForMaskedLM(config)
    model.resize_position_embeddings(64)
    config = ScratchBertConfig.from_preset("tiny", position_embedding_type="sinusoidal", max_position_embeddings=64)
    expected = ScratchBertForMaskedLM(config).get_position_embeddings().weight
    assert torch.equal(model.get_position_embeddings().weight, expected)


def test_added_tokens_start_as_the_mean_of_their_pieces(run, bert, tokenizer, words):
    prepared = run(bert, add_tokens=str(words))
    model, longer = prepared.trainer.model, prepared.data.tokenizer
    assert longer.get_vocab() == tokenizer.get_vocab() | {
        "zyxomycin": len(tokenizer),
        "##zyxitis": len(tokenizer) + 1,
    }
    assert not {"is_local", "local_files_only"} & longer.init_kwargs.keys()  # which would be saved
    assert longer.tokenize("The ZYXOMYCIN, thezyxitis.") == ["the", "zyxomycin", ",", "the", "##zyxitis", "."]
    assert model.config.vocab_size == len(tokenizer) + 2
    pieces = tokenizer.encode("zyxomycin", add_special_tokens=False)
    old = BertForPreTraining.from_pretrained(bert)
    embeddings, bias = old.get_input_embeddings().weight, old.get_output_embeddings().bias
    assert len(pieces) > 1
    torch.testing.assert_close(model.get_input_embeddings().weight[-2], embeddings[pieces].mean(0))
    torch.testing.assert_close(model.cls.predictions.bias[-2], bias[pieces].mean())
    logits = outputs(model, len(tokenizer))[0][..., : len(tokenizer)]
    torch.testing.assert_close(logits, outputs(old, len(tokenizer))[0], rtol=0, atol=1e-5)


def test_added_tokens_are_trained_saved_and_converted(run, bert, tokenizer, words, tmp_path):
    prepared = run(bert, add_tokens=str(words))
    prepared.train()
    convert_checkpoint(tmp_path / "run", tmp_path / "back", to="bert")
    back = transformers.BertForMaskedLM.from_pretrained(tmp_path / "back")
    expected = outputs(prepared.trainer.model, len(tokenizer) + 2)[0]
    torch.testing.assert_close(outputs(back, len(tokenizer) + 2)[0], expected, rtol=0, atol=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path / "back").tokenize("zyxomycin") == ["zyxomycin"]


def test_continued_pretraining_resumes_as_if_it_had_not_stopped(run, saved, words, tmp_path):
    options = {"add_tokens": str(words), "max_position_embeddings": 50}
    whole = run(saved, output="whole", **options)
    whole.train()
    start = shutil.copytree(saved, tmp_path / "start")
    run(start, output="part", **options).trainer.train()  # two steps, a checkpoint after each
    shutil.rmtree(start)  # a resume needs the checkpoint alone
    first = str(tmp_path / "part" / "checkpoint-1")
    resumed = run(start, output="part", resume_from_checkpoint=first, **options)
    resumed.train()
    words.write_text("zyxoflavin\n")
    with pytest.raises(ValueError, match="a different tokenizer"):
        run(start, output="part", resume_from_checkpoint=first, **options)
    states = [each.trainer.model.state_dict() for each in (whole, resumed)]
    torch.testing.assert_close(*states, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("a\nNew York\n", "words.txt: Line 2: this tokenizer splits 'New York' into 2 words"),
        ("", "words.txt: There are no new tokens"),
    ],
)
def test_added_tokens_are_checked(lines, message, run, saved, words):
    words.write_text(lines)
    with pytest.raises(ValueError, match=message):
        run(saved, add_tokens=str(words))


def test_options_that_a_continued_run_has_no_use_for_are_rejected(run, saved):
    for data in ({"vocab_size": 100}, {"tokenizer_name_or_path": str(saved)}):
        with pytest.raises(ValueError, match=f"{next(iter(data))} has no effect with model_name_or_path"):
            run(saved, **data)


def test_model_of_another_kind_is_rejected(run, tokenizer, tmp_path):
    config = DistilBertConfig(dim=32, n_layers=1, n_heads=2, hidden_dim=64, vocab_size=len(tokenizer))
    DistilBertModel(config).save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="other is a distilbert: pretraining continues from a scratch_bert or a BERT"):
        run(tmp_path / "other")
