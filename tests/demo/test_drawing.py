"""The demo's drawings: texts of users and models are escaped, and unchanged otherwise."""

import re
from html.parser import HTMLParser

import pytest

from scratch_bert.demo import drawing


EVIL = "<img src=x onerror=alert(1)>\"'&"


@pytest.mark.parametrize(
    "html",
    [
        drawing.heading(EVIL, EVIL),
        drawing.heat_map([EVIL, "a"], ["b", EVIL], [[0.1, -0.2], [0.3, 1]]),
    ],
    ids=["heading", "heat_map"],
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
    html = drawing.heat_map(["a", "b"], ["1", "2", "3"], [[0, 0.5, 1], [-0.25, 0.1, 0.2]], numbers=True)
    assert re.findall("<title>(.*?)</title>", html)[:4] == [
        "a → 1: 0.000",
        "a → 2: 0.500",
        "a → 3: 1.000",
        "b → 1: -0.250",
    ]
    assert html.count("sb-negative") == 1 and html.count("<rect") == 7  # one is the frame
