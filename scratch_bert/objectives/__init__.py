"""The objectives of pretraining by name. Each module here may define some; others: `OBJECTIVES["mine"] = Mine()`."""

from importlib import import_module
from pkgutil import iter_modules

from .base import MetricRow, NextSentenceHead, Objective, PairClassification


__all__ = ["OBJECTIVES", "MetricRow", "NextSentenceHead", "Objective", "PairClassification", "find_objective"]

# The objectives are the classes that state a description; their base classes do not.
OBJECTIVES: dict[str, Objective] = {
    member.name: member()
    for module in iter_modules(__path__)
    for member in vars(import_module(f"{__name__}.{module.name}")).values()
    if isinstance(member, type) and issubclass(member, Objective) and "description" in vars(member)
}


def find_objective(objective: str | Objective) -> Objective:
    """The objective of this name. Raises `ValueError` if there is none."""
    if isinstance(objective, Objective):
        return objective
    if objective not in OBJECTIVES:
        known = "; ".join(f"{name}: {known.description}" for name, known in OBJECTIVES.items())
        raise ValueError(f"There is no sentence_objective {objective!r}, only {known}.")
    return OBJECTIVES[objective]
