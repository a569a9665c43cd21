"""Predictions by class: precision, recall and F1 of each, and their confusions, as data, text and picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from seqeval.metrics import classification_report
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from ..training.model_card import new_figure


SHOWN = 20  # classes at most, in text and picture; JSON has all
CONFUSED = 200  # classes at most, in a confusion matrix: it grows with their square
SCORES = ("precision", "recall", "f1", "examples")


def class_scores(references: Any, predictions: Any, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Class → its precision, recall, F1 and number of examples; 0 where one is undefined.

    Args:
        references, predictions: A name for each example, or, for several labels, arrays (N, L) of 0 and 1.
    """
    labels: list | None = list(names) if isinstance(references, list) else None
    if labels is None and len(names) == 1:  # to scikit-learn, a single column is two classes
        references, predictions, labels = references[:, 0], predictions[:, 0], [1]
    scores = precision_recall_fscore_support(references, predictions, labels=labels, zero_division=0)
    return {
        name: dict(zip(SCORES, map(float, values), strict=True)) for name, *values in zip(names, *scores, strict=True)
    }


def entity_scores(references: list[list[str]], predictions: list[list[str]]) -> dict[str, dict[str, float]]:
    """Type of entity → its scores, from lists of IOB tags."""
    found = classification_report(references, predictions, output_dict=True, zero_division=0)
    return {
        name: dict(zip(SCORES, map(float, scores.values()), strict=True))
        for name, scores in found.items()
        if not name.endswith(" avg")
    }


def class_report(references: list[str], predictions: list[str]) -> dict[str, Any]:
    """`classes`: see `class_scores`. `labels`: the names of the rows and columns of `confusion`, a row for each true
    class with the numbers of its examples by their predicted class. Both are left out for one class, and for many."""
    labels = sorted({*references, *predictions})
    report: dict[str, Any] = {"classes": class_scores(references, predictions, labels)}
    if not 1 < len(labels) <= CONFUSED:
        return report
    return report | {"labels": labels, "confusion": confusion_matrix(references, predictions, labels=labels).tolist()}


def most_frequent(classes: dict[str, dict[str, float]]) -> list[tuple[str, dict[str, float]]]:
    """The classes to show, with their scores."""
    return sorted(classes.items(), key=lambda item: -item[1]["examples"])[:SHOWN]


def to_text(split: str, report: dict[str, Any]) -> str:
    """Tables for the terminal."""
    classes = dict(most_frequent(report["classes"]))
    width = max(24, *(len(name[:40]) + 2 for name in classes))
    lines = [f"{f'{split}, by class':<{width}}{'precision':>10}{'recall':>10}{'F1':>10}{'examples':>10}"]
    for name, scores in classes.items():
        values = "".join(f"{scores[score]:>10.4f}" for score in SCORES[:3])
        lines.append(f"{name[:40]:<{width}}{values}{scores['examples']:>10,.0f}")
    if len(report["classes"]) > SHOWN:
        lines.append(f"… and {len(report['classes']) - SHOWN} classes with fewer examples")
    if "confusion" in report and len(report["labels"]) <= 5:
        lines += ["", f"{'true ↓   predicted →':<{width}}" + "".join(f"{name[:9]:>10}" for name in report["labels"])]
        for name, counts in zip(report["labels"], report["confusion"], strict=True):
            lines.append(f"{name[:40]:<{width}}" + "".join(f"{count:>10,}" for count in counts))
    if "thresholds" in report:
        title = f"{report['positive'][:30]} from a probability of"
        lines += ["", f"{title:<{width + 10}}{'precision':>10}{'recall':>10}{'predicted':>10}"]
        for row in report["thresholds"]:
            chosen = f"{row['threshold']:.3f}" + " (chosen)" * (row["threshold"] == report["threshold"])
            lines.append(
                f"{chosen:<{width + 10}}{row['precision']:>10.4f}{row['recall']:>10.4f}{row['predicted']:>10,}"
            )
    return "\n".join(lines)


def draw(report: dict[str, Any], file: Path) -> bool:
    """Draw the confusion matrix and, for two classes, precision and recall by threshold. Returns False without
    matplotlib, and for reports that have none or too many classes."""
    if not 1 < len(report.get("labels", ())) <= SHOWN:
        return False
    counts, names = np.array(report["confusion"]), [name[:20] for name in report["labels"]]
    side = max(3.5, 0.45 * len(names) + 1.5)
    thresholds = report.get("thresholds")
    figure = new_figure(side * (2 if thresholds else 1), side)
    if figure is None:
        return False
    axes = figure.subplots(1, 2 if thresholds else 1, squeeze=False)[0]
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes[0].imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(counts):
        color = "white" if shares[row, column] > 0.5 else "black"
        axes[0].text(column, row, f"{count:,}", ha="center", va="center", color=color, fontsize=8)
    axes[0].set(xlabel="predicted", ylabel="true")
    axes[0].set_xticks(range(len(names)), names, rotation=45, ha="right", parse_math=False)
    axes[0].set_yticks(range(len(names)), names, parse_math=False)
    if thresholds:
        for score in ("precision", "recall"):
            axes[1].plot(
                [row["threshold"] for row in thresholds], [row[score] for row in thresholds], ".-", label=score
            )
        axes[1].axvline(report["threshold"], color="gray", linestyle=":", label="chosen")
        axes[1].set(xlabel=f"probability threshold of {report['positive'][:20]}", ylim=(0, 1.02))
        axes[1].legend()
    figure.savefig(file)
    return True
