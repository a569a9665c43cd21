import base64
import gzip
import json
import random
import re
import textwrap
from collections import Counter
from functools import partial

import datasets
import pandas
import pytest

from scratch_bert.text import formats as text_module
from scratch_bert.text.files import TextError, find_files
from scratch_bert.text.formats import FORMATS, REPLACEMENT, TextFormat, TextSource, replace_encoded, sentence_splitter


def read(path, text_format=None, **options):
    return list(TextSource(find_files([path]), text_format, **options).documents())


@pytest.mark.parametrize(
    ("splitter", "text", "sentences"),
    [
        pytest.param(
            {},
            'Mr. Smith saw Dr. Jones, e.g. at 5 p.m. on Jan. 5. "Two," she said.\nThree, on\n two lines! Four? Five.',
            [
                "Mr. Smith saw Dr. Jones, e.g. at 5 p.m. on Jan. 5.",
                '"Two," she said.',
                "Three, on two lines!",
                "Four?",
                "Five.",
            ],
            id="English",
        ),
        pytest.param(
            {"language": "zh"}, "今天天气很好。我们去公园吧!", ["今天天气很好。", "我们去公园吧!"], id="Chinese"
        ),
        pytest.param(
            {"language": "de"}, "Das ist z. B. gut. Sehr gut.", ["Das ist z. B. gut.", "Sehr gut."], id="German"
        ),
        pytest.param({"name": "line"}, "no stop\n two   words. Here\n", ["no stop", "two   words. Here"], id="lines"),
        pytest.param({"name": "line"}, "a\u2028b\r\nc\x85d\re\x0cf", ["a\u2028b", "c\x85d", "e\x0cf"], id="line ends"),
        pytest.param({"name": "|||"}, "One. Two ||| three\nfour |||", ["One. Two", "three four"], id="delimiter"),
        pytest.param({"name": "\t"}, "One.  Two\n\tthree", ["One. Two", "three"], id="tab"),
        pytest.param({}, " \n ", [], id="blank"),
    ],
)
def test_sentence_splitter(splitter, text, sentences):
    assert sentence_splitter(**splitter)(text) == sentences


# --------------------------------------------------------------------------------------------------------- formats


def test_plain_text_in_its_formats(tmp_path):
    (tmp_path / "b.txt").write_bytes(b"One. Two.\nThree.\n \n\nFour.\r\n\r\nFive.")
    (tmp_path / "a.txt").write_text("\ufeffNull.", encoding="utf-8")
    (tmp_path / "ignored.md").write_text("No.")
    assert read(tmp_path) == [["Null."], ["One.", "Two.", "Three."], ["Four."], ["Five."]]
    assert read(tmp_path, "file") == [["Null."], ["One.", "Two.", "Three.", "Four.", "Five."]]
    assert read(tmp_path, splitter="line")[1] == ["One. Two.", "Three."]  # as Google's scripts take it


def test_wikitext_begins_a_document_with_a_title(tmp_path):
    lines = [" ", " = The Title = ", " ", " A <unk> of 1 @,@ 000 well @-@ known words . Yes . ", " = = Section = = "]
    lines += [" More . ", " = Wins ; L = ", " ", " = Other = ", " ", " Text . "]
    expected = [
        ["The Title", "A [UNK] of 1,000 well-known words .", "Yes .", "Section", "More .", "Wins ; L"],
        ["Other", "Text ."],
    ]
    (tmp_path / "wiki.txt").write_text("\n".join(lines))
    assert read(tmp_path / "wiki.txt", "wikitext") == expected
    records = datasets.Dataset.from_dict({"text": [line + "\n" if line.strip() else "" for line in lines]})
    assert list(TextSource([records], "wikitext").documents()) == expected  # as the Hub has it, a record for each line


def test_wikiextractor_marks_documents(tmp_path):
    doc = '<doc id="{0}" url="https://x?curid={0}" title="T{0}">\nT{0}\n\nOne &lt;b&gt;. Two.\n\nThree.\n\n</doc>\n'
    (tmp_path / "wiki_00").write_text(doc.format(1) + doc.format(2))
    expected = [[f"T{number}", "One <b>.", "Two.", "Three."] for number in (1, 2)]
    assert read(tmp_path / "wiki_00", "wikiextractor") == expected
    assert "text_format=wikiextractor" in TextSource([tmp_path / "wiki_00"]).document_hint(9, 30)


def test_html_shows_no_scripts_and_comments(tmp_path):
    page = "<style>\np { color: red }\n</style><p>One.<!-- not\nthis --></p><script>var x = 1;</script>\n<p>Two <a title='a>b'>more</a>.</p>"
    (tmp_path / "a.txt").write_text(page)
    assert read(tmp_path / "a.txt", "html") == [["One.", "Two more."]]


def test_html_leaves_out_every_tag_of_html_and_no_other(tmp_path):
    page = '<!DOCTYPE html><html lang="en"><head><title>One.</title></head><body><main><p>A <a\nhref="http://x" class="c">link</a>'
    page += " and su<wbr>per, x<y and b <i>x</i><div\nclass='x'>Two <tei:w> <unknown>.</div><br\n/><footer>End.</footer></html>"
    (tmp_path / "x.txt").write_text(page)
    expected = ["One.", "A link and super, x<y and b x", "Two <tei:w> <unknown>.", "End."]
    assert read(tmp_path / "x.txt", "html", splitter="line") == [expected]


def test_fasta_has_a_document_for_each_record(tmp_path):
    (tmp_path / "p.fasta").write_text(">sp|P1 a protein\nMKV\nLAA*\n\n>P2\nACDE\n>empty\n")
    assert read(tmp_path / "p.fasta", "fasta") == [["MKVLAA"], ["ACDE"]]
    assert "text_format=fasta" in TextSource([tmp_path / "p.fasta"]).document_hint(1, 1)
    records = TextSource.from_texts([">a\nMKV\nLAA", "ACDE", ">b\nWY\n>c\nGG"], text_format="fasta")
    assert [*records.documents()] == [["MKVLAA"], ["ACDE"], ["WY"], ["GG"]]


def test_gutenberg_leaves_out_the_licence(tmp_path):
    book = "\ufeffTitle: X\r\n\r\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\r\n\r\nIt was\r\na night. "
    book += "It rained.\r\n\r\nThe end.\r\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\r\n\r\nLicence.\r\n"
    (tmp_path / "x.txt").write_bytes(book.encode())
    assert read(tmp_path / "x.txt", "gutenberg") == [["It was a night.", "It rained.", "The end."]]
    (tmp_path / "two.txt").write_bytes(2 * book.encode())
    assert read(tmp_path / "two.txt", "gutenberg") == 2 * [["It was a night.", "It rained.", "The end."]]
    old = "Etext of X\n*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n\nIt was.\n\nEnd of the Project "
    (tmp_path / "old.txt").write_text(f"{old}Gutenberg Etext of X\n")
    assert read(tmp_path / "old.txt", "gutenberg") == [["It was."]]
    (tmp_path / "close.txt").write_text(2 * "*** START OF X ***\n\nIt was.\n*** END OF X ***\n")
    assert read(tmp_path / "close.txt", "gutenberg") == [["It was."]] * 2
    (tmp_path / "y.txt").write_text("No marks.\n\nAll kept.")
    assert read(tmp_path / "y.txt", "gutenberg") == [["No marks.", "All kept."]]


def read_log(lines, separator):
    for line in lines:
        yield None if line == "--" else line.partition(separator)[2]


def test_breaks_within_a_line_are_spaces(tmp_path):
    (tmp_path / "x.txt").write_text("One\vtwo.\fThree\x85four.")
    assert read(tmp_path / "x.txt", None) == [["One two.", "Three four."]]
    assert [*TextSource([tmp_path / "x.txt"])] == ["One two. Three four."]


def test_text_format_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setitem(FORMATS, "log", TextFormat("a line -- ends a document", partial(read_log, separator=": ")))
    (tmp_path / "x.log").write_text("1: Up.\n2: Down.\n--\n3: Up.")
    assert read(tmp_path / "x.log", "log") == [["Up.", "Down."], ["Up."]]
    assert len(TextSource([tmp_path / "x.log"], "log").fingerprint) == 32


# --------------------------------------------------------------------------------------------------------- sources


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".json", ".jsonl", ".parquet", ".csv.gz", ".jsonl.gz", ".tsv.gz"])
def test_table_gives_a_document_for_each_record(suffix, tmp_path):
    texts = ["One.<br /><br />It&#39;s two.", "NA", "", "Three, and four."]
    records = datasets.Dataset.from_dict({"id": list(range(4)), "review": texts})
    file, plain = tmp_path / f"table{suffix}", tmp_path / f"plain{suffix.removesuffix('.gz')}"
    if plain.suffix == ".tsv":
        plain.write_text("id\treview\n" + "".join(f"{i}\t{text}\n" for i, text in enumerate(texts)))
    elif plain.suffix == ".json":
        plain.write_text(json.dumps(list(records)))
    else:
        {".csv": records.to_csv, ".jsonl": records.to_json, ".parquet": records.to_parquet}[plain.suffix](plain)
    file.write_bytes(gzip.compress(plain.read_bytes()) if suffix.endswith(".gz") else plain.read_bytes())
    source = TextSource([file], "html", "review")
    assert list(source.documents()) == [["One.", "It's two."], ["NA"], ["Three, and four."]]
    skipped = Counter()
    assert list(source) == [paragraph for paragraph in source.paragraphs(skipped) if paragraph is not None]
    assert +skipped == {"records without text": 1}
    with pytest.raises(TextError, match=r"has no column 'text', only id, review: set text_column"):
        list(TextSource([file]).documents())


def test_table_whose_texts_are_lists_is_named(tmp_path):
    (tmp_path / "list.jsonl").write_text('{"text": [1]}\n')
    with pytest.raises(TextError, match="list.jsonl: record 1 is list, not text"):
        read(tmp_path / "list.jsonl")


def test_frame_with_two_columns_of_a_name_is_rejected():
    frame = pandas.DataFrame([["One.", "Two."]], columns=["text", "text"])
    with pytest.raises(TextError, match="Several columns have the same name"):
        TextSource.from_texts(frame)


def test_text_that_lost_its_characters_is_counted(tmp_path):
    (tmp_path / "a.txt").write_text("Stra\ufffde f\ufffdr f\ufffdr.")
    skipped = Counter()
    list(TextSource([tmp_path / "a.txt"]).paragraphs(skipped))
    assert +skipped == {REPLACEMENT: 3}


def test_long_paragraph_is_split_as_its_sentences_are(monkeypatch):
    monkeypatch.setattr(text_module, "MAX_PIECE", 200)
    sentences = [f"This is the sentence no. {number}, as Mr. Smith said it." for number in range(50)]
    split = sentence_splitter()
    assert split(" ".join(sentences)) == sentences
    long = "word " * 100
    assert split(f"{sentences[0]} {long.strip()}. {sentences[1]}")[0] == sentences[0]
    assert " ".join(split(long)) == long.strip()  # no sentence ends
    assert "".join(split("x" * 1000)) == "x" * 1000


def test_table_without_records_has_no_text(tmp_path):
    (tmp_path / "a.csv").write_text("id,text\n")
    datasets.Dataset.from_dict({"text": ["One."]}).select([]).to_parquet(tmp_path / "b.parquet")
    skipped = Counter()
    source = TextSource(find_files([tmp_path]))
    assert list(source.sentences(skipped)) == []


def test_sentences_come_by_paragraph_and_what_has_none_is_counted(tmp_path):
    (tmp_path / "a.txt").write_text(" \n\n")
    (tmp_path / "b.txt").write_text("One. Two.\n\n|||\n\nThree.")
    (tmp_path / "c.jsonl").write_text("")
    (tmp_path / "d.csv").write_text("")
    (tmp_path / "e.csv").write_text('text\n"Four.\n\n|||\n\nFive."\n|||\n')
    source = TextSource(find_files([tmp_path]), splitter="|||")
    skipped = Counter()
    assert list(source.sentences(skipped)) == [["One. Two."], None, ["Three."], None, ["Four."], ["Five."], None]
    assert +skipped == {"files without text": 1, "records without text": 2, "documents without a sentence": 2}
    assert list(source.sentences()) == list(source.sentences(skipped))  # and each iteration reads it again
    assert skipped["documents without a sentence"] == 4
    assert list(source.documents()) == [["One. Two."], ["Three."], ["Four.", "Five."]]


def test_paragraph_of_very_many_lines_stays_one_document(tmp_path):
    (tmp_path / "long.txt").write_text("".join(f"{i}\n" for i in range(25_000)) + "\nEnd.")
    source = TextSource(find_files([tmp_path]), splitter="line")
    assert max(paragraph.count("\n") for paragraph in source) < 10_000
    documents = list(source.documents())
    assert [len(document) for document in documents] == [25_000, 1]


@pytest.mark.parametrize(
    ("text", "documents", "hint"),
    [
        ("<!DOCTYPE html>\n<html><body><p>One.</p>", (1, 3), "a.txt is a web page, whose tags are read as text"),
        ("*** START OF THE PROJECT GUTENBERG EBOOK X ***\n\nOne.\n", (3, 3), "text_format=gutenberg"),
        (" = Title = \n\n One .\n = = Part = = \n\n = = Other = = \n", (3, 9), "text_format=wikitext"),
        (
            "One.\n\nTwo.\n",
            (6556, 20000),
            "6,556 documents from 1 files: a blank line ends a document. If each file is",
        ),
        ("One.\nTwo.\n", (1, 5000), "1 documents from 1 files: a blank line .*, and there are none. .* sed G"),
        ("One.\n\nTwo.\n", (60, 600), None),
    ],
)
def test_number_of_documents_that_looks_wrong_gives_a_hint(text, documents, hint, tmp_path):
    (tmp_path / "a.txt").write_text(text)
    found = TextSource([tmp_path / "a.txt"]).document_hint(*documents)
    assert re.search(hint, found) if hint else not found
    assert not TextSource([tmp_path / "a.txt"], "blank_line").document_hint(*documents)
    assert not TextSource([[text]]).document_hint(*documents)


def test_sentences_that_are_not_found_give_a_hint():
    text = TextSource([["ภาษาไทย " * 200]], language="th")
    assert "a sentence has 400 tokens on average" in text.document_hint(10, 10, 4000)
    assert not text.document_hint(10, 100, 4000)


def test_delimiter_that_occurs_nowhere_gives_a_hint():
    assert "the delimiter '|||' is in no document" in TextSource([["One. Two."]], splitter="|||").document_hint(1, 1)


ENCODED = base64.b64encode(random.Random(0).randbytes(3001)).decode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(f"An image {ENCODED} here.", "An image [UNK] here.", id="base64"),
        pytest.param(f"src='data:image/png;base64,{ENCODED}'", "src='data:image/png;base64,[UNK]'", id="data URI"),
        pytest.param("A\n" + "\n".join(textwrap.wrap(ENCODED, 76)) + "\nB", "A\n[UNK]\nB", id="base64 in lines"),
        pytest.param(ENCODED.replace("/", "_").replace("+", "-"), "[UNK]", id="for URLs"),
        pytest.param(f"{'0123456789abcdef' * 20}", "[UNK]", id="hexadecimal"),
        *[
            pytest.param(text, text, id=name)
            for name, text in {
                "a word beyond BERT's limit, which is the tokenizer's business": "ACGT" * 30,
                "wrapped DNA": "ACGT" * 15 + "\n" + "TGCA" * 15,
                "rule": "Title\n" + "-" * 200,
                "link": "https://example.org/" + "a-long-title-with-words/" * 9,
                "Chinese": "今天天气很好" * 50,
                "Thai": "สวัสดีครับ" * 50,
                "hash": "0123456789abcdef" * 4,
            }.items()
        ],
    ],
)
def test_encoded_data_is_an_unknown_word(text, expected):
    replaced = int("[UNK]" in expected)
    assert replace_encoded(text) == (expected, replaced)
    skipped = Counter()
    [paragraph, _] = TextSource([[text]]).paragraphs(skipped)
    assert paragraph == expected and skipped.total() == replaced


def test_sentence_without_end_is_cut_at_a_space(monkeypatch):
    monkeypatch.setattr(text_module, "MAX_SENTENCE", 20)
    split = sentence_splitter("line")("word " * 6 + "\n" + "x" * 30)
    assert split == ["word word word word", "word word", "x" * 20, "x" * 10]


# ----------------------------------------------------------------------------------------------------- fingerprint


@pytest.fixture
def fingerprint(tmp_path):
    def of(name="a.txt", text="One.", **settings):
        (tmp_path / name).write_text(text)
        return TextSource([tmp_path / name], **settings).fingerprint

    return of


def test_fingerprint_follows_the_content(fingerprint):
    assert fingerprint("b.txt") == fingerprint()
    assert len({fingerprint(), fingerprint(text="Two."), fingerprint("a.csv")}) == 3
    texts = [TextSource([[text]]).fingerprint for text in ("One.", "One.", "Two.")]
    assert texts[0] == texts[1] != texts[2]


def test_fingerprint_follows_the_settings(fingerprint):
    settings = ({}, {"text_format": "html"}, {"text_column": "body"}, {"splitter": "line"}, {"language": "de"})
    assert len({fingerprint("a.csv", **each) for each in settings}) == len(settings)


def test_fingerprint_follows_the_version_of_a_text_format_but_not_its_code(fingerprint, monkeypatch):
    def with_format(read, **options):
        monkeypatch.setitem(FORMATS, "mine", TextFormat("mine", read, **options))
        return fingerprint(text_format="mine")

    first = with_format(lambda lines: iter(lines))
    assert with_format(lambda lines: (line for line in lines)) == first
    assert with_format(lambda lines: iter(lines), version=2) != first
    before = fingerprint()
    monkeypatch.setitem(FORMATS, "file", FORMATS["file"]._replace(version=2))
    assert fingerprint() != before  # the default of tables
