import json
import signal
from pathlib import Path

import pytest

from helpers import ROOT
from scratch_bert import ScratchBertConfig
from scratch_bert.cli import one_line_errors, parse_arguments, refuse, similar
from scratch_bert.pretraining.arguments import (
    DataArguments,
    ModelArguments,
    PretrainingArguments,
    parse_max_seq_length,
    parse_overrides,
)
from scratch_bert.training.trainer import Interrupted


RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


def parse(*argv):
    return parse_arguments(ModelArguments, DataArguments, PretrainingArguments, description="", argv=list(argv))


OPTIONS = {
    "preset": "mini",
    "train_file": "a.txt",
    "learning_rate": "1e-4",
    "lowercase": False,
    "config_overrides": {"norm_first": True},
    "resume_from_checkpoint": True,
    "lr_scheduler_kwargs": {"num_cycles": 2},
    "validation_file": ["b", "c"],
    "run_name": None,
}


@pytest.mark.parametrize("suffix", ["yaml", "yml", "json"])
def test_options_file_gives_what_the_same_flags_give_and_flags_win(suffix, tmp_path):
    file = tmp_path / f"options.{suffix}"
    lines = (f"{name}: {json.dumps(value)}" for name, value in OPTIONS.items())
    file.write_text(json.dumps(OPTIONS) if suffix == "json" else "\n".join(lines).replace('"1e-4"', "1e-4"))
    model_args, data_args, args = parse(str(file), "--preset", "small")
    assert model_args.preset == "small"
    assert parse_overrides(model_args.config_overrides) == {"norm_first": True}
    assert (data_args.train_file, data_args.validation_file) == (["a.txt"], ["b", "c"])
    assert (data_args.lowercase, args.learning_rate) == (False, 1e-4)
    assert args.resume_from_checkpoint == "True" and args.lr_scheduler_kwargs == {"num_cycles": 2}
    assert args.run_name != "None"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_recipe_gives_options_that_make_a_model(recipe):
    model_args, data_args, args = parse(str(recipe), "--train_file", "a.txt")
    config = ScratchBertConfig.from_preset(model_args.preset, **parse_overrides(model_args.config_overrides))
    tokens, _ = parse_max_seq_length(data_args.max_seq_length)
    assert (tokens or 0) <= config.max_position_embeddings and args.max_steps > args.warmup_steps
    assert f"Use: python scripts/pretrain.py recipes/{recipe.name}" in recipe.read_text(encoding="utf-8")


def test_recipe_is_found_by_its_name_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RECIPES
    for recipe in RECIPES:
        options = ["--train_file", "a.txt", "--validation_file", "b.txt"]
        assert parse(f"recipes/{recipe.name}", *options) == parse(str(recipe), *options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("train_fil: a.txt", "there is no option train_fil. Did you mean train_file?", id="typo"),
        pytest.param("max_steps: 2.5", "argument --max_steps", id="type"),
        pytest.param("- preset", "must hold options as name: value pairs", id="list"),
        pytest.param("a: [", "options.yaml cannot be read", id="not YAML"),
        pytest.param(b"\xdf", "options.yaml cannot be read", id="not UTF-8"),
    ],
)
def test_options_file_with_an_error_ends_the_program(content, message, tmp_path, capsys):
    (tmp_path / "options.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SystemExit):
        parse(str(tmp_path / "options.yaml"))
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--learning_rat", "--learn", "--preset=huge", "--max_steps=2.5"])
def test_flag_with_an_error_ends_the_program(flag, capsys):
    with pytest.raises(SystemExit):
        parse(flag, "1") if "=" not in flag else parse(flag)
    assert flag.split("=")[0].lstrip("-") in capsys.readouterr().err


def test_task_is_the_first_argument_and_an_options_file_the_second(tmp_path, capsys):
    (tmp_path / "options.json").write_text('{"preset": "mini"}')
    options = {"description": "", "tasks": ["one", "two"]}
    model_args, task = parse_arguments(ModelArguments, argv=["two", str(tmp_path / "options.json")], **options)
    assert (model_args.preset, task.task) == ("mini", "two")
    with pytest.raises(SystemExit):
        parse_arguments(ModelArguments, argv=["three"], **options)
    assert "invalid choice: 'three'" in capsys.readouterr().err


def test_similar_suggests_a_name_or_nothing():
    assert similar("norm_fist", ["norm_first", "head_dim"]) == " Did you mean norm_first?"
    assert similar("entirely_other", ["norm_first", "head_dim"]) == ""


def test_refuse_names_the_option_that_has_no_effect():
    refuse(DataArguments(language="de"), ["text_format", "lowercase"], "here")
    with pytest.raises(ValueError, match="language has no effect here: leave it out"):
        refuse(DataArguments(language="de"), ["text_format", "language"], "here")


@pytest.mark.parametrize("error", [ValueError("no text"), FileNotFoundError("no text")], ids=repr)
def test_one_line_errors_end_the_program(error):
    with pytest.raises(SystemExit) as exit, one_line_errors():
        raise error
    assert exit.value.code == "error: no text"  # which Python prints, and gives the exit code 1


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (KeyboardInterrupt(), "Stopped early.", 130),
        (Interrupted("Stopped at step 3.", signal.SIGINT), "Stopped at step 3.", 130),
        (Interrupted("Stopped at step 3.", signal.SIGTERM), "Stopped at step 3.", 143),
    ],
    ids=repr,
)
def test_a_signal_ends_the_program_with_a_message_and_its_exit_code(error, message, code, capsys):
    with pytest.raises(SystemExit) as exit, one_line_errors(stopped="Stopped early."):
        raise error
    assert exit.value.code == code
    assert capsys.readouterr().err == f"{message}\n"


def test_one_line_errors_leave_the_errors_of_the_program_alone():
    with pytest.raises(RuntimeError, match="a bug"), one_line_errors():
        raise RuntimeError("a bug")


def test_text_of_a_recipe_is_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, data_args, _ = parse("recipes/dialogue.yaml")
    (train,), (validation,) = data_args.train_file, data_args.validation_file
    assert Path(train).read_text(encoding="utf-8") == (ROOT / "recipes" / "dialogue.txt").read_text(encoding="utf-8")
    assert train == validation
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "dialogue.txt").write_text("My own.")
    _, data_args, _ = parse(str(ROOT / "recipes" / "dialogue.yaml"))
    assert data_args.train_file == ["recipes/dialogue.txt"]


@pytest.mark.parametrize("name", ["nowhere/cpu-hour.yaml", "cpu-hour.yaml", "recipes/nothing.yaml"])
def test_options_file_is_not_replaced_by_a_recipe(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        parse(name)
    assert f"{name} cannot be read" in capsys.readouterr().err


def test_options_file_without_an_installed_package(tmp_path, monkeypatch):
    """As with a checkout on PYTHONPATH, where recipes/ is not scratch_bert.recipes."""
    monkeypatch.setattr("scratch_bert.cli.find_spec", lambda name: None)
    (tmp_path / "options.yaml").write_text("preset: small")
    assert parse(str(tmp_path / "options.yaml"))[0].preset == "small"
