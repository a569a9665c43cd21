"""Answers as HTML and SVG. All that comes from a user or a model is escaped; colours are the theme's, light or dark."""

import re
from collections.abc import Sequence
from html import escape
from itertools import islice

from .answers import MASK, clean


# What a click masks: a Chinese character, a run of other ones without spaces and punctuation, or a punctuation mark.
WORD = re.compile(rf"{re.escape(MASK)}|[㐀-鿿]|[^\s㐀-鿿!-/:-@\[-`{{-~]+|\S")
MAX_WORDS = 200  # to click on
CHARACTER = 7.3  # the width of a Latin letter in a drawing, in pixels
MAX_POINTS = 400  # of a curve

CSS = """
.sb-button { align-self: flex-start; width: auto; padding-inline: 2.5rem; }
.sb-panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 1.5rem; }
.sb-panels > section { min-width: 0; }
.sb-panels h3, .sb-panels h4 { margin: 0 0 0.5rem; font-size: 0.95rem; font-weight: 600; overflow-wrap: anywhere; }
.sb-panels h4 { margin-top: 0.75rem; font-weight: 500; }
.sb-note, .sb-message { overflow-wrap: anywhere; }
.sb-note { font-size: 0.85rem; opacity: 0.8; }
.sb-message { border-left: 4px solid var(--color-accent); padding: 0.4rem 0.8rem; background: var(--block-background-fill); }
.sb-bars { display: grid; grid-template-columns: fit-content(45%) minmax(3rem, 1fr) max-content; gap: 0.3rem 0.7rem;
  align-items: center; max-width: 40rem; }
.sb-bars bdi { overflow-wrap: anywhere; }
.sb-track { display: block; height: 0.9rem; border-radius: 3px; background: var(--border-color-primary); }
.sb-track > span { display: block; height: 100%; border-radius: 3px; background: var(--color-accent); }
.sb-value { text-align: right; font-variant-numeric: tabular-nums; }
.sb-number { font-size: 1.6rem; font-variant-numeric: tabular-nums; }
.sb-words { display: flex; flex-wrap: wrap; gap: 0.3rem; }
.sb-words button { padding: 0.1rem 0.5rem; border: 1px solid var(--border-color-primary); border-radius: 6px;
  background: var(--block-background-fill); color: inherit; max-width: 100%; overflow-wrap: anywhere; cursor: pointer; }
.sb-words button:hover, .sb-words button:focus-visible { border-color: var(--color-accent); }
.sb-words button.sb-mask { background: var(--color-accent); color: white; cursor: default; }
.sb-text { margin-bottom: 0.5rem; max-height: 24rem; overflow-y: auto; white-space: pre-wrap; overflow-wrap: anywhere;
  line-height: 1.9; }
.sb-text mark { padding: 0.1rem 0.35rem; box-decoration-break: clone; -webkit-box-decoration-break: clone;
  border-radius: 4px; background: var(--color-accent-soft); color: inherit;
  border-bottom: 2px solid var(--color-accent); }
.sb-text mark small { margin-left: 0.4rem; font-weight: 600; white-space: nowrap; }
.sb-scroll { overflow-x: auto; }
.sb-scroll svg { max-width: none; font: 12px ui-monospace, monospace; fill: currentColor; }
.sb-heat rect { fill: var(--color-accent); }
.sb-heat rect.sb-negative { fill: #d14; }
.sb-frame { fill: none; stroke: currentColor; stroke-opacity: 0.35; }
.sb-curves { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.5rem 0; }
.sb-curves svg { width: 100%; max-width: 26rem; font: 11px ui-monospace, monospace; fill: currentColor; }
.sb-curves polyline { fill: none; stroke-width: 1.5; }
.sb-training { stroke: var(--color-accent); } .sb-validation { stroke: #2a9d8f; }
text.sb-training { stroke: none; fill: var(--color-accent); } text.sb-validation { stroke: none; fill: #2a9d8f; }
.sb-step { stroke: currentColor; stroke-dasharray: 4 3; }
"""


def message(text: str) -> str:
    """A sentence in place of an answer."""
    return f'<p class="sb-message">{escape(text)}</p>'


def note(left_out: int) -> str:
    """That the model has not read all of its input, if so."""
    if not left_out:
        return ""
    return f'<p class="sb-note">Too long for the model: {left_out:,} tokens at the end were left out.</p>'


def panels(contents: Sequence[tuple[str, str]]) -> str:
    """HTML with a title each, side by side where there is room."""
    sections = (f"<section><h3>{escape(title)}</h3>{content}</section>" for title, content in contents)
    return f'<div class="sb-panels">{"".join(sections)}</div>'


def bars(values: Sequence[tuple[str, float]], title: str = "") -> str:
    """A bar for each (label, probability)."""
    rows = "".join(
        f'<bdi>{escape(label)}</bdi><span class="sb-track"><span style="width: {value:.1%}"></span></span>'
        f'<span class="sb-value">{value:.3f}</span>'
        for label, value in values
    )
    return (f"<h4>{escape(title)}</h4>" if title else "") + f'<div class="sb-bars">{rows}</div>'


def number(value: float, label: str) -> str:
    return f'<p><span class="sb-number">{value:.3f}</span> {escape(label)}</p>'


def words(text: str) -> str:
    """A button for each of the first words of a text, with its place in it, for clicks that mask it."""
    buttons = []
    for match in islice(WORD.finditer(clean(text)), MAX_WORDS):
        mask = ' class="sb-mask"' if match[0] == MASK else ""
        place = f'data-start="{match.start()}" data-end="{match.end()}"'
        buttons.append(f'<button type="button"{mask} {place}>{escape(match[0])}</button>')
    return f'<div class="sb-words">{"".join(buttons)}</div>'


def marked(text: str, spans: Sequence[tuple[int, int, str, float]]) -> str:
    """A text with marked spans: (start, end, label, probability), in their order."""
    parts, done = [], 0
    for start, end, label, probability in spans:
        content = f"{escape(text[start:end])}<small>{escape(label)} {probability:.3f}</small>"
        parts += [escape(text[done:start]), f"<mark>{content}</mark>"]
        done = end
    return f'<div class="sb-text" dir="auto">{"".join(parts)}{escape(text[done:])}</div>'


def heat_map(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]], numbers: bool = False
) -> str:
    """A cell for each row and column, more colourful for a larger value, and of another colour for a negative one. The values are
    shown as numbers, or on hover."""
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
                f'fill-opacity="{abs(value) / largest:.3f}"><title>{escape(row)} → {escape(column)}: {value:.3f}</title></rect>'
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


def curves(panels: dict[str, dict[str, list[tuple[int, float]]]], step: int) -> str:
    """A diagram for each panel, {line: [(step, value), …]}, with a mark at `step`."""
    return f'<div class="sb-curves">{"".join(_curve(title, lines, step) for title, lines in panels.items())}</div>'


def _curve(title: str, lines: dict[str, list[tuple[int, float]]], step: int) -> str:
    left, top, width, height = 48, 24, 300, 120
    points = [point for line in lines.values() for point in line]
    low, high = min(value for _, value in points), max(value for _, value in points)
    last = max(step, *(at for at, _ in points))

    def place(at: int, value: float) -> tuple[float, float]:
        return left + width * at / last, top + height * (high - value) / ((high - low) or 1)

    drawn, legend_at = [], left + width
    for name, line in reversed(lines.items()):  # the legend from the right
        shown = line[:: len(line) // MAX_POINTS + 1]
        path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in shown)
        drawn.append(f'<polyline class="sb-{name}" points="{path}"></polyline>')
        drawn.append(f'<text class="sb-{name}" x="{legend_at}" y="14" text-anchor="end">{name}</text>')
        legend_at -= int(CHARACTER * (len(name) + 2))
    x, _ = place(step, low)
    return (
        f'<svg viewBox="0 0 {left + width + 8} {top + height + 22}" role="img"><text x="{left}" y="14">{escape(title)}</text>'
        f'<rect class="sb-frame" x="{left}" y="{top}" width="{width}" height="{height}"></rect>'
        f'<text x="{left - 4}" y="{top + 9}" text-anchor="end">{high:.2f}</text>'
        f'<text x="{left - 4}" y="{top + height}" text-anchor="end">{low:.2f}</text>'
        f'<text x="{left}" y="{top + height + 16}">0</text>'
        f'<text x="{left + width}" y="{top + height + 16}" text-anchor="end">step {last:,}</text>'
        f'{"".join(drawn)}<line class="sb-step" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + height}"></line></svg>'
    )


def _width(label: str) -> int:
    """In Latin letters: Chinese characters and their like are twice as wide."""
    return len(label) + sum(character > "\u2e80" for character in label)


def _shorten(label: str, length: int = 22) -> str:
    return label if len(label) <= length else label[: length - 1] + "…"
