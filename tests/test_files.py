import gzip
import re

import pytest

from scratch_bert.files import TextError, find_files, open_table, read_lines


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
    for name in ("a.txt", "e.md", "LICENSE"):
        (tmp_path / name).touch()
    assert find_files([tmp_path]) == [tmp_path / "a.txt"]
    assert f"{tmp_path}: left out 2 files of other types (.md, none)" in caplog.text


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
            "latin.txt is not UTF-8 text: line 3 holds the byte 0xdf.*iconv -f latin1 .*> new.txt",
            id="latin-1",
        ),
        pytest.param(
            "cut.txt.gz",
            gzip.compress(b"word " * 1000 + b"\n")[:-20],
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
