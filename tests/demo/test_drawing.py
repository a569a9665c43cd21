"""The demo's drawings: texts of users and models are escaped, and unchanged otherwise."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from scratch_bert_demo import drawing


EVIL = "<img src=x onerror=alert(1)>\"'&"


@pytest.mark.parametrize(
    "html",
    [
        drawing.heading(EVIL, EVIL),
        drawing.about([(EVIL, EVIL)] * 4),
        drawing.heat_map([EVIL, "a"], ["b", EVIL], [[0.1, -0.2], [0.3, 1]], EVIL),
        drawing.map_of_texts([EVIL, "a"], [[0.1, 0], [0.3, 0]], EVIL),
        drawing.compared_words(EVIL, [EVIL, "b"], [{(0, len(EVIL)): (-0.5, EVIL)}] * 2),
    ],
    ids=["heading", "about", "heat_map", "map", "compared_words"],
)
def test_everything_is_escaped(html):
    found = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.extend([tag, *dict(attributes)])
    parser.feed(html)
    assert found and not {"img", "onerror"} & set(found)


def test_words_have_their_positions():
    text = "It's [MASK], 你好\ud800 <b>!"
    words = drawing.find_words(text)
    found = [word[0] for word in words]
    assert found == ["It", "'", "s", "[MASK]", ",", "你", "好", "?", "<", "b", ">", "!"]
    assert [text[slice(*word.span())] for word in words if word[0] != "?"] == [word for word in found if word != "?"]
    assert len(drawing.find_words("a " * 10_000)) == drawing.MAX_WORDS


def test_heat_map_has_a_cell_for_each_pair():
    html = drawing.heat_map(["a", "b"], ["1", "2"], [[1, 0.2], [-0.1, 1]], "Title", largest=0.2, numbers=True)
    titles = ["a → 1: 1.000", "a → 2: 0.200", "b → 1: -0.100", "b → 2: 1.000"]
    assert re.findall("<title>(.*?)</title>", html) == titles
    assert re.findall('fill-opacity="(.*?)"', html) == ["1.000", "1.000", "0.500", "1.000"]
    assert html.count("sb-negative") == 1 and html.count("<rect") == 5  # one is the frame


def test_compared_words():
    """The verdict is on the words that all models know; two models with the same scores expect a text alike."""
    a = {(0, 3): (-1.0, "the"), (4, 7): (-2.0, "dog"), (8, 12): (-0.1, "sits")}
    b = {(0, 3): (-2.0, "the"), (4, 7): (-3.0, "cat")}
    html = drawing.compared_words("the cat sits", ["a", "b"], [a, b])
    assert "a expects this text more than b: its words are 2.72 times as likely." in html
    assert "its words are 22,026 times as likely" in drawing.compared_words(
        "the cat", ["a", "b"], [a, {(0, 3): (-11.0, "a")}]
    )
    found = [re.sub("<.*?>", "|", row) for row in re.findall("<tr>(.*?)</tr>", html)]
    assert found[1] == "|mean log-probability of a word||-1.50||-2.50|"
    assert found[2] == f"|bits per character||{3 / 6 / np.log(2):.2f}||{5 / 6 / np.log(2):.2f}|"
    assert "37%" in found[3] and "dog" in found[4] and "unknown" in found[5]
    assert "expect this text equally" in drawing.compared_words("the cat", ["a", "b"], [b, b])
    with pytest.raises(ValueError, match="no word of this text in common"):
        drawing.compared_words("the cat", ["a", "b"], [a, {}])


def test_grid_of_heads_is_a_button_for_each_head_with_its_weights():
    weights = np.zeros((2, 3, 4, 4), dtype=np.float32)
    weights[1, 2, 0, 3] = 0.5
    html = drawing.grid_of_heads(weights + np.eye(4, dtype=np.float32) / 4, layer=2, head=3)
    labels = [f"Layer {layer}, head {head}" for layer in (1, 2) for head in (1, 2, 3)]
    assert re.findall('<button [^>]*aria-label="(.*?)"', html) == labels
    assert [label == "true" for label in re.findall('aria-pressed="(.*?)"', html)] == [False] * 5 + [True]
    picture = Image.open(io.BytesIO(base64.b64decode(re.findall('base64,(.*?)"', html)[5])))
    alpha = np.asarray(picture)[..., 3]
    assert alpha.shape == (4, 4) and alpha[0, 3] == 180 and alpha[1, 1] == 127 and alpha[1, 0] == 0


@pytest.mark.parametrize(("p", "text"), [(1, "100%"), (0.1234, "12%"), (0.0994, "9.9%"), (0.0996, "10%"), (0, "0.0%")])
def test_percents(p, text):
    assert drawing.percent(p) == text
