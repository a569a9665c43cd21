"""What a tokenizer's normalizer changes in a text, ignoring case: accents that it removes, letters that it splits."""

import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ..text.formats import TextSource


SAMPLE_SHARDS, SAMPLE_CHARACTERS = 100, 5_000_000  # evenly spread shards, and characters in all
# Of the characters of English text, 0.00% to 0.07% carry an accent; of text in other languages with accents, over 1%.
RARE = 0.003
MUCH = 0.01
"""A normalizer that changes a greater fraction of the characters deserves a warning."""


class Changes(NamedTuple):
    share: float
    """The changed fraction of the characters other than spaces."""
    most_frequent: list[str]
    """Such as `é → e`, the most frequent first."""

    def __str__(self) -> str:
        examples = f": {', '.join(self.most_frequent)}" if self.most_frequent else ""
        share = f"{self.share:.2%}" if self.share == 0 or self.share >= 5e-5 else "less than 0.01%"
        return f"{share} of the characters, ignoring case{examples}"


def count_characters(source: TextSource, max_shards: int = SAMPLE_SHARDS) -> Counter[str]:
    """The characters of a sample of the text, from at most `max_shards` evenly spread shards."""
    count = min(len(source.shards), max_shards)
    chosen = [source.shards[number * len(source.shards) // count] for number in range(count)]
    counts: Counter[str] = Counter()
    for shard in chosen:
        left = SAMPLE_CHARACTERS // count
        for paragraph in replace(source, shards=[shard]):
            counts.update(paragraph[:left])
            left -= len(paragraph)
            if left <= 0:
                break
    return counts


def find_changes(counts: Counter[str], after: Callable[[str], str], before: Callable[[str], str] = str) -> Changes:
    """How the text with these characters differs `after` a normalizer from `before`, by default the text itself."""
    changed: Counter[str] = Counter()
    for character, count in counts.items():
        old, new = (normalize(character).strip().lower() for normalize in (before, after))
        if old != new:
            changed[f"{_show(old)} → {_show(new) or 'nothing'}"] += count
    total = sum(count for character, count in counts.items() if not character.isspace())
    return Changes(changed.total() / max(total, 1), [change for change, _ in changed.most_common(5)])


def _show(text: str) -> str:
    """Text in which each character can be seen: marks on a circle, others without a glyph by their number."""
    shown = (character if character.isprintable() else f"U+{ord(character):04X}" for character in text)
    return " ".join(f"◌{one}" if unicodedata.category(one[0]) in ("Mn", "Mc") else one for one in shown)
