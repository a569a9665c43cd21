#!/usr/bin/env python
"""Draw the diagrams of docs/reading-guide.md, docs/images/guide-*.svg, from the values of docs/tiny_example.py:

    python docs/images/diagrams.py

With the directory of a pretraining run, also draw a trained model's attention, and print what the page says about it:

    python scripts/pretrain.py --output_dir runs/readme
    python docs/images/diagrams.py runs/readme

Diagrams are 480 units wide, so that their text is at least 11 pixels high on a phone. They have a background of their
own: a page may be light where the system is dark."""

import json
import math
import runpy
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from scratch_bert import ScratchBertModel


IMAGES = Path(__file__).parent
SENTENCE = "If the file does not exist, an [MASK] is raised."
HEAD = 3  # of the first layer
STYLE = """
svg { --paper: #fff; --ink: #1f2328; --line: #8c959f; --special: #e6e8eb; --a: #cce5ff; --b: #ffdfb3; --c: #d0efd5;
  --mark: #ffc4d0; --more: #0969da; --less: #cf222e }
@media (prefers-color-scheme: dark) { svg { --paper: #161b22; --ink: #e6edf3; --line: #7d8590; --special: #343b44;
  --a: #1f4a7a; --b: #6e4510; --c: #1f5a2c; --mark: #852a41; --more: #58a6ff; --less: #ff7b72 } }
text { font: 16px system-ui, sans-serif; fill: var(--ink) }
.title { font-weight: 600 }
.middle { text-anchor: middle }
.end { text-anchor: end }
.line { fill: none; stroke: var(--line); stroke-width: 1.5 }
.empty { fill: none; stroke: var(--line); stroke-dasharray: 3 3 }
"""
COLOURS = ("paper", "special", "a", "b", "c", "mark", "more", "less")


class Drawing:
    def __init__(self, height: int, width: int = 480):
        style = STYLE + "".join(f".{name} {{ fill: var(--{name}) }}\n" for name in COLOURS)
        self.head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        self.parts = [f"<style>{style}</style>"]
        self.rect(0, 0, width, height, "paper", radius=8)

    def text(self, x: float, y: float, text: object, kind: str = "") -> None:
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{text}</text>')

    def rect(self, x: float, y: float, width: float, height: float, kind: str, radius: float = 0) -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" class="{kind}"/>'
        )

    def box(
        self, x: float, y: float, width: float, height: float, kind: str, *lines: object, radius: float = 3
    ) -> None:
        """A rectangle with text in its middle."""
        self.rect(x, y, width, height, kind, radius)
        for number, line in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + 5.5 + 20 * (number - (len(lines) - 1) / 2), line, "middle")

    def arrow(self, *points: tuple[float, float]) -> None:
        """Along horizontal and vertical lines."""
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        (x0, y0), (x, y) = points[-2:]
        dx, dy = ((x > x0) - (x < x0)) * 6, ((y > y0) - (y < y0)) * 6
        path += f"M{x - dx - dy:g} {y - dy - dx:g}L{x:g} {y:g}L{x - dx + dy:g} {y - dy + dx:g}"
        self.parts.append(f'<path class="line" d="{path}"/>')

    def matrix(
        self, x: float, y: float, values: Tensor, title: str = "", size: float = 10, largest: float | None = None
    ) -> None:
        """Numbers as colours: blue above 0, red below, none at -inf, and strongest at `largest`, by default theirs."""
        rows, columns = values.shape
        self.text(x + columns * size / 2, y - 8, title, "middle")
        largest = largest or values[values.isfinite()].abs().max().item()
        self.parts.append(f'<g transform="translate({x:g} {y:g}) scale({size:g})">')
        for row, numbers in enumerate(values.tolist()):
            for column, number in enumerate(numbers):
                if number not in (0, -math.inf):
                    kind, opacity = "more" if number > 0 else "less", abs(number) / largest
                    self.parts.append(f'<path class="{kind}" opacity="{opacity:.2f}" d="M{column} {row}h1v1h-1z"/>')
        self.parts.append("</g>")
        self.rect(x, y, columns * size, rows * size, "line")

    def cell(self, y: float, row: int, column: int, kind: str, text: object) -> None:
        """Of a tensor (B, S) whose top is y."""
        self.box(16 + 32 * column, y + 26 * row, 30, 24, kind, text)

    def __str__(self) -> str:
        return "\n".join([self.head, *self.parts, "</svg>\n"])


def shape(matrix: Tensor) -> str:
    return f"({', '.join(map(str, matrix.shape))})"


def read_example() -> SimpleNamespace:
    """The functions of docs/tiny_example.py, and what they return."""
    example = SimpleNamespace(**runpy.run_path(str(IMAGES.parent / "tiny_example.py")))
    dataset = example.make_dataset()
    example.batch, (example.model, _) = example.make_batch(dataset), example.make_models()
    example.stages = example.plain_stages(example.model, example.batch)
    example.rows = {name: values.tolist() for name, values in example.batch.items()}

    def text(start: int, end: int) -> str:
        return dataset.tokenizer.decode(dataset.corpus.tokens[start:end])

    example.token = dataset.tokenizer.convert_ids_to_tokens
    example.sentences = [text(*span) for span in pairwise(dataset.corpus.sentence_offsets)]
    example.pairs = [(text(a, b), text(c, d)) for a, b, c, d, _ in dataset.pairs.tolist()]
    return example


def draw_overview(example: SimpleNamespace) -> Drawing:
    stages, layers = example.stages, example.SIZES["num_hidden_layers"]
    states = shape(stages["embeddings"])
    masked = sum(label >= 0 for row in example.rows["labels"] for label in row)
    steps = [
        ("special", "three texts"),
        ("special", "pairs of segments"),
        ("mark", f"masked batch: {shape(example.batch['input_ids'])}"),
        ("b", f"embeddings: {states}"),
        *(("a", f"layer {number}: {states}") for number in range(1, layers + 1)),
    ]
    drawing = Drawing(168 + 58 * len(steps))
    for row, (kind, text) in enumerate(steps):
        drawing.box(110, 16 + 58 * row, 260, 34, kind, text)
        if row:
            drawing.arrow((240, 58 * row - 8), (240, 58 * row + 16))
    y = 58 * len(steps) - 8  # the end of the last layer
    for x, name, read, logits in (
        (16, "MLM", f"{masked} masked positions", f"({masked}, {example.SIZES['vocab_size']})"),
        (248, "NSP", "[CLS] alone", shape(stages["NSP logits"])),
    ):
        drawing.arrow((240, y), (240, y + 12), (x + 108, y + 12), (x + 108, y + 28))
        drawing.box(x, y + 28, 216, 74, "c", f"{name} head", read, logits)
        drawing.arrow((x + 108, y + 102), (x + 108, y + 126))
        drawing.box(x, y + 126, 216, 34, "special", f"{name} loss {stages[f'{name} loss']:.3f}")
    drawing.text(240, y + 149, "+", "middle")
    return drawing


def draw_pairs(example: SimpleNamespace) -> Drawing:
    colours = dict(zip(example.sentences, "aabbcc", strict=True))  # a colour for each document
    drawing = Drawing(320)

    def draw(y: float, pairs: list[tuple[str, str]]) -> None:
        for row, pair in enumerate(pairs):
            for column, text in enumerate(pair):
                drawing.box(16 + 194 * column, y + 32 * row, 190, 28, colours[text], text)

    drawing.text(16, 28, "three documents, each cut in two", "title")
    draw(40, list(zip(example.sentences[::2], example.sentences[1::2], strict=True)))
    drawing.arrow((420, 102), (420, 86), (402, 86))
    drawing.arrow((420, 102), (420, 118), (402, 118))
    drawing.text(428, 108, "swap")
    drawing.arrow((208, 142), (208, 172))
    drawing.text(16, 196, "three pairs", "title")
    drawing.text(464, 196, "label", "title end")
    draw(208, example.pairs)
    for row, label in enumerate(example.rows["next_sentence_label"]):
        drawing.text(464, 228 + 32 * row, label, "end")
    return drawing


def draw_masking(example: SimpleNamespace) -> Drawing:
    drawing = Drawing(574)
    drawing.text(16, 28, "of the tokens that are to be predicted", "title")
    for row, (share, text) in enumerate(((80, "become [MASK]"), (10, "a random token"), (10, "stay as they are"))):
        drawing.rect(16, 40 + 30 * row, 3 * share, 24, "mark", radius=3)
        drawing.text(24 + 3 * share, 58 + 30 * row, f"{share}% {text}")
    for x, title in ((16, "text"), (150, "input"), (284, "label")):
        drawing.text(x, 160, title, "title")
    ids, labels, mask = (example.rows[name][0] for name in ("input_ids", "labels", "attention_mask"))
    for row in range(sum(mask)):
        y, drawn = 170 + 30 * row, labels[row] >= 0
        seen = example.token(ids[row])
        original = example.token(labels[row]) if drawn else seen
        drawing.box(16, y, 110, 26, "special", original)
        drawing.box(150, y, 110, 26, "mark" if drawn else "special", seen)
        drawing.box(284, y, 60, 26, "mark" if drawn else "empty", labels[row])
        if drawn:
            kind = "[MASK]" if seen == "[MASK]" else "unchanged" if seen == original else "random"
            drawing.text(354, y + 19, kind)
    return drawing


def draw_batch(example: SimpleNamespace) -> Drawing:
    drawing = Drawing(590)
    drawing.text(16, 28, "[CLS] segment A [SEP] segment B [SEP]", "title")
    drawing.text(464, 28, "label", "title end")
    for row, (a, b) in enumerate(example.pairs):
        drawing.box(16, 40 + 32 * row, 200, 28, "a", a)
        drawing.box(220, 40 + 32 * row, 200, 28, "b", b)
        drawing.text(464, 60 + 32 * row, example.rows["next_sentence_label"][row], "end")
    titles = {
        "input_ids": "input_ids: 2 [CLS], 3 [SEP], 4 [MASK], 0 [PAD]",
        "token_type_ids": "token_type_ids: 0 in A, 1 in B, 0 at padding",
        "attention_mask": "attention_mask: 1 at tokens, 0 at padding",
        "labels": "labels: the ids to predict; · is -100",
    }
    for table, title in enumerate(titles.values()):
        drawing.text(16, 166 + 108 * table, title, "title")
    for row, columns in enumerate(zip(*(example.rows[name] for name in titles), strict=True)):
        for column, (token, segment, mask, label) in enumerate(zip(*columns, strict=True)):
            kind = "special" if example.token(token) in ("[CLS]", "[SEP]") else "ab"[segment]
            for table, (text, colour) in enumerate(
                (
                    (token, "empty" if not mask else "mark" if label >= 0 else kind),
                    (segment, "ab"[segment] if mask else "empty"),
                    (mask, "special" if mask else "empty"),
                    (label, "mark") if label >= 0 else ("·", "empty"),
                )
            ):
                drawing.cell(176 + 108 * table, row, column, colour, text)
    return drawing


def draw_embeddings(example: SimpleNamespace) -> Drawing:
    position = 9
    token, segment = (example.rows[name][0][position] for name in ("input_ids", "token_type_ids"))
    tables = example.model.bert.embeddings
    parts = [
        (f"token {token}: “{example.token(token)}”", tables.word_embeddings.weight[token], "a"),
        (f"+ segment {segment}: B", tables.token_type_embeddings.weight[segment], "b"),
        (f"+ position {position}", tables.position_embeddings.weight[position], "c"),
    ]
    total = sum(vector for _, vector, _ in parts)
    parts += [
        ("= sum", total, "special"),
        ("LayerNorm of the sum = x", example.stages["embeddings"][0, position], "special"),
    ]
    drawing = Drawing(64 * len(parts) + 14)
    for row, (title, vector, kind) in enumerate(parts):
        y = 10 + 64 * row
        drawing.text(16, y + 18, title, "title")
        for column, number in enumerate(vector.tolist()):
            drawing.box(16 + 56.5 * column, y + 26, 52, 26, kind, f"{number:.2f}")
    return drawing


@torch.no_grad()
def draw_attention(example: SimpleNamespace) -> Drawing:
    x, attention = example.stages["embeddings"][0], example.model.bert.encoder.layer[0].attention.self
    size = attention.attention_head_size
    q, k, v = (example.linear(x, layer)[:, :size] for layer in (attention.query, attention.key, attention.value))
    scores = q @ k.T / size**0.5
    mask = torch.zeros(1, len(scores)).masked_fill(example.batch["attention_mask"][:1] == 0, -math.inf)
    weights = example.stages["layer 1: attention weights"][0, 0]

    drawing = Drawing(840)
    drawing.text(16, 28, "1. Queries, keys and values: three linear layers", "title")
    drawing.matrix(16, 66, x, f"x {shape(x)}")
    drawing.text(112, 140, "· W + b =")
    drawing.matrix(214, 66, q, f"q {shape(q)}")
    drawing.matrix(304, 66, k, f"k {shape(k)}")
    drawing.matrix(394, 66, v, f"v {shape(v)}")

    drawing.text(16, 240, "2. Scores: each query times each key", "title")
    drawing.matrix(16, 278, q, "q")
    drawing.text(66, 353, "·")
    drawing.matrix(82, 328, k.T, f"kᵀ {shape(k.T)}")
    drawing.text(232, 353, f"/ √{size} =")
    drawing.matrix(304, 278, scores, f"scores {shape(scores)}")

    drawing.text(16, 452, "3. Weights: mask added, softmax along each row", "title")
    drawing.matrix(16, 478, scores)
    drawing.text(162, 553, "+")
    drawing.matrix(178, 543, mask, "0 at tokens")
    drawing.rect(308, 543, 10, 10, "mark")
    drawing.text(318, 574, "−∞ at padding", "end")
    drawing.arrow((326, 548), (354, 548))
    drawing.matrix(364, 499, weights, "weights", size=7)

    drawing.text(16, 652, "4. Context: means of the values, by weight", "title")
    drawing.matrix(16, 690, weights, f"weights {shape(weights)}")
    drawing.text(166, 765, "·")
    drawing.matrix(184, 690, v, "v")
    drawing.text(240, 765, "=")
    drawing.matrix(266, 690, weights @ v, f"context {shape(v)}")
    return drawing


def draw_layer(example: SimpleNamespace) -> Drawing:
    sizes = example.SIZES
    heads, hidden, inner = (sizes[name] for name in ("num_attention_heads", "hidden_size", "intermediate_size"))
    attention = ("a", "attention", f"{heads} heads of {hidden // heads}")
    feed_forward = ("c", "feed-forward", f"{hidden} → {inner} → {hidden}")
    norm = ("b", "LayerNorm")
    drawing = Drawing(576)
    for left, title, halves in (
        (0, "post-LN (BERT)", [[attention, "+", norm], [feed_forward, "+", norm]]),
        (240, "pre-LN (norm_first)", [[norm, attention, "+"], [norm, feed_forward, "+"]]),
    ):
        middle, y = left + 132, 62
        drawing.text(left + 120, 28, title, "title middle")
        drawing.text(middle, 54, "x", "middle")
        for half in halves:
            start = y + 12
            for part in half:
                drawing.arrow((middle, y), (middle, y + 34))
                y += 34
                if part == "+":
                    drawing.arrow((middle, start), (left + 28, start), (left + 28, y + 12), (middle - 12, y + 12))
                    drawing.box(middle - 12, y, 24, 24, "special", "+", radius=12)
                    y += 24
                else:
                    kind, *lines = part
                    height = 14 + 20 * len(lines)
                    drawing.box(middle - 74, y, 148, height, kind, *lines)
                    y += height
        drawing.arrow((middle, y), (middle, y + 30))
        drawing.text(middle, y + 48, "x", "middle")
    return drawing


def draw_unpadding(example: SimpleNamespace) -> Drawing:
    masks, colours = example.rows["attention_mask"], "abc"  # a colour for each sequence
    lengths = [sum(mask) for mask in masks]
    total = sum(lengths)
    drawing = Drawing(494)
    drawing.text(16, 28, f"padded: (B, S) = {shape(example.batch['input_ids'])}", "title")
    for row, ids in enumerate(example.rows["input_ids"]):
        for column, token in enumerate(ids):
            drawing.cell(38, row, column, colours[row] if masks[row][column] else "empty", token)
    drawing.arrow((240, 118), (240, 146))
    drawing.text(16, 166, f"unpadded: (1, T) = (1, {total}), for all layers", "title")
    drawing.text(16, 234, f"attention: {total} × {total}, within a sequence only", "title")
    start, width = 0, 448 / total
    for colour, length in zip(colours, lengths, strict=True):
        drawing.box(16 + start * width, 178, length * width - 2, 26, colour, f"{length} tokens")
        drawing.rect(16 + start * 6, 244 + start * 6, length * 6, length * 6, colour)
        start += length
    drawing.rect(16, 244, 6 * total, 6 * total, "line")
    return drawing


def diagrams() -> dict[str, str]:
    """Name → SVG of each diagram but the trained model's."""
    example = read_example()
    drawings = (
        draw_overview,
        draw_pairs,
        draw_masking,
        draw_batch,
        draw_embeddings,
        draw_attention,
        draw_layer,
        draw_unpadding,
    )
    return {f"guide-{draw.__name__.removeprefix('draw_')}.svg": str(draw(example)) for draw in drawings}


@torch.no_grad()
def attention_weights(directory: Path, tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[Tensor]:
    """Of each text: (layers, A, S, S)."""
    model = ScratchBertModel.from_pretrained(directory, attn_implementation="eager").eval()
    encodings = (tokenizer(text, return_tensors="pt") for text in texts)
    return [torch.cat(model(**encoding, output_attentions=True).attentions) for encoding in encodings]


def draw_trained(directory: Path) -> Drawing:
    """Attention of a head of the first layer before and after a run. Prints how much each head of each layer looks at the
    previous token, at the token itself and at the next, on average over the run's texts to try."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(SENTENCE)["input_ids"])
    texts = json.loads((directory / "snapshots/examples.json").read_text(encoding="utf-8"))["texts"]
    drawing, size, left = Drawing(756), 21, 104
    for column, token in enumerate(tokens):
        x = left + size * column + 16
        drawing.parts.append(f'<text transform="translate({x} 108) rotate(-90)">{token}</text>')
    for title, model, title_y, y in (
        ("before training", directory / "snapshots/0", 28, 116),
        ("after training", directory, 438, 448),
    ):
        shown, *held_out = attention_weights(model, tokenizer, [SENTENCE, *texts])
        drawing.text(left, title_y, title, "title")
        drawing.matrix(left, y, shown[0, HEAD - 1], size=size, largest=1)
        for row, token in enumerate(tokens):
            drawing.text(left - 8, y + size * row + 16, token, "end")
        print(f"{title}, {len(texts)} texts: a row for each layer, a column for each head")
        for offset, name in ((-1, "previous token"), (0, "token itself"), (1, "next token")):
            means = torch.stack([weights.diagonal(offset, -2, -1).mean(-1) for weights in held_out]).mean(0)
            print(name, [[round(mean, 2) for mean in layer] for layer in means.tolist()])
    return drawing


def main() -> None:
    drawn = diagrams()
    for directory in sys.argv[1:]:
        drawn["guide-trained.svg"] = str(draw_trained(Path(directory)))
    for name, svg in drawn.items():
        (IMAGES / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
