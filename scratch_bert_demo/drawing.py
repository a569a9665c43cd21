"""What Gradio has no component for: heat maps and maps as SVG, a grid of attention heads, scored words and headings as HTML, and the
page's CSS. Text from users and models is escaped; colours are the theme's, light or dark."""

import io
import re
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from itertools import islice

import numpy as np
from PIL import Image

from .model import MASK, clean


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
.sb-scroll svg { max-width: max(100%, 20rem); height: auto; font: 12px ui-monospace, monospace; fill: currentColor; }
.sb-heat rect { fill: var(--color-accent); }
.sb-heat rect.sb-negative { fill: #3b82f6; }
.sb-frame { fill: none; stroke: currentColor; stroke-opacity: 0.35; }
.sb-caption { min-height: 1.5em; }
.sb-map circle { fill: var(--color-accent); fill-opacity: 0.3; }
.sb-map text { pointer-events: none; }
.sb-scroll svg:has(.sb-map) { max-width: 100%; }
.sb-heads { display: grid; gap: 3px; align-items: center; width: max-content; max-width: 100%; font-size: 0.75rem; }
.sb-heads button { aspect-ratio: 1; width: clamp(2.5rem, 100%, 7rem); padding: 0; cursor: pointer; border: 2px solid transparent;
  outline: 1px solid var(--border-color-primary); border-radius: 4px; overflow: hidden; }
.sb-heads button[aria-pressed="true"] { border-color: var(--color-accent); }
.sb-heads img { width: 100%; height: 100%; image-rendering: pixelated; }
.sb-scored { display: flex; flex-wrap: wrap; gap: 0.25rem; margin-top: 0.5rem; }
.sb-scored span { position: relative; padding: 0.1rem 0.4rem; border-radius: 6px; text-align: center; overflow: hidden;
  border: 1px solid var(--border-color-primary); }
.sb-scored span::before { content: ""; position: absolute; inset: 0; background: var(--color-accent); opacity: var(--p); }
.sb-scored b, .sb-scored small { position: relative; display: block; font-weight: 500; }
.sb-about { font-size: 0.9rem; }
.sb-about h1 { margin: 0; font-size: 1.4rem; }
.sb-about p { margin: 0.2rem 0 0; padding: 0; border: none; background: none; }
.sb-tabs > .tab-wrapper .tab-container { flex-wrap: nowrap; overflow-x: auto; }
.sb-tabs > .tab-wrapper .tab-container button { flex: none; }
"""

GRID_JS = """element.addEventListener('click', event => {
  const button = event.target.closest('button');
  if (button) trigger('click', {layer: Number(button.dataset.layer), head: Number(button.dataset.head)});
});"""
# A touch shows what hovering does.
CAPTION_JS = """element.addEventListener('click', event => {
  const title = event.target.closest('rect')?.querySelector('title'), caption = element.querySelector('.sb-caption');
  if (title && caption) caption.textContent = title.textContent;
});"""


def heading(title: str, note: str) -> str:
    """A title, and a sentence below it if `note` is not empty."""
    return f"<h3>{escape(title)}</h3>" + (f"<p>{escape(note)}</p>" if note else "")


def find_words(text: str) -> list[re.Match[str]]:
    """The first words of a text, with their positions in it."""
    return list(islice(WORD.finditer(clean(text)), MAX_WORDS))


def about(title: str, models: Sequence[tuple[str, str]]) -> str:
    """The page's heading, and a line on each model (name, description)."""
    lines = "".join(f"<p><b>{escape(name)}</b> · {escape(text)}</p>" for name, text in models)
    if len(models) > 3:
        lines = f"<details><summary>{len(models)} models</summary>{lines}</details>"
    return f"<h1>{escape(title)}</h1>{lines}"


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    title: str,
    largest: float | None = None,
    numbers: bool = False,
) -> str:
    """An SVG heat map: the opacity of a cell is the magnitude of its value, relative to `largest` or the largest of all; another
    colour marks negative values. Values are shown on hover, and below on a click; with `numbers`, in the cells too."""
    names = rows, columns
    rows, columns = ([_shorten(label) for label in labels] for labels in names)
    cell = 36 if numbers else max(14, min(30, 560 // len(columns)))
    left, top = (CHARACTER * max(map(_width, labels)) + 12 for labels in (rows, columns))
    if numbers:
        top = 24  # the columns' labels are short and stand upright
    largest = largest or max(abs(value) for row in values for value in row)
    cells, labels = [], []
    for i, row in enumerate(rows):
        y = top + i * cell
        labels.append(f'<text x="{left - 6:.0f}" y="{y + cell / 2 + 4:.0f}" text-anchor="end">{escape(row)}</text>')
        for j, value in enumerate(values[i]):
            negative = ' class="sb-negative"' if value < 0 else ""
            cells.append(
                f'<rect x="{left + j * cell:.0f}" y="{y:.0f}" width="{cell}" height="{cell}"{negative} '
                f'fill-opacity="{min(abs(value) / largest, 1):.3f}">'
                f"<title>{escape(names[0][i])} → {escape(names[1][j])}: {value:.3f}</title></rect>"
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
    frame = (
        f'<rect class="sb-frame" x="{left:.0f}" y="{top:.0f}" width="{cell * len(columns)}" '
        f'height="{cell * len(rows)}"></rect>'
    )
    drawn = f'<g class="sb-heat">{"".join(cells)}</g>{frame}{"".join(labels)}'
    return _svg(drawn, left + cell * len(columns) + 2, top + cell * len(rows) + 2, title) + (
        '<div class="sb-caption" aria-live="polite"></div>'
    )


def map_of_texts(labels: Sequence[str], places: Sequence[Sequence[float]], title: str) -> str:
    """An SVG map: a numbered point for each text at its place (x, y), with its label on hover."""
    width, height, edge = 360, 220, 20
    xy = np.array(places, dtype=float).reshape(len(labels), -1)
    xy = np.pad(xy, ((0, 0), (0, 2 - xy.shape[1])))
    xy = xy - (xy.max(0) + xy.min(0)) / 2
    room = np.array([width / 2 - edge, height / 2 - edge])
    xy = xy * (room / np.maximum(np.abs(xy).max(0), 1e-9)).min() + [width / 2, height / 2]
    points = []
    for number, (label, (x, y)) in enumerate(zip(labels, xy, strict=True), 1):
        points.append(
            f'<circle cx="{x:.0f}" cy="{y:.0f}" r="10"><title>{escape(label)}</title></circle>'
            f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">{number}</text>'
        )
    frame = f'<rect class="sb-frame" x="1" y="1" width="{width - 2}" height="{height - 2}"></rect>'
    return _svg(f'<g class="sb-map">{frame}{"".join(points)}</g>', width, height, title)


def _svg(drawn: str, width: float, height: float, title: str) -> str:
    return (
        f'<div class="sb-scroll"><svg width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"{drawn}</svg></div>"
    )


def grid_of_heads(weights: np.ndarray, layer: int, head: int) -> str:
    """A button for each layer, a row, and head, a column, with a picture of its weights (layers, heads, S, S); that of `layer` and
    `head`, from 1, is pressed."""
    layers, heads = weights.shape[:2]
    cells = ["<span></span>", *(f"<span>head {number}</span>" for number in range(1, heads + 1))]
    for i in range(layers):
        cells.append(f"<span>layer {i + 1}</span>")
        for j in range(heads):
            pressed = str((i + 1, j + 1) == (layer, head)).lower()
            cells.append(
                f'<button type="button" data-layer="{i + 1}" data-head="{j + 1}" aria-pressed="{pressed}" '
                f'aria-label="Layer {i + 1}, head {j + 1}"><img alt="" src="{_picture(weights[i, j])}"></button>'
            )
    columns = f"max-content repeat({heads}, minmax(2.5rem, 7rem))"
    return f'<div class="sb-scroll"><div class="sb-heads" style="grid-template-columns: {columns}">{"".join(cells)}</div></div>'


def _picture(weights: np.ndarray) -> str:
    """Weights (S, S) as a PNG of as many pixels, in a data URI: the larger, the more opaque."""
    pixels = np.empty((*weights.shape, 4), dtype=np.uint8)
    pixels[..., :3] = 249, 115, 22  # the theme's accent
    pixels[..., 3] = 255 * weights / weights.max()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"


def scored_words(text: str, words: Sequence[tuple[int, int, float, str]]) -> str:
    """The words of a text (start, end, probability, guess), each with its probability, and the guess where it is another word."""
    cells = []
    for start, end, probability, guess in words:
        word = text[start:end]
        other = "" if guess.lower() == word.lower() else f" {guess}"
        cells.append(
            f'<span style="--p: {0.6 * probability:.3f}"><b>{escape(word)}</b>'
            f"<small>{percent(probability)}{escape(other)}</small></span>"
        )
    return f'<div class="sb-scored">{"".join(cells)}</div>'


def percent(probability: float) -> str:
    """Whole percents, and a decimal below 10."""
    return f"{probability:.0%}" if probability >= 0.0995 else f"{probability:.1%}"


def _width(label: str) -> int:
    """The width in Latin letters: Chinese, Japanese and Korean characters count twice."""
    return len(label) + sum(character > "\u2e80" for character in label)


def _shorten(label: str, length: int = 16) -> str:
    return label if len(label) <= length else label[: length - 1] + "…"
