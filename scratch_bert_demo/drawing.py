"""HTML where Gradio has no component: heat maps and maps as SVG, a grid of attention heads, a table of words, headings.
Text from users and models is escaped; colours are the theme's, light or dark (page.css)."""

import io
import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from html import escape
from itertools import islice
from math import exp, log, sqrt

import numpy as np
from PIL import Image

from .model import MASK, clean


# The units that a click masks: a Chinese character, a run of letters and digits, or a punctuation mark.
WORD = re.compile(rf"{re.escape(MASK)}|[㐀-鿿]|[^\s㐀-鿿!-/:-@\[-`{{-~]+|\S")
MAX_WORDS = 200  # to click on
CHARACTER = 7.3  # the width of a Latin letter in a heat map, in pixels

# A pointer chooses when it is released: there is no click if an answer replaces the grid in between. A key clicks.
GRID_JS = """const choose = event => {
  const button = event.target.closest('button');
  if (button) trigger('click', {layer: Number(button.dataset.layer), head: Number(button.dataset.head)});
};
element.addEventListener('pointerup', event => event.button || choose(event));
element.addEventListener('click', event => event.detail || choose(event));"""
# A touch, or the arrow keys, show what hovering does; a screen reader reads it aloud.
CAPTION_JS = """const show = cell => {
  element.querySelector('.sb-current')?.classList.remove('sb-current');
  cell.classList.add('sb-current');
  element.querySelector('.sb-caption').textContent = cell.textContent;
};
element.addEventListener('click', event => {
  const cell = event.target.closest('.sb-heat rect');
  if (cell) show(cell);
});
element.addEventListener('keydown', event => {
  const cells = [...element.querySelectorAll('.sb-heat rect')], columns = event.target.dataset?.columns;
  const move = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: +columns}[event.key];
  if (!columns || !move) return;
  event.preventDefault();
  const current = cells.findIndex(cell => cell.classList.contains('sb-current'));
  show(current < 0 ? cells[0] : cells[current + move] ?? cells[current]);
});"""


def heading(title: str, note: str = "", level: int = 3) -> str:
    """A title, and a sentence below it, each unless it is empty."""
    shown = f"<h{level}>{escape(title)}</h{level}>" if title else ""
    return shown + (f"<p>{escape(note)}</p>" if note else "")


def find_words(text: str) -> list[re.Match[str]]:
    """The first words of a text, with their positions in it."""
    return list(islice(WORD.finditer(clean(text)), MAX_WORDS))


def about(models: Sequence[tuple[str, str]]) -> str:
    """A line on each model (name, description)."""
    lines = "".join(f"<p><b>{escape(name)}</b> · {escape(text)}</p>" for name, text in models)
    if len(models) > 3:
        lines = f"<details><summary>{len(models)} models</summary>{lines}</details>"
    return lines


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    title: str,
    largest: float = 1.0,
    numbers: bool = False,
    opacity: Callable[[float], float] = abs,
) -> str:
    """An SVG heat map: a cell's opacity is that of its value relative to `largest`; another colour marks negative
    values. Values appear on hover, below on a click or with the arrow keys, and with `numbers` in the cells."""
    cell = 36 if numbers else max(14, min(30, 560 // len(columns)))
    left, top = (CHARACTER * max(_width(_shorten(label)) for label in labels) + 12 for labels in (rows, columns))
    if numbers:
        top = 24  # the columns' labels are short and stand upright
    cells, labels = [], []
    for i, row in enumerate(rows):
        y = top + i * cell
        labels.append(_label(row, left - 6, y + cell / 2 + 4, "end"))
        for j, value in enumerate(values[i]):
            negative = ' class="sb-negative"' if value < 0 else ""
            cells.append(
                f'<rect x="{left + j * cell:.0f}" y="{y:.0f}" width="{cell}" height="{cell}"{negative} '
                f'fill-opacity="{min(opacity(value / largest), 1):.3f}">'
                f"<title>{escape(row)} → {escape(columns[j])}: {value:.3f}</title></rect>"
            )
            if numbers:
                labels.append(_label(f"{value:.2f}", left + (j + 0.5) * cell, y + cell / 2 + 4, "middle"))
    for j, column in enumerate(columns):
        x = left + (j + 0.5) * cell
        place = (x, top - 6, "middle") if numbers else (x + 4, top - 6, "start", True)
        labels.append(_label(column, *place))
    width, height = cell * len(columns), cell * len(rows)
    frame = f'<rect class="sb-frame" x="{left:.0f}" y="{top:.0f}" width="{width}" height="{height}"></rect>'
    drawn = f'<g class="sb-heat">{"".join(cells)}</g>{frame}{"".join(labels)}'
    caption = '<div class="sb-caption" aria-live="polite"></div>'
    keys = f'role="application" tabindex="0" data-columns="{len(columns)}"'
    return _svg(drawn, left + width + 2, top + height + 2, f"{title}: arrow keys read the cells", keys) + caption


def map_of_texts(labels: Sequence[str], places: Sequence[Sequence[float]], title: str) -> str:
    """An SVG map: a numbered point for each text at its place (x, y); a label appears on hover."""
    width, height, edge = 360, 220, 20
    xy = np.array(places, dtype=float)
    xy -= (xy.max(0) + xy.min(0)) / 2
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


def _svg(drawn: str, width: float, height: float, title: str, role: str = 'role="img"') -> str:
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'<div class="sb-scroll"><svg {size} {role} aria-label="{escape(title)}">{drawn}</svg></div>'


def _label(text: str, x: float, y: float, anchor: str, turned: bool = False) -> str:
    rotation = f' transform="rotate(-90 {x:.0f} {y:.0f})"' if turned else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{rotation}>{escape(_shorten(text))}</text>'


def grid_of_heads(weights: np.ndarray, layer: int, head: int) -> str:
    """A grid of buttons, a row per layer and a column per head, with pictures of the weights (layers, heads, S, S).
    That of `layer` and `head`, from 1, is pressed."""
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
    style = f"grid-template-columns: max-content repeat({heads}, minmax(2.5rem, 7rem))"
    return f'<div class="sb-scroll"><div class="sb-heads" style="{style}">{"".join(cells)}</div></div>'


def _picture(weights: np.ndarray) -> str:
    """Weights (S, S) as a PNG of S × S pixels in a data URI, on the `scale`."""
    pixels = np.empty((*weights.shape, 4), dtype=np.uint8)
    pixels[..., :3] = 249, 115, 22  # the theme's accent
    pixels[..., 3] = 255 * np.sqrt(weights)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"


def scale() -> str:
    """What the opacity of attention weights means, the same for all layers, heads, models and texts."""
    weights = (0.01, 0.1, 0.25, 0.5, 1)
    cells = (f'<span style="--p: {sqrt(weight):.3f}">{weight:g}</span>' for weight in weights)
    return f'<div class="sb-scale">weight {"".join(cells)}</div>'


def compared_words(
    text: str, titles: Sequence[str], scores: Sequence[dict[tuple[int, int], tuple[float, str]]]
) -> str:
    """What several models expect of a text: a sentence on which of them expects it most, and a table with each word.

    `scores` are each model's {(start, end): (log-probability, guess)}. The sentence is on the words that all models
    know. Raises `ValueError` if there is none.
    """
    known = sorted(set.intersection(*map(set, scores)))
    if not known:
        raise ValueError("The models have no word of this text in common.")
    characters = sum(end - start for start, end in known)
    means = [sum(score[word][0] for word in known) / len(known) for score in scores]
    order = sorted(range(len(titles)), key=lambda number: -means[number])
    best, second = order[:2]
    ratio = exp(min(means[best] - means[second], 20))
    times = f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"
    verdict = f"{titles[best]} expects this text more than {titles[second]}: its words are {times} times as likely."
    if ratio < 1.01:
        verdict = f"{titles[best]} and {titles[second]} expect this text equally."
    rows = [["mean log-probability of a word", *(f"{mean:.2f}" for mean in means)]]
    rows += [["bits per character", *(f"{-mean * len(known) / characters / log(2):.2f}" for mean in means)]]
    head = "".join(f"<th>{escape(cell)}</th>" for cell in ("", *titles))
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    for start, end in sorted(set().union(*scores)):
        word = text[start:end]
        cells = [f'<th dir="auto">{escape(word)}</th>']
        for score in scores:
            if (start, end) not in score:
                cells.append("<td>unknown</td>")
                continue
            log_probability, guess = score[start, end]
            other = "" if guess.lower() == word.lower() else f' <small dir="auto">{escape(guess)}</small>'
            p = exp(log_probability)
            cells.append(f'<td style="--p: {0.6 * p:.3f}">{percent(p)}{other}</td>')
        body += f"<tr>{''.join(cells)}</tr>"
    return f'<p>{escape(verdict)}</p><div class="sb-scroll"><table><tr>{head}</tr>{body}</table></div>'


def percent(probability: float) -> str:
    """Whole percents, and a decimal below 10."""
    return f"{probability:.0%}" if probability >= 0.0995 else f"{probability:.1%}"


def _width(label: str) -> int:
    """The width in Latin letters: Chinese, Japanese and Korean characters count twice."""
    return len(label) + sum(character > "\u2e80" for character in label)


def _shorten(label: str, length: int = 16) -> str:
    return label if len(label) <= length else label[: length - 1] + "…"
