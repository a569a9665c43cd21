"""What mkdocs adds to the pages in docs/: README, CONTRIBUTING and CHANGELOG, the notebook with its outputs, and each source file
that a page links to, with the link leading to the line of the symbol that it names. Formulas become MathML, which browsers draw without
scripts or fonts from elsewhere; GitHub draws the same ```math blocks by itself."""

import ast
import json
import re
from functools import cache
from pathlib import Path
from posixpath import dirname, normpath, relpath

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page


ROOT = Path(__file__).parent.parent
# Their places in the repository and on the site; files in docs/ keep theirs.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "notebooks/tour.ipynb": "tour.md",
}
FENCE = re.compile(r"(^```.*?^```)", flags=re.MULTILINE | re.DOTALL)
MATH = re.compile(r"```math\n(.*)```", flags=re.DOTALL)
INLINE_CODE = re.compile(r"<code>[^<]*</code>")
OPTION = re.compile(r"--\w+")
LINK = re.compile(r"(?<=\])\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def place_on_site(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") and not path.endswith(".py") else f"source/{path}.md"


def place_in_repository(uri: str) -> str:
    """Of a page in docs/, or one of `PAGES`."""
    return {place: path for path, place in PAGES.items()}.get(uri, f"docs/{uri}")


def linked_files(path: str) -> set[str]:
    """The files of the repository that a page, a file of the repository, links to."""
    parts = FENCE.split((ROOT / path).read_text(encoding="utf-8"))[::2]
    return {normpath(f"{dirname(path)}/{target}".lstrip("/")) for part in parts for target, _ in LINK.findall(part)}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = [path for path in PAGES if path.endswith(".md")]
    for path in pages:
        files.append(File.generated(config, PAGES[path], content=(ROOT / path).read_text(encoding="utf-8")))
    files.append(File.generated(config, PAGES["notebooks/tour.ipynb"], content=notebook_as_markdown()))
    pages += [
        f"docs/{file.src_uri}" for file in files.documentation_pages() if (ROOT / "docs" / file.src_uri).is_file()
    ]
    for path in sorted(set().union(*map(linked_files, pages))):
        if place_on_site(path).startswith("source/") and (ROOT / path).is_file():
            kind = {".py": "python", ".yaml": "yaml", ".toml": "toml"}.get(Path(path).suffix, "text")
            code = (ROOT / path).read_text(encoding="utf-8")
            head = "---\nsearch: {exclude: true}\nhide: [toc]\n---\n\n"
            content = f'{head}# {path}\n\n~~~~~~{{.{kind} linenums="1"}}\n{code}~~~~~~\n'
            place = place_on_site(path)
            files.append(File.generated(config, place, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    if uri.startswith(("source/", "api/")):
        return markdown

    def replace(match: re.Match) -> str:
        path = normpath(f"{dirname(place_in_repository(uri))}/{match[1]}".lstrip("/"))
        return f"({relpath(place_on_site(path), dirname(uri) or '.')}{match[2] or ''})"

    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(replace, part) for part in parts[::2]]
    parts[1::2] = [
        MATH.sub(lambda match: f'<div class="formula">{convert(match[1], display="block")}</div>', part)
        for part in parts[1::2]
    ]
    return "".join(parts)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to a symbol in a source page lead to its line; options in a line of text do not break at their hyphens."""

    def replace(match: re.Match) -> str:
        line = line_of(match["path"], match["symbol"])
        return (
            match[0]
            if line is None
            else f'<a href="{match["href"]}#__codelineno-0-{line}"><code>{match["symbol"]}</code></a>'
        )

    link = r'<a href="(?P<href>[./]*source/(?P<path>[^"#]+\.py)/)"><code>(?P<symbol>[\w.]+)</code></a>'
    html = re.sub(link, replace, html)
    return INLINE_CODE.sub(lambda code: OPTION.sub(r'<span class="option">\g<0></span>', code[0]), html)


@cache
def line_of(path: str, symbol: str) -> int | None:
    """Where a symbol, a function or a class or `Class.name`, stands in a Python file."""
    body = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    line = None
    for name in symbol.split("."):
        for node in body:
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            names = {getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)}
            if name in names:
                line, body = node.lineno, getattr(node, "body", [])
                break
        else:
            return None
    return line


def notebook_as_markdown() -> str:
    parts = []
    for cell in json.loads((ROOT / "notebooks/tour.ipynb").read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            if "text" in output:
                parts.append(f"~~~~~~text\n{''.join(output['text'])}\n~~~~~~")
            if "image/png" in output.get("data", {}):
                image = "".join(output["data"]["image/png"]).replace("\n", "")
                parts.append(f'<img alt="output of the cell above" src="data:image/png;base64,{image}">')
    return "\n\n".join(parts)
