"""The tabs that show a model's encoder: its attention and its embeddings."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from . import components as ui
from . import drawing
from .environment import gr
from .model import MAX_ATTENTION, Model
from .runs import Run, short_names


MAX_TEXTS_SHOWN = 5  # at first
GRID: ui.Part = partial(ui.HTML, js_on_load=drawing.GRID_JS)
HEAT_MAP: ui.Part = partial(ui.HTML, js_on_load=drawing.CAPTION_JS)


def attention(name: str, models: list[Model], runs: Sequence[Run], examples: list[str]) -> ui.Results:
    by_name = {model.name: model for model in models}
    run_of = {run.name: run for run in runs}

    def attend(model: Model, text: str, layer: int, head: int) -> ui.Contents:
        answer = model.attention(text)
        tokens, weights = answer.value  # weights (layers, heads, S, S)
        layers, heads = weights.shape[:2]
        layer, head = min(int(layer), layers), min(int(head), heads)
        title = f"Layer {layer} of {layers}, head {head} of {heads}"
        enlarged = drawing.heat_map(tokens, tokens, weights[layer - 1, head - 1].tolist(), title)
        grid = drawing.grid_of_heads(weights.numpy(), layer, head)
        return [grid, f"<h4>{title}</h4>{enlarged}"], answer.left_out

    def show(text: str, name: str, layer: int, head: int) -> list[gr.Component]:
        return ui.column_of(by_name[name].current, [GRID, HEAT_MAP], attend, text, layer, head)

    def show_first(text: str, name: str, layer: int, head: int) -> list[gr.Component]:
        if name not in run_of:
            return [part("", visible=False) for part in (ui.HTML, GRID, HEAT_MAP)]
        run = run_of[name]
        return ui.column_of(lambda: run.open(run.saved[0]), [GRID, HEAT_MAP], attend, text, layer, head)

    gr.Markdown(
        "All heads of all layers: click one to enlarge it. Each row shows how a token distributes its attention over "
        "the tokens in the columns; hover over a cell, or touch it, for the weight. "
        f"At most {MAX_ATTENTION} tokens." + (" Right: the same model at its first snapshot." if runs else "")
    )
    text, chips = ui.sentence_box(examples, otherwise="The animal didn't cross the street because it was too tired.")
    choices = list(zip(short_names(list(by_name)), by_name, strict=True))
    chosen = gr.Dropdown(choices, value=models[0].name, label="Model", visible=len(models) > 1)
    layer, head = gr.Number(1, label="Layer", visible=False), gr.Number(1, label="Head", visible=False)
    columns = [show, show_first] if runs else [show]
    results = ui.show_results(columns, [text, chosen, layer, head], name, "Show", chips)

    def choose_head(text: str, name: str, click: gr.EventData) -> list[Any]:
        return [click.layer, click.head, *results.show(text, name, click.layer, click.head)]

    clicks = [grid.click for grid in results.components[1::3]]
    # One event, so that the answer to an earlier click never replaces that to a later one.
    ui.answer_last(clicks, choose_head, [text, chosen], [layer, head, *results.components], api_visibility="private")
    return results


def embeddings(name: str, models: list[Model], examples: Sequence[tuple[str, str]]) -> ui.Results:
    def compare(model: Model, texts: str) -> ui.Contents:
        answer = model.embeddings(ui.lines(texts))
        similarities, places = answer.value
        columns = [str(number) for number in range(1, len(answer.texts) + 1)]
        others = similarities.clone().fill_diagonal_(0).abs().max().item()
        rows = ui.number(answer.texts)
        heat_map = drawing.heat_map(rows, columns, similarities.tolist(), "Cosine similarities", others, numbers=True)
        return [heat_map, drawing.map_of_texts(rows, places.tolist(), "Map of the texts")], answer.left_out

    def nearest(model: Model, word: str) -> ui.Contents:
        answer = model.nearest_tokens(word)
        return [dict(answer.value)], answer.left_out

    gr.Markdown(
        "How similar texts are to the model: the cosines of their embeddings, each the mean of its tokens' last "
        "hidden states minus that of random texts, and their first two principal components as a map."
    )
    texts = gr.Textbox(
        "\n".join(ui.fill(*example) for example in examples[:MAX_TEXTS_SHOWN])
        or "The cat sleeps on the sofa.\nA dog lies on the carpet.\nThe bank raised its interest rate.",
        label="Texts, one per line",
        lines=4,
    )
    results = ui.show_results(ui.columns_of(models, [HEAT_MAP, ui.HTML], compare), [texts], name, "Compare")
    gr.Markdown("The tokens whose embeddings are most similar to that of a word, by their cosine.")
    word = gr.Textbox(max((word for _, word in examples), key=len, default="") or "city", label="Word")
    ui.show_results(ui.columns_of(models, [ui.BARS], nearest), [word], "nearest_tokens", "Find", link=False)
    return results
