import bz2
import gzip
import lzma
import pickle
import re

import pytest

from scratch_bert.text.tables import TextError, find_files, open_dataset, open_table, read_lines


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


@pytest.mark.parametrize(
    ("name", "message"), [("", "The name of a file is empty"), ("https://a.org/x.txt", "https://a.org/x.txt is a URL")]
)
def test_find_files_takes_neither_empty_names_nor_urls(name, message):
    with pytest.raises(ValueError, match=message):
        find_files([__file__, name])


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzipped"])
def test_lines_come_without_their_ends_and_byte_order_mark(pack, tmp_path):
    file = tmp_path / ("a.txt.gz" if pack is gzip.compress else "a.txt")
    file.write_bytes(pack("\ufeffOne\r\n\n Two\x0bhalves\nÜ".encode()))
    assert list(read_lines(file)) == ["One", "", " Two\x0bhalves", "Ü"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param(
            "latin.txt",
            "Eins.\n\nStraße.".encode("latin-1"),
            "latin.txt is not UTF-8 text: line 3 holds the byte 0xdf.*iconv -f latin1 -t utf-8 .*> new.txt",
            id="latin-1",
        ),
        pytest.param(
            "cut.txt.gz",
            gzip.compress(b"word " * 1000 + b"\n", mtime=0)[:-20],
            "cut.txt.gz cannot be decompressed after line 0",
            id="truncated gzip",
        ),
        pytest.param("plain.txt.gz", b"Plain.", "plain.txt.gz cannot be decompressed after line 0", id="no gzip"),
    ],
)
def test_lines_that_cannot_be_read_are_named(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TextError, match=message):
        list(read_lines(tmp_path / name))


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
    "zip": (b"PK\x03\x04\x14\x00\x00\x00\x08\x00", "is a zip archive, or a document in one, .*: unpack it with unzip"),
    "tar": (b"a.txt".ljust(257, b"\0") + b"ustar\x0000", "is a tar archive, .*: unpack it with tar -xf"),
    "tar.gz": (gzip.compress(b"a.txt".ljust(257, b"\0") + b"ustar\x0000"), "is a compressed tar archive, .* tar -xzf"),
    "gz": (gzip.compress(TEXT.encode(), mtime=0), r"is compressed with gzip, .*: rename it to .*\.gz\."),
    "bz2": (bz2.compress(TEXT.encode()), "is compressed with bzip2, .*: decompress it with bzip2 -dc"),
    "xz": (lzma.compress(TEXT.encode()), "is compressed with xz, .* xz -dc"),
    "zstd": (b"\x28\xb5\x2f\xfd\x24\x05", "is compressed with zstd, .* zstd -dc"),
    "7z": (b"7z\xbc\xaf\x27\x1c\x00\x04", "is a 7z archive"),
    "PDF": (b"%PDF-1.7\n1 0 obj\n", "is a PDF, .*: extract its text with pdftotext"),
    "SQLite": (b"SQLite format 3\x00" + bytes(50), "is an SQLite database, .*: write its text to a .csv"),
    "pickle": (pickle.dumps({"a": [1, 2]}), "is pickled Python data, which could run code"),
    "safetensors": ((50).to_bytes(8, "little") + b'{"a":{"dtype":"F32"}}', "is a model's weights"),
    "parquet": (b"PAR1\x15\x04\x15\x00\xd8", r"is a parquet file, .*: rename it to end in \.parquet"),
    "image": (b"\x89PNG\r\n\x1a\n" + bytes(8), "is an image, not plain UTF-8 text: leave it out"),
    "program": (b"\x7fELF\x02\x01\x01" + bytes(9), "is a program"),
    "Git LFS": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "is a Git LFS pointer, .* git lfs pull",
    ),
    "zeros": (bytes(9999), "is binary data, not plain UTF-8 text"),
    "late NUL": (
        b"One.\n" * 3000 + b"T\0wo.\n",
        "is not text: line 3001 holds a NUL byte. To remove such bytes: .* tr -d",
    ),
    "UTF-16": (TEXT.encode("utf-16"), "is UTF-16 text, .*: convert it with iconv -f utf-16 -t utf-8"),
    "UTF-16LE": (TEXT.encode("utf-16-le"), "is UTF-16LE text, .* iconv -f utf-16le"),
    "UTF-16BE": (TEXT.encode("utf-16-be"), "is UTF-16BE text, .* iconv -f utf-16be"),
    "UTF-16LE of Chinese": ("今天天气很好。\n一本书。\n".encode("utf-16-le"), "is UTF-16LE text"),
    "UTF-32": (TEXT.encode("utf-32"), "is UTF-32 text, .* iconv -f utf-32"),
    "UTF-32LE": (TEXT.encode("utf-32-le"), "is UTF-32LE text, .* iconv -f utf-32le"),
    "cp1251": ("Это обычный русский текст.\n".encode("cp1251") * 9, "line 1 holds the byte 0xdd.* iconv -f cp1251"),
    "gb18030": ("今天天气很好,我们去公园散步吧。\n".encode("gb18030") * 9, "is not UTF-8 text: .* iconv -f gb"),
}


@pytest.mark.parametrize("ending", [".txt", ".csv", ".jsonl"])
@pytest.mark.parametrize("content", NOT_TEXT)
def test_file_that_is_not_text_says_what_it_is_and_what_to_do(content, ending, tmp_path):
    (data, message), file = NOT_TEXT[content], tmp_path / f"a file{ending}"
    file.write_bytes(data)
    if ending != ".txt" and content in ("late NUL", "cp1251", "gb18030"):
        pytest.skip("found while the table is read")
    with pytest.raises(TextError, match=message) as error:
        list(read_lines(file) if ending == ".txt" else open_table(file, ["text"]))
    assert "\n" not in str(error.value) and str(file) in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "tar",
            r"is compressed, and its content is a tar archive, .*: gunzip it, then unpack it with tar -xf .*a\.txt",
        ),
        ("gz", r"its content is compressed with gzip, .*: gunzip it, then rename it to .*a\.txt\.gz"),
        ("zeros", "its content is binary data, not plain UTF-8 text: leave it out"),
        ("UTF-16", "its content is UTF-16 text, .*: gunzip it, then convert it with iconv"),
    ],
)
def test_gzipped_file_that_is_not_text_says_what_it_is(content, message, tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(NOT_TEXT[content][0], mtime=0))
    with pytest.raises(TextError, match=message):
        list(read_lines(tmp_path / "a.txt.gz"))


@pytest.mark.parametrize("start", ["BZh", "ORC", "RIFF", "MZ", "GIF8", "ID3", "xx  ftyp", "PAR1", "{", "\x04\x05"])
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
        ("a.jsonl", b"[1, 2]\n[3]\n", r"does not hold JSON objects, .* but begins with '\[1, 2\]"),
        ("a.jsonl", b'"One."\n', "does not hold JSON objects"),
        ("a.jsonl", b'{"x": ' + b"[" * 2000 + b"]" * 2000 + b"}", "nested 1,000 levels deep"),
        ("a.jsonl", b"null\n", "does not hold JSON objects"),  # which crashes datasets
        ("a.json", b"<!DOCTYPE html>", "does not hold JSON objects"),
        ("a.parquet", b"text\nOne.\n", "is not a parquet file: rename it"),
        ("a.parquet.gz", gzip.compress(b"PAR1\x15\x04", mtime=0), "parquet files are not read compressed. .* gunzip"),
    ],
)
def test_table_of_another_kind_is_named(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TextError, match=message):
        open_table(tmp_path / name, ["text"])


def test_dataset_that_cannot_be_loaded_says_why(tmp_path):
    (tmp_path / f"{tmp_path.name}.py").write_text("raise AssertionError('run')")
    with pytest.raises(TextError, match="scripts are no longer supported.*Give the files of its text as train_file"):
        open_dataset(str(tmp_path), None)
    with pytest.raises(TextError, match="is a file: give it as train_file"):
        open_dataset(__file__, None)
