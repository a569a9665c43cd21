"""Links of the pages: files exist, headings exist, and a symbol in a link's text is in the Python file that it points to."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from helpers import ROOT
from scratch_bert import __version__


PAGES = sorted(path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if path.name != "model_card.md")
FENCE = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def links(page: Path) -> list[tuple[str, str]]:
    """(text, target) of each link that is not of the web."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    found = [(match["text"], match["target"]) for match in LINK.finditer(text)]
    return [(text, target) for text, target in found if "://" not in target]


@cache
def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub and mkdocs name them."""
    headings = re.findall(r"^#+ (.*)", FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.strip().lower())) for heading in headings}


@cache
def symbols(file: Path) -> set[str]:
    """Classes, functions, methods, and names that are assigned to, as `Class.name` within a class."""

    def within(body: list[ast.stmt], prefix: str):
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield prefix + node.name
                yield from within(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                yield prefix + node.name
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))

    return set(within(ast.parse(file.read_text(encoding="utf-8")).body, ""))


def problems(page: Path) -> list[str]:
    found = []
    for text, target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        symbol = re.fullmatch(r"`([\w.]+)`", text)
        if not file.is_file():
            found.append(f"there is no file {target}")
        elif file.suffix == ".md" and anchor and anchor not in anchors(file):
            found.append(f"{target}: there is no such heading")
        elif file.suffix == ".py" and symbol and not text.endswith(".py`") and symbol[1] not in symbols(file):
            found.append(f"{target} has no {symbol[1]}")
    return found


def test_modules_are_all_on_an_api_page():
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/api").glob("*.md"))
    files = {path.relative_to(ROOT).with_suffix("") for path in ROOT.glob("scratch_bert*/**/*.py")}
    modules = {".".join(file.parts) for file in files if file.name != "__init__"}
    assert sorted(re.findall(r"^::: (\S+)$", pages, flags=re.MULTILINE)) == sorted(modules)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page):
    assert problems(page) == []


def test_dead_links_are_found(tmp_path):
    (tmp_path / "code.py").write_text("class A:\n    size: int = 1\n    def forward(self): ...\n\nLIST = []\n")
    good = "[`A.forward`](code.py) [`A.size`](code.py) [`LIST`](code.py) [here](#a-title-of-b) [code](code.py)"
    (tmp_path / "page.md").write_text(f"# A title, of `B`\n\n{good}\n\n```\n[no](link.md)\n```\n")
    assert problems(tmp_path / "page.md") == []
    bad = "[`A.backward`](code.py) [x](none.md) [y](#another) [z](page.md#title)"
    (tmp_path / "bad.md").write_text(f"# Title\n\n{bad}\n")
    found = [problem.split()[0] for problem in problems(tmp_path / "bad.md")]
    assert found == ["code.py", "there", "#another:", "page.md#title:"]


def test_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # which the format requires
    assert citation["cff-version"] == "1.2.0" and citation["version"] == __version__
    assert citation["license"] == "Apache-2.0" and all("name" in author for author in citation["authors"])
