"""Values that come from outside, checked by a pydantic schema, with messages of one line."""

from math import inf
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError


def check(schema: Any, value: Any, where: str = "") -> Any:
    """`value` as the type `schema`: a pydantic model, a dataclass or an annotation.

    Raises `ValueError` with one line: `where`, such as a file and a row, then the field, the reason and the value.
    """
    try:
        return TypeAdapter(schema).validate_python(value)
    except ValidationError as error:
        raise ValueError(explain(error, where)) from None


def explain(error: ValidationError, where: str = "") -> str:
    """The first thing that is wrong, as one line."""
    first, *others = error.errors(include_url=False)
    if not first["loc"] and first["type"] == "value_error":  # of a `__post_init__`, which names its fields
        return ": ".join(filter(None, (where, str(first["ctx"]["error"]))))
    field = ".".join(str(part) for part in first["loc"])
    reason = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
    given = f", got {' '.join(repr(first['input']).split()):.80}" if first["type"] != "missing" else ""
    more = f" (and {len(others)} more)" if others else ""
    return ": ".join(filter(None, (where, field, f"{reason[0].lower()}{reason[1:]}{given}{more}")))


def bounds(interval: str | None) -> dict[str, float]:
    """`"[0, 1)"` as pydantic's constraints: `{"ge": 0, "lt": 1}`."""
    if not interval:
        return {}
    low, high = (float(end) for end in interval[1:-1].split(","))
    bounds = {"ge" if interval[0] == "[" else "gt": low, "le" if interval[-1] == "]" else "lt": high}
    return {name: int(end) if end.is_integer() else end for name, end in bounds.items() if abs(end) < inf}


def check_range(name: str, value: float, interval: str) -> None:
    """Raise `ValueError` unless the value is a number in the interval, such as "[0, 1)"."""
    check(Annotated[float, Field(strict=True, allow_inf_nan=False, **bounds(interval))], value, name)
