"""The page: a tab for each task that at least one of the models can do, served on this machine only.

Requests are stateless: each carries all of its input, so concurrent users don't affect each other.
"""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import Any


SERVER_NAME = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")  # where a Space serves
# Gradio's other variables could open files of this machine, or the page to the network. Most are read when it is imported.
for name in [name for name in os.environ if name.startswith("GRADIO_")]:
    del os.environ[name]
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr
import pandas
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import drawing
from .answers import MASK, MAX_ATTENTION, InputError, Model, Run


LOCAL_NAMES = ["127.0.0.1", "localhost"]  # of this machine, also through a tunnel such as ssh -L
# Limits how many requests are computed at a time; the others wait.
LIMIT = {"concurrency_limit": 2, "concurrency_id": "models"}
MAX_MASKS = 8  # with predictions
MAX_POINTS = 400  # of a curve
PLAY_SECONDS, FOLLOW_SECONDS = 1, 10  # between two snapshots, and between two looks for new ones
STEP_MARK = "chosen step"
COLORS = {"training": "#f97316", "validation": "#2a9d8f", STEP_MARK: "#888888"}

Contents = tuple[list[Any], int]  # the values of a column's parts, and the number of truncated tokens
Part = Callable[..., gr.Component]  # value → component
Column = Callable[..., list[gr.Component]]  # inputs → components, or updates of them
BARS: Part = partial(gr.Label, show_label=False, show_heading=False)
MASKS: list[Part] = [partial(gr.Label, label=f"Mask {n}", show_heading=False) for n in range(1, MAX_MASKS + 1)]
MARKED_TEXT: Part = partial(gr.HighlightedText, show_label=False, elem_classes="sb-text")
HTML: Part = partial(gr.HTML, apply_default_css=False, elem_classes="sb-html")


def build_page(models: Sequence[Model], runs: Sequence[Run] = ()) -> gr.Blocks:
    """The page for these models, and for the snapshots of these runs; `serve` starts it."""
    examples = [text for run in runs for text in run.examples]
    tabs: list[tuple[str, str | None, Callable[[list[Model]], None]]] = [
        ("Masked words", "MaskedLM", partial(_masked_words, examples=examples)),
        ("Next sentence", "NextSentencePrediction", _next_sentence),
        ("Classification", "SequenceClassification", _classification),
        ("Token classification", "TokenClassification", _token_classification),
        ("Question answering", "QuestionAnswering", _question_answering),
        ("Multiple choice", "MultipleChoice", _multiple_choice),
        ("Attention", None, _attention),
        ("Embeddings", None, _embeddings),
    ]
    with gr.Blocks(title="scratch_bert") as page, gr.Tabs():
        for title, head, add_contents in tabs:
            with_head = [model for model in models if head is None or head in model.heads]
            if with_head:
                with gr.Tab(title):
                    add_contents(with_head)
        if runs:
            with gr.Tab("Watch it learn"):
                for number, run in enumerate(runs):
                    _watch_it_learn(run, number)
    return page


def serve(page: gr.Blocks, port: int | None = None, inbrowser: bool = False, host: str | None = "127.0.0.1") -> str:
    """Serve the page from a background thread and return its address. `port` defaults to the first free one from 7860
    on; if `host` is None, the environment variable GRADIO_SERVER_NAME sets it, as in a Space. On this machine, a request must
    name it as its host: another name is that of a site whose address has been changed to ours.

    Raises `OSError` if the port is taken.
    """
    host = host or SERVER_NAME
    names = LOCAL_NAMES if host in LOCAL_NAMES else ["*"]
    direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    os.environ["no_proxy"] = ",".join([direct, *LOCAL_NAMES])  # Gradio asks its own server whether it is ready
    try:
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
            app_kwargs={
                "middleware": [
                    Middleware(TrustedHostMiddleware, allowed_hosts=names),
                    Middleware(WithoutOutsideResources),
                ]
            },
        )
    except OSError as error:  # Gradio's message names its variables
        ports = f"The port {port} is" if port else "The ports from 7860 on are"
        raise OSError(f"{ports} in use, or not allowed for this user: choose another one.") from error
    return address


class WithoutOutsideResources:
    """Middleware that removes external scripts and fonts from Gradio's page, and forbids others by a security policy."""

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


# ---------------------------------------------------------------------------------------------------------------- tabs


def _masked_words(models: list[Model], examples: list[str]) -> None:
    # Each model reads its own mask token, whichever of them was typed.
    any_mask = re.compile("|".join(re.escape(token) for token in {MASK, *(m.mask_token for m in models)}), re.I)

    def predict(model: Model, text: str, k: int) -> Contents:
        return _predict(model, any_mask.sub(MASK, text), k)

    def mark_masks(text: str) -> list[tuple[str, str | None]]:
        return [(word[0], "mask" if word[0] == MASK else None) for word in drawing.find_words(text)]

    def mask_word(text: str, click: gr.SelectData) -> str:
        start, end = drawing.find_words(text)[click.index].span()
        return text[:start] + MASK + text[end:]

    gr.Markdown(f"Which words fit `{MASK}`? Type it into a sentence, or click a word to mask it.")
    text, chips = _sentence(examples)
    words = gr.HighlightedText(
        mark_masks(text.value),
        show_label=False,
        show_inline_category=False,
        elem_id="words",
        elem_classes=["sb-text", "sb-words"],
    )
    k = gr.Slider(1, 10, 5, step=1, label="Predictions for each mask")
    show, results = _show_results(_columns(models, MASKS, predict), [text, k], "fill_mask", "Predict")
    text.change(mark_masks, text, words, queue=False, show_progress="hidden", api_visibility="private")
    masked = words.select(mask_word, text, text, queue=False, show_progress="hidden", api_visibility="private")
    masked.then(show, [text, k], results, api_visibility="private", **LIMIT)
    _try_examples(chips, text, show, [text, k], results)


def _next_sentence(models: list[Model]) -> None:
    def compare(model: Model, a: str, b: str) -> Contents:
        answer = model.next_sentence(a, b)
        return [dict(zip(["B follows A", "A follows B"], answer.value, strict=True))], answer.left_out

    gr.Markdown("The probability that one text follows the other.")
    a = gr.Textbox("She opened the window.", label="Text A")
    b = gr.Textbox("Cold air came into the room.", label="Text B")
    _show_results(_columns(models, [BARS], compare), [a, b], "next_sentence", "Compare")


def _classification(models: list[Model]) -> None:
    def classify(model: Model, text: str, pair: str) -> Contents:
        answer = model.classify(text, pair)
        if model.problem_type != "regression":
            return [dict(answer.value)], answer.left_out
        values = (f"{label} {value:.3f}" if len(answer.value) > 1 else f"{value:.3f}" for label, value in answer.value)
        return [", ".join(values)], answer.left_out

    gr.Markdown("The probability of each label, or the number that a regression predicts.")
    text = gr.Textbox("A film that I will remember for a long time.", label="Text")
    pair = gr.Textbox("", label="Second text", placeholder="for models of text pairs")
    _show_results(_columns(models, [BARS], classify), [text, pair], "classify", "Classify")


def _token_classification(models: list[Model]) -> None:
    def tag(model: Model, text: str) -> Contents:
        answer = model.tag(text)
        spans = [(start, end, f"{label} {probability:.3f}") for start, end, label, probability in answer.value]
        return [_mark(answer.texts[0], spans)], answer.left_out

    gr.Markdown("The words that have a label other than O, with its probability.")
    text = gr.Textbox("Marie Curie was born in Warsaw and worked in Paris.", label="Text")
    _show_results(_columns(models, [MARKED_TEXT], tag), [text], "tag", "Label")


def _question_answering(models: list[Model]) -> None:
    def find_answer(model: Model, question: str, context: str) -> Contents:
        answer = model.answer(question, context)
        start, end, probability, no_answer = answer.value
        marked = _mark(answer.texts[1], [(start, end, f"answer {probability:.3f}")])
        return [marked, {"answer": probability, "no answer": no_answer}], answer.left_out

    gr.Markdown("The span of the text that answers the question, and the probability that there is no answer.")
    question = gr.Textbox("Where was Marie Curie born?", label="Question")
    context = gr.Textbox("Marie Curie was born in Warsaw and worked in Paris.", label="Text with the answer", lines=4)
    _show_results(_columns(models, [MARKED_TEXT, BARS], find_answer), [question, context], "answer", "Answer")


def _multiple_choice(models: list[Model]) -> None:
    def choose(model: Model, text: str, choices: str) -> Contents:
        answer = model.choose(text, _lines(choices))
        return [dict(zip(_number(answer.texts), answer.value, strict=True))], answer.left_out

    gr.Markdown("The probability that each choice fits the text.")
    text = gr.Textbox("She opened the window.", label="Text")
    choices = gr.Textbox(
        "Cold air came in.\nThe window is a fish.\nIt was Tuesday.", label="Choices, one per line", lines=4
    )
    _show_results(_columns(models, [BARS], choose), [text, choices], "choose", "Choose")


def _attention(models: list[Model]) -> None:
    by_name = {model.name: model for model in models}

    def attend(text: str, name: str, layer: int, head: int) -> Contents:
        answer = by_name[name].attention(text)
        tokens, weights = answer.value  # weights (layers, heads, S, S)
        layers, heads = weights.shape[:2]
        layer, head = min(int(layer), layers), min(int(head), heads)
        title = f"<h4>Layer {layer} of {layers}, head {head} of {heads}</h4>"
        return [title + drawing.heat_map(tokens, tokens, weights[layer - 1, head - 1].tolist())], answer.left_out

    def show(text: str, name: str, layer: int, head: int) -> list[gr.Component]:
        return _column(name, [HTML], attend, text, name, layer, head)

    gr.Markdown(
        "Each row shows how a token distributes its attention over the tokens in the columns; hover over a cell for "
        f"the weight. At most {MAX_ATTENTION} tokens."
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
    _show_results([show], [text, name, layer, head], "attention", "Show")


def _embeddings(models: list[Model]) -> None:
    def compare(model: Model, texts: str) -> Contents:
        answer = model.embeddings(_lines(texts))
        columns = [str(number) for number in range(1, len(answer.texts) + 1)]
        heat_map = drawing.heat_map(_number(answer.texts), columns, answer.value.tolist(), numbers=True)
        return [heat_map], answer.left_out

    gr.Markdown("The cosine similarity of text embeddings, each the mean of its tokens' last hidden states.")
    texts = gr.Textbox(
        "The cat sleeps on the sofa.\nA dog lies on the carpet.\nThe bank raised its interest rate.",
        label="Texts, one per line",
        lines=4,
    )
    _show_results(_columns(models, [HTML], compare), [texts], "embeddings", "Compare")


def _watch_it_learn(run: Run, number: int) -> None:
    def show_predictions(text: str, checkpoint: int) -> list[gr.Component]:
        index = min(int(checkpoint), len(run.steps)) - 1
        return _column(f"Step {run.steps[index]:,}", MASKS, lambda: _predict(run.open(index), text, k=5))

    def show_curves(title: str, text: str, checkpoint: int) -> list[gr.Component]:
        points = [
            (*point, name)
            for name, curve in run.curves.get(title, {}).items()
            for point in curve[:: len(curve) // MAX_POINTS + 1]
        ]
        if not points:  # of a run that has just begun
            return [gr.LinePlot(visible=False)]
        values, step = [value for _, value, _ in points], run.steps[min(int(checkpoint), len(run.steps)) - 1]
        points += [(step, limit, STEP_MARK) for limit in (min(values), max(values))]  # a vertical line
        data = pandas.DataFrame(points, columns=["step", title, "curve"])
        return [gr.LinePlot(data, x="step", y=title, color="curve", color_title=" ", color_map=COLORS, visible=True)]

    def span(chosen: int) -> dict[str, Any]:
        """The slider's range, and the chosen snapshot."""
        count, first, last = len(run.steps), run.steps[0], run.steps[-1]
        info = f"{run.name}, steps {first:,} to {last:,}"
        return {"minimum": 1, "maximum": max(count, 2), "value": chosen, "info": info}

    def advance(checkpoint: int) -> tuple[int, gr.Timer]:
        following = min(int(checkpoint) + 1, len(run.steps))
        return following, gr.Timer(active=following < len(run.steps))

    def follow(checkpoint: int, known: int) -> tuple[Any, int]:
        """Add what a run that is still training has saved meanwhile, and show it if the latest was shown."""
        with suppress(OSError, ValueError):  # a file of the latest is being deleted
            run.refresh()
        count = len(run.steps)
        if count == known:
            return gr.skip(), known
        return gr.Slider(**span(count if int(checkpoint) >= known else min(int(checkpoint), count))), count

    gr.Markdown("How the model's predictions changed in its training, and the loss curves.")
    text, chips = _sentence(run.examples)
    with gr.Row():
        checkpoint = gr.Slider(**span(len(run.steps)), step=1, label="Snapshot", scale=4)
        play = gr.Button("▶ Play", elem_classes="sb-button")
    columns = [show_predictions, *(partial(show_curves, title) for title in run.curves or ("MLM loss", "NSP loss"))]
    show, results = _show_results(columns, [text, checkpoint], f"watch_{number}", "Predict")
    _try_examples(chips, text, show, [text, checkpoint], results)

    # Playing moves the slider, which updates the rest.
    clock = gr.Timer(PLAY_SECONDS, active=False)
    private = {"show_progress": "hidden", "api_visibility": "private", "queue": False}
    play.click(lambda: (1, gr.Timer(active=True)), None, [checkpoint, clock], **private)
    clock.tick(advance, checkpoint, [checkpoint, clock], **private)
    known = gr.State(len(run.steps))  # in this browser
    gr.Timer(FOLLOW_SECONDS).tick(follow, [checkpoint, known], [checkpoint, known], **private)


# ------------------------------------------------------------------------------------------------- what the tabs share


def _sentence(examples: list[str]) -> tuple[gr.Textbox, gr.Dataset]:
    """A box for a sentence with a mask, and examples for it. Without any, the box begins with a sentence of general interest."""
    text = gr.Textbox(examples[0] if examples else f"The capital of France is {MASK}.", label="Sentence")
    label = "From the run's held-out text"
    samples = [[example] for example in examples]
    return text, gr.Dataset(components=[text], samples=samples, label=label, visible=bool(examples))


def _try_examples(chips: gr.Dataset, text: gr.Textbox, show: Column, inputs: list[Any], results: list[Any]) -> None:
    """Let a click on an example show its results."""
    filled = chips.click(lambda sample: sample[0], chips, text, show_progress="hidden", api_visibility="private")
    filled.then(show, inputs, results, api_visibility="private", **LIMIT)


def _show_results(
    columns: Sequence[Column], inputs: list[Any], name: str, action: str
) -> tuple[Column, list[gr.Component]]:
    """A button and the columns, first filled for the inputs' examples, then updated on a click on the button, on
    Enter, and when another input changes. Returns the function that updates the columns' components, and the
    components."""

    def show(*values: Any) -> list[gr.Component]:
        return [component for column in columns for component in column(*values)]

    button = gr.Button(action, variant="primary", elem_classes="sb-button")
    results = []
    with gr.Row(elem_id=name):
        for column in columns:
            with gr.Column(min_width=320):
                results += column(*(component.value for component in inputs))
    chosen = (component.submit if isinstance(component, gr.Textbox) else component.change for component in inputs)
    gr.on([button.click, *chosen], show, inputs, results, api_name=name, trigger_mode="always_last", **LIMIT)
    return show, results


def _columns(models: Sequence[Model], parts: list[Part], answer: Callable[..., Contents]) -> list[Column]:
    """A column for each model, with what `answer` returns for it and the inputs."""
    return [partial(_column, model.name, parts, partial(answer, model)) for model in models]


def _column(title: str, parts: list[Part], answer: Callable[..., Contents], *inputs: Any) -> list[gr.Component]:
    """A heading, and `parts` with the contents of the answer. If there is none, the heading says why, and the parts
    are hidden."""
    contents: list[Any] = []
    try:
        contents, left_out = answer(*inputs)
        note = f"Too long for the model: {left_out:,} tokens at the end were left out." if left_out else ""
        if len(contents) > len(parts):
            note = f"The first {len(parts)} of {len(contents)} masks are shown. {note}"
    except InputError as error:
        note = str(error)
    components = [HTML(drawing.heading(title, note))]  # first, since the page shows components as they are created
    for part, content in zip_longest(parts, contents[: len(parts)]):
        components.append(part(content, visible=content is not None))
    return components


def _predict(model: Model, text: str, k: int) -> Contents:
    answer = model.fill_mask(text, int(k))
    return [dict(top) for top in answer.value], answer.left_out


def _mark(text: str, spans: Sequence[tuple[int, int, str]]) -> dict[str, Any]:
    """A text with labelled spans (start, end, label), as `gr.HighlightedText` takes it."""
    return {"text": text, "entities": [{"start": start, "end": end, "entity": label} for start, end, label in spans]}


def _number(texts: Sequence[str]) -> list[str]:
    return [f"{number} {text}" for number, text in enumerate(texts, 1)]


def _lines(texts: str) -> list[str]:
    return [line for line in texts.splitlines() if line.strip()]
