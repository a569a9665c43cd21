import gzip
import json
from collections import Counter

import datasets
import pytest

from scratch_bert.files import find_files
from scratch_bert.pretraining.text import FORMATS, TextFormat, TextSource, builtin_documents, sentence_splitter


def read(path, text_format=None, **options):
    return list(TextSource(find_files([path]), text_format, **options).documents())


@pytest.mark.parametrize(
    ("splitter", "text", "sentences"),
    [
        (
            {},
            'Mr. Smith saw Dr. Jones, e.g. at 5 p.m. on Jan. 5. "Two," she said.\nThree, on\n two lines! Four? Five.',
            [
                "Mr. Smith saw Dr. Jones, e.g. at 5 p.m. on Jan. 5.",
                '"Two," she said.',
                "Three, on two lines!",
                "Four?",
                "Five.",
            ],
        ),
        ({"language": "zh"}, "今天天气很好。我们去公园吧!", ["今天天气很好。", "我们去公园吧!"]),
        ({"language": "de"}, "Das ist z. B. gut. Sehr gut.", ["Das ist z. B. gut.", "Sehr gut."]),
        ({"name": "line"}, "no stop\n two   words. Here\n", ["no stop", "two   words. Here"]),
        ({"name": "|||"}, "One. Two ||| three\nfour |||", ["One. Two", "three four"]),
        ({}, " \n ", []),
    ],
)
def test_sentences(splitter, text, sentences):
    assert sentence_splitter(**splitter)(text) == sentences


def test_plain_text_in_its_formats(tmp_path):
    (tmp_path / "b.txt").write_bytes(b"One. Two.\nThree.\n \n\nFour.\r\n\r\nFive.")
    (tmp_path / "a.txt").write_text("\ufeffNull.", encoding="utf-8")
    (tmp_path / "ignored.md").write_text("No.")
    assert read(tmp_path) == [["Null."], ["One.", "Two.", "Three."], ["Four."], ["Five."]]
    assert read(tmp_path, "file") == [["Null."], ["One.", "Two.", "Three.", "Four.", "Five."]]
    assert read(tmp_path, splitter="line")[1] == ["One. Two.", "Three."]  # as Google's scripts take it


def test_wikitext(tmp_path):
    lines = [" ", " = The Title = ", " ", " A <unk> of 1 @,@ 000 well @-@ known words . Yes . ", " = = Section = = "]
    lines += [" More . ", " = Wins ; L = ", " ", " = Other = ", " ", " Text . "]
    expected = [
        ["The Title", "A [UNK] of 1,000 well-known words .", "Yes .", "Section", "More .", "Wins ; L"],
        ["Other", "Text ."],
    ]
    (tmp_path / "wiki.txt").write_text("\n".join(lines))
    assert read(tmp_path / "wiki.txt", "wikitext") == expected
    rows = datasets.Dataset.from_dict({"text": [line + "\n" if line.strip() else "" for line in lines]})
    assert list(TextSource([rows], "wikitext").documents()) == expected  # as the Hub has it, a row for each line


def test_gutenberg(tmp_path):
    book = (
        "\ufeffTitle: X\r\n\r\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\r\n\r\nIt was\r\na night. It rained.\r\n"
    )
    book += "\r\nThe end.\r\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\r\n\r\nLicence.\r\n"
    (tmp_path / "x.txt").write_bytes(book.encode())
    assert read(tmp_path / "x.txt", "gutenberg") == [["It was a night.", "It rained.", "The end."]]
    (tmp_path / "y.txt").write_text("No marks.\n\nAll kept.")
    assert read(tmp_path / "y.txt", "gutenberg") == [["No marks.", "All kept."]]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".json", ".jsonl", ".parquet", ".csv.gz", ".jsonl.gz", ".tsv.gz"])
def test_tables(suffix, tmp_path):
    texts = ["One.<br /><br />It&#39;s two.", "NA", "", "Three, and four."]
    rows = datasets.Dataset.from_dict({"id": list(range(4)), "review": texts})
    file = tmp_path / f"table{suffix}"
    plain = tmp_path / f"plain{suffix.removesuffix('.gz')}"
    if plain.suffix == ".csv":
        rows.to_csv(plain)
    elif plain.suffix == ".tsv":
        plain.write_text("id\treview\n" + "".join(f"{i}\t{text}\n" for i, text in enumerate(texts)))
    elif plain.suffix == ".json":
        plain.write_text(json.dumps(list(rows)))
    elif plain.suffix == ".jsonl":
        plain.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        rows.to_parquet(plain)
    file.write_bytes(gzip.compress(plain.read_bytes()) if suffix.endswith(".gz") else plain.read_bytes())
    skipped = Counter()
    source = TextSource([file], "html", "review")
    assert list(source.documents(skipped)) == [["One.", "It's two."], ["NA"], ["Three, and four."]]
    assert +skipped == {"rows without text": 1}
    with pytest.raises(ValueError, match=r"has no column 'text', but id, review\. See --text_column"):
        list(TextSource([file]).documents())


def test_files_directories_and_globs(tmp_path):
    for name in ("b.txt.gz", "a.txt", "sub/c.jsonl", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    names = [file.name for file in find_files([tmp_path])]
    assert names == ["a.txt", "b.txt.gz", "c.jsonl"]
    assert [file.name for file in find_files([tmp_path / "*.txt*", tmp_path / "a.txt"])] == ["a.txt", "b.txt.gz"]
    assert [file.name for file in find_files([tmp_path / "**" / "*.jsonl", tmp_path / "notes.md"])] == [
        "c.jsonl",
        "notes.md",
    ]
    (tmp_path / "[1].txt").write_text("A name that is no glob.")
    assert len(find_files([tmp_path / "[1].txt"])) == 1
    for bad in ("nowhere", "*.nothing"):
        with pytest.raises(FileNotFoundError, match="no file or directory"):
            find_files([tmp_path / bad])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty holds no file of type .txt, .csv"):
        find_files([tmp_path / "empty"])


def test_what_cannot_be_read_is_named(tmp_path):
    latin = tmp_path / "latin.txt"
    latin.write_bytes("Eins.\n\nStraße.".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin.txt is not UTF-8 text: line 3 holds the byte 0xdf.*iconv"):
        read(latin)
    cut = tmp_path / "cut.txt.gz"
    cut.write_bytes(gzip.compress(b"word " * 1000 + b"\n")[:-20])
    with pytest.raises(ValueError, match="cut.txt.gz cannot be unpacked"):
        read(cut)
    not_packed = tmp_path / "plain.txt.gz"
    not_packed.write_text("Plain.")
    with pytest.raises(ValueError, match="plain.txt.gz cannot be unpacked"):
        read(not_packed)
    for name, content, message in (
        ("bad.jsonl", b'{"text": "One."}\n{"text": ', "cannot be read as a table"),
        ("bad.parquet", b"no", "cannot be read as a table"),
        ("latin.csv", b"text\n\xdf\n", "is not UTF-8 text after row 0"),
        ("cut.csv.gz", gzip.compress(b"text\n" + b"word \n" * 1000)[:-20], "cannot be read as a table"),
        ("list.jsonl", b'{"text": ["a"]}\n', "row 1 holds no text in 'text', but a list"),
        ("number.jsonl", b'{"text": 1}\n', "row 1 holds no text in 'text', but a int"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}.* {message}"):
            read(tmp_path / name)
    with pytest.raises(ValueError, match="text_format must be one of blank_line, file, .*; got 'page'"):
        TextSource([latin], "page")


def test_empty_files_are_counted(tmp_path, caplog):
    (tmp_path / "a.txt").write_text(" \n\n")
    (tmp_path / "b.txt").write_text("Text.")
    (tmp_path / "c.jsonl").write_text("")
    (tmp_path / "d.csv").write_text("")
    (tmp_path / "e.md").write_text("No.")
    skipped = Counter()
    assert list(TextSource(find_files([tmp_path])).documents(skipped)) == [["Text."]]
    assert +skipped == {"files without text": 1, "rows without text": 2}
    assert "left out 1 files of other types (.md)" in caplog.text


def test_names_that_look_like_patterns(tmp_path):
    """A table of that name is read, not those that its name as a pattern would match."""
    (tmp_path / "data[1].csv").write_text("text\n007\n2.50\nNA\n")
    (tmp_path / "data1.csv").write_text("text\nImpostor.\n")
    assert read(tmp_path / "data[1].csv") == [["007"], ["2.50"], ["NA"]]
    (tmp_path / "X.TXT.GZ").write_bytes(gzip.compress(b"Loud."))
    (tmp_path / "sub.txt").mkdir()
    (tmp_path / "sub.txt" / "a.txt").write_text("Below.")
    assert read(tmp_path / "*.[tT]*") == [["Loud."], ["Below."]]


def test_a_format_of_ones_own(tmp_path, monkeypatch):
    def read_log(lines):
        for line in lines:
            if line == "--":
                yield None
            else:
                yield line.partition(": ")[2]

    monkeypatch.setitem(FORMATS, "log", TextFormat("a line -- ends a document", read_log))
    (tmp_path / "x.log").write_text("1: Up.\n2: Down.\n--\n3: Up.")
    assert read(tmp_path / "x.log", "log") == [["Up.", "Down."], ["Up."]]


def test_a_paragraph_of_very_many_lines_stays_one_document(tmp_path):
    (tmp_path / "long.txt").write_text("".join(f"{i}\n" for i in range(25_000)) + "\nEnd.")
    source = TextSource(find_files([tmp_path]), splitter="line")
    assert max(paragraph.count("\n") for paragraph in source) < 10_000
    documents = list(source.documents())
    assert [len(document) for document in documents] == [25_000, 1]


def test_the_fingerprint_follows_the_content_and_the_settings(tmp_path):
    (tmp_path / "a.txt").write_text("One.")
    (tmp_path / "b.txt").write_text("One.")

    def fingerprint(name, *settings):
        return TextSource([tmp_path / name], *settings).fingerprint

    first = fingerprint("a.txt")
    assert fingerprint("b.txt") == first
    assert fingerprint("a.txt", "file") != first
    (tmp_path / "a.txt").write_text("Two.")
    assert fingerprint("a.txt") != first


def test_builtin_corpus(documents):
    sentences = [sentence for document in documents for sentence in document]
    assert len(documents) > 40
    assert 30_000 < sum(len(sentence.split()) for sentence in sentences) < 70_000
    assert builtin_documents() == builtin_documents()
    text = "\n".join(sentences)
    for remnant in ("====", "****", "----", "::=", ">>> ", "\n\n"):
        assert remnant not in text, remnant
    # No paragraph in two documents: what is held out is not trained on.
    long = [s for document in documents for s in set(document) if len(s.split()) > 12]
    assert len(set(long)) > 0.99 * len(long)
