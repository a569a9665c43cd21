"""benchmarks/mistakes.py and docs/mistakes.md: each mistake fails the test that the page names."""

import inspect
import re
import runpy

import pytest

from helpers import ROOT, run_script


PAGE = (ROOT / "docs/mistakes.md").read_text(encoding="utf-8")
NAMED = r"`python benchmarks/mistakes.py (\w+)` · test: \[`(\w+)`\]\(\.\./(tests/[\w/.]+)\)"
TESTS = {mistake: (file, name) for mistake, name, file in re.findall(NAMED, PAGE)}
MISTAKES = runpy.run_path(str(ROOT / "benchmarks/mistakes.py"))["MISTAKES"]


def first_case(test) -> dict:
    """The first values of a parametrized test; with both objectives, where it takes a head."""
    case = {}
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            names, first = mark.args[0], next(iter(mark.args[1]))
            names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
            values = getattr(first, "values", first)
            case |= dict(zip(names, values if isinstance(values, tuple) else [values], strict=True))
    return case | ({"auto_class": "AutoModelForPreTraining"} if "auto_class" in case else {})


def test_page_has_all_mistakes():
    assert list(TESTS) and set(TESTS) == set(MISTAKES) - {"none"}
    for mistake in TESTS:
        in_table = re.search(rf"^\| `{mistake}` \| \d", PAGE, flags=re.MULTILINE)
        assert in_table or mistake == "no_unknown_token", f"{mistake} is not in a table, with its figures"


@pytest.mark.parametrize("mistake", TESTS)
def test_mistake_fails_the_test_that_the_page_names(mistake, request):
    for shared in ("tokenizer", "corpus"):  # not to be made with the mistake: other tests take them, too
        request.getfixturevalue(shared)
    file, name = TESTS[mistake]
    test = runpy.run_path(str(ROOT / file))[name]
    case = first_case(test)
    fails = pytest.raises(Exception if mistake == "no_unknown_token" else AssertionError)
    with MISTAKES[mistake].patch(), fails:
        fixtures = [parameter for parameter in inspect.signature(test).parameters if parameter not in case]
        test(**case, **{fixture: request.getfixturevalue(fixture) for fixture in fixtures})


def test_each_wrong_line_has_its_right_one():
    sections = re.findall(r"^### .*?(?=^##|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(sections) == len(TESTS)
    for section in sections:
        code = section.split("```")[1]
        assert 0 < code.find("# wrong") < code.find("# right"), section


@pytest.mark.slow
def test_mistakes_are_measured(monkeypatch, capsys):
    run_script(monkeypatch, ROOT / "benchmarks/mistakes.py", "labels_inverted", "no_unknown_token", "--steps", 2)
    shown = capsys.readouterr().out
    header, _, *rows = [line for line in shown.splitlines() if line.startswith("|")]
    assert header in PAGE
    none, turned = ([cell.strip() for cell in row.split("|")[1:-1]] for row in rows)
    assert [none[0], turned[0]] == ["`none`", "`labels_inverted`"]
    assert none[2] == none[3] and none[5] == none[6] and not none[4]
    assert float(turned[4]) == pytest.approx(float(turned[3]) - float(none[3]), abs=0.011)  # they are rounded
    assert float(turned[5]) + float(turned[6]) == pytest.approx(1, abs=1e-3)
    assert re.search(r"Unknown in held-out text: wordlevel, [\d,]+ entries: \d+\.\d+% of the tokens", shown)
