"""The formats of text: how lines become documents and paragraphs. Here, so that `--help` shows them."""

import html
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, dropwhile, islice, tee
from typing import NamedTuple


UNK_TOKEN = "[UNK]"  # in a text: a word that the corpus itself replaces, as WikiText-2 does with <unk>
MAX_LINES = 10_000  # a longer paragraph is read in several pieces, to bound memory


class TextFormat(NamedTuple):
    """A way to split text into documents and paragraphs."""

    description: str
    read: Callable[[Iterable], Iterator]
    """Function from the lines of a file, or of a table's record, to paragraphs, with `None` where a document ends.

    The end of a file or record always ends its last document.
    """
    records_are_lines: bool = False
    """Whether the records of a table are the lines of one text, which holds many documents."""
    mark: re.Pattern | None = None
    """What only lines of this format begin with, for a hint."""
    version: int = 1
    """Raise it when `read` changes: stale caches are then rebuilt."""


def _end_at_blank_lines(lines: Iterable[str]) -> Iterator[str | None]:
    paragraph: list[str] = []
    for line in chain(lines, [""]):
        blank = not line.strip()
        if not blank:
            paragraph.append(line)
        if paragraph and (blank or len(paragraph) == MAX_LINES):
            yield "\n".join(paragraph)
            paragraph = []
        if blank:
            yield None


def _one_document(lines: Iterable[str]) -> Iterator[str]:
    return (paragraph for paragraph in _end_at_blank_lines(lines) if paragraph is not None)


_WIKITEXT_HEADING = re.compile(r" ((?:= )+)(.+?)(?: =)+ ?$")
_WIKITEXT_JOINED = re.compile(r" @([-,.])@ ")


def _wikitext(lines: Iterable[str]) -> Iterator[str | None]:
    before, here, after = tee(chain([""], lines, [""]), 3)
    for previous, line, following in zip(before, islice(here, 1, None), islice(after, 2, None), strict=False):
        heading = _WIKITEXT_HEADING.match(line)
        # Blank lines around it tell a title from a table's " = Wins ; L = ".
        if heading and heading[1] == "= " and not previous.strip() and not following.strip():
            yield None
        text = heading[2] if heading else line
        if text.strip():
            yield _WIKITEXT_JOINED.sub(r"\1", text).replace("<unk>", UNK_TOKEN)


# Today's markers, and those of books before 2003.
_GUTENBERG_START = re.compile(r"\*\*\* ?START OF|\*END\*? ?THE SMALL PRINT")
_GUTENBERG_END = re.compile(r"\*\*\* ?END OF|^End of (the |this )?Project Gutenberg", re.MULTILINE)


def _gutenberg(lines: Iterable[str]) -> Iterator[str | None]:
    lines = iter(lines)
    head = list(islice(lines, 1000))
    starts = [number for number, line in enumerate(head, 1) if _GUTENBERG_START.match(line)]
    text = chain(head[starts[0] if starts else 0 :], lines)
    ended = True
    while ended:  # the next book of the file, if there is one
        ended = False
        for paragraph in _one_document(text):
            end = _GUTENBERG_END.search(paragraph)
            yield " ".join(paragraph[: end.start() if end else None].split("\n"))
            if end:
                text = chain(paragraph[end.end() :].split("\n"), text)
                ended, text = True, islice(dropwhile(lambda line: not _GUTENBERG_START.match(line), text), 1, None)
                yield None
                break


# Inline elements, and all others of HTML, current and obsolete: other words in <> are text.
_INLINE = (
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark meter nobr output "
    "progress q rb rp rt ruby s samp slot small span strike strong sub sup time tt u var wbr"
)
_OTHERS = (
    "!doctype address applet area article aside audio base basefont blockquote body br button canvas caption "
    "center col colgroup datalist dd details dialog dir div dl dt embed fieldset figcaption figure footer form "
    "frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe input legend li link main map menu meta "
    "nav noframes noscript object ol optgroup option p param picture pre search section select source summary svg "
    "table tbody td template textarea tfoot th thead title tr track ul video"
)
_ATTRIBUTES = r"""(?=[\s/>])(?:[^<>"']|"[^"]*"|'[^']*')*"""
_INLINE_TAG, _LINE_BREAK_TAG = (
    re.compile(rf"</?({'|'.join(names.split())}){_ATTRIBUTES}>", re.I) for names in (_INLINE, _OTHERS)
)
_HIDDEN = re.compile(r"<!--.*?-->|<(script|style)\b.*?</\1\s*>", re.I | re.DOTALL)


def _html_line_breaks(lines: Iterable[str]) -> Iterator[str]:
    lines = iter(lines)
    batches = iter(lambda: list(islice(lines, MAX_LINES)), [])  # to bound memory
    texts = (
        _INLINE_TAG.sub("", _HIDDEN.sub("", "\n".join(batch))) for batch in batches
    )  # a tag may have several lines
    return _one_document(html.unescape(line) for text in texts for line in _LINE_BREAK_TAG.sub("\n", text).split("\n"))


def _fasta(lines: Iterable[str]) -> Iterator[str | None]:
    letters: list[str] = []
    for line in chain(lines, [">"]):
        if not line.startswith((">", ";")):
            letters.append(line.strip())
            continue
        if sequence := "".join(letters).removesuffix("*"):  # which marks the end of some proteins
            yield sequence
        yield None
        letters = []


_WIKIEXTRACTOR_TAG = re.compile(r"<doc id=|</doc>")


def _wikiextractor(lines: Iterable[str]) -> Iterator[str | None]:
    for line in lines:
        if _WIKIEXTRACTOR_TAG.match(line):
            yield None
        elif line.strip():
            yield html.unescape(line)


# To add a format, add an entry, here or from outside: `FORMATS["mine"] = TextFormat("…", read_mine)`.
FORMATS = {
    "blank_line": TextFormat("a blank line ends a document", _end_at_blank_lines),
    "file": TextFormat(
        "a file, or a record of a table, is a document, and blank lines separate its paragraphs", _one_document
    ),
    "wikitext": TextFormat(
        "' = Title = ' begins a document, as in WikiText", _wikitext, records_are_lines=True, mark=_WIKITEXT_HEADING
    ),
    "wikiextractor": TextFormat(
        "<doc id=…> begins a document, as in WikiExtractor's output", _wikiextractor, mark=_WIKIEXTRACTOR_TAG
    ),
    "gutenberg": TextFormat(
        "Project Gutenberg books, without the licence", _gutenberg, mark=_GUTENBERG_START, version=3
    ),
    "fasta": TextFormat(
        "each sequence is a document, without its header", _fasta, version=2, mark=re.compile(r">[\w|.]*\d")
    ),
    "html": TextFormat(
        "like file, but tags such as <br> and <p> are line breaks, other HTML tags are dropped, and &amp; etc. decoded",
        _html_line_breaks,
        version=4,
    ),
}
