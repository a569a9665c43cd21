"""Options are fields of pydantic dataclasses, which convert and check values from flags, files and Python alike."""

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, field, fields
from types import MappingProxyType
from typing import Any, dataclass_transform

from pydantic import ConfigDict, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from .schema import bounds, check


def option(
    default: Any,
    help: str,
    *,
    within: str | None = None,
    choices: Iterable | None = None,
    requires: str = "",
    unless: str = "",
    path: bool = False,
    remote: bool = False,
    group: str | None = None,
    const: Any = None,
) -> Any:
    """A field that becomes an option with this help text.

    Args:
        within: The range of a number, such as "[0, 1)".
        choices: The allowed values; a dict describes each.
        requires: Names of options, separated by spaces, without all of which this one has no effect.
        unless: Names of options with any of which this one has no effect.
        path: Whether it names what is to be read; in a file of options, relative to that file.
        remote: Whether it may be a URL of remote storage, such as s3://bucket/text.
        group: Its title in `--help`, if not that of its class.
        const: The value of a flag that is given without one.
    """
    if isinstance(choices, Mapping):
        help += " " + "; ".join(f"{name}: {description}" for name, description in choices.items()) + "."
    rules = {"choices": tuple(choices or ()), "requires": requires, "unless": unless, "path": path, "const": const}
    rules |= {"remote": remote, "group": group}
    return field(default=default, metadata={"description": help, **rules, **bounds(within)})


@dataclass_transform(field_specifiers=(option,))
def options(cls: type) -> type:
    """Decorator of the subclasses of `OptionGroup`."""
    return pydantic_dataclass(cls, config=ConfigDict(coerce_numbers_to_str=True, allow_inf_nan=False))


@options
class OptionGroup:
    """Base class of groups of options. `group` and `unless` apply to all options of a subclass; inherited options keep
    their group. Groups are composed by inheritance: `--help` shows the last base class first."""

    def __init_subclass__(cls, group: str | None = None, unless: str = "", **kwargs):
        super().__init_subclass__(**kwargs)
        for name, option in vars(cls).items():
            if isinstance(option, Field) and option.metadata:
                inherited = [vars(base).get("__dataclass_fields__", {}).get(name) for base in cls.__mro__]
                titles = [base.metadata.get("group") for base in inherited if base] + [option.metadata["group"], group]
                rules = {"group": next(filter(None, titles), None), "unless": f"{option.metadata['unless']} {unless}"}
                option.metadata = MappingProxyType({**option.metadata, **rules})

    @field_validator("*", mode="before")
    @classmethod
    def _from_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Accepts other forms of a value: one item for a list, a path or a dict for text, false for `no`."""
        declared = cls.__dataclass_fields__[info.field_name]
        rules, const = declared.metadata, declared.metadata.get("const")
        if value == "auto" and is_boolean(declared) and declared.default is None:
            return None
        if isinstance(value, bool) and const:
            return const if value else None
        if value is False and "no" in rules.get("choices", ()):
            return "no"
        if isinstance(value, dict) and "dict" not in str(declared.type):
            return json.dumps(value)
        several = isinstance(value, list | tuple)
        items = value if several else [value]
        items = [os.fspath(item) if isinstance(item, os.PathLike) else item for item in items]
        if any(isinstance(item, str) and not item for item in items):
            raise ValueError("must not be empty: leave it out, or set the variable that its value comes from")
        urls = (re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", item) for item in items if isinstance(item, str))
        if any(urls) and not rules.get("remote"):  # to pathlib, s3://bucket is in a directory named s3:
            raise ValueError(
                "must not be a URL: mount the storage (as by rclone mount), or copy the files (as by aws s3 sync)"
            )
        return items if several or is_list(declared) and value is not None else items[0]

    @field_validator("*")
    @classmethod
    def _is_a_choice(cls, value: Any, info: ValidationInfo) -> Any:
        choices = cls.__dataclass_fields__[info.field_name].metadata.get("choices")
        for item in value if isinstance(value, list) else [value]:
            if choices and item is not None and item not in choices:
                raise ValueError(f"must be one of {', '.join(map(str, choices))}")
        return value

    def __post_init__(self):
        for option in fields(self):
            for other in option.metadata.get("requires", "").split():
                if not getattr(self, other, None):
                    reject_non_default(self, [option.name], f"without {other}")
            for other in option.metadata.get("unless", "").split():
                if getattr(self, other, None):
                    reject_non_default(self, [option.name], f"with {other}")


def with_defaults(group: type, **defaults: Any) -> type:
    """A subclass of a group of options, some of which have other defaults."""
    declared = {name: group.__dataclass_fields__[name] for name in defaults}
    changed = {name: field(default=defaults[name], metadata=one.metadata) for name, one in declared.items()}
    types = {name: one.type for name, one in declared.items()}
    return options(type(group.__name__, (group,), {"__annotations__": types, "__doc__": group.__doc__, **changed}))


def is_list(option: Field) -> bool:
    return str(option.type).startswith("list")


def is_boolean(option: Field) -> bool:
    return option.type in (bool, bool | None)


def reject_non_default(options: Any, names: Iterable[str], where: str) -> None:
    """Raise `ValueError` if one of these options differs from its default."""
    for name in names:
        if getattr(options, name) != options.__dataclass_fields__[name].default:
            raise ValueError(f"{name} has no effect {where}: leave it out.")


def similar(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """ " Did you mean …?", if one of `known` is much like `name`; otherwise an empty string."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f" Did you mean {matches[0]}?" if matches else ""


def known_options(groups: Iterable[type]) -> dict[str, Field]:
    """The options of the groups by name; of several with the same name, the first."""
    options = [option for group in groups for option in fields(group) if option.name != "trainer"]
    return {option.name: option for option in reversed(options)}


def from_keywords(*groups: Callable, **given: Any) -> tuple:
    """One object per group, from options by name; None stands for the default.

    An option that no group declares is Trainer's, for the group that has `trainer`: it is checked when
    `TrainingArguments` are built. Raises `ValueError`, in one line, for an unknown option and an invalid value.
    """
    given = {name: value for name, value in given.items() if value is not None}
    known = known_options(groups)
    others = {name: given.pop(name) for name in list(given) if name not in known}
    takes_others = ["trainer" in group.__dataclass_fields__ for group in groups]
    if others and not any(takes_others):
        raise ValueError(f"There is no option {next(iter(others))}.{similar(next(iter(others)), known)}")
    objects = []
    for group, takes in zip(groups, takes_others, strict=True):
        values = {name: value for name, value in given.items() if name in group.__dataclass_fields__}
        objects.append(check(group, values | ({"trainer": others} if takes else {})))
    for one in objects:
        for option in fields(one):
            excluding = (other for other in option.metadata.get("unless", "").split() if getattr(one, other, None))
            if option.name in given and (other := next(excluding, None)):  # also if it is the default
                raise ValueError(f"{option.name} has no effect with {other}: leave it out.")
    return tuple(objects)
