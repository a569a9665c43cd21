"""What Gradio has no component for: heat maps as SVG, headings with notes as HTML, and the page's CSS. Text from users
and models is escaped; colours are the theme's, light or dark."""

import re
from collections.abc import Sequence
from html import escape
from itertools import islice

from .answers import MASK, clean


# The units that a click masks: a Chinese character, a run of letters and digits, or a punctuation mark.
WORD = re.compile(rf"{re.escape(MASK)}|[㐀-鿿]|[^\s㐀-鿿!-/:-@\[-`{{-~]+|\S")
MAX_WORDS = 200  # to click on
CHARACTER = 7.3  # the width of a Latin letter in a heat map, in pixels

CSS = """
.sb-button { align-self: flex-start; width: auto; padding-inline: 2.5rem; }
.sb-html .html-container { padding: 0; overflow-wrap: anywhere; }
.sb-html h3, .sb-html h4 { margin: 0; font-size: 0.95rem; font-weight: 600; }
.sb-html h4 { font-weight: 500; }
.sb-html p { margin: 0.5rem 0 0; border-left: 4px solid var(--color-accent); padding: 0.4rem 0.8rem;
  background: var(--block-background-fill); }
.sb-text .textfield { display: block; max-height: 24rem; overflow-y: auto; word-break: normal; overflow-wrap: anywhere;
  unicode-bidi: plaintext; line-height: 1.9; }
.sb-text .line-break { display: block; }
.sb-text .token.highlighted { background: var(--color-accent-soft) !important; color: inherit !important; }
.sb-text .label { background: var(--color-accent) !important; text-transform: none; }
.sb-words .textfield { display: flex; flex-wrap: wrap; gap: 0.3rem; }
.sb-words .token, .sb-words .token.highlighted { margin: 0; padding: 0.1rem 0.5rem; cursor: pointer;
  border: 1px solid var(--border-color-primary); border-radius: 6px; }
.sb-words .token.highlighted { background: var(--color-accent) !important; color: white !important; cursor: default; }
.sb-words .token:hover, .sb-words .token:focus-visible { border-color: var(--color-accent); }
.sb-scroll { overflow-x: auto; }
.sb-scroll svg { max-width: none; font: 12px ui-monospace, monospace; fill: currentColor; }
.sb-heat rect { fill: var(--color-accent); }
.sb-heat rect.sb-negative { fill: #d14; }
.sb-frame { fill: none; stroke: currentColor; stroke-opacity: 0.35; }
"""


def heading(title: str, note: str) -> str:
    """A title, and a sentence below it if `note` is not empty."""
    return f"<h3>{escape(title)}</h3>" + (f"<p>{escape(note)}</p>" if note else "")


def find_words(text: str) -> list[re.Match[str]]:
    """The first words of a text, with their positions in it."""
    return list(islice(WORD.finditer(clean(text)), MAX_WORDS))


def heat_map(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]], numbers: bool = False
) -> str:
    """An SVG heat map: the opacity of a cell is the magnitude of its value, another colour marks negative values.
    Values are shown on hover; with `numbers`, in the cells too."""
    rows, columns = ([_shorten(label) for label in labels] for labels in (rows, columns))
    cell = 36 if numbers else max(14, min(30, 560 // len(columns)))
    left, top = (CHARACTER * max(map(_width, labels)) + 12 for labels in (rows, columns))
    if numbers:
        top = 24  # the columns' labels are short and stand upright
    largest = max(abs(value) for row in values for value in row)
    cells, labels = [], []
    for i, row in enumerate(rows):
        y = top + i * cell
        labels.append(f'<text x="{left - 6:.0f}" y="{y + cell / 2 + 4:.0f}" text-anchor="end">{escape(row)}</text>')
        for j, column in enumerate(columns):
            value = values[i][j]
            negative = ' class="sb-negative"' if value < 0 else ""
            cells.append(
                f'<rect x="{left + j * cell:.0f}" y="{y:.0f}" width="{cell}" height="{cell}"{negative} '
                f'fill-opacity="{abs(value) / largest:.3f}">'
                f"<title>{escape(row)} → {escape(column)}: {value:.3f}</title></rect>"
            )
            if numbers:
                x = left + (j + 0.5) * cell
                labels.append(f'<text x="{x:.0f}" y="{y + cell / 2 + 4:.0f}" text-anchor="middle">{value:.2f}</text>')
    for j, column in enumerate(columns):
        x = left + (j + 0.5) * cell
        turned = "" if numbers else f' transform="rotate(-90 {x + 4:.0f} {top - 6:.0f})"'
        anchor = "middle" if numbers else "start"
        x += 0 if numbers else 4
        labels.append(f'<text x="{x:.0f}" y="{top - 6:.0f}" text-anchor="{anchor}"{turned}>{escape(column)}</text>')
    width, height = left + cell * len(columns) + 2, top + cell * len(rows) + 2
    frame = (
        f'<rect class="sb-frame" x="{left:.0f}" y="{top:.0f}" width="{cell * len(columns)}" '
        f'height="{cell * len(rows)}"></rect>'
    )
    return (
        f'<div class="sb-scroll"><svg width="{width:.0f}" height="{height:.0f}" role="img">'
        f'<g class="sb-heat">{"".join(cells)}</g>{frame}{"".join(labels)}</svg></div>'
    )


def _width(label: str) -> int:
    """The width in Latin letters: Chinese, Japanese and Korean characters count twice."""
    return len(label) + sum(character > "\u2e80" for character in label)


def _shorten(label: str, length: int = 22) -> str:
    return label if len(label) <= length else label[: length - 1] + "…"
