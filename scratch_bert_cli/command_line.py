"""The command line: flags and a file of options, read as the dataclasses of `scratch_bert_options`.

argparse reads the flags as text, and pydantic converts and checks all values, whatever they come from. jsonargparse, tyro,
simple-parsing, transformers' HfArgumentParser and pydantic-settings were tried: none takes `--seeds 1 2 3`, `--bf16 false`
and a file with the same checks. The first two and the last lack one of these forms of flags; the others don't check the
values of a file. HfArgumentParser takes half a second to import.
"""

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from scratch_bert_options.declare import from_keywords, is_boolean, is_list, known_options, similar


OPTION_FILES = (".yaml", ".yml", ".json")
# What people write for an option, as other tools call it → what to write here.
ALIASES = {
    "lr": "--learning_rate",
    "wd": "--weight_decay",
    "epochs": "--num_train_epochs",
    "num_epochs": "--num_train_epochs",
    "steps": "--max_steps",
    "num_steps": "--max_steps",
    "batch_size": "--per_device_train_batch_size",
    "train_batch_size": "--per_device_train_batch_size",
    "eval_batch_size": "--per_device_eval_batch_size",
    "grad_accum": "--gradient_accumulation_steps",
    "warmup": "--warmup_steps, a fraction of all steps if below 1",
    "warmup_ratio": "--warmup_steps, a fraction of all steps if below 1",
    "scheduler": "--lr_scheduler_type",
    "optimizer": "--optim",
    "mask_prob": "--mlm_probability",
    "masking_probability": "--mlm_probability",
    "mlm_prob": "--mlm_probability",
    "max_length": "--max_seq_length",
    "max_len": "--max_seq_length",
    "seq_length": "--max_seq_length",
    "block_size": "--max_seq_length",
    "device": "--use_cpu true for the CPU; a GPU is used if there is one, CUDA_VISIBLE_DEVICES=1 chooses it",
    "no_cuda": "--use_cpu",
    "num_workers": "--dataloader_num_workers",
    "num_hidden_layers": "--preset, or --config_overrides num_hidden_layers=4",
    "num_layers": "--preset, or --config_overrides num_hidden_layers=4",
    "hidden_size": "--preset, or --config_overrides hidden_size=256",
    "num_attention_heads": "--preset, or --config_overrides num_attention_heads=4",
    "model": "--model_name_or_path",
    "tokenizer": "--tokenizer_name_or_path",
    "data": "--train_file or --dataset_name",
    "dataset": "--dataset_name",
    "input": "--train_file",
    "train_data_file": "--train_file",
    "eval_file": "--validation_file",
    "output": "--output_dir",
    "out_dir": "--output_dir",
    "resume": "--resume_from_checkpoint",
    "do_lower_case": "--lowercase",
    "logging_dir": "--output_dir, which has the logs",
    "evaluation_strategy": "--eval_strategy",
    "overwrite_output_dir": "another --output_dir, or delete the old one",
}


class CommandLine(NamedTuple):
    """Options that have been read and checked, as far as that is possible without PyTorch."""

    parser: argparse.ArgumentParser
    groups: tuple
    """An object for each group of options, in the order given."""
    task: str | None = None


def read_options(
    *groups: type,
    description: str,
    argv: list[str] | None = None,
    takes_task: bool = False,
    first: str | None = None,
    ignored: Iterable[type] = (),
) -> CommandLine:
    """The options of these groups, from `argv` or the command line. A mistake ends the program with one line.

    The first argument may be a task, or the value of the option `first`; the next may be a YAML or JSON file of options,
    over which flags take precedence. Options of `ignored` groups are checked, but neither shown by `--help` nor returned.
    """
    argv = [_with_underscores(argument) for argument in (sys.argv[1:] if argv is None else argv)]
    every = (*groups, *ignored)
    known = known_options(every)
    takes_others = any("trainer" in group.__dataclass_fields__ for group in every)
    parser = _flag_parser(known, "TASK " if takes_task else "MODEL " if first else "")
    if {"-h", "--help"} & set(argv):
        print(f"{parser.format_usage()}\n{_help(groups, description, takes_others)}")
        parser.exit()
    task = None
    if takes_task:
        if not argv or argv[0].startswith("-"):
            parser.error("The first argument must be a task: see --help.")
        task, *argv = argv
    if first and argv and not argv[0].startswith("-") and not argv[0].endswith(OPTION_FILES):
        argv = [*argv[1:], f"--{first}", argv[0]]
    flags = [argument.split("=")[0] for argument in argv]
    for name in known:  # of other options, the last one counts
        if is_list(known[name]) and flags.count(f"--{name}") > 1:
            parser.error(f"--{name} is given twice: give it once, with all its values.")
    values: dict[str, Any] = {}
    if argv and argv[0].endswith(OPTION_FILES):
        file, *argv = argv
        values = _read_file(parser, file, known)
    given, remaining = parser.parse_known_args(argv)
    values |= _other_flags(parser, remaining)
    for name in values.keys() - known.keys():
        hint = ALIASES.get(name)
        if hint or not takes_others or similar(name, known, cutoff=0.85):  # Trainer has no option so much like ours
            parser.error(f"There is no option {name}." + (f" Use {hint}." if hint else similar(name, known)))
    try:
        objects = from_keywords(*every, **values | vars(given))
    except ValueError as error:
        parser.error(str(error))
    announce_imports()
    return CommandLine(parser, objects[: len(groups)], task)


def announce_imports() -> None:
    """Print what the next seconds are spent on, in the first process, unless PyTorch is already imported."""
    if "torch" not in sys.modules and os.environ.get("RANK", "0") == "0":
        print("Loading PyTorch …", file=sys.stderr, flush=True)


def _with_underscores(argument: str) -> str:
    """Replace hyphens in the name of a flag: `--max-steps=-1` → `--max_steps=-1`."""
    flag, equals, value = argument.partition("=")
    return flag[:2] + flag[2:].replace("-", "_") + equals + value if flag.startswith("--") else argument


def _flag_parser(known: Mapping[str, Field], first: str) -> argparse.ArgumentParser:
    usage = f"%(prog)s {first}[OPTIONS.yaml|OPTIONS.json] [--option value ...]"
    parser = argparse.ArgumentParser(
        usage=usage, add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    for name, option in known.items():
        const = option.metadata.get("const") or ("true" if is_boolean(option) else None)
        parser.add_argument(f"--{name}", nargs="+" if is_list(option) else "?" if const else None, const=const)
        if option.default is True:
            parser.add_argument(f"--no_{name}", dest=name, action="store_const", const="false")
    return parser


def _other_flags(parser: argparse.ArgumentParser, remaining: list[str]) -> dict[str, Any]:
    """Flags that are not ours: `--name` is true, `--name value` text, and `--name value value` a list."""
    others: dict[str, Any] = {}
    for argument in remaining:
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            others[name] = [value] if equals else []
        elif others:
            others[name].append(argument)
        else:
            parser.error(
                f"{argument} is not an option. Options come from one file, the first argument, that ends in .yaml, .yml or "
                ".json, and from flags: --option value."
            )
    return {name: "true" if not found else found[0] if len(found) == 1 else found for name, found in others.items()}


def _read_file(parser: argparse.ArgumentParser, name: str, known: Mapping[str, Field]) -> dict[str, Any]:
    """The options in a YAML or JSON file, by name. Its paths are relative to it, if there is such a file, or else to
    the current directory."""
    file = _find_recipe(Path(name))
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        parser.error(f"{name} cannot be read: {' '.join(str(error).split())}")
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        parser.error(f"{name} must hold options as name: value pairs.")
    for option, value in values.items():
        if option in known and known[option].metadata.get("path"):
            values[option] = [_beside(file, v) for v in value] if isinstance(value, list) else _beside(file, value)
    return values


def _find_recipe(file: Path) -> Path:
    """The file itself; or for `recipes/NAME`, if there is none, this package's: in a wheel inside it, otherwise beside."""
    places = (Path(), Path(__file__).parent, Path(__file__).parents[1]) if file.parent == Path("recipes") else ()
    return next((place / file for place in places if (place / file).exists()), file)


def _beside(recipe: Path, value: Any) -> Any:
    """A path in a recipe: in the recipe's directory, if that holds a file or a match of this name."""
    if not isinstance(value, str):
        return value
    value = os.path.expanduser(value)  # as a shell does
    beside = recipe.parent / value
    return str(beside) if os.path.lexists(beside) or glob(str(beside), recursive=True) else value


# -------------------------------------------------------------------------------------------------------------- help


def _help(groups: Iterable[type], description: str, takes_others: bool) -> str:
    width = min(shutil.get_terminal_size((119, 24)).columns, 119)
    by_title: dict[str, list[Field]] = {}
    known = known_options(groups)
    for group in groups:
        for option in fields(group):
            if option.name in known:
                by_title.setdefault(option.metadata["group"], []).append(known.pop(option.name))
    lines = [textwrap.fill(paragraph, width) + "\n" for paragraph in description.split("\n\n")]
    for title, options in by_title.items():
        lines += [f"{title}:", *(_describe(option, width) for option in options), ""]
    if takes_others:
        lines += [
            "All other options of transformers' TrainingArguments can be given, too: "
            "https://huggingface.co/docs/transformers/main_classes/trainer"
        ]
    return "\n".join(lines).rstrip()


def _describe(option: Field, width: int) -> str:
    text, choices, default = option.metadata["description"], option.metadata["choices"], option.default
    last, kind = option.name.split("_")[-1], str(option.type).replace("int | str", "str")
    value = "N" if "int" in kind else "X" if "float" in kind else last.upper() if last in _VALUES else "VALUE"
    if is_boolean(option):
        value = "" if default is False else "[true|false]"
    elif choices and f"{choices[0]}: " not in text:
        value = "|".join(map(str, choices))
    flag = f"--{option.name} {f'[{value}]' if option.metadata['const'] else value}{' ...' * is_list(option)}"
    if default is not False and default not in (None, "", MISSING):
        text += f" (default: {str(default).lower() if default is True else default})"
    return textwrap.fill(text, width, initial_indent=f"  {flag:<28}  ", subsequent_indent=" " * 32)


_VALUES = ("column", "dir", "file", "name", "path")  # endings of option names that describe the value
