"""The demo's page in Chromium: each tab shows the answers of `Model`, which test_model.py compares with the models
called directly; invalid input, narrow windows, and no request that leaves this machine."""

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from functools import cache, partial
from importlib.util import find_spec
from urllib.parse import urljoin, urlsplit

import pytest

from helpers import BROWSER_OPTIONS, CHROMIUM, SCRIPTS
from hub_server import LocalHub
from scratch_bert_demo import drawing
from scratch_bert_demo.model import Model
from scratch_bert_demo.runs import open_models


MISSING = [name for name in ("gradio", "playwright") if find_spec(name) is None]
MISSING += [] if CHROMIUM.exists() else [str(CHROMIUM)]
pytestmark = [
    pytest.mark.integrations,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio"),  # of its pandas
    pytest.mark.skipif(bool(MISSING), reason=f"needs the extras demo and integrations, and Chromium: no {MISSING}"),
]
TEXT, OTHER = "the cat sleeps on the sofa .", "she opened the window ."
EVIL = "the cat <img src=x onerror=\"document.title='run'\"> sleeps {{7*7}} ${7*7}"
# A tab's title: the id of its result, the labels of its text boxes, and its button.
TABS = {
    "Masked words": ("fill_mask", ["Sentence"], "Predict"),
    "Next sentence": ("next_sentence", ["Text A", "Text B"], "Compare"),
    "Classification": ("classify", ["Text", "Second text"], "Classify"),
    "Token classification": ("tag", ["Text"], "Label"),
    "Question answering": ("answer", ["Question", "Text with the answer"], "Answer"),
    "Multiple choice": ("choose", ["Text", "Choices, one per line"], "Choose"),
    "Attention": ("attention", ["Sentence"], "Show"),
    "Embeddings": ("embeddings", ["Texts, one per line"], "Compare"),
    "Compare": ("compare", ["Sentence"], "Compare"),
}


@pytest.fixture(scope="module")
def places(trained, bert, other_mask, tasks):
    return {"trained": trained, "bert": bert, "other_mask": other_mask, **tasks}


@pytest.fixture(scope="module")
def address(places):
    from scratch_bert_demo.page import build_page, serve

    page = build_page(*open_models([str(place) for place in places.values()]))
    yield serve(page)
    page.close()


@pytest.fixture(scope="module")
def browser(address):  # which starts first: its server has an event loop of its own
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=BROWSER_OPTIONS)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser, address):
    """Open the page in a window of this width. At the end, asserts that its console has no error and no request left
    this machine."""
    problems, contexts = [], []
    expected = "The input spec uses Vega-Lite"  # the version that Gradio's curves name is not the one that it brings

    def report(entry):
        if entry.type in ("error", "warning") and expected not in entry.text:
            problems.append(entry.text)

    def open_(width=1280, address=address, **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(20_000)
        page.on("console", report)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        local = (urljoin(address, "/"), "data:", "blob:")
        page.on("request", lambda request: None if request.url.startswith(local) else problems.append(request.url))
        page.goto(address)
        page.locator(".sb-ask button").filter(visible=True).first.wait_for()  # of the tab that the address names
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not problems


@pytest.fixture
def expect():
    from playwright.sync_api import expect

    expect.set_options(timeout=20_000)
    return expect


def go_to(page, title):
    """Select a tab, which may be in the menu of tabs that the window has no room for."""
    tab = page.get_by_role("tab", name=title, exact=True)
    if not tab.is_visible():
        page.locator(".overflow-menu > button").click()
        tab = page.locator(".overflow-dropdown").get_by_text(title, exact=True)
    tab.click()
    page.wait_for_timeout(300)  # a tab that is opened for the first time may set its initial values late
    return page.get_by_role("tabpanel").filter(visible=True)


def ask(page, title, *texts):
    """Fill the text boxes of a tab, and press its button. Returns the columns of its result, one for each model."""
    name, labels, action = TABS[title]
    panel = go_to(page, title)
    for label, text in zip(labels, texts, strict=True):
        panel.get_by_label(label, exact=True).fill(text)
    panel.get_by_role("button", name=action, exact=True).click()
    return page.locator(f"#{name} > .column")


def choose_snapshot(page, number):
    chosen = page.get_by_label("number input for Snapshot")
    chosen.fill(str(number))
    chosen.press("Tab")


@cache
def open_model(place):
    return Model(str(place))


def top_k(place, text, k=5):
    """The top-k tokens of the only mask of a text, and their probabilities as text."""
    (top,) = open_model(place).fill_mask(text, k).value
    return [token for token, _ in top], texts_of(probability for _, probability in top)


def texts_of(values):
    return [f"{float(value):.3f}" for value in values]


def expect_bars(expect, column, labels, values):
    """The bars of a column are those of `labels` and `values`, the largest first."""
    values, labels = zip(*sorted(zip(values, labels, strict=True), key=lambda bar: -float(bar[0])), strict=True)
    expect(column.locator("dt")).to_have_text(labels)
    expect(column.locator("dd")).to_have_text([re.compile(r"^\s*\d+%\s*$")] * len(values))
    column.page.wait_for_function(
        """([column, values]) =>
            [...column.querySelectorAll("meter")].every((meter, i) => meter.value.toFixed(3) === values[i])""",
        arg=[column.element_handle(), values],
    )


# -------------------------------------------------------------------------------------------------------------- tabs


def test_masked_words(open_page, places, expect):
    page = open_page()
    text = "the dog lies on the [MASK] ."
    sentence = page.get_by_role("tabpanel").filter(visible=True).get_by_label("Sentence", exact=True)
    for mask in ("[MASK]", "<mask>"):  # whichever is typed, each model gets its own
        columns = ask(page, "Masked words", text.replace("[MASK]", mask))
        for number, name in enumerate(("trained", "bert", "other_mask")):
            expect_bars(expect, columns.nth(number), *top_k(places[name], text))
    assert columns.first.locator("dt").first.text_content() == "carpet"

    sentence.fill(f"🙂 {TEXT}")
    page.locator("#words").get_by_role("button", name="sofa").click()
    masked = f"🙂 {TEXT}".replace("sofa", "[MASK]")
    expect(sentence).to_have_value(masked)
    expect_bars(expect, columns.first, *top_k(places["trained"], masked))
    expect(page.get_by_text("In the text: sofa", exact=True)).to_be_visible()
    page.locator("#words").get_by_role("button", name="sleeps").click()
    expect(page.get_by_text("In the text: sleeps, sofa", exact=True)).to_be_visible()
    sentence.fill("cats [MASK]")
    page.locator("#words").get_by_role("button", name="cats").click()
    expect(sentence).to_have_value("[MASK] [MASK]")
    expect(page.get_by_text("In the text:")).to_have_count(0)  # one of the words is not known
    sentence.fill("cats sleep")
    page.locator("#words").get_by_role("button", name="cats").click()
    tokens = " ".join(open_model(places["trained"]).split_word("cats"))
    assert " " in tokens
    expect(page.get_by_text(f"In the text: cats ({tokens}, while a mask stands for one token)")).to_be_visible()
    sentence.fill("[MASK] " * 9)
    sentence.press("Enter")
    expect(columns.first.locator("p")).to_have_text("The first 8 of 9 masks are shown.")
    expect(columns.first.locator("dt")).to_have_count(8 * 5)
    sentence.fill(text)
    sentence.press("Enter")
    expect_bars(expect, columns.first, *top_k(places["trained"], text))


def test_next_sentence(open_page, places, expect):
    columns = ask(open_page(), "Next sentence", TEXT, OTHER)
    for number, name in enumerate(("trained", "bert", "nsp")):
        expected = texts_of(open_model(places[name]).next_sentence(TEXT, OTHER).value)
        expect_bars(expect, columns.nth(number), ["B follows A", "A follows B"], expected)


def test_classification(open_page, places, expect):
    columns = ask(open_page(), "Classification", TEXT, OTHER)
    for number, name in enumerate(("classifier", "multi-label", "regression")):
        labels, values = zip(*open_model(places[name]).classify(TEXT, OTHER).value, strict=True)
        if name == "regression":
            expect(columns.nth(number).locator("h2")).to_have_text(texts_of(values))
        else:
            expect_bars(expect, columns.nth(number), labels, texts_of(values))


def test_token_classification(open_page, places, expect):
    column = ask(open_page(), "Token classification", TEXT)
    spans = open_model(places["tagger"]).tag(TEXT).value
    assert spans
    expect(column.locator(".highlighted .text")).to_have_text([TEXT[start:end] for start, end, *_ in spans])
    labels = [f"{name} {drawing.percent(probability)}" for *_, name, probability in spans]
    expect(column.locator(".label")).to_have_text(labels)
    assert "".join(column.locator(".text").all_text_contents()) == TEXT


def test_question_answering(open_page, places, expect):
    column = ask(open_page(), "Question answering", "where is the cat", TEXT)
    start, end, *probabilities = open_model(places["answerer"]).answer("where is the cat", TEXT).value
    expect(column.locator(".highlighted .text")).to_have_text(TEXT[start:end])
    expect(column.locator(".highlighted .label")).to_have_text(f"answer {drawing.percent(probabilities[0])}")
    expect_bars(expect, column, ["answer", "no answer"], texts_of(probabilities))


def test_multiple_choice(open_page, places, expect):
    choices = [OTHER, "the dog lies on the carpet .", "rome"]
    column = ask(open_page(), "Multiple choice", TEXT, "\n".join(choices))
    expected = texts_of(open_model(places["chooser"]).choose(TEXT, choices).value)
    expect_bars(expect, column, [f"{number} {choice}" for number, choice in enumerate(choices, 1)], expected)


def test_attention(open_page, places, expect):
    """All heads as buttons, of which a click or Enter enlarges one; a touch of a cell shows its weight; snapshots."""
    page = open_page()
    column = ask(page, "Attention", TEXT).first
    for layer, head, number, place in ((1, 1, 3, ""), (2, 3, 1, "checkpoint-100")):
        choose_snapshot(page, number)
        for clicked in ((2, 2), (1, 4), (layer, head)):  # at once: the last one counts
            column.get_by_role("button", name="Layer {}, head {}".format(*clicked), exact=True).click()
        tokens, weights = open_model(places["trained"] / place).attention(TEXT).value
        weights = weights[layer - 1, head - 1]
        expect(column.locator("h4")).to_have_text(f"Layer {layer} of 2, head {head} of 4")
        titles = [f"{a} → {b}: {weights[i, j]:.3f}" for i, a in enumerate(tokens) for j, b in enumerate(tokens)]
        expect(column.locator("rect title")).to_have_text(titles)
        expect(column.locator("button")).to_have_count(2 * 4)
        pressed = column.locator("button[aria-pressed=true]")
        expect(pressed).to_have_attribute("aria-label", f"Layer {layer}, head {head}")
    column.locator(".sb-heat rect").nth(3).click()
    weights = column.locator("rect title").all_text_contents()
    expect(column.locator(".sb-caption")).to_have_text(weights[3])
    heat_map = column.get_by_role("application", name="Layer 2 of 2, head 3 of 4: arrow keys read the cells")
    for key, cell in (("ArrowRight", 4), ("ArrowDown", 4 + len(tokens)), ("ArrowUp", 4), ("ArrowUp", 4)):
        heat_map.press(key)
        expect(column.locator(".sb-caption")).to_have_text(weights[cell])
    column.get_by_role("button", name="Layer 1, head 2", exact=True).press("Enter")
    expect(column.locator("h4")).to_have_text("Layer 1 of 2, head 2 of 4")
    column.get_by_role("button", name="Layer 2, head 1", exact=True).hover()
    page.mouse.down()
    column.locator(".sb-heads").evaluate("grid => { grid.outerHTML = grid.outerHTML; }")  # an answer comes
    page.mouse.up()
    expect(column.locator("h4")).to_have_text("Layer 2 of 2, head 1 of 4")


def test_embeddings(open_page, places, expect):
    """The cosines, a map of the texts, and the neighbours of a word."""
    page = open_page()
    texts = ["the cat sleeps", "she opened a door", "rome"]
    columns = ask(page, "Embeddings", "\n".join(texts))
    for number, place in enumerate(places.values()):
        matrix, _ = open_model(place).embeddings(texts).value
        expected = [f"{i + 1} {a} → {j + 1}: {matrix[i, j]:.3f}" for i, a in enumerate(texts) for j in range(3)]
        expect(columns.nth(number).locator("rect title")).to_have_text(expected)
        expect(columns.nth(number).locator("circle title")).to_have_text([f"{i + 1} {a}" for i, a in enumerate(texts)])
    panel = page.get_by_role("tabpanel").filter(visible=True)
    panel.get_by_label("Word", exact=True).fill("cat")
    panel.get_by_role("button", name="Find", exact=True).click()
    column = page.locator("#nearest_tokens > .column").nth(list(places).index("bert"))
    expect(column.locator("dt")).to_have_text(
        [token for token, _ in open_model(places["bert"]).nearest_tokens("cat").value]
    )


def test_compare(open_page, places, expect):
    """The model that has memorised a text expects it most. Each word has its probability in each model if it alone is
    masked, and the guess of the model if that is another word."""
    text = "the cat sleeps on the sofa"
    column = ask(open_page(), "Compare", text).first
    names = ("trained", "bert", "other_mask")
    expect(column.locator("p").first).to_have_text(
        re.compile(f"^{places['trained'].name} expects this text more than .*: its words are")
    )
    scored = [open_model(places[name]).score_words(text).value for name in names]
    means = [f"{sum(log_probability for *_, log_probability, _ in words) / len(words):.2f}" for words in scored]
    expected = [["", *(places[name].name for name in names)], ["mean log-probability of a word", *means]]
    rows = column.locator("tr")
    for row, cells in enumerate(expected):
        expect(rows.nth(row).locator("td, th")).to_have_text(cells)
    for row, words in enumerate(zip(*scored, strict=True), 3):
        cells = [text[slice(*words[0][:2])]]
        for start, end, score, guess in words:
            cells.append(drawing.percent(math.exp(score)) + (f" {guess}" if guess != text[start:end] else ""))
        expect(rows.nth(row).locator("td, th")).to_have_text(cells)


def test_address_carries_tab_and_texts(open_page, places, expect):
    page = open_page()
    ask(page, "Next sentence", TEXT, OTHER)
    page.wait_for_url("**/?tab=next_sentence&text=*&text2=*")
    go_to(page, "Attention")
    page.wait_for_url("**/?tab=attention")
    text = "rome is the capital of [MASK] & more"
    ask(page, "Compare", text)
    page.wait_for_url("**/?tab=compare&text=*")
    other = open_page(address=page.url)
    expect(other.get_by_role("tab", name="Compare", exact=True)).to_have_attribute("aria-selected", "true")
    panel = other.get_by_role("tabpanel").filter(visible=True)
    expect(panel.get_by_label("Sentence", exact=True)).to_have_value(text)
    expect(other.locator("#compare th").filter(has_text="rome")).to_be_visible()


def test_snapshots(open_page, address, places, expect):
    """The slider moves through the snapshots in every tab, with a mark on the curves; the last is the final model."""
    from gradio_client import Client

    page, client = open_page(), Client(address, verbose=False, analytics_enabled=False)
    text = "rome is the capital of [MASK] ."
    column = ask(page, "Masked words", text).first
    log = json.loads((places["trained"] / "checkpoint-300/trainer_state.json").read_text())["log_history"]
    names = {"training": "mlm_loss", "validation": "eval_mlm_loss", "baseline": "eval_mlm_unigram_loss"}
    for number, step in ((3, 300), (1, 100), (2, 200)):
        choose_snapshot(page, number)
        title = places["trained"].name + (f", step {step}" if step < 300 else "")
        expect(column.locator("h3")).to_have_text(title)
        expect_bars(expect, column, *top_k(places["trained"] / f"checkpoint-{step}", text))
        validated = points_of(column, "validation")[number - 1][0]  # at each checkpoint
        eventually(page, lambda validated=validated: points_of(column, "shown")[0][0] == validated)
        (_, bottom), (_, top) = points_of(column, "shown")
        assert bottom > top
        curves = client.predict(text, 5, number, api_name="/fill_mask")[9]
        for curve, name in names.items():
            expected = [[entry["step"], pytest.approx(entry[name])] for entry in log if name in entry]
            assert [point[:2] for point in curves["value"]["data"] if point[2] == curve] == expected
            assert len(points_of(column, curve)) == len(expected)
        found = client.predict(text=text, step=step + 10, api_name="/predictions_at")
        tokens, probabilities = top_k(places["trained"] / f"checkpoint-{step}", text)
        assert found["step"] == step and list(found["predictions"][0]) == tokens
        assert texts_of(found["predictions"][0].values()) == probabilities
    shown_at = f"{places['trained'].name}, step 200"
    for title in ("Next sentence", "Attention", "Embeddings"):
        go_to(page, title)
        expect(page.locator(f"#{TABS[title][0]} h3").first).to_have_text(shown_at)
    go_to(page, "Compare")
    expect(page.locator("#compare th").filter(has_text=shown_at)).to_be_visible()


def save_snapshot(trained, run, number, step):
    shutil.copytree(trained / f"checkpoint-{number}", run / "snapshots" / str(step))


@pytest.fixture
def serve_models():
    """Serve the page of these models, and close it at the end of the test."""
    from scratch_bert_demo.page import build_page, serve

    pages = []

    def serve_(*names):
        pages.append(build_page(*open_models([str(name) for name in names])))
        return serve(pages[-1])

    yield serve_
    for page in pages:
        page.close()


def test_run_is_played_and_followed(trained, tmp_path, open_page, serve_models, expect, monkeypatch):
    """A run that is still training, whose snapshots appear one after the other, and of which one is deleted."""
    monkeypatch.setattr("scratch_bert_demo.timeline.FOLLOW_SECONDS", 0.5)
    run = tmp_path / "run"
    save_snapshot(trained, run, 100, 0)
    (run / "snapshots/0/trainer_state.json").write_text('{"log_history": [], "global_step": 0, "max_steps": 400}')
    examples = {"texts": ["rome is the capital of [MASK] .", "a [MASK]"], "answers": ["italy", "cat"]}
    examples["pairs"] = [["a cat", "a dog", False], ["rome", "italy", True]]
    (run / "snapshots/examples.json").write_text(json.dumps(examples))
    window = open_page(address=serve_models(run))
    expect(window.get_by_text("step 0 of 400")).to_be_visible()
    panel = window.get_by_role("tabpanel").filter(visible=True)
    title = panel.locator("h3").first
    expect(title).to_have_text("run, step 0")
    expect(panel.get_by_label("Sentence", exact=True)).to_have_value("rome is the capital of [MASK] .")
    expect(panel.get_by_text("In the text: italy")).to_be_visible()
    for number, step in ((200, 200), (300, 300)):
        save_snapshot(trained, run, number, step)
        expect(title).to_have_text(f"run, step {step}")
    go_to(window, "Attention")  # other tabs follow, too
    expect(window.locator("#attention h3")).to_have_text("run, step 300")
    panel = go_to(window, "Next sentence")
    expect(panel.get_by_text("In the text: B does not follow A")).to_be_visible()
    panel.get_by_label("Text A", exact=True).fill("rome")
    panel.get_by_label("Text B", exact=True).fill("italy")
    expect(panel.get_by_text("In the text: B follows A")).to_be_visible()
    panel = go_to(window, "Masked words")
    shutil.rmtree(run / "snapshots/200")
    expect(window.get_by_label("number input for Snapshot")).to_have_attribute("max", "2")
    window.get_by_role("button", name="▶ Play").click()
    for step in (0, 300):
        expect(title).to_have_text(f"run, step {step}")
    panel.get_by_role("button", name="a [MASK]").click()
    expect(panel.get_by_label("Sentence", exact=True)).to_have_value("a [MASK]")
    expect(panel.get_by_text("In the text: cat")).to_be_visible()
    window.close()  # first, as it looks for new snapshots


def test_runs_are_followed_beside_each_other(trained, tmp_path, open_page, serve_models, expect, monkeypatch):
    """A slider for both: they are shown at the same step, the shorter at its last, and when one gets a snapshot, the
    slider stays at its end. A page that is opened later begins with the models of that time."""
    monkeypatch.setattr("scratch_bert_demo.timeline.FOLLOW_SECONDS", 0.5)
    for step in (100, 200, 300):
        save_snapshot(trained, tmp_path / "ended", step, step)
    save_snapshot(trained, tmp_path / "run", 100, 100)
    address = serve_models(tmp_path / "run", tmp_path / "ended")
    window = open_page(address=address)
    panel = go_to(window, "Masked words")
    expect(panel.locator("h3")).to_have_text(["run, step 100", "ended, step 300"])
    save_snapshot(trained, tmp_path / "run", 200, 200)
    expect(panel.locator("h3")).to_have_text(["run, step 200", "ended, step 300"])
    expect(panel.locator("svg").filter(has_text="MLM loss")).to_have_count(2)
    choose_snapshot(window, 1)
    expect(panel.locator("h3")).to_have_text(["run, step 100", "ended, step 100"])
    window.close()
    later = open_page(address=address)
    expect(later.locator("#fill_mask h3")).to_have_text(["run, step 200", "ended, step 300"])
    later.close()


def test_runs_after_the_same_examples_tokens_and_time(trained, tmp_path, open_page, serve_models, expect):
    """Of two runs, one has read twice as many examples and tokens in a step, which took four times as long."""
    for run, examples, tokens, per_second in (("large_batches", 32, 2000, 1000), ("small_batches", 16, 1000, 2000)):
        speed = {"examples_per_step": examples, "tokens_per_step": tokens, "tokens_per_second": per_second}
        for step in (100, 200, 300):
            save_snapshot(trained, tmp_path / run, step, step)
            file = tmp_path / run / f"snapshots/{step}/trainer_state.json"
            log = [
                entry | {f"speed/{name}": value for name, value in speed.items()}
                for entry in json.loads(file.read_text())["log_history"]
            ]
            file.write_text(json.dumps({"log_history": log}))
    window = open_page(address=serve_models(tmp_path / "large_batches", tmp_path / "small_batches"))
    panel = go_to(window, "Masked words")
    choose_snapshot(window, 2)
    expect(panel.locator("h3")).to_have_text(["large_batches, step 200", "small_batches, step 200"])
    window.get_by_label("tokens", exact=True).click()
    expect(panel.locator("h3")).to_have_text(["large_batches, step 200", "small_batches, step 300"])
    choose_snapshot(window, 1)
    expect(panel.locator("h3")).to_have_text(["large_batches, step 100", "small_batches, step 200"])
    window.get_by_label("time", exact=True).click()
    expect(panel.locator("h3")).to_have_text(["large_batches, step 100", "small_batches, step 300"])
    window.get_by_label("examples", exact=True).click()
    expect(panel.locator("h3")).to_have_text(["large_batches, step 100", "small_batches, step 200"])
    window.close()


def test_right_to_left(trained, tmp_path, open_page, serve_models, expect):
    """Texts run in the direction of their script: in text boxes, examples, and as words to click on or with scores."""
    save_snapshot(trained, tmp_path / "run", 100, 0)
    save_snapshot(trained, tmp_path / "run", 200, 200)
    examples = {"texts": ["כל בני [MASK] נולדו"], "answers": ["אדם"], "pairs": []}
    (tmp_path / "run/snapshots/examples.json").write_text(json.dumps(examples))
    window = open_page(address=serve_models(tmp_path / "run"))

    def expect_directions(words, expected):
        for text in window.locator("textarea, .sb-examples button").filter(visible=True).all():
            assert text.evaluate("text => getComputedStyle(text).direction") == expected
        places = [words.nth(number).bounding_box()["x"] for number in range(3)]
        assert sorted(places, reverse=expected == "rtl") == places

    words = window.locator("#words .token")
    expect(words).to_have_count(4)
    expect_directions(words, "rtl")
    go_to(window, "Masked words").get_by_label("Sentence", exact=True).fill(TEXT)
    expect(words).to_have_count(7)
    assert words.first.bounding_box()["x"] < words.nth(1).bounding_box()["x"]
    window.close()


def eventually(page, is_true):
    for _ in range(200):
        if is_true():
            return
        page.wait_for_timeout(100)
    raise AssertionError("not within 20 seconds")


def points_of(column, curve):
    """The points of a drawn curve, in pixels."""
    path = column.locator(f'path[aria-roledescription="line mark"][aria-label$="curve: {curve}"]').get_attribute("d")
    return [[float(number) for number in point.split(",")] for point in re.split("[ML]", path)[1:]]


# ------------------------------------------------------------------------------------------------------- odd input


def test_tabs_answer_odd_input_with_a_sentence(open_page, expect):
    """Empty, too long, other scripts, control characters, HTML: the page shows an answer or what to change, as text."""
    page, truncated = open_page(), "tokens at the end were left out"
    for title, (name, labels, _) in TABS.items():
        list_of_texts = "from 2 to 16 texts" if name in ("embeddings", "choose") else None
        without_mask = "no mask in the part of this long text that the model can read" if name == "fill_mask" else None
        for text, expected in (
            (f"[MASK] {EVIL}\nПривет 你好 مرحبا \x01\x1b[31m", truncated),
            ("", list_of_texts or "A text is empty"),
            ("the cat " * 12_500, list_of_texts or without_mask or truncated),
        ):
            expect(ask(page, title, *[text] * len(labels)).first).to_contain_text(expected)
    assert page.title() == "scratch_bert" and page.locator("img[src=x]").count() == 0


def test_tabs_are_those_that_a_model_can_serve(places):
    import gradio

    from scratch_bert_demo.page import build_page

    page = build_page(*open_models([str(places["tagger"])]))
    titles = [block.label for block in page.blocks.values() if isinstance(block, gradio.Tab)]
    assert titles == ["Token classification", "Attention", "Embeddings"]


@pytest.mark.parametrize("width", [1280, 390])
def test_first_answer_is_seen_without_scrolling(trained, open_page, serve_models, width):
    page = open_page(width, address=serve_models(trained))
    for title in ("Masked words", "Next sentence", "Attention", "Embeddings"):
        go_to(page, title)
        answer = {"Attention": ".sb-heads button", "Embeddings": ".sb-heat rect"}.get(title, "dt")
        place = page.locator(f"#{TABS[title][0]} {answer}").first.bounding_box()
        assert place["y"] + place["height"] < {1280: 800, 390: 844}[width], title
    page.close()


def test_narrow_and_dark_page(open_page):
    """At 390 pixels, no tab scrolls sideways; in the dark, text stays readable."""
    page = open_page(390, color_scheme="dark")
    for title, (name, _, _) in TABS.items():
        go_to(page, title)
        page.locator(f"#{name}").wait_for()
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, title
    colors = page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
    text, background = (sum(map(float, re.findall(r"[\d.]+", color)[:3])) for color in colors)
    assert text > 500 > 200 > background


# ------------------------------------------------------------------------------------------------------------ served


def test_app_of_a_space(trained, tmp_path, open_page, expect):
    """A Space's app.py serves the commit that was pushed, with the Space's copy of the package. SPACE_PYTHON may name
    another Python, such as that of an environment with nothing but the Space's requirements."""
    model = shutil.copytree(trained, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoint-*"))
    (model / "README.md").write_text("# A model\n")
    place, text = tmp_path / "space", "rome is the capital of [MASK] ."
    with LocalHub() as hub:
        command = [sys.executable, SCRIPTS / "push_to_hub.py", model, "me/my-bert", "--space", "me/my-demo"]
        environment = {**os.environ, **hub.environment, "HF_HOME": str(tmp_path / "hf")}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        for path in hub.files("spaces/me/my-demo"):
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(hub.read("spaces/me/my-demo", path))
        environment |= {"GRADIO_SERVER_NAME": "127.0.0.1", "PYTHONPATH": ""}
        command = [os.environ.get("SPACE_PYTHON", sys.executable), "app.py"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=place, env=environment)
        try:
            served_at = re.search(r"Serving on (http\S+)", process.stdout.readline())[1]
            page = open_page(address=served_at)
            column = ask(page, "Masked words", text)
            expect(column.locator("h3")).to_have_text("my-bert")
            expect_bars(expect, column, *top_k(trained, text))
            page.close()  # before the server, whose end the page's console would report
        finally:
            process.kill()
            process.wait()


def status_of(url, host, data=None, **headers):
    """The status of the answer to a request that names this host."""
    try:
        return urllib.request.urlopen(urllib.request.Request(url, data, {"Host": host, **headers})).status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("port", [80_000, None])
def test_port_that_cannot_be_served_on_is_named(port):
    from scratch_bert_demo.server import gr, serve

    with gr.Blocks() as page:
        pass
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(OSError, match="The port .* is in use, or not"),
    ):
        serve(page, port or server.getsockname()[1])


def test_script(trained, tmp_path):
    """The script serves the page, and no file, on this machine only, whatever the environment says; Ctrl-C ends it."""
    command = [sys.executable, SCRIPTS / "demo.py", trained, "--no_browser"]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS.parent), "HTTP_PROXY": "http://127.0.0.1:9"}
    environment |= {"ALL_PROXY": "socks5://127.0.0.1:9", "HTTPS_PROXY": ":::"}  # Gradio's client takes neither
    environment |= {"GRADIO_ALLOWED_PATHS": "/", "GRADIO_TEMP_DIR": "/", "GRADIO_SERVER_PORT": "none"}
    environment |= {"GRADIO_SERVER_NAME": "0.0.0.0", "GRADIO_ROOT_PATH": "http://elsewhere.org"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment}
    heed = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # in a background job, it is ignored
    process = subprocess.Popen(command, preexec_fn=heed, **options)
    try:
        output = ""
        while "Serving on" not in output:
            line = process.stdout.readline()
            assert line, output
            output += line
        served_at = re.search(r"http://127\.0\.0\.1:\d+", output)[0]
        html = urllib.request.urlopen(served_at).read().decode()
        port = urlsplit(served_at).port
        answers = {
            (host, path): status_of(served_at + path, host)
            for path in ("/", f"/gradio_api/file={trained / 'config.json'}")
            for host in (f"127.0.0.1:{port}", "localhost:1234", f"elsewhere.org:{port}")  # the second as by ssh -L
        }
        api, own, other = f"{served_at}/gradio_api", f"localhost:{port}", {"Origin": "https://elsewhere.org"}
        refused = [status_of(f"{api}/upload", own, b"file"), status_of(f"{api}/info", own, **other)]
        refused += [status_of(f"{served_at}/monitoring", own), status_of(f"{api}/proxy=https://elsewhere.org", own)]
        allowed = [status_of(f"{api}/info", own), status_of(f"{api}/info", own, Origin=f"http://{own}")]
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert "scratch_bert" in html and "cdnjs" not in html and "elsewhere" not in html
    assert refused == 4 * [403] and allowed == 2 * [200]
    assert list(answers.values()) == [200, 200, 400, 403, 403, 400]
    assert "Traceback" not in output + rest
