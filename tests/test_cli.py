import pytest
import torch

from helpers import ROOT
from scratch_bert import ScratchBertConfig
from scratch_bert.cli import parse_arguments
from scratch_bert.pretraining.arguments import DataArguments, ModelArguments, PretrainingArguments, parse_overrides


RECIPES = sorted((ROOT / "recipes").iterdir())


def parse(*argv):
    return parse_arguments(ModelArguments, DataArguments, PretrainingArguments, description="", argv=list(argv))


@pytest.mark.parametrize("native", [True, False])
def test_bf16_is_the_default_where_the_cpu_has_it_and_can_be_asked_for_anywhere(native, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": native})
    args = parse()[2]
    assert args.bf16 is args.bf16_by_default is native
    for flags, expected in ((["--bf16"], True), (["--bf16", "false"], False), (["--fp16_full_eval"], native)):
        args = parse(*flags)[2]
        assert args.bf16 is expected and args.use_cpu
        assert args.bf16_by_default == (native and "--bf16" not in flags)


def test_overrides_have_the_types_of_yaml():
    text = "norm_first=true, head_dim=32,layer_norm_eps=1e-5,hidden_act=relu,classifier_dropout=null"
    assert parse_overrides(text) == {
        "norm_first": True,
        "head_dim": 32,
        "layer_norm_eps": 1e-5,
        "hidden_act": "relu",
        "classifier_dropout": None,
    }
    for bad, message in (("norm_first", "has no '='"), ("norm_fist=1", "norm_first"), ("pad_token_id=9", "tokenizer")):
        with pytest.raises(ValueError, match=message):
            parse_overrides(bad)


def test_a_file_gives_what_the_same_flags_give_and_flags_win(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text(
        "preset: mini\ntrain_file: a.txt\nlearning_rate: 1e-4\nlowercase: false\nconfig_overrides: {norm_first: true}\n"
        "resume_from_checkpoint: true\nlr_scheduler_kwargs: {num_cycles: 2}\nvalidation_file: [b, c]\nrun_name: null\n"
    )
    model_args, data_args, args = parse(str(file), "--preset", "small")
    assert (model_args.preset, model_args.config_overrides) == ("small", {"norm_first": True})
    assert (data_args.train_file, data_args.validation_file) == (["a.txt"], ["b", "c"])
    assert (data_args.lowercase, args.learning_rate) == (False, 1e-4)
    assert args.resume_from_checkpoint == "True" and args.lr_scheduler_kwargs == {"num_cycles": 2}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_recipes_are_options_that_make_a_model(recipe):
    model_args, data_args, args = parse(str(recipe), "--train_file", "a.txt", "--validation_file", "b.txt")
    config = ScratchBertConfig.from_preset(model_args.preset, **model_args.config_overrides)
    assert int(data_args.max_seq_length) <= config.max_position_embeddings and args.max_steps > args.warmup_steps


def test_the_vocabulary_is_as_large_as_the_text_asks_for():
    assert parse()[1].vocab_size == 2048
    assert parse("--train_file", "a.txt")[1].vocab_size == 30522
    assert parse("--train_file", "a.txt", "--vocab_size", "500")[1].vocab_size == 500


@pytest.mark.parametrize("flag", ["--learning_rat", "--learn", "--preset=huge", "--max_steps=2.5"])
def test_typos_end_the_program(flag, capsys):
    with pytest.raises(SystemExit):
        parse(flag, "1") if "=" not in flag else parse(flag)
    assert flag.split("=")[0].lstrip("-") in capsys.readouterr().err
