"""The tabs of a model's heads: masked words, next sentences, and fine-tuned tasks."""

import re
from collections.abc import Sequence
from typing import Any

from . import components as ui
from . import drawing
from .environment import gr
from .model import MASK, Model


def masked_words(name: str, models: list[Model], examples: list[str]) -> ui.Results:
    # Each model reads its own mask token, whichever of them was typed.
    any_mask = re.compile("|".join(re.escape(token) for token in {MASK, *(m.mask_token for m in models)}), re.I)

    def predict_masks(model: Model, text: str, k: int) -> ui.Contents:
        return ui.predict(model, any_mask.sub(MASK, text), k)

    def mark_masks(text: str) -> list[tuple[str, str | None]]:
        return [(word[0], "mask" if word[0] == MASK else None) for word in drawing.find_words(text)]

    def mask_word(text: str, click: gr.SelectData) -> str:
        start, end = drawing.find_words(text)[click.index].span()
        return text[:start] + MASK + text[end:]

    gr.Markdown(f"Which words fit `{MASK}`? Type it into a sentence, or click a word to mask it.")
    text, chips = ui.sentence_box(examples, otherwise=f"The capital of France is {MASK}.")
    words = gr.HighlightedText(
        mark_masks(text.value),
        show_label=False,
        show_inline_category=False,
        elem_id="words",
        elem_classes=["sb-text", "sb-words"],
    )
    k = gr.Slider(1, 10, 5, step=1, label="Predictions for each mask")
    results = ui.show_results(ui.columns_of(models, ui.MASKS, predict_masks), [text, k], name, "Predict", chips)
    text.change(mark_masks, text, words, queue=False, **ui.SILENT)
    masked = words.select(mask_word, text, text, queue=False, **ui.SILENT)
    results.show_on(masked.then)
    return results


def compare_models(name: str, models: list[Model], examples: list[str]) -> ui.Results:
    def score(model: Model, text: str) -> ui.Contents:
        answer = model.score_words(text)
        words = drawing.scored_words(answer.texts[0], answer.value)
        mean = sum(probability for _, _, probability, _ in answer.value) / len(answer.value)
        return [f"<h4>{drawing.percent(mean)} on average</h4>{words}"], answer.left_out

    gr.Markdown(
        "How well each model knows each word of a sentence: its probability if it alone is masked, and the model's "
        "guess if that is another word."
    )
    text, chips = ui.sentence_box(examples, otherwise="The capital of France is Paris.")
    return ui.show_results(ui.columns_of(models, [ui.HTML], score), [text], name, "Compare", chips)


def next_sentence(name: str, models: list[Model], pairs: Sequence[tuple[str, str, bool]]) -> ui.Results:
    def compare(model: Model, a: str, b: str) -> ui.Contents:
        answer = model.next_sentence(a, b)
        return [dict(zip(["B follows A", "A follows B"], answer.value, strict=True))], answer.left_out

    gr.Markdown("The probability that one text follows the other.")
    first = pairs[0] if pairs else ("She opened the window.", "Cold air came into the room.")
    a, b = gr.Textbox(first[0], label="Text A"), gr.Textbox(first[1], label="Text B")
    chips = ui.examples_of([a, b], [[a, b] for a, b, _ in pairs])
    return ui.show_results(ui.columns_of(models, [ui.BARS], compare), [a, b], name, "Compare", chips)


def classification(name: str, models: list[Model]) -> ui.Results:
    def classify(model: Model, text: str, pair: str) -> ui.Contents:
        answer = model.classify(text, pair)
        if model.problem_type != "regression":
            return [dict(answer.value)], answer.left_out
        values = (f"{label} {value:.3f}" if len(answer.value) > 1 else f"{value:.3f}" for label, value in answer.value)
        return [", ".join(values)], answer.left_out

    gr.Markdown("The probability of each label, or the number that a regression predicts.")
    text = gr.Textbox("A film that I will remember for a long time.", label="Text")
    pair = gr.Textbox("", label="Second text", placeholder="for models of text pairs")
    return ui.show_results(ui.columns_of(models, [ui.BARS], classify), [text, pair], name, "Classify")


def token_classification(name: str, models: list[Model]) -> ui.Results:
    def tag(model: Model, text: str) -> ui.Contents:
        answer = model.tag(text)
        spans = [(start, end, f"{label} {drawing.percent(p)}") for start, end, label, p in answer.value]
        return [_mark(answer.texts[0], spans)], answer.left_out

    gr.Markdown("The words with a label other than O, and its probability.")
    text = gr.Textbox("Marie Curie was born in Warsaw and worked in Paris.", label="Text")
    return ui.show_results(ui.columns_of(models, [ui.MARKED_TEXT], tag), [text], name, "Label")


def question_answering(name: str, models: list[Model]) -> ui.Results:
    def find_answer(model: Model, question: str, context: str) -> ui.Contents:
        answer = model.answer(question, context)
        start, end, probability, no_answer = answer.value
        marked = _mark(answer.texts[1], [(start, end, f"answer {drawing.percent(probability)}")])
        return [marked, {"answer": probability, "no answer": no_answer}], answer.left_out

    gr.Markdown("The span of the text that answers the question, and the probability that there is no answer.")
    question = gr.Textbox("Where was Marie Curie born?", label="Question")
    context = gr.Textbox("Marie Curie was born in Warsaw and worked in Paris.", label="Text with the answer", lines=4)
    columns = ui.columns_of(models, [ui.MARKED_TEXT, ui.BARS], find_answer)
    return ui.show_results(columns, [question, context], name, "Answer")


def multiple_choice(name: str, models: list[Model]) -> ui.Results:
    def choose(model: Model, text: str, choices: str) -> ui.Contents:
        answer = model.choose(text, ui.lines(choices))
        return [dict(zip(ui.number(answer.texts), answer.value, strict=True))], answer.left_out

    gr.Markdown("The probability that each choice fits the text.")
    text = gr.Textbox("She opened the window.", label="Text")
    default = "Cold air came in.\nThe window is a fish.\nIt was Tuesday."
    choices = gr.Textbox(default, label="Choices, one per line", lines=4)
    return ui.show_results(ui.columns_of(models, [ui.BARS], choose), [text, choices], name, "Choose")


def _mark(text: str, spans: Sequence[tuple[int, int, str]]) -> dict[str, Any]:
    """A text with labelled spans (start, end, label), as `gr.HighlightedText` takes it."""
    return {"text": text, "entities": [{"start": start, "end": end, "entity": label} for start, end, label in spans]}
