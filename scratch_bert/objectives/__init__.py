"""The objectives of pretraining, by name. To add one: `OBJECTIVES["mine"] = Mine()`, here or in your own code."""

from .base import MetricRow, NextSentenceHead, Objective, PairClassification
from .contrastive import Contrastive, NextSentenceAndContrastive
from .mlm_only import MaskedLanguageModelling
from .nsp import NextSentencePrediction
from .sop import SentenceOrderPrediction


__all__ = ["OBJECTIVES", "MetricRow", "NextSentenceHead", "Objective", "PairClassification", "find_objective"]

OBJECTIVES: dict[str, Objective] = {
    objective.name: objective
    for objective in (
        NextSentencePrediction(),
        SentenceOrderPrediction(),
        MaskedLanguageModelling(),
        Contrastive(),
        NextSentenceAndContrastive(),
    )
}


def find_objective(objective: str | Objective) -> Objective:
    """The objective of this name. Raises `ValueError` if there is none."""
    if isinstance(objective, Objective):
        return objective
    if isinstance(objective, type):
        raise ValueError(f"An objective is an instance: {objective.__name__}(), not the class.")
    if objective not in OBJECTIVES:
        raise ValueError(f"The sentence objective must be one of {', '.join(OBJECTIVES)}; got {objective!r}.")
    return OBJECTIVES[objective]
