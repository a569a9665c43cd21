"""The page: a tab for each thing that one of the models can do, served on this machine alone.

Each request brings all of its input, and the page keeps nothing of it: so any number of users don't disturb each other.
"""

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any


os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when Gradio is imported

import gradio as gr
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import drawing
from .answers import MASK, MAX_ATTENTION, InputError, Model, Run


# Of all requests to the models, so many are computed at a time; the others wait.
LIMIT = {"concurrency_limit": 2, "concurrency_id": "models"}
# Reports a click on one of `drawing.words` with its place in the text.
REPORT_CLICK = """
element.addEventListener('click', event => {
    const word = event.target.closest('[data-start]:not(.sb-mask)');
    if (word) trigger('click', {start: Number(word.dataset.start), end: Number(word.dataset.end)});
});
"""


def build_page(models: Sequence[Model], runs: Sequence[Run] = ()) -> gr.Blocks:
    """The page for these models, and for the checkpoints of these runs; `serve` starts it."""
    tabs: list[tuple[str, str | None, Callable[[list[Model]], None]]] = [
        ("Masked words", "MaskedLM", _masked_words),
        ("Next sentence", "NextSentencePrediction", _next_sentence),
        ("Classification", "SequenceClassification", _classification),
        ("Token classification", "TokenClassification", _token_classification),
        ("Question answering", "QuestionAnswering", _question_answering),
        ("Multiple choice", "MultipleChoice", _multiple_choice),
        ("Attention", None, _attention),
        ("Embeddings", None, _embeddings),
    ]
    with gr.Blocks(title="scratch_bert") as page, gr.Tabs():
        for title, head, fill in tabs:
            able = [model for model in models if head is None or head in model.heads]
            if able:
                with gr.Tab(title):
                    fill(able)
        if runs:
            with gr.Tab("Watch it learn"):
                for number, run in enumerate(runs):
                    _watch_it_learn(run, number)
    return page


def serve(page: gr.Blocks, port: int | None = None, inbrowser: bool = False, host: str | None = "127.0.0.1") -> str:
    """Serve the page from a thread: its address. Without `port`, on the first free one from 7860 on; without `host`, where
    GRADIO_SERVER_NAME in the environment says, as in a Space.

    Raises `OSError` if the port is taken.
    """
    _, address, _ = page.launch(
        server_name=host,
        server_port=port,
        inbrowser=inbrowser,
        share=False,
        ssr_mode=False,
        quiet=True,
        prevent_thread_lock=True,
        footer_links=[],
        theme=gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
        css=drawing.CSS,
        app_kwargs={"middleware": [Middleware(WithoutOutsideResources)]},
    )
    return address


class WithoutOutsideResources:
    """Takes out of Gradio's page what it would load from elsewhere (a script, fonts), and has browsers refuse the rest."""

    OUTSIDE = re.compile(rb"<(script|link)[^>]*\bhttps?://[^>]*>(\s*</script>)?")
    POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message | None = None
        body = b""

        async def send_cleaned(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                if b"text/html" in dict(message["headers"]).get(b"content-type", b""):
                    start = message  # held back until its length is known
                    return
            elif start is not None and message["type"] == "http.response.body":
                body += message.get("body", b"")
                if message.get("more_body"):
                    return
                body = self.OUTSIDE.sub(b"", body)
                kept = [header for header in start["headers"] if header[0] != b"content-length"]
                added = [(b"content-length", str(len(body)).encode()), (b"content-security-policy", self.POLICY)]
                await send({**start, "headers": kept + added})
                message = {**message, "body": body}
            await send(message)

        await self.app(scope, receive, send_cleaned)


# ------------------------------------------------------------------------------------------------------------------ tabs


def _masked_words(models: list[Model]) -> None:
    # Each model reads its own mask token, whichever of them was typed.
    any_mask = re.compile("|".join(re.escape(token) for token in {MASK, *(m.mask_token for m in models)}), re.I)

    def show(text: str, k: int) -> str:
        return _compare(models, partial(_predictions, text=any_mask.sub(MASK, text), k=int(k)))

    def mask_word(text: str, k: int, click: gr.EventData) -> tuple[str, str]:
        masked = text[: click.start] + MASK + text[click.end :]
        return masked, show(masked, k)

    gr.Markdown(f"What could stand at `{MASK}`? Type it into a sentence, or click on a word to mask it.")
    text = gr.Textbox(f"The capital of France is {MASK}.", label="Sentence")
    words = gr.HTML(drawing.words(text.value), js_on_load=REPORT_CLICK, apply_default_css=False, elem_id="words")
    k = gr.Slider(1, 10, 5, step=1, label="Predictions for each mask")
    result = _show_result(show, [text, k], "fill_mask", "Predict")
    text.change(drawing.words, text, words, queue=False, show_progress="hidden", api_visibility="private")
    words.click(mask_word, [text, k], [text, result], api_visibility="private", **LIMIT)


def _next_sentence(models: list[Model]) -> None:
    def show(a: str, b: str) -> str:
        def draw(model: Model) -> str:
            answer = model.next_sentence(a, b)
            return _bars(["B follows A", "A follows B"], answer.value) + drawing.note(answer.left_out)

        return _compare(models, draw)

    gr.Markdown("How probable is it that one text follows the other?")
    a = gr.Textbox("She opened the window.", label="Text A")
    b = gr.Textbox("Cold air came into the room.", label="Text B")
    _show_result(show, [a, b], "next_sentence", "Compare")


def _classification(models: list[Model]) -> None:
    def show(text: str, pair: str) -> str:
        def draw(model: Model) -> str:
            answer = model.classify(text, pair)
            if model.problem_type == "regression":
                content = "".join(
                    drawing.number(value, label if len(answer.value) > 1 else "") for label, value in answer.value
                )
            else:
                content = drawing.bars(sorted(answer.value, key=itemgetter(1), reverse=True))
            return content + drawing.note(answer.left_out)

        return _compare(models, draw)

    gr.Markdown("The probability of each label, or the number that a regression predicts.")
    text = gr.Textbox("A film that I will remember for a long time.", label="Text")
    pair = gr.Textbox("", label="Second text", placeholder="for models of text pairs")
    _show_result(show, [text, pair], "classify", "Classify")


def _token_classification(models: list[Model]) -> None:
    def show(text: str) -> str:
        def draw(model: Model) -> str:
            answer = model.tag(text)
            return drawing.marked(answer.texts[0], answer.value) + drawing.note(answer.left_out)

        return _compare(models, draw)

    gr.Markdown("The words that have a label other than O, with its probability.")
    text = gr.Textbox("Marie Curie was born in Warsaw and worked in Paris.", label="Text")
    _show_result(show, [text], "tag", "Label")


def _question_answering(models: list[Model]) -> None:
    def show(question: str, context: str) -> str:
        def draw(model: Model) -> str:
            answer = model.answer(question, context)
            *span, probability, no_answer = answer.value
            content = drawing.marked(answer.texts[1], [(*span, "answer", probability)])
            return content + _bars(["no answer"], [no_answer]) + drawing.note(answer.left_out)

        return _compare(models, draw)

    gr.Markdown("The part of the text that answers the question, and the probability that there is none.")
    question = gr.Textbox("Where was Marie Curie born?", label="Question")
    context = gr.Textbox("Marie Curie was born in Warsaw and worked in Paris.", label="Text with the answer", lines=4)
    _show_result(show, [question, context], "answer", "Answer")


def _multiple_choice(models: list[Model]) -> None:
    def show(text: str, choices: str) -> str:
        def draw(model: Model) -> str:
            answer = model.choose(text, _lines(choices))
            return _bars(answer.texts, answer.value) + drawing.note(answer.left_out)

        return _compare(models, draw)

    gr.Markdown("Which of the choices goes best with the text?")
    text = gr.Textbox("She opened the window.", label="Text")
    choices = gr.Textbox(
        "Cold air came in.\nThe window is a fish.\nIt was Tuesday.", label="Choices, a line each", lines=4
    )
    _show_result(show, [text, choices], "choose", "Choose")


def _attention(models: list[Model]) -> None:
    by_name = {model.name: model for model in models}

    def show(text: str, name: str, layer: int, head: int) -> str:
        def draw(model: Model) -> str:
            answer = model.attention(text)
            tokens, weights = answer.value  # weights (layers, heads, S, S)
            layers, heads = weights.shape[:2]
            at_layer, at_head = min(int(layer), layers), min(int(head), heads)
            title = f"<h4>Layer {at_layer} of {layers}, head {at_head} of {heads}</h4>"
            heat_map = drawing.heat_map(tokens, tokens, weights[at_layer - 1, at_head - 1].tolist())
            return title + heat_map + drawing.note(answer.left_out)

        return _compare([by_name[name]], draw)

    gr.Markdown(
        "Each row is a token, and how it divides its attention over the tokens in the columns; hover over a cell for the "
        f"weight. At most {MAX_ATTENTION} tokens."
    )
    text = gr.Textbox("The animal didn't cross the street because it was too tired.", label="Text")
    with gr.Row():
        name = gr.Dropdown(list(by_name), value=models[0].name, label="Model", visible=len(models) > 1, min_width=240)
        layer, head = (
            gr.Slider(1, most, 1, step=1, label=label, visible=most > 1, min_width=240)
            for label, most in (
                ("Layer", max(model.config.num_hidden_layers for model in models)),
                ("Head", max(model.config.num_attention_heads for model in models)),
            )
        )
    _show_result(show, [text, name, layer, head], "attention", "Show")


def _embeddings(models: list[Model]) -> None:
    def show(texts: str) -> str:
        def draw(model: Model) -> str:
            answer = model.embeddings(_lines(texts))
            numbers = [str(number) for number in range(1, len(answer.texts) + 1)]
            rows = [f"{number} {text}" for number, text in zip(numbers, answer.texts, strict=True)]
            return drawing.heat_map(rows, numbers, answer.value.tolist(), numbers=True) + drawing.note(answer.left_out)

        return _compare(models, draw)

    gr.Markdown("The cosine similarity of texts: of the means of their tokens' last hidden states.")
    texts = gr.Textbox(
        "The cat sleeps on the sofa.\nA dog lies on the carpet.\nThe bank raised its interest rate.",
        label="Texts, a line each",
        lines=4,
    )
    _show_result(show, [texts], "embeddings", "Compare")


def _watch_it_learn(run: Run, number: int) -> None:
    def show(text: str, chosen: int) -> str:
        index = min(max(int(chosen), 1), len(run.steps)) - 1
        step = run.steps[index]
        try:
            content = _predictions(run.open(index), text, k=5)
        except InputError as error:
            content = drawing.message(str(error))
        return drawing.panels([(f"Step {step:,}", content)]) + drawing.curves(run.curves, step)

    gr.Markdown("What the model predicted at each checkpoint of its training, and its curves.")
    text = gr.Textbox(f"The capital of France is {MASK}.", label="Sentence")
    count = len(run.steps)
    chosen = gr.Slider(
        1, count, count, step=1, label="Checkpoint", info=f"{run.name}, steps {run.steps[0]:,} to {run.steps[-1]:,}"
    )
    _show_result(show, [text, chosen], f"watch_{number}", "Predict")


# ------------------------------------------------------------------------------------------------- what the tabs share


def _show_result(show: Callable[..., str], inputs: list[Any], name: str, action: str) -> gr.HTML:
    """A button, and what `show` makes of the inputs: at first of their examples, then when the button is clicked, Enter
    pressed, or something chosen."""
    button = gr.Button(action, variant="primary", elem_classes="sb-button")
    result = gr.HTML(show(*(component.value for component in inputs)), apply_default_css=False, elem_id=name)
    chosen = (component.submit if isinstance(component, gr.Textbox) else component.change for component in inputs)
    gr.on([button.click, *chosen], show, inputs, result, api_name=name, trigger_mode="always_last", **LIMIT)
    return result


def _compare(models: Sequence[Model], draw: Callable[[Model], str]) -> str:
    """What each model answers, side by side; a sentence in place of an answer that it cannot give."""
    contents = []
    for model in models:
        try:
            content = draw(model)
        except InputError as error:
            content = drawing.message(str(error))
        contents.append((model.name, content))
    return drawing.panels(contents)


def _predictions(model: Model, text: str, k: int) -> str:
    answer = model.fill_mask(text, k)
    several = len(answer.value) > 1
    masks = (drawing.bars(top, f"Mask {n}" if several else "") for n, top in enumerate(answer.value, 1))
    return "".join(masks) + drawing.note(answer.left_out)


def _bars(labels: Sequence[str], values: Sequence[float]) -> str:
    return drawing.bars(list(zip(labels, values, strict=True)))


def _lines(texts: str) -> list[str]:
    return [line for line in texts.splitlines() if line.strip()]
