"""Flags, files of options and keywords, and what the commands say of mistakes before PyTorch is imported."""

import json
import re
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from helpers import ROOT, SCRIPTS, run_process
from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining
from scratch_bert.pretraining.arguments import parse_overrides, pretraining_arguments
from scratch_bert_cli.command_line import ALIASES, read_options
from scratch_bert_options.commands import VERBS, command, command_line, installation
from scratch_bert_options.data import DataOptions
from scratch_bert_options.declare import OptionGroup, from_keywords, known_options, option, options
from scratch_bert_options.finetuning import FinetuningOptions, TaskOptions
from scratch_bert_options.model import ModelOptions
from scratch_bert_options.preparation import PreparationOptions
from scratch_bert_options.pretraining import PretrainingOptions


RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
GROUPS = (ModelOptions, DataOptions, PretrainingOptions)


def parse(*argv):
    return read_options(*GROUPS, description="", argv=list(argv))


def error_of(capsys, *argv, groups=GROUPS):
    with pytest.raises(SystemExit) as exit:
        read_options(*groups, description="", argv=list(argv))
    assert exit.value.code == 2
    error = capsys.readouterr().err.partition("error: ")[2]
    assert error.count("\n") == 1
    return error


OPTIONS = {"preset": "mini", "train_file": "a.txt", "learning_rate": "1e-4", "lowercase": False, "license": None}
OPTIONS |= {"config_overrides": {"norm_first": True}, "validation_file": ["b", "c"], "resume_from_checkpoint": True}
OPTIONS |= {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 2}}
OPTIONS |= {"eval_strategy": False}


@pytest.mark.parametrize("suffix", ["yaml", "yml", "json"])
def test_options_file_gives_what_the_same_flags_give_and_flags_win(suffix, tmp_path):
    file = tmp_path / f"options.{suffix}"
    lines = (f"{name}: {json.dumps(value)}" for name, value in OPTIONS.items())
    file.write_text(json.dumps(OPTIONS) if suffix == "json" else "\n".join(lines).replace('"1e-4"', "1e-4"))
    model_args, data_args, training = parse(str(file), "--preset", "small")
    assert model_args.preset == "small"
    assert parse_overrides(model_args.config_overrides) == {"norm_first": True}
    assert (data_args.train_file, data_args.validation_file) == (["a.txt"], ["b", "c"])
    assert (data_args.lowercase, training.learning_rate, training.eval_strategy) == (False, 1e-4, "no")
    assert pretraining_arguments(training).lr_scheduler_kwargs == {"num_cycles": 2}


def test_null_is_the_default_in_place_of_a_files_value(capsys):
    recipe = ["recipes/cpu-hour.yaml", "--train_file", "a.txt", "--max_steps", "9"]
    assert "max_steps has no effect with max_minutes" in error_of(capsys, *recipe)
    *_, training = parse(*recipe, "--max_minutes", "null", "--warmup_steps", "null")
    assert (training.max_steps, training.max_minutes) == (9, None)
    assert training.warmup_steps == PretrainingOptions(output_dir="run").warmup_steps != 0.03


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_recipe_gives_options_that_make_a_model(recipe):
    model_args, data_args, training = parse(str(recipe), "--train_file", "a.txt")
    overrides = parse_overrides(model_args.config_overrides)
    config = ScratchBertConfig.from_preset(model_args.preset, vocab_size=data_args.vocab_size or 30_522, **overrides)
    with torch.device("meta"):
        parameters = ScratchBertForPreTraining(config).num_parameters()
    args, text = pretraining_arguments(training), recipe.read_text(encoding="utf-8")
    length = data_args.max_seq_length
    assert isinstance(length, str) or length <= config.max_position_embeddings
    assert args.max_steps > args.warmup_steps or args.max_steps == -1 and args.warmup_steps < 1  # epochs
    assert f"Use: python scripts/pretrain.py recipes/{recipe.name}" in text
    assert re.findall(r"(\d+) M parameters", text) in ([], [f"{parameters / 1e6:.0f}"])


def test_recipe_and_its_text_are_found_by_name_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dialogue.txt").write_text("Another text.")
    assert RECIPES
    for recipe in RECIPES:
        flags = ["--train_file", "a.txt", "--validation_file", "b.txt"]
        assert parse(f"recipes/{recipe.name}", *flags) == parse(str(recipe), *flags)
    (train,) = parse("recipes/dialogue.yaml")[1].train_file
    assert Path(train).read_bytes() == (ROOT / "recipes" / "dialogue.txt").read_bytes()


def test_options_file_has_the_plain_values_of_yaml_1_2(tmp_path):
    """In YAML 1.1, no is false, 010 is 8, and 1:30 is 90."""
    (tmp_path / "a.yaml").write_text(
        "language: no\nseed: 010\ntext_column: 1:30\ntokenizer_name_or_path: 010\n"
        "learning_rate: 1e-4\nbf16: true\ntrain_file: a"
    )
    _, data, training = parse(str(tmp_path / "a.yaml"))
    assert (data.language, training.seed, data.text_column) == ("no", 10, "1:30")
    assert data.tokenizer_name_or_path == "010"
    assert (training.learning_rate, training.bf16) == (1e-4, True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("lr: 1", "There is no option lr. Use --learning_rate", id="alias"),
        pytest.param("train_file: [a, [b]]", "train_file.1: input should be a valid string, got ['b']", id="nested"),
        pytest.param("max_steps: [2, 3]", "max_steps: input should be a valid integer, got [2, 3]", id="list"),
        pytest.param("max_steps: 0", "max_steps must be at least 1", id="range"),
        pytest.param("seed: 1\nseed: 2", "seed is given twice", id="key twice"),
        pytest.param("- preset", "must hold options as name: value pairs", id="no mapping"),
        pytest.param("a: [", "options.yaml cannot be read: while parsing", id="not YAML"),
        pytest.param(b"\xdf", "options.yaml cannot be read: 'utf-8' codec", id="not UTF-8"),
        pytest.param("a: !!python/object:x.Y {}", "could not determine a constructor for the tag", id="object"),
    ],
)
def test_options_file_with_an_error_ends_the_program(content, message, tmp_path, capsys):
    (tmp_path / "options.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert message in error_of(capsys, str(tmp_path / "options.yaml"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--mask_prob 1", "There is no option mask_prob. Use --mlm_probability."),
        ("--device cpu", "There is no option device. Use --use_cpu true for the CPU"),
        ("--learning_rate 11", "learning_rate: input should be less than or equal to 10, got '11'"),
        ("--learning_rate nan", "learning_rate: input should be a finite number, got 'nan'"),
        ("--lowercase perhaps", "lowercase: input should be a valid boolean"),
        ("--token_embedding_init lsx", "token_embedding_init: must be one of lsa, normal, got 'lsx'"),
        ("--train_file a --train_file b", "--train_file is given twice: give it once, with all its values"),
        ("a.txt", "a.txt is not an option. Options come from a file"),
        ("--preset mini a.yaml", "a.yaml is not an option. Options come from a file"),
        ("--no_lowercase true", "true is not an option"),
        ("--max_steps --seed 1", "--max_steps needs a value"),
        ("nowhere/cpu-hour.yaml", "nowhere/cpu-hour.yaml cannot be read"),
        ("--max_minutes 60 --max_steps 5", "max_steps has no effect with max_minutes"),
        ("--max_minutes 60 --warmup_steps 100", "warmup_steps must be a fraction of the time"),
        ("--max_minutes 60 --lr_scheduler_type greedy", "lr_scheduler_type greedy cannot follow a clock"),
        ("--muon_learning_rate 1 --optim sgd", "muon_learning_rate has no effect without optim muon"),
        ("--language xx", "language must be an ISO 639 code"),
        ("--license Mine!", "license must be one of the Hub's identifiers"),
    ],
)
def test_flag_with_an_error_ends_the_program(argv, message, capsys):
    assert message in error_of(capsys, *argv.split())


@pytest.mark.parametrize("name", ["train_file", "dataset_name", "output_dir", "cache_dir", "model_name_or_path"])
def test_option_of_an_empty_name_is_an_error(name, capsys):
    """As of a variable that is not set: it would be the current directory."""
    assert f"{name}: must not be empty: leave it out, or set the variable" in error_of(capsys, f"--{name}", "")


@pytest.mark.parametrize("name", ["train_file", "prepared_data", "output_dir", "cache_dir", "model_name_or_path"])
@pytest.mark.parametrize("url", ["s3://bucket/a", "gs://bucket/a", "memory://a", "file:///a"])
def test_option_of_a_url_is_an_error(name, url, capsys):
    """To pathlib, it would be in a local directory named `s3:`."""
    assert f"{name}: must not be a URL: mount the storage" in error_of(capsys, f"--{name}", url)


def test_preparation_reads_from_a_url_and_writes_to_none(capsys):
    groups, argv = (PreparationOptions,), ["--input_dir", "s3://bucket/text", "--output_dir"]
    (args,) = read_options(*groups, description="", argv=[*argv, "examples"])
    assert args.input_dir == "s3://bucket/text"
    assert "output_dir: must not be a URL" in error_of(capsys, *argv, "s3://bucket/examples", groups=groups)


def test_aliases_are_not_options_and_lead_to_some():
    known = known_options((*GROUPS, TaskOptions, FinetuningOptions))
    assert not known.keys() & ALIASES.keys()
    for hint in ALIASES.values():
        named = re.findall(r"--(\w+)", hint)
        assert named and set(named) <= known.keys()


def test_other_options_of_trainer_are_taken_and_checked():
    training = parse("--tf32", "false", "--fp16_full_eval", "--include_for_metrics", "loss")[2]
    args = pretraining_arguments(training)
    assert (args.tf32, args.fp16_full_eval, args.include_for_metrics) == (False, True, ["loss"])
    for given, message in (
        ({"tf32": "maybe"}, "tf32: input should be a valid boolean"),
        ({"fsdp_confi": "1"}, "There is no option fsdp_confi. Did you mean fsdp_config?"),
        ({"batch_eval_metrics": False}, "batch_eval_metrics must stay True: metrics are summed"),
        ({"optim_args": "a=1"}, "optim_args has no effect with optim muon"),
    ):
        (training,) = from_keywords(PretrainingOptions, **given)
        with pytest.raises(ValueError, match=message.replace("?", r"\?")):
            pretraining_arguments(training)


def test_task_is_the_first_argument_and_an_options_file_the_second(tmp_path, capsys):
    (tmp_path / "options.json").write_text('{"preset": "mini"}')
    argv = ["two", str(tmp_path / "options.json")]
    task, model_args = read_options(ModelOptions, description="", argv=argv, takes_task=True)
    assert (model_args.preset, task) == ("mini", "two")


def test_ignored_options_are_checked_and_come_last(capsys):
    @options
    class Own(OptionGroup, group="Own"):
        show: int = option(1, "", within="[0, 9]")

    read = {"description": "", "ignored": (DataOptions,)}
    own, ignored = read_options(Own, argv=["--show", "2", "--language", "de"], **read)
    assert (own.show, ignored.language) == (2, "de")
    with pytest.raises(SystemExit):
        read_options(Own, argv=["--language", "deu-DE"], **read)
    assert "language must be an ISO 639 code" in capsys.readouterr().err


def test_json_of_options_is_json(tmp_path, capsys):
    (file := tmp_path / "options.json").write_text('{\n\t"preset": "mini",\n\t"run_name": "\\ud83d\\ude00"\n}')
    model_args, _, training = parse(str(file))
    assert (model_args.preset, training.trainer["run_name"]) == ("mini", "😀")
    for content, message in {
        '{"seed": 1, "seed": 2}': "options.json cannot be read: seed is given twice",
        '{"seed": 1': "options.json cannot be read: Expecting ',' delimiter",
        "[1]": "options.json must hold options as name: value pairs",
    }.items():
        file.write_text(content)
        assert message in error_of(capsys, str(file))


@pytest.mark.parametrize("spelling", ["--no_lowercase", "--no-lowercase", "--lowercase=false"])
def test_flags_may_have_hyphens_and_booleans_a_negation(spelling):
    _, data_args, training = parse("--max-steps=3", "--learning-rate", "1e-4", spelling)
    assert (data_args.lowercase, training.max_steps, training.learning_rate) == (False, 3, 1e-4)


def test_paths_of_an_options_file_are_relative_to_it_or_to_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "here" / "text").mkdir(parents=True)
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for file in ("here/text/a.txt", "here/b.txt", "there/b.txt", "there/c1.txt", "there/mini"):
        (tmp_path / file).touch()
    values = {"train_file": ["text/a.txt", "b.txt", "c*.txt", "none.txt"], "preset": "mini", "output_dir": "b.txt"}
    (tmp_path / "there" / "options.json").write_text(json.dumps(values))
    model_args, data_args, training = parse("../there/options.json", "--validation_file", "b.txt")
    assert data_args.train_file == ["text/a.txt", "../there/b.txt", "../there/c*.txt", "none.txt"]
    assert (data_args.validation_file, model_args.preset, training.output_dir) == (["b.txt"], "mini", "b.txt")


def test_keywords_build_what_flags_build(tmp_path):
    keywords = {"preset": "mini", "train_file": tmp_path, "max_seq_length": 32, "learning_rate": "1e-4"}
    keywords |= {"max_steps": 3}
    built = from_keywords(*GROUPS, **keywords, report_to="none", vocab_size=None)
    flags = [text for name, value in keywords.items() for text in (f"--{name}", str(value))]
    assert built == parse(*flags, "--report_to", "none")
    assert built[1].train_file == [str(tmp_path)] and built[1].max_seq_length == 32
    (task_args,) = from_keywords(TaskOptions, model_name_or_path=Path("x"), train_file="a.csv", seeds=3, dropout=0)
    assert (task_args.model_name_or_path, task_args.seeds, task_args.dropout) == ("x", [3], 0.0)


def test_output_directories_are_numbered_and_a_resume_takes_the_newest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def output_dir(**given):
        return from_keywords(PretrainingOptions, **given)[0].output_dir

    assert output_dir() == output_dir(resume_from_checkpoint="auto") == "runs/pretrain-1"
    for name in ("pretrain-1", "pretrain-9", "pretrain-10", "pretrain-10-old", "pretrain", "finetune-77"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert output_dir() == "runs/pretrain-11"
    assert output_dir(resume_from_checkpoint="auto") == "runs/pretrain-10"
    assert output_dir(resume_from_checkpoint="runs/pretrain-9/checkpoint-4") == "runs/pretrain-9"
    assert output_dir(output_dir="mine") == "mine"


# --------------------------------------------------------------------------------------------- commands, their errors


@pytest.mark.parametrize(
    ("directory", "started", "expected"),
    [
        (ROOT, "scripts/pretrain.py", "python scripts/push_to_hub.py 'runs/a b'"),
        (ROOT, "scripts/other.py", "python scripts/push_to_hub.py 'runs/a b'"),
        (SCRIPTS, "pretrain.py", "python push_to_hub.py 'runs/a b'"),
        (ROOT, "mine.py", "scratch-bert push 'runs/a b'"),  # a program with the library
        (ROOT, "scratch-bert pretrain", "scratch-bert push 'runs/a b'"),
    ],
)
def test_commands_are_named_in_the_form_of_this_one(directory, started, expected, monkeypatch):
    monkeypatch.chdir(directory)
    monkeypatch.setattr("sys.argv", [started])
    found = {"python": sys.executable, "scratch-bert": str(Path(sys.executable).with_name("scratch-bert"))}
    monkeypatch.setattr("scratch_bert_options.commands.which", found.get)
    assert command("push", "runs/a b") == expected


def test_commands_name_programs_that_the_shell_would_not_find(monkeypatch, tmp_path):
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    for name in ("python", "scratch-bert"):
        (programs / name).touch()
    monkeypatch.setattr("scratch_bert_options.commands.which", "/usr/bin/{}".format)
    monkeypatch.setattr("sys.executable", str(programs / "python"))
    monkeypatch.setattr("sys.argv", [f"{SCRIPTS}/pretrain.py"])
    monkeypatch.chdir(tmp_path)
    assert command("demo") == f".venv/bin/python {SCRIPTS}/demo.py"
    assert installation("gradio") == ".venv/bin/python -m pip install gradio"
    monkeypatch.setattr("sys.argv", ["scratch-bert pretrain"])
    assert command("demo") == ".venv/bin/scratch-bert demo"
    monkeypatch.chdir(tmp_path.parent)
    assert command("demo") == f"{tmp_path.name}/.venv/bin/scratch-bert demo"
    assert command_line("hf") == "hf"  # not in this environment
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".venv").rename(tmp_path / "my env")
    monkeypatch.setattr("sys.executable", str(tmp_path / "my env/bin/python"))
    assert command_line("python", "a b.py") == "'my env/bin/python' 'a b.py'"


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
    assert "error: max_steps: input should be a valid integer" in result.stderr


@pytest.fixture(scope="module")
def pretrain_help():
    return run_process(SCRIPTS / "pretrain.py", "--help", COLUMNS="119").stdout


def test_help_has_groups_and_is_short(pretrain_help):
    titles = re.findall(r"(?m)^(\w[\w ,]*):$", pretrain_help)
    expected = ["Model", "Source", "Text", "Tokenizer", "Examples", "Masking", "Training"]
    assert titles == [*expected, "Evaluation, checkpoints and log", "Hub"]
    names = re.findall(r"(?m)^  (--\S+)", pretrain_help)
    assert len(names) == len(set(names)) > 60 and not any("-" in name[2:] for name in names)
    assert pretrain_help.count("\n") < 150 and "None" not in pretrain_help
    assert None not in {one.metadata["group"] for one in known_options((TaskOptions, FinetuningOptions)).values()}


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
        ("pretrain --learning_rat 1", "There is no option learning_rat. Did you mean learning_rate?"),
        ("inspect-data --final_share 0.2", "final_share has no effect without final_max_seq_length"),
        ("finetune", "The first argument must be a task"),
        ("finetune cola", "Name the pretrained checkpoint with --model_name_or_path"),
        ("evaluate", "--model_name_or_path is required"),
        ("prepare-data", "--input_dir is required"),
        ("convert a b --to gpt", "invalid choice: 'gpt'"),
        ("push", "the following arguments are required"),
        ("demo", "the following arguments are required"),
        ("pretrian", "there is no verb pretrian. Did you mean pretrain?"),
    ],
)
def test_error_in_the_options_is_found_without_torch(argv, message):
    result = run_process("-c", RUN, *argv.split(), check=False)
    assert result.returncode == 2 and message in result.stderr


def test_help_of_each_verb_needs_no_torch():
    in_one_process = """
        import contextlib, sys
        from scratch_bert_cli.main import main
        for arguments in [], *([verb, "--help"] for verb in sys.argv[1:]):
            sys.argv = ["scratch-bert", *arguments]
            with contextlib.suppress(SystemExit):
                main()
        assert not {"torch", "transformers", "datasets"} & sys.modules.keys()
    """
    shown = run_process("-c", textwrap.dedent(in_one_process), *VERBS).stdout
    assert all(f"  {verb} " in shown and f"usage: scratch-bert {verb} " in shown for verb in VERBS)


@pytest.mark.slow
def test_first_line_comes_before_the_imports(tmp_path):
    """The model to continue from is missing, which is found out after them."""
    run = run_process(SCRIPTS / "pretrain.py", "--model_name_or_path", tmp_path / "none", check=False)
    assert run.stderr.startswith("Loading PyTorch …\n") and run.returncode == 1
