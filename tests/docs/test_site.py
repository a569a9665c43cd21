"""The site, as `make docs` builds it: whole, with links that lead somewhere, nothing from other servers, and nothing wider
than its place."""

import re
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from helpers import BROWSER_OPTIONS, CHROMIUM, ROOT, run_process


pytestmark = pytest.mark.slow
TABLES = ".md-typeset__scrollwrap, table, html"  # what a table scrolls in


class Links(HTMLParser):
    """The targets of a page's links, what it loads, and its anchors."""

    def __init__(self, page: Path):
        super().__init__()
        self.targets, self.loaded, self.anchors = [], [], {""}
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        if tag == "a" and attributes.get("href"):
            self.targets.append(attributes["href"])
        if tag in ("script", "img", "iframe") and attributes.get("src"):
            self.loaded.append(attributes["src"])
        if tag == "link" and attributes.get("href") and attributes.get("rel") != "canonical":
            self.loaded.append(attributes["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    directory = tmp_path_factory.mktemp("site")
    run_process("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", directory, cwd=ROOT)
    return directory, {page: Links(page) for page in directory.rglob("*.html")}


def test_links_of_the_site_lead_somewhere(site):
    directory, pages = site
    dead = []
    for page, links in pages.items():
        for target in [*links.targets, *links.loaded]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            base = directory if parts.path.startswith("/") else page.parent
            file = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else page
            file = file / "index.html" if file.is_dir() else file
            anchors = pages[file].anchors if file in pages else {""}
            if not file.is_file() or (file in pages and unquote(parts.fragment) not in anchors):
                dead.append(f"{page.relative_to(directory)}: {target}")
    assert dead == []


def test_site_loads_nothing_from_elsewhere(site):
    _, pages = site
    loaded = {target for links in pages.values() for target in links.loaded}
    assert not [target for target in loaded if urlsplit(target).netloc]


def test_site_has_the_readme_the_guide_the_notebook_and_the_api(site):
    directory, pages = site
    for name, text in (
        ("index.html", "Not for you"),
        ("commands/index.html", "Pretrain on your text"),
        ("reading-guide/index.html", "Unpadding"),
        ("tour/index.html", "data:image/png;base64"),
        ("api/model/index.html", "ScratchBertForPreTraining"),
        ("api/pretraining/index.html", "PretrainingCollator"),
    ):
        assert text in (directory / name).read_text(encoding="utf-8"), name
    guide = pages[directory / "reading-guide/index.html"]
    to_lines = [target for target in guide.targets if "/source/" in target and "#__codelineno-0-" in target]
    assert len(to_lines) > 60


def test_formulas_and_folded_parts_of_the_guide_are_drawn(site):
    directory, _ = site
    html = (directory / "reading-guide/index.html").read_text(encoding="utf-8")
    source = (ROOT / "docs/reading-guide.md").read_text(encoding="utf-8")
    assert html.count("<math ") == source.count("```math") > 10
    assert "\\text" not in html and "$" not in re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    assert html.count("<details>") == source.count("<details")
    assert "```" not in html and "[`" not in html  # Markdown that was left as it is


@pytest.mark.integrations
@pytest.mark.skipif(not (find_spec("playwright") and CHROMIUM.exists()), reason="needs playwright and Chromium")
def test_nothing_is_wider_than_its_place(site):
    """Code may scroll sideways on a phone, and source listings anywhere."""
    from playwright.sync_api import sync_playwright

    directory, pages = site
    wide = """(elements) => [...document.querySelectorAll(elements)]
        .filter((element) => element.scrollWidth > element.clientWidth)
        .map((element) => element.textContent.trim().slice(0, 60))"""
    shown = sorted(page for page in pages if directory / "source" not in page.parents)
    found = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=BROWSER_OPTIONS)
        for width, elements in ((1280, f"pre > code, {TABLES}"), (390, TABLES)):
            window = browser.new_page(viewport={"width": width, "height": 900})
            for page in shown:
                window.goto(page.as_uri())
                found[width, str(page.relative_to(directory))] = window.evaluate(wide, elements)
        browser.close()
    assert len(shown) > 20
    assert not {page: texts for page, texts in found.items() if texts}
