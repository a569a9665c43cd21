"""The built-in corpus: the prose of the documentation that comes with Python."""

import ast
import re
import sys
import sysconfig
from collections.abc import Iterator
from itertools import chain
from pathlib import Path


_MIN_WORDS = 40  # in a document: about three sentences

# Modules that some versions or distributions of Python lack; the last two are tables.
_LEFT_OUT = {"test", "tests", "distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtle", "turtledemo"}
_LEFT_OUT |= {"encodings", "pydoc_data"}

# Ends of paragraphs: a blank line, the underline of a heading, a line such as "Returns:", and the marker of a list
# item or of a field such as ":param x:". Markers are left out.
_BREAK = re.compile(
    r"^[ \t]*(?:|[=*~^-]{3,}|[A-Z]\w+::?)[ \t]*$|^[ \t]*(?:[-*+•]|\d+[.)]|\[\d+\]|:[^:\n]+:)\s", re.MULTILINE
)
_CODE_OR_TABLE = re.compile(r"^[ \t]*(?:>>>|\.\.\.) |\S {3,}\S|::=", re.MULTILINE)
# Markup of reStructuredText: roles, quotes of code, emphasis, footnote references, second colons before code blocks.
_MARKUP = re.compile(r":[\w:]+:(?=`)|`|(?<![\w*)])\*{1,2}(?=\w)|(?<=[\w:.])\*{1,2}(?![\w*])| \[\d+\]|(?<=:):\s*$")
_OPENING = re.compile(r"[\"'“‘(]*[A-Z][\w'’-]*[\"'”’]*[,;:.]*\s")
_END = re.compile(r"[.!?:][\"'”’)]*$")
_WORD = re.compile(r"[\"'“‘(]*[^\W_]+(?:['’/-][^\W_]+)*[.,;:!?\"'”’)]*$|[-–—]+$")


def builtin_documents() -> list[str]:
    """Documents from Python's documentation: one per topic of `help()`, and one per module of the standard library.

    A document has paragraphs of prose, separated by blank lines; a module's are from its docstrings. A paragraph that
    occurs in several documents is kept in the first only, so that held-out documents share no text with the others.
    Modules are parsed, not imported; their sources may be missing. Raises `FileNotFoundError` without any document.
    """
    seen: set[str] = set()
    documents = []
    for texts in chain(_topics(), _docstrings_by_module()):
        paragraphs = dict.fromkeys(paragraph for text in texts for paragraph in _prose(text))
        document = "\n\n".join(paragraph for paragraph in paragraphs if paragraph not in seen)
        if len(document.split()) >= _MIN_WORDS:
            documents.append(document)
            seen.update(paragraphs)
    if not documents:
        raise FileNotFoundError(f"{sys.executable} comes without the documentation of Python: give a train_file.")
    return documents


def _topics() -> Iterator[list[str]]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return
    for text in sorted(topics.values(), key=lambda text: (-len(text), text)):  # long ones include short ones
        yield [text]


def _docstrings_by_module() -> Iterator[list[str]]:
    root = Path(sysconfig.get_path("stdlib"))
    for name in sorted(sys.stdlib_module_names - _LEFT_OUT):
        for file in [root / f"{name}.py", *sorted((root / name).rglob("*.py"))]:
            if file.is_file() and not _LEFT_OUT.intersection(file.relative_to(root).parts):
                yield list(_docstrings(ast.parse(file.read_bytes())))


def _docstrings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield ast.get_docstring(node) or ""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield from _docstrings(child)


def _prose(text: str) -> Iterator[str]:
    """The paragraphs that begin and end like sentences, and have at least three quarters of plain words."""
    for block in _BREAK.split(text):
        words = _MARKUP.sub("", block).split()
        paragraph = " ".join(words)
        if (
            len(words) > 3
            and not _CODE_OR_TABLE.search(block)
            and _OPENING.match(paragraph)
            and _END.search(paragraph)
            and sum(bool(_WORD.match(word)) for word in words) >= 0.75 * len(words)
        ):
            yield paragraph
