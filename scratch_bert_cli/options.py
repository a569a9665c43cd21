"""Options as fields of dataclasses: from flags, a YAML or JSON file, or keywords, with the same checks."""

import argparse
import datetime
import difflib
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from glob import glob
from math import inf
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml


OTHERS = "Other options of Trainer"  # the group that --help leaves out
OPTION_FILES = (".yaml", ".yml", ".json")

# --------------------------------------------------------------------------------------------- declaration and rules


def option(
    default: Any,
    help: str,
    *,
    choices: Iterable | None = None,
    extensible: bool = False,
    within: str | None = None,
    requires: str = "",
    unless: str = "",
    path: bool = False,
    group: str | None = None,
    const: Any = None,
) -> Any:
    """A dataclass field that becomes an option with this help text.

    `choices` are the allowed values; a dict describes each. They are `extensible` if Python code can add more, which
    scratch_bert checks once it is imported. `within`, such as "[0, 1)", is the range of a number. The option has no
    effect without all options in `requires`, or with any option in `unless` (names separated by spaces). A `path`, or
    each of several, names what is to be read: in a file of options, relative to that file. `group` is its title in
    `--help`; `const` is the value of a flag that is given without one.
    """
    if isinstance(choices, Mapping):
        help += " " + "; ".join(f"{name}: {description}" for name, description in choices.items()) + "."
    rules = {
        "choices": choices and list(choices),
        "extensible": extensible,
        "within": within,
        "requires": requires,
        "unless": unless,
        "path": path,
    }
    return field(default=default, metadata={"help": help, "group": group, "const": const, **rules})


@dataclass
class OptionGroup:
    """Base class of dataclasses of options, which checks their rules. `group` and `unless` apply to all options of a
    subclass; inherited options keep their group. Subclasses are composed by inheritance: `--help` shows the last base
    class first, whose fields come first."""

    def __init_subclass__(cls, group: str | None = None, unless: str = "", **kwargs):
        super().__init_subclass__(**kwargs)
        for name, option in vars(cls).items():
            if isinstance(option, Field):
                inherited = [vars(base).get("__dataclass_fields__", {}).get(name) for base in cls.__mro__]
                titles = [base.metadata.get("group") for base in inherited if base] + [option.metadata["group"], group]
                title = next(filter(None, titles), None)
                rules = {"group": title, "unless": f"{option.metadata['unless']} {unless}"}
                option.metadata = MappingProxyType({**option.metadata, **rules})

    def __post_init__(self):
        check_options(self)


def check_options(arguments: Any) -> None:
    """Raise `ValueError` for an option of a dataclass that is out of its range, or has no effect beside the others."""
    for option in fields(arguments):
        rules, value = option.metadata, getattr(arguments, option.name)
        if rules.get("within") and value is not None:
            for number in value if isinstance(value, list) else [value]:
                check_range(option.name, number, rules["within"])
        for other in rules.get("requires", "").split():
            if not getattr(arguments, other, None):
                reject_non_default(arguments, [option.name], f"without {other}")
        for other in rules.get("unless", "").split():
            if getattr(arguments, other, None):
                reject_non_default(arguments, [option.name], f"with {other}")


def check_range(name: str, value: float, interval: str) -> None:
    """Raise `ValueError` for a number outside an interval, such as "[0, 1)"."""
    if not isinstance(value, Real):
        raise ValueError(f"{name} must be a number, got {value!r}.")
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = low <= value if interval[0] == "[" else low < value
    below = value <= high if interval[-1] == "]" else value < high
    if not (above and below):  # also for NaN
        ends = [f"{'at least' if interval[0] == '[' else 'greater than'} {low:,.12g}" if low > -inf else ""]
        ends += [f"{'at most' if interval[-1] == ']' else 'less than'} {high:,.12g}" if high < inf else ""]
        raise ValueError(f"{name} must be {' and '.join(filter(None, ends))}, got {value}.")


def reject_non_default(arguments: Any, names: Iterable[str], where: str) -> None:
    """Raise `ValueError` if one of these options differs from its default."""
    for name in names:
        if getattr(arguments, name) != arguments.__dataclass_fields__[name].default:
            raise ValueError(f"{name} has no effect {where}: leave it out.")


def similar(name: str, known: Iterable[str]) -> str:
    """ " Did you mean …?", if one of `known` is much like `name`; otherwise an empty string."""
    known = list(known)
    matches = [other for other in known if other.startswith(name) and name] or difflib.get_close_matches(
        name, known, n=1
    )
    return f" Did you mean {matches[0]}?" if matches else ""


# ------------------------------------------------------------------------------------------------------------ values


def from_keywords(*dataclasses: type, **options: Any) -> tuple:
    """One object per dataclass, from options by the names of their fields.

    Values may be Python objects or text, as on the command line; a single value may stand for a list, and None for the
    default. Raises `ValueError` for an unknown option and for a value that is not allowed.
    """
    known = _known(dataclasses)
    for name in options:
        if name not in known:
            raise ValueError(f"There is no option {name}.{similar(str(name), known)}")
    values = {name: _convert(known[name], value) for name, value in options.items() if value is not None}
    return tuple(cls(**{name: values[name] for name in _known([cls]) if name in values}) for cls in dataclasses)


def _known(dataclasses: Iterable[type]) -> dict[str, Field]:
    """The options of the dataclasses by name; of several with the same name, the first."""
    known = {}
    for cls in dataclasses:
        known = {option.name: option for option in fields(cls) if option.init} | known
    return known


def _is_list(option: Field) -> bool:
    return str(option.type).startswith("list")


def _is_boolean(option: Field) -> bool:
    return bool(re.search(r"\bbool\b", str(option.type))) and "dict" not in str(option.type)


def _convert(option: Field, value: Any) -> Any:
    if _is_list(option):
        if isinstance(value, (list, tuple)) and None in value:
            raise ValueError(f"{option.name} has an empty item: leave it out.")
        return [_convert_one(option, item) for item in (value if isinstance(value, (list, tuple)) else [value])]
    if isinstance(value, (list, tuple)) and "list" not in str(option.type):
        raise ValueError(f"{option.name} takes one value, got {value}.")
    return _convert_one(option, value)


def _convert_one(option: Field, value: Any) -> Any:
    """The value as the type that the annotation names first: `bool`, `int`, `float`, then `str`."""
    names = re.findall(r"\w+", str(option.type))
    expected = [(convert, name) for kind, (convert, name) in _KINDS.items() if kind in names]
    const, choices = option.metadata.get("const"), option.metadata.get("choices")
    if not expected and isinstance(value, str):
        raise ValueError(f"{option.name} takes an object, in Python alone.")
    if isinstance(value, datetime.date):
        raise ValueError(f"{option.name} is the date {value}: put text in quotes.")
    nested = isinstance(value, dict) and "dict" not in names and names[0] != "str"
    if expected and (nested or isinstance(value, list) and _is_list(option)):
        raise ValueError(f"{option.name} must be {expected[0][1]}, got {value}.")
    if isinstance(value, (dict, list)) and names[0] != "str" or not expected or const is not None and value is const:
        return value
    if value == "" and option.default != "":  # a Path of it would be the current directory
        raise ValueError(f"{option.name} must not be empty: leave it out, or set the variable that its value is from.")
    if isinstance(value, bool) and expected[0][1] == "text" and const is None and "no" not in (choices or ()):
        raise ValueError(f"{option.name} must be text, got {str(value).lower()}: put yes, no, on and off in quotes.")
    if "dict" in names and str(value).startswith("{"):
        try:
            json.loads(str(value))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{option.name} must be a JSON object: {error}.") from None
    for convert, _ in expected:
        try:
            value = convert(value)
            break
        except ValueError:
            continue
    else:
        raise ValueError(f"{option.name} must be {expected[0][1]}, got {value!r}.")
    if value == "False" and choices and "no" in choices:  # YAML's no
        value = "no"
    extensible = option.metadata.get("extensible") and "scratch_bert" in sys.modules
    if choices and value not in choices and not extensible:
        known = [str(choice) for choice in choices]
        raise ValueError(f"{option.name} must be one of {', '.join(known)}, got {value}.{similar(str(value), known)}")
    return value


def _boolean(value: Any) -> bool:
    values = dict.fromkeys(("true", "yes", "t", "y", "1"), True) | dict.fromkeys(("false", "no", "f", "n", "0"), False)
    if (text := str(value).lower()) not in values:
        raise ValueError
    return values[text]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value) if isinstance(value, dict) else str(value)


_KINDS = {
    "bool": (_boolean, "true or false"),
    "int": (lambda value: int(str(value)), "a whole number"),
    "float": (lambda value: float(str(value)), "a number"),
    "str": (_text, "text"),
}

# ------------------------------------------------------------------------------------------------------ command line


class CommandLine(NamedTuple):
    """Options that have been read, and checked as far as possible without torch."""

    parser: argparse.ArgumentParser
    options: dict[str, Any]
    task: str | None
    file: str | None = None
    """The file of options, if one was read."""
    of_file: frozenset[str] = frozenset()
    """The names of the options whose values are that file's."""

    def build(self, *dataclasses: type) -> tuple:
        """One object per dataclass. A bad value ends the program with a message, which names the file it is from."""
        try:
            return from_keywords(*dataclasses, **self.options)
        except (ValueError, TypeError, ArithmeticError, ImportError, OSError) as error:
            message = " ".join(str(error).splitlines())  # Trainer's may have several
            named = {word for word in re.findall(r"\w+", message) if word in self.options}
            self.parser.error(f"{self.file}: {message}" if named and named <= self.of_file else message)


def parse_arguments(*dataclasses: type, description: str, argv: list[str] | None = None) -> tuple:
    """Options as one object per dataclass: see `read_options`."""
    return read_options(*dataclasses, description=description, argv=argv).build(*dataclasses)


def read_options(
    *dataclasses: type,
    description: str,
    argv: list[str] | None = None,
    tasks: Iterable[str] = (),
    ignored: Iterable[type] = (),
    first: str | None = None,
) -> CommandLine:
    """The options of these dataclasses, from `argv` or the command line.

    If there are `tasks`, the first argument must be one; otherwise it may be the value of the option `first`. If the next
    argument is a YAML or JSON file, it gives options as flags would; flags take precedence. An unknown option or a bad
    value ends the program with a message, and a suggestion for a typo. Options of the `ignored` dataclasses are checked,
    but neither shown by `--help` nor passed on.
    """
    argv = [_with_underscores(argument) for argument in (sys.argv[1:] if argv is None else argv)]
    known = _known((*dataclasses, *ignored))
    parser = _flag_parser(known, "TASK " if tasks else "MODEL " if first else "")
    if {"-h", "--help", "--help_all"} & set(argv):
        print(f"{parser.format_usage()}\n{_help(dataclasses, description, tasks, '--help_all' in argv)}")
        parser.exit()
    task = None
    if tasks:
        task, argv = (argv[0], argv[1:]) if argv else ("", [])
        if task not in tasks:
            parser.error(f"The first argument must be one of {', '.join(tasks)}.{similar(task, tasks)}")
    if first and argv and not argv[0].startswith("-") and not argv[0].endswith(OPTION_FILES):
        argv = [*argv[1:], f"--{first}", argv[0]]
    flags = [argument.split("=")[0] for argument in argv]
    for name in known:  # of other options, the last one counts
        if _is_list(known[name]) and flags.count(f"--{name}") > 1:
            parser.error(f"--{name} is given twice: give it once, with all its values.")
    file, options = None, {}
    if argv and argv[0].endswith(OPTION_FILES):
        file, options = argv[0], _read_file(parser, argv[0], known)
    given, remaining = parser.parse_known_args(argv[1:] if file else argv)
    if remaining:
        if not remaining[0].startswith("-"):
            parser.error(
                f"{remaining[0]} is no option. Options come from one file, the first argument, that ends in .yaml, .yml or "
                ".json, and from flags: --option value."
            )
        name = remaining[0].lstrip("-").split("=")[0]
        parser.error(f"There is no option {remaining[0]}.{similar(name, known)}")
    of_file = frozenset(options.keys() - vars(given).keys())
    options |= vars(given)
    CommandLine(parser, options, task, file, of_file).build(*dataclasses, *ignored)
    announce_imports()
    passed = {name: options[name] for name in _known(dataclasses) if name in options}
    return CommandLine(parser, passed, task, file, of_file)


def announce_imports() -> None:
    """Print what the next seconds are spent on, in the first process, unless PyTorch is already imported."""
    if "torch" not in sys.modules and os.environ.get("RANK", "0") == "0":
        print("Loading PyTorch …", file=sys.stderr, flush=True)


def _with_underscores(argument: str) -> str:
    """Replace hyphens in the name of a flag: `--max-steps=-1` → `--max_steps=-1`."""
    flag, equals, value = argument.partition("=")
    return flag[:2] + flag[2:].replace("-", "_") + equals + value if flag.startswith("--") else argument


def _flag_parser(known: dict[str, Field], first: str) -> argparse.ArgumentParser:
    """The parser of the flags. Values are kept as text: `from_keywords` converts and checks them."""
    usage = f"%(prog)s {first}[OPTIONS.yaml|OPTIONS.json] [--option value ...]"
    parser = argparse.ArgumentParser(
        usage=usage, add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    for name, option in known.items():
        const = option.metadata.get("const") or ("true" if _is_boolean(option) else None)
        parser.add_argument(f"--{name}", nargs="+" if _is_list(option) else "?" if const else None, const=const)
        if option.default is True:
            parser.add_argument(f"--no_{name}", dest=name, action="store_const", const="false")
    return parser


def _read_file(parser: argparse.ArgumentParser, name: str, known: Mapping[str, Field]) -> dict[str, Any]:
    """The options in a YAML or JSON file, by name. Its paths are relative to it, if there is such a file, or else to
    the current directory."""
    file = _find_recipe(Path(name))
    try:
        if file.exists() and not file.is_file():
            raise ValueError("it is not a file")
        if file.stat().st_size > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES / 1e6:g} MB")
        values = read_yaml(file.read_text(encoding="utf-8")) or {}
    except UnicodeDecodeError as error:
        parser.error(f"{name} cannot be read: it is not UTF-8 ({error}). Save it as UTF-8.")
    except (OSError, ValueError) as error:
        parser.error(f"{name} cannot be read: {error}")
    if not isinstance(values, dict):
        parser.error(f"{name} must hold options as name: value pairs.")
    for unknown in sorted(map(str, set(values) - set(known))):
        parser.error(f"{name}: there is no option {unknown}.{similar(unknown, known)}")
    for option, value in values.items():
        if known[option].metadata.get("path"):
            values[option] = [_beside(file, v) for v in value] if isinstance(value, list) else _beside(file, value)
    return values


def _find_recipe(file: Path) -> Path:
    """The file itself; or for `recipes/NAME`, if there is none, this package's: in a wheel inside it, otherwise beside."""
    places = (Path(), Path(__file__).parent, Path(__file__).parents[1]) if file.parent == Path("recipes") else ()
    return next((place / file for place in places if (place / file).exists()), file)


def _beside(recipe: Path, value: Any) -> Any:
    """A path in a recipe: in the recipe's directory, if that holds a file or a match of this name."""
    if isinstance(value, str) and value and "\0" not in value:
        value = os.path.expanduser(value)  # as a shell does
        beside = recipe.parent / value
        if os.path.lexists(beside) or glob(str(beside), recursive=True):
            return str(beside)
    return value


MAX_BYTES = 1_000_000
MAX_DEPTH = 20


def read_yaml(text: str) -> Any:
    """The value of YAML or JSON text, which is YAML, too, such as people write for options: without aliases and tags,
    nested `MAX_DEPTH` deep at most, each key once. Raises `ValueError`, which names the line, for any other text."""
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{line}{error.problem}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


class _Loader(yaml.SafeLoader):
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if self.depth == MAX_DEPTH:
            _reject(event, f"more than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent) or event.tag:
            _reject(
                event,
                f"{'an alias, *' if isinstance(event, yaml.AliasEvent) else 'a tag, !'}, which must be in quotes if it is text",
            )
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        number = isinstance(node, yaml.ScalarNode) and node.tag.endswith((":int", ":float"))
        if number and re.search(r":|^[+-]?0\d", node.value):
            _reject(node, f"YAML reads {node.value} as another number, to the base 60 or 8: write it in another way")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    _reject(key, f"{key.value} is given twice")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _reject(part: yaml.Event | yaml.Node, problem: str) -> None:
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=part.start_mark)


# -------------------------------------------------------------------------------------------------------------- help


def _help(dataclasses: Iterable[type], description: str, tasks: Iterable[str], all_options: bool) -> str:
    """The help text: options in groups, and Trainer's other options if `all_options` are to be shown."""
    width = min(shutil.get_terminal_size((119, 24)).columns, 119)
    groups, known = {}, _known(dataclasses)
    for cls in dataclasses:
        for option in fields(cls):
            if option.name in known:
                title = option.metadata.get("group", OTHERS) or "Options"  # transformers' own have none
                groups.setdefault(title, []).append(known.pop(option.name))
    others = groups.pop(OTHERS, [])
    if all_options and others:
        groups[OTHERS] = others
    lines = [textwrap.fill(paragraph, width) + "\n" for paragraph in description.split("\n\n")]
    if tasks:
        lines += [textwrap.fill(f"TASK is one of {', '.join(tasks)}.", width) + "\n"]
    for title, options in groups.items():
        lines += [f"{title}:", *(_describe(option, width) for option in options), ""]
    if others and not all_options:
        lines += ["--help-all shows the other options of Trainer, too."]
    return "\n".join(lines).rstrip()


def _describe(option: Field, width: int) -> str:
    text, choices, default = option.metadata.get("help", ""), option.metadata.get("choices"), option.default
    names, last = re.findall(r"\w+", str(option.type)), option.name.split("_")[-1]
    value = "N" if "int" in names else "X" if "float" in names else last.upper() if last in _VALUES else "VALUE"
    if _is_boolean(option):
        value = "" if default is False else "[true|false]"
    elif choices and f"{choices[0]}: " not in text:
        value = "|".join(map(str, choices))
    flag = f"--{option.name} {f'[{value}]' if option.metadata.get('const') else value}{' ...' * _is_list(option)}"
    if default is not False and default not in (None, "", MISSING):
        text += f" (default: {str(default).lower() if default is True else default})"
    return textwrap.fill(text, width, initial_indent=f"  {flag:<28}  ", subsequent_indent=" " * 32)


_VALUES = ("column", "dir", "file", "name", "path")  # endings of option names that describe the value
