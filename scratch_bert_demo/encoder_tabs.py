"""The tabs that show a model's encoder: its attention and its embeddings."""

from collections.abc import Sequence
from functools import partial
from math import sqrt

from . import components as ui
from . import drawing
from .environment import SILENT, gr
from .model import MAX_ATTENTION, Model
from .runs import short_names
from .timeline import Timeline


MAX_TEXTS_SHOWN = 5  # at first
GRID: ui.Part = partial(ui.HTML, js_on_load=drawing.GRID_JS)
HEAT_MAP: ui.Part = partial(ui.HTML, js_on_load=drawing.CAPTION_JS)


def attention(name: str, models: list[Model], timeline: Timeline, examples: list[str]) -> list[ui.Results]:
    by_name = {model.name: model for model in models}

    def attend(model: Model, text: str, chosen: list[int]) -> ui.Contents:
        answer = model.attention(text)
        tokens, weights = answer.value  # weights (layers, heads, S, S)
        layers, heads = weights.shape[:2]
        layer, head = min(chosen[0], layers), min(chosen[1], heads)
        title = f"Layer {layer} of {layers}, head {head} of {heads}"
        enlarged = drawing.heat_map(tokens, tokens, weights[layer - 1, head - 1].tolist(), title, opacity=sqrt)
        grid = drawing.grid_of_heads(weights.numpy(), layer, head)
        return [grid, f"<h4>{title}</h4>{drawing.scale()}{enlarged}"], answer.left_out

    def show(step: int | None, text: str, model: str, chosen: list[int]) -> list[gr.Component]:
        return ui.column_of(by_name[model].at, [GRID, HEAT_MAP], attend, step, text, chosen)

    gr.Markdown(
        "How each token (a row) distributes its attention over the tokens (the columns): click a head to enlarge it, "
        f"or a cell (with the arrow keys, too) to see its weight. At most {MAX_ATTENTION} tokens."
    )
    text = ui.sentence_box(examples, "The animal didn't cross the street because it was too tired.")
    choices = list(zip(short_names(list(by_name)), by_name, strict=True))
    model = gr.Dropdown(choices, value=models[0].name, label="Model", visible=len(models) > 1, render=False)
    # One component, since of two that change together, an answer may have the new value of the first alone.
    chosen = gr.JSON([1, 1], label="Layer and head", visible=False, render=False)
    samples, controls = [[text] for text in examples], [model, chosen]
    results = ui.show_results([show], [text], "Show", name, timeline, controls=controls, samples=samples)

    def choose_head(click: gr.EventData) -> list[int]:
        return [click.layer, click.head]

    grid = results.components[1]
    grid.click(choose_head, None, chosen, trigger_mode="multiple", **SILENT)  # in the order of the clicks
    return [results]


def embeddings(
    name: str, models: list[Model], timeline: Timeline, examples: Sequence[tuple[str, str]]
) -> list[ui.Results]:
    def compare(model: Model, texts: str) -> ui.Contents:
        answer = model.embeddings(ui.lines(texts))
        similarities, places = answer.value
        columns = [str(number) for number in range(1, len(answer.texts) + 1)]
        others = similarities.clone().fill_diagonal_(0).abs().max().item() or 1.0
        rows = ui.number(answer.texts)
        heat_map = drawing.heat_map(rows, columns, similarities.tolist(), "Cosine similarities", others, numbers=True)
        return [heat_map, drawing.map_of_texts(rows, places.tolist(), "Map of the texts")], answer.left_out

    def nearest(model: Model, word: str) -> ui.Contents:
        answer = model.nearest_tokens(word)
        return [dict(answer.value)], answer.left_out

    gr.Markdown(
        "How similar the model finds texts: the cosines of their embeddings, each the mean of its tokens' last "
        "hidden states minus that of random texts, and their first two principal components as a map."
    )
    texts = "\n".join(ui.fill(*example) for example in examples[:MAX_TEXTS_SHOWN])
    otherwise = "The cat sleeps on the sofa.\nA dog lies on the carpet.\nThe bank raised its interest rate."
    columns = ui.columns_of(models, [HEAT_MAP, ui.HTML], compare)
    boxes = [ui.box(texts or otherwise, "Texts, one per line", lines=3)]
    similar_texts = ui.show_results(columns, boxes, "Compare", name, timeline)
    gr.Markdown("The tokens whose embeddings are most similar to that of a word, by cosine similarity.")
    longest = max((word for _, word in examples), key=len, default="")
    columns = ui.columns_of(models, [ui.BARS], nearest)
    boxes = [ui.box(longest or "city", "Word")]
    return [similar_texts, ui.show_results(columns, boxes, "Find", "nearest_tokens", timeline, link=False)]
