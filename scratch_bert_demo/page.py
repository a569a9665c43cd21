"""The page: a tab for each task that a model can do. Each request carries all of its input, so concurrent users don't
affect each other."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from . import drawing, encoder_tabs, head_tabs
from .components import OPEN_LINK, SET_DIRECTIONS, TEXT_NAMES, Results, answer_last, fill, link_script
from .environment import SILENT, gr
from .model import Model
from .runs import Run, describe_model, short_names
from .server import serve
from .timeline import Timeline


NAME = "scratch_bert"
MAX_EXAMPLES = 6
__all__ = ["build_page", "serve"]


def build_page(models: Sequence[Model], runs: Sequence[Run] = ()) -> gr.Blocks:
    """The page for these models and runs; `serve` starts it. Its address takes `?tab=NAME&text=TEXT`."""
    share = max(2, MAX_EXAMPLES // max(sum(bool(run.examples) for run in runs), 1))  # of a run
    examples = list(dict.fromkeys(example for run in runs for example in run.examples[:share]))  # some may be the same
    pairs = list(dict.fromkeys(pair for run in runs for pair in run.pairs[:share]))
    texts = [fill(*example) for example in examples]
    labels = short_names([model.name for model in models])
    title = labels[0] if len(models) == 1 else NAME
    timeline, next_sentence = Timeline(runs), partial(head_tabs.next_sentence, pairs=pairs)

    def with_head(head: str) -> list[Model]:
        return [model for model in models if head in model.heads]

    with_mlm = with_head("MaskedLM")
    several_with_mlm = with_mlm if len(with_mlm) > 1 else []

    def describe() -> str:
        return drawing.about(list(zip(labels, map(describe_model, models), strict=True)))

    with gr.Blocks(title=title if title == NAME else f"{title} · {NAME}") as page:
        # Title, name, its models, and what adds its contents.
        tabs: list[tuple[str, str, list[Model], Callable[..., list[Results]]]] = [
            ("Masked words", "fill_mask", with_mlm, partial(head_tabs.masked_words, examples=examples)),
            ("Next sentence", "next_sentence", with_head("NextSentencePrediction"), next_sentence),
            ("Classification", "classify", with_head("SequenceClassification"), head_tabs.classification),
            ("Token classification", "tag", with_head("TokenClassification"), head_tabs.token_classification),
            ("Question answering", "answer", with_head("QuestionAnswering"), head_tabs.question_answering),
            ("Multiple choice", "choose", with_head("MultipleChoice"), head_tabs.multiple_choice),
            ("Attention", "attention", list(models), partial(encoder_tabs.attention, examples=texts)),
            ("Embeddings", "embeddings", list(models), partial(encoder_tabs.embeddings, examples=examples)),
            ("Compare", "compare", several_with_mlm, partial(head_tabs.compare_models, examples=texts)),
        ]
        gr.HTML(drawing.heading(title, level=1), apply_default_css=False, elem_classes=["sb-html", "sb-about"])
        timeline.add_controls()
        results: dict[str, list[Results]] = {}
        opened = gr.Textbox(next(name for _, name, shown, _ in tabs if shown), visible=False)
        refresh = gr.Number(0, visible=False)
        with gr.Tabs(overflow_behavior="wrap", elem_classes="sb-tabs"):
            for tab_title, name, shown, add_contents in tabs:
                if shown:
                    with gr.Tab(tab_title, id=name) as tab:
                        results[name] = add_contents(name, shown, timeline)
                    tab.select(None, js=link_script(name, 0))
                    tab.select(None, None, opened, js=f'() => "{name}"')
        about = gr.HTML(describe(), apply_default_css=False, elem_classes=["sb-html", "sb-about"])
        parts = [part for group in results.values() for part in group]
        texts = [box for part in parts for box in part.texts]

        def fill_in(request: gr.Request) -> list[Any]:
            """Updates of `refresh` and the texts, if the address has some, or if models may have changed since."""
            asked, values = request.query_params, []
            for part in parts:
                given = [asked.get(name) for name, _ in zip(TEXT_NAMES, part.texts, strict=False)]
                linked = asked.get("tab") == part.name and None not in given
                values += given if linked else [gr.skip()] * len(part.texts)
            changed = bool(runs) or any(isinstance(value, str) for value in values)
            return [time.time() if changed else gr.skip(), *values]

        def show_opened(name: str, *values: Any) -> list[Any]:
            """Updates of the results of the tab that is open."""
            left, shown = list(values), []
            for part in parts:
                given, left = left[: len(part.inputs)], left[len(part.inputs) :]
                shown += part.show(*given) if part in results[name] else [gr.skip()] * len(part.components)
            return shown

        page.load(None, js=OPEN_LINK)
        page.load(None, js=SET_DIRECTIONS)
        page.load(describe, None, about, queue=False, **SILENT)
        page.load(fill_in, None, [refresh, *texts], queue=False, **SILENT)
        inputs = [component for part in parts for component in part.inputs]
        components = [component for part in parts for component in part.components]
        changes = [component.change for component in (opened, refresh, *timeline.controls)]
        # One event, so that what is shown last is for what was chosen last; also without runs, as the texts of a link
        # may arrive before or after its tab is opened.
        answer_last(changes, show_opened, [opened, *inputs], components, **SILENT)
        timeline.connect(page, refresh)
    return page
