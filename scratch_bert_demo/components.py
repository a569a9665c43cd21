"""What the tabs share: text boxes, a column of results per model, controls below it, and links to a tab."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

from . import drawing
from .environment import LIMIT, SILENT, gr
from .model import MASK, Model
from .runs import Moment
from .timeline import Timeline


MAX_MASKS = 8  # with predictions
MAX_LINK = 1000  # characters of a text in a link, which each request repeats

Contents = tuple[list[Any], int]  # the values of a column's parts, and the number of truncated tokens
Part = Callable[..., gr.Component]  # value → component
Column = Callable[..., list[gr.Component]]  # moment, inputs → components, or updates of them
BARS: Part = partial(gr.Label, show_label=False, show_heading=False)
MASKS: list[Part] = [partial(gr.Label, label=f"Mask {n}", show_heading=False) for n in range(1, MAX_MASKS + 1)]
MARKED_TEXT: Part = partial(gr.HighlightedText, show_label=False, elem_classes="sb-text")
HTML: Part = partial(gr.HTML, apply_default_css=False, elem_classes="sb-html")


class Results(NamedTuple):
    """The inputs and results of a tab, and the function that shows the results for the inputs."""

    name: str
    inputs: list[gr.Component]
    components: list[gr.Component]
    show: Column

    @property
    def texts(self) -> list[gr.Component]:
        """The inputs that a link carries, the first."""
        return [component for component in self.inputs if isinstance(component, gr.Textbox)]

    def show_on(self, listen: Callable[..., Any], **options: Any) -> None:
        """Show the results on another event, such as `button.click`, which the API does not list."""
        listen(self.show, self.inputs, self.components, api_visibility="private", **LIMIT, **options)


TEXT_NAMES = ("text", "text2")  # in a link
# Each text runs in the direction of its script, also what is shown later. (Of gr.Textbox and gr.HighlightedText, only
# some have an option for it, which is for all texts.)
SET_DIRECTIONS = """() => {
    const texts = "textarea, .sb-text .textfield, dt, .sb-examples td, .sb-examples button";
    const set = () => document.querySelectorAll(texts).forEach(text => { text.dir = "auto"; });
    new MutationObserver(set).observe(document.body, {childList: true, subtree: true});
    set();
}"""
# Selects the tab that the address names, until the page is ready and keeps it. (An update of gr.Tabs would undo a
# click that was faster than the page.)
OPEN_LINK = """() => {
    ["pointerdown", "keydown"].forEach(type => window.addEventListener(type, () => { window.isUsed = true; }, true));
    const name = CSS.escape(new URL(window.location).searchParams.get("tab") ?? "");
    const open = tries => {
        const tab = document.querySelector(`.sb-tabs [data-tab-id="${name}"]`);
        if (tab?.ariaSelected !== "true") tab?.click();
        if (name) tab?.scrollIntoView({block: "nearest", inline: "center"});
        if (name && tries && !window.isUsed) setTimeout(open, 100, tries - 1);
    };
    open(30);
}"""


def link_script(name: str, texts: int) -> str:
    """JavaScript that puts a tab and its first inputs, the `texts`, into the page's address; not before the page is
    used, as tabs are also selected while it opens."""
    return f"""(...values) => {{
        if (!window.isUsed) return values;
        const address = new URL(window.location), names = {list(TEXT_NAMES)};
        address.searchParams.set("tab", "{name}");
        names.forEach((name, i) => i < {texts} && values[i].length < {MAX_LINK}
            ? address.searchParams.set(name, values[i]) : address.searchParams.delete(name));
        history.replaceState(history.state, "", address);
        return values;
    }}"""


def show_results(
    columns: Sequence[Column],
    boxes: list[gr.Textbox],
    action: str,
    name: str,
    timeline: Timeline,
    below_boxes: Sequence[gr.Component] = (),
    controls: Sequence[gr.Component] = (),
    samples: Sequence[Sequence[str]] = (),
    link: bool = True,
) -> Results:
    """Text `boxes` with a button for the `action`, the columns for these texts, and `controls` and `samples` to click
    on. All components come without being rendered. The columns are updated on a click on the button or a sample, on
    Enter, and when a control changes. With `link`, the page's address carries the texts."""
    inputs = [*boxes, *controls, *timeline.controls]

    def show(*values: Any) -> list[gr.Component]:
        count = len(boxes) + len(controls)
        moment = timeline.moment(*values[count:])
        return [component for column in columns for component in column(moment, *values[:count])]

    with gr.Row(elem_classes="sb-ask"):
        for box in boxes:
            box.render()
        button = gr.Button(action, variant="primary", scale=0, min_width=110)
    for component in below_boxes:
        component.render()
    now = timeline.moment(*(control.value for control in timeline.controls))
    components = []
    with gr.Row(elem_id=name):
        for column in columns:
            with gr.Column(min_width=300):
                components += column(now, *(component.value for component in [*boxes, *controls]))
    for control in controls:
        control.render()
    results = Results(name, inputs, components, show)
    script = link_script(name, len(boxes)) if link else None
    triggers = [button.click, *(box.submit for box in boxes), *(control.change for control in controls)]
    answer_last(triggers, show, inputs, components, js=script, api_name=name)
    if samples:
        examples = gr.Dataset(
            components=boxes,
            samples=[list(sample) for sample in samples],
            headers=[box.label for box in boxes] if len(boxes) > 1 else None,
            label="From the run's evaluation text",
            samples_per_page=20,
            elem_classes="sb-examples",
        )
        filled = examples.click(lambda sample: sample if len(boxes) > 1 else sample[0], examples, boxes, **SILENT)
        results.show_on(filled.then, js=script)
    return results


def box(value: str, label: str, lines: int = 1, **options: Any) -> gr.Textbox:
    return gr.Textbox(value, label=label, lines=lines, max_lines=5, scale=4, min_width=250, render=False, **options)


def sentence_box(examples: Sequence[str], otherwise: str) -> gr.Textbox:
    """A box with the first example, or `otherwise`."""
    return box(examples[0] if examples else otherwise, "Sentence")


def answer_last(triggers: Sequence[Any], *event: Any, **options: Any) -> None:
    """Answer the triggers one at a time; of those that come meanwhile, only the last."""
    gr.on(triggers, *event, trigger_mode="always_last", **LIMIT, **options)


def columns_of(models: Sequence[Model], parts: list[Part], answer: Callable[..., Contents]) -> list[Column]:
    """A column for each model, with what `answer` returns for it and the inputs."""
    return [partial(column_of, model.at, parts, answer) for model in models]


def column_of(
    open_at: Callable[[Moment | None], Any],
    parts: list[Part],
    answer: Callable[..., Contents],
    moment: Moment | None,
    *inputs: Any,
) -> list[gr.Component]:
    """A heading, and `parts` with the contents of the answer of what `open_at` opens for the `moment`: a model, or several
    with one `title`. Without an answer, as for an empty text or a deleted model, the heading says why, and the parts
    are hidden."""
    contents: list[Any] = []
    title = ""
    try:
        model = open_at(moment)
        title = model.title
        contents, left_out = answer(model, *inputs)
        note = f"Too long for the model: {left_out:,} tokens at the end were left out." if left_out else ""
        if len(contents) > len(parts):
            note = f"The first {len(parts)} of {len(contents)} masks are shown. {note}"
    except (OSError, ValueError) as error:
        note = str(error)
    components = [HTML(drawing.heading(title, note))]  # first, since the page shows components as they are created
    for part, content in zip_longest(parts, contents[: len(parts)]):
        components.append(part(content, visible=content is not None))
    return components


def fill(text: str, word: str) -> str:
    """An example with its word, if known, in place of the mask."""
    return text.replace(MASK, word) if word else text


def number(texts: Sequence[str]) -> list[str]:
    return [f"{number} {text}" for number, text in enumerate(texts, 1)]


def lines(texts: str) -> list[str]:
    return [line for line in texts.splitlines() if line.strip()]
