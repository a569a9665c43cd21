"""The tabs of a model's heads: masked words, next sentences, and fine-tuned tasks."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from . import components as ui
from . import drawing
from .curves import with_curves
from .environment import SILENT, gr
from .model import MASK, Model
from .runs import Run
from .timeline import Timeline


def masked_words(
    name: str, models: list[Model], timeline: Timeline, examples: Sequence[tuple[str, str]]
) -> list[ui.Results]:
    """`examples` are texts and their masked words."""
    # Each model reads its own mask token, whichever of them was typed.
    any_mask = re.compile("|".join(re.escape(token) for token in {MASK, *(m.mask_token for m in models)}), re.I)

    def predict(model: Model, text: str, k: int) -> ui.Contents:
        answer = model.fill_mask(any_mask.sub(MASK, text), int(k))
        return [dict(top) for top in answer.value], answer.left_out

    def mark_masks(text: str, answers: dict[str, list[str]]) -> tuple[list[tuple[str, str | None]], str]:
        words = [(word[0], "mask" if word[0] == MASK else None) for word in drawing.find_words(text)]
        masked = answers.get(text, [])
        return words, f"In the text: {', '.join(map(name_word, masked))}" if masked and all(masked) else ""

    def name_word(word: str) -> str:
        tokens = next((tokens for model in models if len(tokens := model.split_word(word)) > 1), [])
        note = f" (`{' '.join(tokens)}`, while a mask stands for one token)" if tokens else ""
        return f"**{word}**{note}"

    def mask_word(text: str, answers: dict[str, list[str]], click: gr.SelectData) -> tuple[str, dict[str, list[str]]]:
        word = drawing.find_words(text)[click.index]
        masked = [*answers.get(text, [""] * text.count(MASK))]  # "" for one that was typed
        if word[0] != MASK:
            masked.insert(text.count(MASK, 0, word.start()), word[0])
        text = text[: word.start()] + MASK + text[word.end() :]
        return text, answers | {text: masked}

    gr.Markdown(f"Which words fit `{MASK}`? Type it into a sentence, or click a word to mask it.")
    text = ui.sentence_box([text for text, _ in examples], f"The capital of France is {MASK}.")
    answers = gr.State({text: [word] for text, word in examples})  # the masked words of texts in which they are known
    marked, answer = mark_masks(text.value, answers.value)
    words = gr.HighlightedText(
        marked,
        show_label=False,
        show_inline_category=False,
        elem_id="words",
        elem_classes=["sb-text", "sb-words"],
        render=False,
    )
    in_the_text = gr.Markdown(answer, render=False)
    k = gr.Slider(1, 10, 5, step=1, label="Predictions for each mask", render=False)
    columns = ui.columns_of(models, ui.MASKS, predict)
    runs: dict[str, Run] = {run.name: run for run in timeline.runs}
    columns = [
        with_curves(column, runs[model.name]) if model.name in runs else column
        for model, column in zip(models, columns, strict=True)
    ]
    samples = [[text] for text, _ in examples]
    results = ui.show_results(columns, [text], "Predict", name, timeline, [words, in_the_text], [k], samples)
    text.change(mark_masks, [text, answers], [words, in_the_text], queue=False, **SILENT)
    masked = words.select(mask_word, [text, answers], [text, answers], queue=False, **SILENT)
    results.show_on(masked.then)
    return [results]


class Together(NamedTuple):
    """Models that are compared, in place of a `Model`."""

    models: list[Model]
    title: str = ""


def compare_models(name: str, models: list[Model], timeline: Timeline, examples: list[str]) -> list[ui.Results]:
    def score(together: Together, text: str) -> ui.Contents:
        answers = [model.score_words(text) for model in together.models]
        read = max((answer.texts[0] for answer in answers), key=len)
        scores = [{(start, end): tuple(scored) for start, end, *scored in answer.value} for answer in answers]
        compared = drawing.compared_words(read, [model.title for model in together.models], scores)
        return [compared], max(answer.left_out for answer in answers)

    gr.Markdown(
        "Which model expects a text more? The probability that each gives to each word when only that word is masked, "
        "with its guess if that is a different word."
    )
    text = ui.sentence_box(examples, "The capital of France is Paris.")
    column = partial(ui.column_of, lambda moment: Together([model.at(moment) for model in models]), [ui.HTML], score)
    samples = [[text] for text in examples]
    return [ui.show_results([column], [text], "Compare", name, timeline, samples=samples)]


def next_sentence(
    name: str, models: list[Model], timeline: Timeline, pairs: Sequence[tuple[str, str, bool]]
) -> list[ui.Results]:
    def compare(model: Model, a: str, b: str) -> ui.Contents:
        answer = model.next_sentence(a, b)
        return [dict(zip(["B follows A", "A follows B"], answer.value, strict=True))], answer.left_out

    def tell(a: str, b: str) -> str:
        return f"In the text: **B {'follows' if follows[a, b] else 'does not follow'} A**" if (a, b) in follows else ""

    gr.Markdown("The probability that one text follows the other.")
    follows = {(a, b): label for a, b, label in pairs}
    samples = [[a, b] for a, b in follows]
    first = samples[0] if samples else ["She opened the window.", "Cold air came into the room."]
    boxes = [ui.box(text, label) for text, label in zip(first, ("Text A", "Text B"), strict=True)]
    in_the_text = gr.Markdown(tell(*first), render=False)
    columns = ui.columns_of(models, [ui.BARS], compare)
    results = ui.show_results(columns, boxes, "Compare", name, timeline, [in_the_text], samples=samples)
    for box in boxes:
        box.change(tell, boxes, in_the_text, queue=False, **SILENT)
    return [results]


def classification(name: str, models: list[Model], timeline: Timeline) -> list[ui.Results]:
    def classify(model: Model, text: str, pair: str) -> ui.Contents:
        answer = model.classify(text, pair)
        if model.problem_type != "regression":
            return [dict(answer.value)], answer.left_out
        values = (f"{label} {value:.3f}" if len(answer.value) > 1 else f"{value:.3f}" for label, value in answer.value)
        return [", ".join(values)], answer.left_out

    gr.Markdown("The probability of each label, or the number that a regression predicts.")
    text = ui.box("A film that I will remember for a long time.", "Text")
    pair = ui.box("", "Second text", placeholder="for models of text pairs")
    return [ui.show_results(ui.columns_of(models, [ui.BARS], classify), [text, pair], "Classify", name, timeline)]


def token_classification(name: str, models: list[Model], timeline: Timeline) -> list[ui.Results]:
    def tag(model: Model, text: str) -> ui.Contents:
        answer = model.tag(text)
        spans = [(start, end, f"{label} {drawing.percent(p)}") for start, end, label, p in answer.value]
        return [_mark(answer.texts[0], spans)], answer.left_out

    gr.Markdown("The words with a label other than O, and the label's probability.")
    text = ui.box("Marie Curie was born in Warsaw and worked in Paris.", "Text")
    return [ui.show_results(ui.columns_of(models, [ui.MARKED_TEXT], tag), [text], "Label", name, timeline)]


def question_answering(name: str, models: list[Model], timeline: Timeline) -> list[ui.Results]:
    def find_answer(model: Model, question: str, context: str) -> ui.Contents:
        answer = model.answer(question, context)
        start, end, probability, no_answer = answer.value
        marked = _mark(answer.texts[1], [(start, end, f"answer {drawing.percent(probability)}")])
        return [marked, {"answer": probability, "no answer": no_answer}], answer.left_out

    gr.Markdown("The span of the text that answers the question, and the probability that there is no answer.")
    question = ui.box("Where was Marie Curie born?", "Question")
    context = ui.box("Marie Curie was born in Warsaw and worked in Paris.", "Text with the answer", lines=3)
    columns = ui.columns_of(models, [ui.MARKED_TEXT, ui.BARS], find_answer)
    return [ui.show_results(columns, [question, context], "Answer", name, timeline)]


def multiple_choice(name: str, models: list[Model], timeline: Timeline) -> list[ui.Results]:
    def choose(model: Model, text: str, choices: str) -> ui.Contents:
        answer = model.choose(text, ui.lines(choices))
        return [dict(zip(ui.number(answer.texts), answer.value, strict=True))], answer.left_out

    gr.Markdown("The probability that each choice fits the text.")
    text = ui.box("She opened the window.", "Text")
    choices = ui.box("Cold air came in.\nThe window is a fish.\nIt was Tuesday.", "Choices, one per line", lines=3)
    return [ui.show_results(ui.columns_of(models, [ui.BARS], choose), [text, choices], "Choose", name, timeline)]


def _mark(text: str, spans: Sequence[tuple[int, int, str]]) -> dict[str, Any]:
    """A text with labelled spans (start, end, label), as `gr.HighlightedText` takes it."""
    return {"text": text, "entities": [{"start": start, "end": end, "entity": label} for start, end, label in spans]}
