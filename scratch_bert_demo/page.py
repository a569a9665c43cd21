"""The page: a tab for each task that a model can do, and for runs. Each request carries all of its input, so concurrent
users don't affect each other."""

from collections.abc import Callable, Sequence
from functools import partial

from . import drawing, encoder_tabs, head_tabs, watch_tab
from .components import LIMIT, OPEN_LINK, SET_DIRECTIONS, SILENT, Results, fill, link_script
from .environment import gr
from .model import TASK_HEADS, Model
from .runs import Run, describe_model, short_names
from .server import serve


NAME = "scratch_bert"
MAX_EXAMPLES = 6
__all__ = ["build_page", "serve"]


def build_page(models: Sequence[Model], runs: Sequence[Run] = ()) -> gr.Blocks:
    """The page for these models and runs; `serve` starts it. Its address takes `?tab=NAME&text=TEXT`."""
    share = max(2, MAX_EXAMPLES // max(sum(bool(run.examples) for run in runs), 1))  # of a run
    examples = list(dict.fromkeys(example for run in runs for example in run.examples[:share]))  # some may be the same
    pairs = list(dict.fromkeys(pair for run in runs for pair in run.pairs[:share]))
    masked, texts = [text for text, _ in examples], [fill(*example) for example in examples]
    with_head = {head: [model for model in models if head in model.heads] for head in ("MaskedLM", *TASK_HEADS)}
    with_mlm = with_head["MaskedLM"]
    several_with_mlm = with_mlm if len(with_mlm) > 1 else []
    next_sentence = partial(head_tabs.next_sentence, pairs=pairs)
    # Title, name, its models, and what adds its contents.
    tabs: list[tuple[str, str, Sequence[Model | Run], Callable[..., Results]]] = [
        ("Masked words", "fill_mask", with_mlm, partial(head_tabs.masked_words, examples=masked)),
        ("Next sentence", "next_sentence", with_head["NextSentencePrediction"], next_sentence),
        ("Classification", "classify", with_head["SequenceClassification"], head_tabs.classification),
        ("Token classification", "tag", with_head["TokenClassification"], head_tabs.token_classification),
        ("Question answering", "answer", with_head["QuestionAnswering"], head_tabs.question_answering),
        ("Multiple choice", "choose", with_head["MultipleChoice"], head_tabs.multiple_choice),
        ("Attention", "attention", models, partial(encoder_tabs.attention, runs=runs, examples=texts)),
        ("Embeddings", "embeddings", models, partial(encoder_tabs.embeddings, examples=examples)),
        ("Compare", "compare", several_with_mlm, partial(head_tabs.compare_models, examples=texts)),
    ]
    labels = short_names([model.name for model in models])
    title = labels[0] if len(models) == 1 else NAME

    def describe() -> str:
        return drawing.about(title, list(zip(labels, map(describe_model, models), strict=True)))

    with gr.Blocks(title=title if title == NAME else f"{title} · {NAME}") as page:
        tabs.append(("Watch it learn", "watch", runs, partial(watch_tab.watch, examples=examples, page=page)))
        about = gr.HTML(describe(), apply_default_css=False, elem_classes=["sb-html", "sb-about"])
        results = []
        with gr.Tabs(overflow_behavior="wrap", elem_classes="sb-tabs"):
            for tab_title, name, shown, add_contents in tabs:
                if shown:
                    with gr.Tab(tab_title, id=name) as tab:
                        results.append(add_contents(name, shown)._replace(live=bool(runs)))
                    tab.select(None, js=link_script(name, 0))
        page.load(None, js=OPEN_LINK)
        page.load(None, js=SET_DIRECTIONS)
        page.load(describe, None, about, queue=False, **SILENT)
        for part in results:
            page.load(part.open, part.inputs, [*part.texts, *part.components], **SILENT, **LIMIT)
    return page
