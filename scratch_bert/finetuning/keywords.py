"""Options as keywords: a stand-in for `scratch_bert.cli.from_keywords`."""

from dataclasses import fields
from typing import Any

from ..cli import similar


def from_keywords(*dataclasses: type, **options: Any) -> tuple:
    """An object per dataclass, with the options that are its fields. Raises `ValueError` for an unknown option."""
    names = [{field.name for field in fields(dataclass) if field.init} for dataclass in dataclasses]
    known = set().union(*names)
    for name in sorted(options.keys() - known):
        raise ValueError(f"There is no option {name}.{similar(name, known)}")
    return tuple(
        dataclass(**{name: options[name] for name in field_names & options.keys()})
        for dataclass, field_names in zip(dataclasses, names, strict=True)
    )
