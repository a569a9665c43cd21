import gzip
import re

import pytest

from scratch_bert.text.tables import TextError, find_files, open_table, read_lines, read_table


def test_find_files_in_directories_and_by_globs(tmp_path):
    for name in ("b.txt.gz", "a.txt", "sub/c.jsonl", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")

    def names(*paths):
        return [file.name for file in find_files([tmp_path / path for path in paths])]

    assert names("") == ["a.txt", "b.txt.gz", "c.jsonl"]
    assert names("*.txt*", "a.txt") == ["a.txt", "b.txt.gz"]
    assert names("**/*.jsonl", "notes.md") == ["c.jsonl", "notes.md"]
    (tmp_path / "[1].txt").write_text("A name that is no glob.")
    assert names("[1].txt") == ["[1].txt"]


def test_find_files_ignores_the_case_of_a_suffix_and_takes_a_directory_by_a_glob(tmp_path):
    (tmp_path / "X.TXT.GZ").touch()
    (tmp_path / "sub.txt").mkdir()
    (tmp_path / "sub.txt" / "a.txt").touch()
    assert find_files([tmp_path / "*.[tT]*"]) == [tmp_path / "X.TXT.GZ", tmp_path / "sub.txt" / "a.txt"]


def test_find_files_tells_what_it_leaves_out(tmp_path, caplog):
    for name in ("a.txt", "e.md", "LICENSE", "._a.txt"):
        (tmp_path / name).touch()
    (tmp_path / "b.txt").symlink_to(tmp_path / "none")
    assert find_files([tmp_path]) == [tmp_path / "a.txt"]
    assert f"{tmp_path}: left out ._a.txt, LICENSE, b.txt and 1 more, which are hidden" in caplog.text


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "no file or directory .*nowhere"),
        ("*.nothing", r"no file or directory .*\*.nothing"),
        ("empty", "empty holds no file of type .txt, .csv"),
    ],
)
def test_find_files_names_what_is_missing(path, message, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=message):
        find_files([tmp_path / path])


def test_find_files_takes_no_empty_name_which_would_be_the_current_directory():
    with pytest.raises(ValueError, match="The name of a file is empty"):
        find_files([__file__, ""])


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzipped"])
def test_lines_come_without_their_ends_and_byte_order_mark(pack, tmp_path):
    file = tmp_path / ("a.txt.gz" if pack is gzip.compress else "a.txt")
    file.write_bytes(pack("\ufeffOne\r\n\n Two\x0bhalves\nÜ".encode()))
    assert list(read_lines(file)) == ["One", "", " Two\x0bhalves", "Ü"]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(("name", "separator"), [("data[1].csv", ","), ("data[1].tsv", "\t")])
def test_table_is_the_file_of_that_name_and_its_text_as_it_stands(name, separator, streaming, tmp_path):
    """Not the files that the name as a pattern would match."""
    (tmp_path / name).write_text(
        "".join(f"{separator.join(cells)}\n" for cells in (("id", "text"), ("1", "007"), ("2", "2.50"), ("3", "NA")))
    )
    (tmp_path / re.sub(r"[\[\]]", "", name)).write_text(f"id{separator}text\n9{separator}Impostor.\n")
    records = list(open_table(tmp_path / name, ["text"], streaming=streaming))
    assert [record["text"] for record in records] == ["007", "2.50", "NA"]
    assert [record["id"] for record in records] == [1, 2, 3]


def test_table_of_tabs_has_no_quotes(tmp_path):
    (tmp_path / "a.tsv").write_text('text\n"Open.\nEnd"\n')
    assert [record["text"] for record in open_table(tmp_path / "a.tsv", ["text"])] == ['"Open.', 'End"']


TEXT = "One sentence. And two.\nThree lines here.\n" * 20
NOT_TEXT = {
    "gz": (gzip.compress(TEXT.encode(), mtime=0), "is not text, but compressed with gzip: rename it to end in .gz"),
    "zip": (b"PK\x03\x04\x14\x00\x00\x00\x08\x00", "is not text, but a zip archive"),
    "PDF": (b"%PDF-1.7\n1 0 obj\n", "is not text, but a PDF"),
    "parquet": (b"PAR1\x15\x04\x15\x00\xd8", "is not text, but a parquet file"),
    "SQLite": (b"SQLite format 3\x00" + bytes(50), "is not text, but an SQLite database"),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is not text, but a Git LFS pointer"),
    "late NUL": (b"One.\n" * 3000 + b"T\0wo.\n", "is not text: line 3001 holds a NUL byte"),
    "UTF-16": (TEXT.encode("utf-16"), "line 1 holds a NUL byte, as binary data and UTF-16 do"),
    "UTF-16LE": (TEXT.encode("utf-16-le"), "line 1 holds a NUL byte, as binary data and UTF-16 do"),
    "Latin-1": ("Eins.\n\nStraße.".encode("latin-1"), "line 3 holds the byte 0xdf.* iconv -f latin1"),
    "cp1252": ("One.\n“Two words.”\n".encode("cp1252"), "line 2 holds the byte 0x93.* iconv -f cp1252"),
    "cp1251": ("Это обычный русский текст.\n".encode("cp1251") * 9, "line 1 holds the byte 0xdd.* iconv -f cp1251"),
    "gb18030": ("今天天气很好,我们去公园散步吧。\n".encode("gb18030") * 9, "is not UTF-8 text: .* iconv -f gb"),
}


@pytest.mark.parametrize(
    ("content", "ending"),
    [(content, ending) for content in NOT_TEXT for ending in (".txt", ".txt.gz")]
    + [("zip", ".csv"), ("zip", ".jsonl"), ("UTF-16", ".csv")],
)
def test_file_that_is_not_text_says_what_it_is(content, ending, tmp_path):
    (data, message), file = NOT_TEXT[content], tmp_path / f"a file{ending}"
    file.write_bytes(gzip.compress(data) if ending == ".txt.gz" else data)
    is_table = not ending.startswith(".txt")
    with pytest.raises(TextError, match=message) as error:
        open_table(file, ["text"]) if is_table else list(read_lines(file))
    assert "\n" not in str(error.value) and str(file) in str(error.value)


@pytest.mark.parametrize("start", ["PAR1", "PK", "PDF", "SQLite", "version https"])
def test_text_that_begins_like_another_kind_of_file_is_text(start, tmp_path):
    (tmp_path / "a.txt").write_text(f"{start} is a word, größer.\n" * 200, encoding="utf-8")
    assert len(list(read_lines(tmp_path / "a.txt"))) == 200


def test_lines_of_old_macs_are_lines(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"One.\rTwo.\r\rThree.")
    assert list(read_lines(tmp_path / "a.txt")) == ["One.", "Two.", "", "Three."]
    (tmp_path / "b.txt").write_bytes(b"One.\rTwo.\r\n\rThree.\n")  # has other line ends
    assert list(read_lines(tmp_path / "b.txt")) == ["One.\rTwo.", "\rThree."]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"[1, 2]\n[3]\n", "Trailing data"),
        ("a.jsonl", b"null\n", "does not hold JSON objects"),  # which crashes datasets
        ("a.jsonl", b'{"text": ', "JSON parse error"),
        ("a.json", b"[]", "contains no records"),
        ("a.csv", b"text,text\na,b\n", "has two columns 'text'"),
        ("a.csv", b"text\nWell, some text\n", "the first record has 2 fields, the header 1"),
        ("a.csv.gz", gzip.compress(b"text\n" + b"word \n" * 1000)[:-20], "end-of-stream marker"),
        ("a.csv", b"text\n" + b"a\n" * 9000 + b"\xdf\n", "is not UTF-8 text: it holds the byte 0xdf.* iconv"),
        ("a.parquet", b"text\nOne.\n", "magic bytes not found"),
        ("a.parquet", b"", "is empty"),
    ],
)
def test_table_that_is_damaged_or_of_another_kind_is_named(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TextError, match=f"{name}.*{message}") as error:
        read_table(tmp_path / name, {"text"})
    assert "\n" not in str(error.value)
