"""The demo's drawings: what comes from users and models is escaped, and stays as it is otherwise."""

import re
from html import unescape
from html.parser import HTMLParser

import pytest

from scratch_bert.demo import drawing


EVIL = "<img src=x onerror=alert(1)>\"'&"


@pytest.mark.parametrize(
    "html",
    [
        drawing.message(EVIL),
        drawing.panels([(EVIL, "")]),
        drawing.bars([(EVIL, 0.5)], title=EVIL),
        drawing.number(1.0, EVIL),
        drawing.words(EVIL),
        drawing.marked(EVIL * 2, [(3, 20, EVIL, 0.5)]),
        drawing.heat_map([EVIL, "a"], ["b", EVIL], [[0.1, -0.2], [0.3, 1]]),
        drawing.curves({EVIL: {"training": [(1, 2.0)]}}, 1),
    ],
    ids=["message", "panels", "bars", "number", "words", "marked", "heat_map", "curves"],
)
def test_everything_is_escaped(html):
    found = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.extend([tag, *dict(attributes)])
    parser.feed(html)
    assert found and not {"img", "onerror"} & set(found)


def test_words_have_their_places():
    text = "It's [MASK], 你好\ud800 <b>!"
    buttons = re.findall(r'data-start="(\d+)" data-end="(\d+)">(.*?)</button>', drawing.words(text))
    found = [unescape(word) for *_, word in buttons]
    assert found == ["It", "'", "s", "[MASK]", ",", "你", "好", "?", "<", "b", ">", "!"]
    assert [text[int(start) : int(end)] for start, end, word in buttons if word != "?"] == [
        word for word in found if word != "?"
    ]
    assert drawing.words("a " * 10_000).count("<button") == drawing.MAX_WORDS


def test_marked_keeps_the_text():
    text = "one two three"
    html = drawing.marked(text, [(0, 3, "A", 0.25), (8, 13, "B", 1.0)])
    assert re.sub("<small>.*?</small>|<[^>]+>", "", html) == text
    assert re.findall("<small>(.*?)</small>", html) == ["A 0.250", "B 1.000"]


def test_heat_map_has_a_cell_for_each_pair():
    html = drawing.heat_map(["a", "b"], ["1", "2", "3"], [[0, 0.5, 1], [-0.25, 0.1, 0.2]], numbers=True)
    assert re.findall("<title>(.*?)</title>", html)[:4] == [
        "a → 1: 0.000",
        "a → 2: 0.500",
        "a → 3: 1.000",
        "b → 1: -0.250",
    ]
    assert html.count("sb-negative") == 1 and html.count("<rect") == 7  # one is the frame


def test_curves_of_one_point_and_of_many():
    html = drawing.curves({"loss": {"training": [(step, 1.0) for step in range(1, 10_001)]}}, 5000)
    assert len(re.search('points="(.*?)"', html)[1].split()) <= drawing.MAX_POINTS
    assert "nan" not in drawing.curves({"loss": {"training": [(1, 2.0)]}}, 1)
