"""The command line: flags and a file of options, read as the dataclasses of `scratch_bert_options`, which check them.

jsonargparse, tyro, simple-parsing, HfArgumentParser and pydantic-settings were tried. None takes `--seeds 1 2 3`,
`--bf16 false` and a file with the same checks: they lack one of these forms, or don't check the values of a file.
"""

import argparse
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from glob import glob
from pathlib import Path
from typing import Any, ClassVar

import yaml

from scratch_bert_options.declare import from_keywords, is_boolean, is_list, known_options, similar


OPTION_FILES = (".yaml", ".yml", ".json")
# What to write → what people write instead, as other tools call it.
OTHER_NAMES = {
    "--learning_rate": "lr",
    "--weight_decay": "wd",
    "--num_train_epochs": "epochs num_epochs",
    "--max_steps": "steps num_steps",
    "--per_device_train_batch_size": "batch_size train_batch_size",
    "--per_device_eval_batch_size": "eval_batch_size",
    "--gradient_accumulation_steps": "grad_accum",
    "--warmup_steps, a fraction of all steps if below 1": "warmup warmup_ratio",
    "--lr_scheduler_type": "scheduler",
    "--optim": "optimizer",
    "--mlm_probability": "mask_prob masking_probability mlm_prob",
    "--max_seq_length": "max_length max_len seq_length block_size",
    "--use_cpu true for the CPU; a GPU is used if there is one, CUDA_VISIBLE_DEVICES=1 chooses it": "device",
    "--use_cpu": "no_cuda",
    "--dataloader_num_workers": "num_workers",
    "--preset, or --config_overrides num_hidden_layers=4,hidden_size=256": "num_hidden_layers num_layers hidden_size",
    "--preset, or --config_overrides num_attention_heads=4": "num_attention_heads",
    "--model_name_or_path": "model",
    "--tokenizer_name_or_path": "tokenizer",
    "--train_file or --dataset_name": "data",
    "--dataset_name": "dataset",
    "--train_file": "input train_data_file",
    "--validation_file": "eval_file",
    "--output_dir": "output out_dir",
    "--resume_from_checkpoint": "resume",
    "--lowercase": "do_lower_case",
    "--output_dir, which has the logs": "logging_dir",
    "--eval_strategy": "evaluation_strategy",
    "another --output_dir, or delete the old one": "overwrite_output_dir",
}
ALIASES = {name: instead for instead, names in OTHER_NAMES.items() for name in names.split()}


def read_options(
    *groups: type,
    description: str,
    argv: list[str] | None = None,
    takes_task: bool = False,
    ignored: Iterable[type] = (),
) -> tuple[Any, ...]:
    """An object for each group of options, from `argv` or the command line. A mistake ends the program with one line.

    The first argument may be a YAML or JSON file of options, over which flags take precedence. With `takes_task`, a
    task comes before it, and is the first of the results. Options of `ignored` groups are checked, but not shown by
    `--help`; they come last.
    """
    argv = sys.argv[1:] if argv is None else argv
    every = (*groups, *ignored)
    known = known_options(every)
    takes_others = any("trainer" in group.__dataclass_fields__ for group in every)
    usage = f"%(prog)s {'TASK ' * takes_task}[OPTIONS.yaml|OPTIONS.json] [--option value ...]"
    parser = argparse.ArgumentParser(usage=usage, add_help=False)
    if {"-h", "--help"} & set(argv):
        print(f"{parser.format_usage()}\n{_help(groups, description, takes_others)}")
        parser.exit()
    task, argv = argv[:takes_task], argv[takes_task:]
    try:
        if takes_task and (not task or task[0].startswith("-")):
            raise ValueError("The first argument must be a task: see --help.")
        values: dict[str, Any] = {}
        if argv and argv[0].endswith(OPTION_FILES):
            values, argv = _read_file(argv[0], known), argv[1:]
        # As in YAML, null is the default.
        values |= {name: None if value == "null" else value for name, value in _read_flags(argv, known).items()}
        for name in values.keys() - known.keys():
            hint = ALIASES.get(name)
            # No option of Trainer is this similar to one of ours.
            if hint or not takes_others or similar(name, known, cutoff=0.85):
                raise ValueError(f"There is no option {name}." + (f" Use {hint}." if hint else similar(name, known)))
        objects = from_keywords(*every, **values)
    except ValueError as error:
        parser.error(str(error))
    announce_imports()
    return (*task, *objects)


def rows_parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments of all commands that give the rows of a file to a model, and write what it makes of them."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="The output directory of a training run, or a Hub repository.")
    parser.add_argument("--file", required=True, help="File of the texts or rows; - is standard input.")
    parser.add_argument("--output_file", required=True, help="File for the results; it must not exist yet.")
    parser.add_argument("--format", choices=["csv", "tsv", "jsonl", "txt"], help="Format of standard input or output.")
    parser.add_argument("--bf16", action="store_true", help="Compute in bf16.")
    parser.add_argument("--trust_remote_code", action="store_true", help="Run the code in the model's repository.")
    return parser


def in_first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


def announce_imports() -> None:
    """Announce, in the first process, the import of PyTorch, unless it is done; and limit how long the network, used
    from here on, can take."""
    from scratch_bert_options.network import limit_waiting  # its import reads the environment, perhaps junk

    limit_waiting()
    if "torch" not in sys.modules and in_first_process():
        print("Loading PyTorch …", file=sys.stderr, flush=True)


def _read_flags(argv: list[str], known: Mapping[str, Field]) -> dict[str, Any]:
    """`--name value` is text, `--name value value` a list, `--name` true and `--no_name` false. A name may have hyphens
    for underscores; the last of several flags counts."""
    strays: list[str] = []
    flags: list[tuple[str, list[str]]] = [("", strays)]
    for argument in argv:
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            flags.append((name.replace("-", "_"), [value] if equals else []))
        else:
            flags[-1][1].append(argument)
    values: dict[str, Any] = {}
    for name, given in flags[1:]:
        option, negated = known.get(name), known.get(name.removeprefix("no_"))
        if not option and negated and is_boolean(negated) and negated.default is not False:
            option, name, given = negated, negated.name, ["false", *given]
        if not given:
            const = "true" if not option or is_boolean(option) else option.metadata["const"]
            if not const:
                raise ValueError(f"--{name} needs a value.")
            given = [const]
        if option and not is_list(option):
            strays += given[1:]
        elif option and name in values:
            raise ValueError(f"--{name} is given twice: give it once, with all its values.")
        values[name] = given if len(given) > 1 else given[0]
    if strays:
        raise ValueError(
            f"{strays[0]} is not an option. Options come from a file (the first argument, ending in .yaml, .yml "
            "or .json) and from flags: --option value."
        )
    return values


def _read_file(name: str, known: Mapping[str, Field]) -> dict[str, Any]:
    """The options in a YAML or JSON file, by name. A path is relative to the file, if it exists there, or else to the
    current directory."""
    file = _find_recipe(Path(name))
    try:
        content = file.read_text(encoding="utf-8")
        is_json = file.suffix == ".json"  # YAML takes no tabs
        values = json.loads(content, object_pairs_hook=_once) if is_json else yaml.load(content, _Loader) or {}
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{name} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ValueError(f"{name} must hold options as name: value pairs.")
    for option, value in values.items():
        if option in known and known[option].metadata.get("path"):
            values[option] = [_beside(file, v) for v in value] if isinstance(value, list) else _beside(file, value)
    return values


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The dict of these pairs. Raises `ValueError` if it would lose one."""
    keys = [key for key, _ in pairs]
    if repeated := next((key for key in keys if keys.count(key) > 1), None):
        raise ValueError(f"{repeated} is given twice")
    return dict(pairs)


class _Loader(yaml.SafeLoader):
    """YAML with each key once, and the plain values of version 1.2: to 1.1, PyYAML's, no is false, and 010 is 8."""

    yaml_implicit_resolvers: ClassVar[dict] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        _once([(str(key.value), value) for key, value in node.value])
        return super().construct_mapping(node, deep)


for _type, _pattern, _first in (
    ("null", "~|null|", ["~", "n", ""]),
    ("bool", "true|false", "tf"),
    ("int", "[-+]?(0|[1-9][0-9]*)", "-+0123456789"),  # others are text, as 010 may be a label
    ("float", r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_type}", re.compile(f"(?:{_pattern})$"), _first)


def _find_recipe(file: Path) -> Path:
    """The file itself; or for `recipes/NAME`, if there is none, that of this package: in a wheel inside it, otherwise
    beside it."""
    places = (Path(), Path(__file__).parent, Path(__file__).parents[1]) if file.parent == Path("recipes") else ()
    return next((place / file for place in places if (place / file).exists()), file)


def _beside(recipe: Path, value: Any) -> Any:
    """A path in a recipe: in the recipe's directory, if that holds a file or a match of this name."""
    if not isinstance(value, str):
        return value
    value = os.path.expanduser(value)  # as a shell does
    beside = recipe.parent / value
    return str(beside) if os.path.lexists(beside) or glob(str(beside), recursive=True) else value


def _help(groups: Iterable[type], description: str, takes_others: bool) -> str:
    width = min(shutil.get_terminal_size((119, 24)).columns, 119)
    by_title: dict[str, list[Field]] = {}
    known = known_options(groups)
    for group in groups:
        for option in fields(group):
            if option.name in known:
                by_title.setdefault(option.metadata["group"], []).append(known.pop(option.name))
    lines = [
        textwrap.fill(paragraph, width) + "\n" for paragraph in (description or "").split("\n\n")
    ]  # python -OO has no docstrings
    for title, options in by_title.items():
        lines += [f"{title}:", *(_describe(option, width) for option in options), ""]
    if takes_others:
        link = "https://huggingface.co/docs/transformers/main_classes/trainer"
        lines.append(f"All other options of transformers' TrainingArguments are accepted, too: {link}")
    return "\n".join(lines).rstrip()


def _describe(option: Field, width: int) -> str:
    text, choices, default = option.metadata["description"], option.metadata["choices"], option.default
    last, kind = option.name.split("_")[-1], str(option.type).replace("int | str", "str")
    value = last.upper() if last in ("column", "dir", "file", "name", "path") else "VALUE"
    value = "N" if "int" in kind else "X" if "float" in kind else value
    if is_boolean(option):
        value = "" if default is False else "[true|false]"
    elif choices and f"{choices[0]}: " not in text:
        value = "|".join(map(str, choices))
    flag = f"--{option.name} {f'[{value}]' if option.metadata['const'] else value}{' ...' * is_list(option)}"
    if default is not False and default not in (None, "", MISSING):
        text += f" (default: {str(default).lower() if default is True else default})"
    return textwrap.fill(text, width, initial_indent=f"  {flag:<28}  ", subsequent_indent=" " * 32)
