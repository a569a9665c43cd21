import ast
import difflib
import hashlib
import inspect
import json
import re
import sys
import sysconfig
from types import SimpleNamespace

import pytest

from helpers import run_process
from scratch_bert.text import builtin
from scratch_bert.text.builtin import builtin_documents


# ------------------------------------------------------------------------------------------- of this Python's library


@pytest.fixture(scope="module")
def texts():
    return builtin_documents()


@pytest.fixture(scope="module")
def paragraphs(texts):
    return [paragraph for text in texts for paragraph in text.split("\n\n")]


def test_corpus_has_topics_and_docstrings(texts, paragraphs):
    assert 250 < len(texts) < 400
    assert 150_000 < sum(len(text.split()) for text in texts) < 250_000
    assert "Assert statements are a convenient way to insert debugging assertions into a program:" in paragraphs
    assert " ".join(inspect.getdoc(difflib.unified_diff).split("\n\n")[1].split()) in paragraphs


def test_paragraphs_are_in_the_corpus_once(paragraphs):
    assert len(set(paragraphs)) == len(paragraphs)


def test_corpus_has_no_code(paragraphs):
    for paragraph in paragraphs:
        with pytest.raises(SyntaxError):
            ast.parse(paragraph)
    remnants = re.compile(r">>> |::=|={4}|-{4}|\*{4}|:param|\s\s|\+-")
    assert [paragraph for paragraph in paragraphs if remnants.search(paragraph)] == []


IN_ANOTHER_PROCESS = """
import hashlib, inspect, json, pydoc_data.topics, runpy, sys, sysconfig
sysconfig.get_path("stdlib")
builtin_documents = runpy.run_path(sys.argv[1])["builtin_documents"]
before = set(sys.modules)
texts = builtin_documents()
imported = [name for name in set(sys.modules) - before if not name.startswith("encodings.")]
print(json.dumps([hashlib.sha256(repr(texts).encode()).hexdigest(), imported]))
"""


def test_corpus_is_the_same_in_another_process_and_imports_nothing(texts):
    shown = run_process("-c", IN_ANOTHER_PROCESS, builtin.__file__, PYTHONHASHSEED="7").stdout
    assert json.loads(shown) == [hashlib.sha256(repr(texts).encode()).hexdigest(), []]


# ------------------------------------------------------------------------------------------- of a library made for a test


def about(name):
    """Four paragraphs, which are enough for a document."""
    return "\n\n".join(
        f"The {name} has {n} lines that were written for this test alone." for n in ("one", "two", "six", "ten")
    )


def module(docstring):
    return f'"""{docstring}"""\nraise RuntimeError("executed")\n'


@pytest.fixture
def documents_of(tmp_path, monkeypatch):
    """The built-in corpus of a library with these sources, by path, and with these topics of `help()`, if any."""

    def documents(sources, topics=None):
        for path, source in sources.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(source, encoding="utf-8")
        monkeypatch.setattr(sysconfig, "get_path", {"stdlib": str(tmp_path)}.__getitem__)
        # None for a module makes its import fail.
        monkeypatch.setitem(sys.modules, "pydoc_data.topics", topics and SimpleNamespace(topics=topics))
        return builtin_documents()

    return documents


def test_documents_are_the_topics_and_the_modules_of_the_library(documents_of):
    inside = ["abc", "json/__init__", "json/tool"]
    outside = ["site-packages/abc", "six", "test/abc", "unittest/test/abc"]
    topics = {"if": about("statement"), "and": about("first operand") + "\n\n" + about("second operand")}
    documents = documents_of({f"{name}.py": module(about(name)) for name in outside + inside[::-1]}, topics)
    assert documents == [topics["and"], topics["if"], *map(about, inside)]


def test_docstrings_are_in_the_order_of_the_source(documents_of):
    nested = 'class A:\n  if True:\n    async def a(self):\n      "This is the second one."\n  "No docstring at all."'
    source = f'"""{about("first")}"""\n{nested}\ntry:\n  pass\nexcept E:\n  def b():\n    "This is the third one."'
    assert documents_of({"abc.py": source}) == [
        f"{about('first')}\n\nThis is the second one.\n\nThis is the third one."
    ]


@pytest.mark.parametrize(
    ("docstring", "kept"),
    [
        pytest.param("It is\n  wrapped  here. It\ngoes on.", ["It is wrapped here. It goes on."], id="lines"),
        pytest.param("Call it as follows::\n\n    It(is, code)\n", ["Call it as follows:"], id="code"),
        pytest.param(
            "It is used like this:\n\n>>> It is a doctest.\nIt is its output.", ["It is used like this:"], id="doctest"
        ),
        pytest.param(
            "D.get(k[, d]) returns a value.\n\nThe default is None.", ["The default is None."], id="signature"
        ),
        pytest.param("A Heading of It\n---------------\nIts text is here.", ["Its text is here."], id="heading"),
        pytest.param("Name     What it means.\n\n+---+ Cell of it. +---+", [], id="table"),
        pytest.param("A rule ::= of the grammar.\n\nThe name_a f(x) g.h {} end.", [], id="grammar"),
        pytest.param(
            "The :class:`B` takes ``x``, *y* and **kwargs, not 2**8. [1]",
            ["The B takes x, y and kwargs, not 2**8."],
            id="markup",
        ),
        pytest.param(
            "Two of them are:\n- This is an item.\n* And this is\n  another.\n- none",
            ["Two of them are:", "This is an item.", "And this is another."],
            id="list",
        ),
        pytest.param(
            "It adds one more.\n:param x: The number of it.\n:param y:\n  The other one of both.\n:returns: int\n",
            ["It adds one more.", "The number of it.", "The other one of both."],
            id="fields",
        ),
        pytest.param(
            "It adds one more.\n\nReturns:\n  The sum of both.\n\nArgs:\n  x: int",
            ["It adds one more.", "The sum of both."],
            id="sections",
        ),
    ],
)
def test_prose_is_kept(docstring, kept, documents_of):
    (document,) = documents_of({"abc.py": module(docstring + "\n\n" + about("rest"))})
    assert document == "\n\n".join([*kept, about("rest")])


def test_paragraph_of_several_documents_is_kept_in_the_first(documents_of):
    shared = "This paragraph has been copied from one to the other."
    sources = {f"{name}.py": module(f"{about(name)}\n\n{shared}") for name in ("ast", "abc", "bdb")}
    documents = documents_of(sources | {"aifc.py": module(shared)})
    assert documents == [f"{about('abc')}\n\n{shared}", about("ast"), about("bdb")]


def test_documents_of_a_few_words_are_left_out(documents_of):
    sources = {"abc.py": module("There is not enough of it."), "ast.py": module(about("ast"))}
    assert documents_of(sources) == [about("ast")]
