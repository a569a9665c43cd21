#!/usr/bin/env python
"""Draw the diagrams of docs/reading-guide.md, docs/images/guide-*.svg, from the values of docs/tiny_example.py:

    python docs/images/diagrams.py

With the directory of a pretraining run, also draw a trained model's attention, and print what the page says about it:

    python scripts/pretrain.py --output_dir runs/readme
    python docs/images/diagrams.py runs/readme

Diagrams are 480 units wide, so that their text is at least 11 pixels high on a phone. They have a background of their
own: a page may be light where the system is dark."""

import json
import runpy
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor
from transformers import AutoTokenizer, BatchEncoding

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

    def matrix(self, x: float, y: float, values: Tensor, size: float = 10) -> None:
        """Numbers as colours: blue above 0, red below, stronger the larger; dashed where they are -inf."""
        rows, columns = values.shape
        largest = values[values.isfinite()].abs().max().item()
        for row, numbers in enumerate(values.tolist()):
            for column, number in enumerate(numbers):
                if number != 0 and number != -torch.inf:
                    self.parts.append(
                        f'<rect x="{x + column * size:g}" y="{y + row * size:g}" width="{size:g}" height="{size:g}" '
                        f'class="{"more" if number > 0 else "less"}" fill-opacity="{abs(number) / largest:.2f}"/>'
                    )
        self.rect(x, y, columns * size, rows * size, "line")

    def __str__(self) -> str:
        return "\n".join([self.head, *self.parts, "</svg>\n"])


def shape(matrix: Tensor) -> str:
    return f"({', '.join(map(str, matrix.shape))})"


def read_example() -> SimpleNamespace:
    """Everything of the example that is drawn."""
    example = SimpleNamespace(**runpy.run_path(str(IMAGES.parent / "tiny_example.py")))
    dataset = example.make_dataset()
    batch, (model, _) = example.make_batch(dataset), example.make_models()
    stages = example.plain_stages(model, batch)
    tokens = dataset.corpus.tokens
    spans = [
        [dataset.tokenizer.decode(tokens[start:end]) for start, end in ((a, b), (c, d))]
        for a, b, c, d, _ in dataset.pairs.tolist()
    ]
    return SimpleNamespace(
        **vars(example),
        dataset=dataset,
        tokenizer=dataset.tokenizer,
        batch=batch,
        model=model,
        stages=stages,
        spans=spans,
    )


def segment_colours(example: SimpleNamespace) -> list[list[str]]:
    """Of each position of the batch: segment A or B, special, or padding."""
    special = torch.isin(
        example.batch["input_ids"], torch.tensor([example.tokenizer.cls_token_id, example.tokenizer.sep_token_id])
    ).tolist()
    mask, segments = example.batch["attention_mask"].tolist(), example.batch["token_type_ids"].tolist()
    return [
        [
            "empty" if not mask[row][column] else "special" if special[row][column] else "ab"[segments[row][column]]
            for column in range(len(mask[row]))
        ]
        for row in range(len(mask))
    ]


def draw_grid(drawing: Drawing, y: float, title: str, texts: list[list], kinds: list[list[str]]) -> None:
    """A tensor (B, S), cell by cell."""
    drawing.text(16, y + 16, title, "title")
    for row, (cells, colours) in enumerate(zip(texts, kinds, strict=True)):
        for column, (cell, kind) in enumerate(zip(cells, colours, strict=True)):
            drawing.box(16 + 32 * column, y + 26 + 26 * row, 30, 24, kind, cell)


def draw_batch(example: SimpleNamespace) -> Drawing:
    drawing, batch, segments = Drawing(586), example.batch, segment_colours(example)
    drawing.text(16, 28, "[CLS] segment A [SEP] segment B [SEP]", "title")
    drawing.text(464, 28, "label", "title end")
    for row, (a, b) in enumerate(example.spans):
        y = 40 + 32 * row
        drawing.box(16, y, 200, 28, "a", a)
        drawing.box(220, y, 200, 28, "b", b)
        drawing.text(464, y + 20, batch["next_sentence_label"][row].item(), "end")
    labels = batch["labels"].tolist()
    marked = [
        ["mark" if label >= 0 else kind for label, kind in zip(*rows, strict=True)]
        for rows in zip(labels, segments, strict=True)
    ]
    draw_grid(drawing, 150, "input_ids: 2 [CLS], 3 [SEP], 4 [MASK], 0 [PAD]", batch["input_ids"].tolist(), marked)
    for y, name, title in (
        (258, "token_type_ids", "token_type_ids: 0 up to the first [SEP], then 1"),
        (366, "attention_mask", "attention_mask: 1 at tokens, 0 at padding"),
    ):
        kinds = [
            [
                "empty" if kind == "empty" else "ab"[segment] if name == "token_type_ids" else "special"
                for kind, segment in zip(*rows, strict=True)
            ]
            for rows in zip(segments, batch["token_type_ids"].tolist(), strict=True)
        ]
        draw_grid(drawing, y, title, batch[name].tolist(), kinds)
    texts = [[label if label >= 0 else "·" for label in row] for row in labels]
    kinds = [["mark" if label >= 0 else "empty" for label in row] for row in labels]
    draw_grid(drawing, 474, "labels: the ids to predict; · is -100", texts, kinds)
    return drawing


def draw_embeddings(example: SimpleNamespace) -> Drawing:
    position = 9
    token, segment = (example.batch[name][0, position].item() for name in ("input_ids", "token_type_ids"))
    tables, name = example.model.bert.embeddings, example.tokenizer.convert_ids_to_tokens(token)
    parts = [
        (f"token {token}: “{name}”", tables.word_embeddings.weight[token], "a"),
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
    size = attention.head_dim
    q, k, v = (example.linear(x, layer)[:, :size] for layer in (attention.query, attention.key, attention.value))
    scores = q @ k.T / size**0.5
    mask = torch.zeros(1, len(scores)).masked_fill(example.batch["attention_mask"][:1] == 0, -torch.inf)
    weights = example.stages["layer 1: attention weights"][0, 0]

    drawing = Drawing(840)
    drawing.text(16, 28, "1. Queries, keys and values: three linear layers", "title")
    drawing.text(56, 58, f"x {shape(x)}", "middle")
    drawing.matrix(16, 66, x)
    drawing.text(112, 140, "· W + b =")
    for left, name, values in ((214, "q", q), (304, "k", k), (394, "v", v)):
        drawing.text(left + 20, 58, f"{name} {shape(values)}", "middle")
        drawing.matrix(left, 66, values)

    drawing.text(16, 240, "2. Scores: each query times each key", "title")
    drawing.text(36, 270, "q", "middle")
    drawing.matrix(16, 278, q)
    drawing.text(66, 353, "·")
    drawing.text(152, 320, f"kᵀ {shape(k.T)}", "middle")
    drawing.matrix(82, 328, k.T)
    drawing.text(232, 353, f"/ √{size} =")
    drawing.text(374, 270, f"scores {shape(scores)}", "middle")
    drawing.matrix(304, 278, scores)

    drawing.text(16, 452, "3. Weights: mask added, softmax along each row", "title")
    drawing.matrix(16, 478, scores)
    drawing.text(162, 553, "+")
    drawing.text(178, 534, "0 at tokens")
    drawing.matrix(178, 543, mask)
    drawing.rect(308, 543, 10, 10, "mark")
    drawing.text(318, 574, "−∞ at padding", "end")
    drawing.arrow((326, 548), (354, 548))
    drawing.matrix(364, 478, weights, size=7)

    drawing.text(16, 652, "4. Context: means of the values, by weight", "title")
    drawing.text(86, 682, f"weights {shape(weights)}", "middle")
    drawing.matrix(16, 690, weights)
    drawing.text(166, 765, "·")
    drawing.text(204, 682, "v", "middle")
    drawing.matrix(184, 690, v)
    drawing.text(240, 765, "=")
    drawing.text(286, 682, f"context {shape(v)}", "middle")
    drawing.matrix(266, 690, weights @ v)
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


def draw_masking(example: SimpleNamespace) -> Drawing:
    drawing, batch = (
        Drawing(566),
        {name: values[0].tolist() for name, values in example.batch.items() if values.dim() > 1},
    )
    drawing.text(16, 28, "15% of the tokens are to be predicted; of these", "title")
    for row, (share, text) in enumerate(((80, "become [MASK]"), (10, "a random token"), (10, "stay as they are"))):
        y = 40 + 30 * row
        drawing.rect(16, y, 3 * share, 24, "mark", radius=3)
        drawing.text(24 + 3 * share, y + 18, f"{share}% {text}")
    for x, title in ((16, "text"), (150, "input"), (284, "label")):
        drawing.text(x, 160, title, "title")
    for row in range(sum(batch["attention_mask"])):
        y, label = 170 + 30 * row, batch["labels"][row]
        name, original = example.tokenizer.convert_ids_to_tokens(
            [batch["input_ids"][row], label if label >= 0 else batch["input_ids"][row]]
        )
        drawing.box(16, y, 110, 26, "special", original)
        drawing.box(150, y, 110, 26, "mark" if label >= 0 else "special", name)
        if label >= 0:
            drawing.box(284, y, 60, 26, "mark", label)
            drawing.text(354, y + 19, "masked" if name == "[MASK]" else "unchanged" if name == original else "random")
        else:
            drawing.box(284, y, 60, 26, "empty", -100)
    return drawing


def draw_pairs(example: SimpleNamespace) -> Drawing:
    labels = example.batch["next_sentence_label"].tolist()
    sentences = [
        example.tokenizer.decode(example.dataset.corpus.tokens[start:end])
        for start, end in pairwise(example.dataset.corpus.sentence_offsets)
    ]
    documents = list(zip(sentences[::2], sentences[1::2], strict=True))
    drawing, y = Drawing(330), 40
    drawing.text(16, 28, "three documents, each cut in two", "title")
    for row, (a, b) in enumerate(documents):
        drawing.box(16, y + 32 * row, 190, 28, "abc"[row], a)
        drawing.box(210, y + 32 * row, 190, 28, "abc"[row], b)
    drawing.arrow((400, 118), (420, 118), (420, 86), (404, 86))
    drawing.arrow((420, 86), (420, 118), (404, 118))
    drawing.text(428, 108, "swap")
    drawing.arrow((208, 142), (208, 172))
    drawing.text(16, 196, "three pairs", "title")
    drawing.text(464, 196, "label", "title end")
    for row, pair in enumerate(example.spans):
        for column, text in enumerate(pair):
            number = next(number for number, document in enumerate(documents) if text in document)
            drawing.box(16 + 194 * column, 208 + 32 * row, 190, 28, "abc"[number], text)
        drawing.text(464, 228 + 32 * row, labels[row], "end")
    return drawing


def draw_unpadding(example: SimpleNamespace) -> Drawing:
    lengths = example.batch["attention_mask"].sum(1).tolist()
    total = sum(lengths)
    drawing = Drawing(494)
    kinds = [
        ["abc"[row] if cell else "empty" for cell in cells]
        for row, cells in enumerate(example.batch["attention_mask"].tolist())
    ]
    draw_grid(drawing, 12, "padded: (B, S) = (3, 14)", example.batch["input_ids"].tolist(), kinds)
    drawing.arrow((240, 118), (240, 146))
    drawing.text(16, 166, f"unpadded: (1, T) = (1, {total}), for all layers", "title")
    start, width = 0, 448 / total
    for row, length in enumerate(lengths):
        x = 16 + start * width
        drawing.box(x, 178, length * width - 2, 26, "abc"[row], f"{length} tokens", radius=0)
        drawing.rect(16 + start * 6, 244 + start * 6, 6 * length, 6 * length, "abc"[row])
        start += length
    drawing.rect(16, 244, 6 * total, 6 * total, "line")
    drawing.text(16, 234, f"attention: {total} × {total}, within a sequence only", "title")
    return drawing


def diagrams() -> dict[str, str]:
    """Name → SVG of each diagram but the trained model's."""
    example = read_example()
    drawings = (draw_pairs, draw_masking, draw_batch, draw_embeddings, draw_attention, draw_layer, draw_unpadding)
    return {f"guide-{draw.__name__.removeprefix('draw_')}.svg": str(draw(example)) for draw in drawings}


def draw_trained(directory: Path) -> Drawing:
    """Attention of a head of the first layer before and after a run. Prints how much each head of both layers looks at the
    previous token, at the token itself and at the next, on average over the run's held-out texts."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    texts = json.loads((directory / "snapshots/examples.json").read_text(encoding="utf-8"))["texts"]
    encoding = tokenizer(SENTENCE, return_tensors="pt")
    tokens = tokenizer.convert_ids_to_tokens(encoding["input_ids"][0])
    drawing, size, left = Drawing(756), 21, 104
    for column, token in enumerate(tokens):
        x = left + size * column + 16
        drawing.parts.append(f'<text transform="translate({x} 108) rotate(-90)">{token}</text>')
    for y, title, weights_of in (
        (116, "before training", directory / "snapshots/0"),
        (448, "after training", directory),
    ):
        model = ScratchBertModel.from_pretrained(weights_of, attn_implementation="eager").eval()

        def attention(inputs: BatchEncoding, model: ScratchBertModel = model) -> Tensor:
            with torch.no_grad():
                return torch.cat(model(**inputs, output_attentions=True).attentions)  # (layers, A, S, S)

        drawing.text(left, y - 10 if y > 116 else 28, title, "title")
        for row, token in enumerate(tokens):
            drawing.text(left - 8, y + size * row + 16, token, "end")
        drawing.matrix(left, y, attention(encoding)[0, HEAD - 1], size)
        weights = [attention(tokenizer(text, return_tensors="pt")) for text in texts]
        print(f"{title}, {len(texts)} texts: weight of the previous token, the token itself, the next one")
        for offset in (-1, 0, 1):
            means = torch.stack([each.diagonal(offset, -2, -1).mean(-1) for each in weights]).mean(0)
            print([[round(mean, 2) for mean in layer] for layer in means.tolist()])
    return drawing


def main() -> None:
    drawn = diagrams()
    for directory in sys.argv[1:]:
        drawn["guide-trained.svg"] = str(draw_trained(Path(directory)))
    for name, svg in drawn.items():
        (IMAGES / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
