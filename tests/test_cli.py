import dataclasses
import json
import os
import re
import signal
import sys
import textwrap
from pathlib import Path

import pytest
from transformers import TrainingArguments

from helpers import ROOT, SCRIPTS, run_process
from scratch_bert import ScratchBertConfig
from scratch_bert.cli import from_keywords, one_line_errors, parse_arguments, reject_non_default, similar
from scratch_bert.pretraining.arguments import (
    DataArguments,
    ModelArguments,
    PretrainingArguments,
    parse_max_seq_length,
    parse_overrides,
)
from scratch_bert.training.trainer import Interrupted
from scratch_bert_cli.finetuning import TaskArguments
from scratch_bert_cli.main import VERBS, command
from scratch_bert_cli.options import option, read_options
from scratch_bert_cli.pretraining import PretrainingOptions
from scratch_bert_cli.training import RANGES, trainer_options


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
    "lr_scheduler_type": "cosine_with_restarts",
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
        pytest.param("train_fil: a.txt", ": there is no option train_fil. Did you mean train_file?", id="typo"),
        pytest.param("max_steps: 2.5", ": max_steps must be a whole number, got 2.5", id="type"),
        pytest.param(
            "max_steps: {a: 2}", ": max_steps must be a whole number, got {'a': 2}", id="object for a number"
        ),
        pytest.param("train_file: {a: b}", ": train_file must be text, got {'a': 'b'}", id="object for files"),
        pytest.param("train_file: [a, [b]]", ": train_file must be text, got ['b']", id="list in a list"),
        pytest.param("train_file: [a, null]", ": train_file has an empty item", id="empty item"),
        pytest.param("license: 2024-01-01", ": license is the date 2024-01-01: put text in quotes", id="date"),
        pytest.param("max_steps: 1:30", "line 1: YAML reads 1:30 as another number", id="base 60"),
        pytest.param("seed: 010", "line 1: YAML reads 010 as another number", id="base 8"),
        pytest.param("max_steps: [2, 3]", ": max_steps takes one value, got [2, 3]", id="list for a number"),
        pytest.param("max_steps: 0", ": max_steps must be at least 1", id="range"),
        pytest.param(
            "max_steps: 2\nfinal_share: 0.2",
            ": final_share has no effect without final_max_seq_length or final_mlm_probability",
            id="no effect",
        ),
        pytest.param(
            "load_best_model_at_end: true\nsave_strategy: epoch", ": --load_best_model_at_end", id="Trainer's"
        ),
        pytest.param("text_column: no", ": text_column must be text, got false: put yes, no", id="boolean for text"),
        pytest.param("- preset", " must hold options as name: value pairs", id="list"),
        pytest.param("a: [", " cannot be read: line 1: ", id="not YAML"),
        pytest.param(b"\xdf", " cannot be read: ", id="not UTF-8"),
        pytest.param("preset: mini\n\npreset: tiny", " cannot be read: line 3: preset is given twice", id="key twice"),
        pytest.param('{"preset": "mini", "preset": "mini"}', ": preset is given twice", id="key twice in JSON"),
        pytest.param("config_overrides: {a: 1, a: 2}", ": a is given twice", id="key twice inside"),
        pytest.param("a: &x [1]\nb: [*x, *x]", "line 2: an alias, *", id="alias"),
        pytest.param("train_file: *.txt", "line 1: expected alphabetic", id="star"),
        pytest.param("max_steps: !!int x", "line 1: a tag, !", id="tag"),
        pytest.param("a: " + "[" * 3000, "line 1: more than 20 levels", id="levels"),
        pytest.param("a: 1\n" * 250_000, " cannot be read: it is larger than 1 MB", id="size"),
    ],
)
def test_options_file_with_an_error_ends_the_program(content, message, tmp_path, capsys):
    (tmp_path / "options.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SystemExit):
        parse(str(tmp_path / "options.yaml"))
    error = capsys.readouterr().err.partition("error: ")[2]
    assert error.startswith(str(tmp_path / "options.yaml")) and message in error and error.count("\n") == 1


def test_options_file_is_blamed_for_its_own_values_alone(tmp_path, capsys):
    (tmp_path / "options.yaml").write_text("max_steps: 2\nlearning_rate: 99")
    for flags in (["--max_steps", "x"], ["--learning_rate", "98"]):
        with pytest.raises(SystemExit):
            parse(str(tmp_path / "options.yaml"), *flags)
    shown = capsys.readouterr().err
    assert "error: max_steps must be a whole number, got 'x'" in shown
    assert "error: learning_rate must be at least 0 and at most 10, got 98" in shown


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no FIFOs")
def test_options_file_that_is_a_fifo_is_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "options.yaml")
    with pytest.raises(SystemExit):
        parse(str(tmp_path / "options.yaml"))
    assert "options.yaml cannot be read: it is not a file" in capsys.readouterr().err


def test_no_checkpoint_is_resumed_if_an_options_file_says_so(tmp_path):
    (tmp_path / "options.yaml").write_text("resume_from_checkpoint: false")
    assert parse(str(tmp_path / "options.yaml"))[2].resume_from_checkpoint is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in RANGES for value in ("-1", "nan", "inf", "1e30")),
        *((name, "0") for name in ("eval_accumulation_steps", "torch_empty_cache_steps", "ddp_timeout")),
        ("max_steps", "1" * 20),
        ("num_train_epochs", "1e300"),
        ("per_device_train_batch_size", "1" * 12),
        ("stream_buffer", "1" * 30),
        ("dataloader_num_workers", "1000000"),
        ("language", "xx"),
        ("lr_scheduler_kwargs", "{bad"),
        ("lr_scheduler_kwargs", '{"a":' + "[" * 100_000),
        ("lr_scheduler_kwargs", '{"no_such": 1}'),
        ("accelerator_config", "{bad"),
        ("optim_args", "bad"),
        ("gradient_checkpointing_kwargs", '{"no_such": 1}'),
        ("report_to", "nothing"),
        ("label_names", "x"),
        ("parallelism_config", "x"),
    ],
)
def test_value_out_of_range_is_an_error_that_names_its_option(name, value, capsys):
    with pytest.raises(SystemExit):
        parse(f"--{name}", value)
    error = capsys.readouterr().err.partition("error: ")[2]
    assert error.startswith(f"{name} ") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max_steps", "5"], "max_steps has no effect with max_minutes: leave it out, or set it to -1."),
        (
            ["--warmup_steps", "100"],
            "With max_minutes, warmup_steps must be a fraction of the time, below 1, got 100.",
        ),
        (["--save_steps", "0.1"], "With max_minutes, save_steps must be a number of steps"),
        (["--lr_scheduler_type", "reduce_lr_on_plateau"], "lr_scheduler_type reduce_lr_on_plateau does not follow"),
        (["--max_minutes", "0"], "max_minutes must be greater than 0"),
    ],
)
def test_options_that_do_not_go_with_a_clock_are_errors(options, message, capsys):
    with pytest.raises(SystemExit):
        parse("--max_minutes", "60", *options)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--learning_rat", "--learn", "--preset=huge", "--max_steps=2.5"])
def test_flag_with_an_error_ends_the_program(flag, capsys):
    with pytest.raises(SystemExit):
        parse(flag, "1") if "=" not in flag else parse(flag)
    assert flag.split("=")[0].lstrip("-") in capsys.readouterr().err


def test_task_is_the_first_argument_and_an_options_file_the_second(tmp_path, capsys):
    (tmp_path / "options.json").write_text('{"preset": "mini"}')
    options = {"description": "", "tasks": ["one", "two"]}
    command_line = read_options(ModelArguments, argv=["two", str(tmp_path / "options.json")], **options)
    assert (command_line.options, command_line.task) == ({"preset": "mini"}, "two")
    for argv in (["tow"], []):
        with pytest.raises(SystemExit):
            read_options(ModelArguments, argv=argv, **options)
        assert "The first argument must be one of one, two." in capsys.readouterr().err


def test_output_directories_are_numbered_and_a_resume_takes_the_newest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def output_dir(**options):
        return from_keywords(PretrainingOptions, **options)[0].output_dir

    assert output_dir() == output_dir(resume_from_checkpoint="auto") == "runs/pretrain-1"
    for name in ("pretrain-1", "pretrain-9", "pretrain-10", "pretrain-10-old", "pretrain", "finetune-77"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert output_dir() == "runs/pretrain-11"
    assert output_dir(resume_from_checkpoint="auto") == output_dir(resume_from_checkpoint=True) == "runs/pretrain-10"
    assert output_dir(resume_from_checkpoint="runs/pretrain-9/checkpoint-4") == "runs/pretrain-9"
    assert output_dir(output_dir="mine") == "mine"


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        ("scripts/pretrain.py", "python scripts/demo.py 'runs/a b'"),
        ("pretrain.py", "python demo.py 'runs/a b'"),
        ("scratch-bert pretrain", "scratch-bert demo 'runs/a b'"),
        ("/usr/bin/scratch-bert-pretrain", "scratch-bert demo 'runs/a b'"),
    ],
)
def test_next_commands_are_in_the_form_of_this_one(started, expected, monkeypatch):
    monkeypatch.setattr("sys.argv", [started])
    monkeypatch.setattr("scratch_bert_cli.main.which", {"python": sys.executable}.get)
    assert command("demo", "runs/a b") == expected


def test_next_commands_name_the_python_that_the_shell_would_not_find(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["scripts/pretrain.py"])
    monkeypatch.setattr("scratch_bert_cli.main.which", {"python": "/usr/bin/python"}.get)
    monkeypatch.setattr("sys.executable", str(tmp_path / ".venv/bin/python"))
    monkeypatch.chdir(tmp_path)
    assert command("demo") == ".venv/bin/python scripts/demo.py"
    monkeypatch.chdir(tmp_path.parent)
    assert command("demo") == f"{tmp_path.name}/.venv/bin/python scripts/demo.py"
    monkeypatch.chdir(Path(__file__).parent)
    assert command("demo") == f"{tmp_path}/.venv/bin/python scripts/demo.py"


def test_similar_suggests_a_name_or_nothing():
    assert similar("norm_fist", ["norm_first", "head_dim"]) == " Did you mean norm_first?"
    assert similar("entirely_other", ["norm_first", "head_dim"]) == ""


def test_reject_non_default_names_the_option_that_has_no_effect():
    reject_non_default(DataArguments(language="de"), ["text_format", "lowercase"], "here")
    with pytest.raises(ValueError, match="language has no effect here: leave it out"):
        reject_non_default(DataArguments(language="de"), ["text_format", "language"], "here")


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
def test_signal_ends_the_program_with_a_message_and_its_exit_code(error, message, code, capsys):
    with pytest.raises(SystemExit) as exit, one_line_errors(stopped="Stopped early."):
        raise error
    assert exit.value.code == code
    assert capsys.readouterr().err == f"{message}\n"


def test_one_line_errors_leave_the_errors_of_the_program_alone():
    with pytest.raises(RuntimeError, match="a bug"), one_line_errors():
        raise RuntimeError("a bug")


def test_text_of_a_recipe_is_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "recipes" / "dialogue.txt").read_text(encoding="utf-8")
    (tmp_path / "dialogue.txt").write_text("Another text.")
    for recipe in ("recipes/dialogue.yaml", str(ROOT / "recipes" / "dialogue.yaml")):
        _, data_args, _ = parse(recipe)
        (train,), (validation,) = data_args.train_file, data_args.validation_file
        assert Path(train).read_text(encoding="utf-8") == text and train == validation


def test_paths_of_an_options_file_are_relative_to_it_or_to_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "here" / "text").mkdir(parents=True)
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for file in ("here/text/a.txt", "here/b.txt", "there/b.txt", "there/c1.txt", "there/mini"):
        (tmp_path / file).touch()
    values = {"train_file": ["text/a.txt", "b.txt", "c*.txt", "none.txt"], "preset": "mini", "output_dir": "b.txt"}
    (tmp_path / "there" / "options.json").write_text(json.dumps(values))
    model_args, data_args, args = parse("../there/options.json", "--validation_file", "b.txt")
    assert data_args.train_file == ["text/a.txt", "../there/b.txt", "../there/c*.txt", "none.txt"]
    assert (data_args.validation_file, model_args.preset, args.output_dir) == (["b.txt"], "mini", "b.txt")


def test_recipes_and_verbs_are_found_in_a_checkout_that_hides_the_installed_package(tmp_path):
    code = """
        import sys
        sys.meta_path = [finder for finder in sys.meta_path if "editable" not in str(finder).lower()]
        sys.path.insert(0, sys.argv.pop(1))
        from scratch_bert_cli.main import main
        main()
    """
    arguments = ["pretrain", "recipes/cpu-hour.yaml", "--max_steps", "many"]
    result = run_process("-c", textwrap.dedent(code), ROOT, *arguments, check=False, cwd=tmp_path)
    assert "error: max_steps must be a whole number, got 'many'" in result.stderr


@pytest.mark.parametrize("name", ["nowhere/cpu-hour.yaml", "cpu-hour.yaml", "recipes/nothing.yaml"])
def test_options_file_is_not_replaced_by_a_recipe(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        parse(name)
    assert f"{name} cannot be read" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------ help


def shown(script, *argv):
    return run_process(SCRIPTS / script, *argv, COLUMNS="119").stdout


@pytest.fixture(scope="module")
def pretrain_help():
    return shown("pretrain.py", "--help")


def flags(text):
    return re.findall(r"(?m)^  (--\S+)", text)


def test_help_has_groups_and_is_short(pretrain_help):
    titles = re.findall(r"(?m)^(\w[\w ,]*):$", pretrain_help)
    assert titles == [
        "Model",
        "Source",
        "Text",
        "Tokenizer",
        "Examples",
        "Masking",
        "Training",
        "Evaluation, checkpoints and log",
        "Hub",
    ]
    assert pretrain_help.count("\n") < 140
    assert "None" not in pretrain_help


def test_help_has_one_spelling_of_each_flag(pretrain_help):
    names = flags(pretrain_help)
    assert len(names) == len(set(names)) > 60 and not any("-" in name[2:] for name in names)
    assert not any(name.startswith("--no_") for name in names)


def test_help_all_has_the_other_options_of_trainer(pretrain_help):
    everything = flags(shown("pretrain.py", "--help-all"))
    assert "--fsdp" not in flags(pretrain_help)
    known = {f"--{field.name}" for field in dataclasses.fields(TrainingArguments)}
    assert set(everything) == set(flags(pretrain_help)) | known and len(everything) == len(set(everything))


def test_trainer_options_are_those_of_training_arguments():
    names = [field.name for field in dataclasses.fields(TrainingArguments)]
    options = trainer_options().__dataclass_fields__
    assert list(options) == names
    assert options["seed"].default == 42 and all(field.metadata["help"] for field in options.values())


@pytest.mark.parametrize("spelling", ["--no_lowercase", "--no-lowercase", "--lowercase=false"])
def test_flags_may_have_hyphens_and_booleans_a_negation(spelling):
    _, data_args, args = parse("--max-steps=3", "--learning-rate", "1e-4", spelling, "--tf32", "false")
    assert (data_args.lowercase, args.max_steps, args.learning_rate, args.tf32) == (False, 3, 1e-4, False)


# ----------------------------------------------------------------------------------- before torch is imported; verbs

RUN = """
import sys
from scratch_bert_cli.main import main
sys.argv = ["scratch-bert", *sys.argv[1:]]
try:
    main()
finally:
    assert not {"torch", "transformers", "datasets"} & sys.modules.keys()
"""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["pretrain", "--learning_rat", "1"], "There is no option --learning_rat. Did you mean learning_rate?"),
        (["pretrain", "--fsdp_confi", "1"], "There is no option --fsdp_confi. Did you mean fsdp_config?"),
        (["pretrain", "--preset", "smal"], "preset must be one of micro, tiny, .* got smal. Did you mean small?"),
        (["pretrain", "--learning_rate", "11"], "learning_rate must be at least 0 and at most 10, got 11.0"),
        (["pretrain", "--max_steps", "many"], "max_steps must be a whole number, got 'many'"),
        (["pretrain", "--tf32", "maybe"], "tf32 must be true or false, got 'maybe'"),
        (["pretrain", "--stream_buffer", "9"], "stream_buffer has no effect without streaming"),
        (["pretrain", "--final_share", "0.2"], "final_share has no effect without final_max_seq_length"),
        (["inspect-data", "--final_share", "0.2"], "final_share has no effect without final_max_seq_length"),
        (["finetune", "cloa"], "The first argument must be one of .* Did you mean cola?"),
        (["finetune", "cola"], "Name the pretrained checkpoint with --model_name_or_path"),
        (["evaluate"], "--model_name_or_path is required"),
        (["prepare-data"], "--input_dir is required"),
        (["convert", "a", "b", "--to", "gpt"], "invalid choice: 'gpt'"),
        (["push"], "the following arguments are required"),
        (["demo"], "the following arguments are required"),
        (["pretrian"], "there is no verb pretrian. Did you mean pretrain?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_error_in_the_options_is_found_without_torch(argv, message):
    result = run_process("-c", RUN, *argv, check=False)
    assert result.returncode == 2 and re.search(message.replace("?", r"\?"), result.stderr), result.stderr


def test_help_of_each_verb_needs_no_torch():
    assert all(f"  {verb} " in run_process("-c", RUN).stdout for verb in VERBS)
    for verb in VERBS:
        assert run_process("-c", RUN, verb, "--help").stdout.startswith(f"usage: scratch-bert {verb} ")


def test_verbs_are_the_scripts_and_the_aliases():
    tomllib = pytest.importorskip("tomllib")
    commands = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert commands.pop("scratch-bert") == "scratch_bert_cli.main:main"
    aliases = {
        f"scratch-bert-{verb}": f"scratch_bert_cli.scripts.{script}:main" for verb, (script, _) in VERBS.items()
    }
    assert commands == aliases
    assert {script for script, _ in VERBS.values()} == {file.stem for file in SCRIPTS.glob("*.py")} - {"__init__"}


@pytest.mark.slow
def test_first_line_comes_before_the_imports(tmp_path):
    """The model to continue from is missing, which is found out after them."""
    run = run_process(SCRIPTS / "pretrain.py", "--model_name_or_path", tmp_path / "none", check=False)
    assert run.stderr.startswith("Loading PyTorch …\n") and run.returncode == 1


# -------------------------------------------------------------------------------------------------------- from_keywords


def test_from_keywords_builds_what_flags_build(tmp_path):
    keywords = {
        "preset": "mini",
        "train_file": tmp_path,
        "max_seq_length": 32,
        "learning_rate": "1e-4",
        "max_steps": 3,
    }
    built = from_keywords(ModelArguments, DataArguments, PretrainingArguments, **keywords, report_to="none")
    flags = [text for name, value in keywords.items() for text in (f"--{name}", str(value))]
    assert built == parse(*flags)
    assert built[1].train_file == [str(tmp_path)] and built[1].max_seq_length == "32"


def test_from_keywords_takes_values_of_python():
    overrides = {"norm_first": True}
    model_args, data_args = from_keywords(
        ModelArguments, DataArguments, config_overrides=overrides, train_file=(Path("a"), "b"), vocab_size=None
    )
    assert parse_overrides(model_args.config_overrides) == overrides
    assert data_args.train_file == ["a", "b"] and data_args.vocab_size is None
    (task_args,) = from_keywords(TaskArguments, model_name_or_path=Path("x"), train_file="a.csv", seeds=3, dropout=0)
    assert (task_args.model_name_or_path, task_args.seeds, task_args.dropout) == ("x", [3], 0.0)
    schedule = {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2}}
    (args,) = from_keywords(PretrainingArguments, **schedule, eval_strategy="epoch", use_cpu=True)
    assert args.lr_scheduler_kwargs == {"power": 2} and args.eval_strategy == "epoch"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_fil": "a"}, "There is no option train_fil. Did you mean train_file?"),
        ({"entirely_other": 1}, "There is no option entirely_other.$"),
        ({"preset": "huge"}, "preset must be one of micro, tiny, mini, small, medium, base, large, got huge."),
        ({"preset": ["mini", "tiny"]}, r"preset takes one value, got \['mini', 'tiny'\]"),
        ({"dropout": 1.5}, "dropout must be at least 0 and less than 1, got 1.5"),
        ({"dropout": "much"}, "dropout must be a number, got 'much'"),
        ({"vocab_size": 2.5}, "vocab_size must be a whole number, got 2.5"),
        ({"lowercase": "perhaps"}, "lowercase must be true or false, got 'perhaps'"),
        ({"preset": "mini", "model_name_or_path": "x"}, "preset has no effect with model_name_or_path"),
        ({"add_tokens": "x"}, "add_tokens has no effect without model_name_or_path"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_from_keywords_raises_what_the_command_line_shows(options, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        from_keywords(ModelArguments, DataArguments, **options)


def test_ignored_options_are_checked_and_left_out(capsys):
    @dataclasses.dataclass
    class Own:
        show: int = option(1, "", within="[0, 9]")

    read = {"description": "", "ignored": (DataArguments,)}
    assert read_options(Own, argv=["--show", "2", "--language", "de"], **read).options == {"show": "2"}
    with pytest.raises(SystemExit):
        read_options(Own, argv=["--language", "deu-DE"], **read)
    assert "language must be an ISO 639 code" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argument",
    [
        "train_file",
        "validation_file",
        "dataset_name",
        "prepared_data",
        "output_dir",
        "cache_dir",
        "model_name_or_path",
    ],
)
def test_option_of_an_empty_name_is_an_error(argument, capsys):
    """As of a variable that is not set: it would be the current directory."""
    for values in ([""], ["a.txt", ""]) if argument.endswith("_file") else ([""],):
        with pytest.raises(SystemExit):
            parse_arguments(
                ModelArguments, DataArguments, PretrainingOptions, description="", argv=[f"--{argument}", *values]
            )
        assert f"{argument} must not be empty: leave it out, or set the variable" in capsys.readouterr().err
