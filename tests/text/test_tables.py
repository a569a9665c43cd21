import csv
import gzip
import json
import re

import pandas
import pytest

from scratch_bert.text.files import TextError, find_files, read_lines
from scratch_bert.text.rows import STANDARD, read_rows, row_kinds
from scratch_bert.text.tables import read_chunks, read_table


def test_find_files_in_directories_and_by_globs(tmp_path):
    for name in ("b.txt.gz", "a.txt", "sub/c.jsonl", "notes.md", "X.TXT.GZ", "[1].csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    def names(*paths):
        return [file.name for file in find_files([tmp_path / path for path in paths])]

    assert names("") == ["X.TXT.GZ", "[1].csv", "a.txt", "b.txt.gz", "c.jsonl"]
    assert names("*.txt*", "a.txt") == ["a.txt", "b.txt.gz"]
    assert names("**/*.jsonl", "notes.md", "s*") == ["c.jsonl", "notes.md"]  # a directory by a glob
    assert names("[1].csv") == ["[1].csv"]  # a name that is no glob


def test_find_files_takes_each_file_once_whatever_links_lead_to_it(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").touch()
    (tmp_path / "sub" / "loop").symlink_to(tmp_path)
    (tmp_path / "b.txt").symlink_to(tmp_path / "sub" / "a.txt")
    assert len(find_files([tmp_path / "**" / "*.txt"])) == len(find_files([tmp_path])) == 1


def test_find_files_tells_what_it_leaves_out(tmp_path, caplog):
    (tmp_path / "d").mkdir()
    for name in ("d/a.txt", "d/e.md", "d/LICENSE", "d/._a.txt"):
        (tmp_path / name).touch()
    (tmp_path / "d/b.txt").symlink_to(tmp_path / "none")
    (tmp_path / "more").mkdir()
    (tmp_path / "d/more").symlink_to(tmp_path / "more")
    tmp_path = tmp_path / "d"
    assert find_files([tmp_path]) == [tmp_path / "a.txt"]
    assert f"{tmp_path}: left out 5 files, such as ._a.txt, which are hidden" in caplog.text


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "no file or directory .*nowhere"),
        ("*.nothing", r"no file or directory .*\*.nothing"),
        (".", "holds no file of type .txt, .csv"),
        ("", "The name of a file is empty"),  # which would be the current directory
    ],
)
def test_find_files_names_what_is_missing(path, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((OSError, ValueError), match=message):
        find_files([path])


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "A.NDJSON.gz"])
def test_json_lines_have_two_names(name, tmp_path):
    content = b'{"text": "One."}\n{"text": "Two."}\n'
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read_texts(*find_files([tmp_path])) == ["One.", "Two."]
    kind, _ = row_kinds(name, STANDARD, output_kind="jsonl")
    assert [*read_rows(str(tmp_path / name), kind)] == [[{"text": "One."}, {"text": "Two."}]]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzipped"])
def test_lines_come_without_their_ends_and_byte_order_mark(pack, tmp_path):
    file = tmp_path / ("a.txt.gz" if pack is gzip.compress else "a.txt")
    file.write_bytes(pack("\ufeffOne\r\n\n Two\x0bhalves\nÜ".encode()))
    assert list(read_lines(file)) == ["One", "", " Two\x0bhalves", "Ü"]


@pytest.mark.parametrize(("name", "separator"), [("data[1].csv", ","), ("data[1].tsv", "\t")])
def test_table_is_the_file_of_that_name_and_its_text_as_it_stands(name, separator, tmp_path):
    """Not the files that the name as a pattern would match."""
    (tmp_path / name).write_text(
        "".join(f"{separator.join(cells)}\n" for cells in (("id", "text"), ("1", "007"), ("2", "2.50"), ("3", "NA")))
    )
    (tmp_path / re.sub(r"[\[\]]", "", name)).write_text(f"id{separator}text\n9{separator}Impostor.\n")
    assert read_texts(tmp_path / name) == ["007", "2.50", "NA"]
    assert read_table(tmp_path / name, {"text"})[1] == ["id", "text"]


def read_texts(file):
    records, _ = read_table(file, {"text"})
    assert [row.get("text") for rows in read_chunks(file) for row in rows] == records["text"][:]
    return records["text"][:]


TEXTS = ['He said "hi".', "One\ttwo.\r\nThree.", '"All of it"', "", "Ende, gut.", "  NA "]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_table_is_read_as_pandas_writes_it(name, quoting, tmp_path):
    frame = pandas.DataFrame({"text": TEXTS, "n": range(len(TEXTS))})
    frame.to_csv(tmp_path / name, sep="\t" if name.endswith("tsv") else ",", index=False, quoting=quoting)
    assert read_texts(tmp_path / name) == TEXTS


def test_tab_in_quotes_is_text(tmp_path):
    (tmp_path / "a.tsv").write_text('text\tn\n"One\ttwo."\t1\n')
    assert read_texts(tmp_path / "a.tsv") == ["One\ttwo."]


def test_quotes_in_a_table_of_tabs_are_text_unless_they_quote(tmp_path):
    """As in the files of GLUE."""
    for text in ('"Open.', '"All of it."', '6" long', 'He said ""hi"" "'):
        (tmp_path / "a.tsv").write_text(f"text\tlabel\n{text}\t1\n")
        assert read_texts(tmp_path / "a.tsv") == [text]


@pytest.mark.parametrize(
    ("name", "orient"), [("a.json", "records"), ("a.json", "list"), ("a.json", "columns"), ("a.jsonl", "records")]
)
def test_json_is_read_as_pandas_writes_it(name, orient, tmp_path):
    frame = pandas.DataFrame({"text": ["One.", "007", "2024-01-01"], "label": [1.5, None, 3.0], "n": [1, 2, 3]})
    if orient == "list":
        (tmp_path / name).write_text(json.dumps(frame.to_dict("list")))
    else:
        frame.to_json(tmp_path / name, orient=orient, lines=name.endswith("l"))
    records, _ = read_table(tmp_path / name, {"text", "label"})
    assert records.to_dict() == {"text": ["One.", "007", "2024-01-01"], "label": [1.5, None, 3.0]}


@pytest.mark.parametrize("name", ["a.csv", "a.json"])
def test_table_without_the_columns_has_records_and_the_names_of_all(name, tmp_path):
    frame = pandas.DataFrame({"review": ["One."], "sentiment": ["good"]})
    frame.to_csv(tmp_path / name, index=False) if name == "a.csv" else frame.to_json(tmp_path / name)
    assert [*read_table(tmp_path / name, {"text", "label"})[1]] == ["review", "sentiment"]


def test_column_that_is_not_needed_may_change_its_type(tmp_path):
    lines = [{"text": "One.", "score": 1}, {"text": "Two.", "score": "high"}, {"score": [2]}]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert read_texts(tmp_path / "a.jsonl") == ["One.", "Two.", None]
    with pytest.raises(TextError, match=r"a.jsonl: the column 'score' has values of several types"):
        read_table(tmp_path / "a.jsonl", {"score"})


@pytest.mark.parametrize(("name", "form"), [("a.jsonl", "%s"), ("a.json", "[%s]")])
def test_half_of_a_surrogate_pair_is_replaced(name, form, tmp_path):
    (tmp_path / name).write_text(form % '{"text": "a\\ud83db \\ud83d\\ude00"}')
    assert read_texts(tmp_path / name) == ["a\ufffdb \U0001f600"]


def test_quotes_of_pandas_are_read_beside_malformed_records(tmp_path, caplog):
    texts = [f'He said "{number}"\tand\nleft.' for number in range(300)]
    pandas.DataFrame({"text": texts, "n": 1}).to_csv(tmp_path / "a.tsv", sep="\t", index=False)
    with (tmp_path / "a.tsv").open("a") as file:
        file.write("Short.\nToo\tlong\tof it\n")
    records, _ = read_table(tmp_path / "a.tsv", {"text"})
    assert records["text"][:] == texts and "left out 2 of 302 records: line 602 has 1 fields" in caplog.text


def test_header_in_the_middle_is_no_record(tmp_path, caplog):
    """As `cat a.csv b.csv` makes it."""
    rows = [f"Text {number}.,{number}" for number in range(100)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows, "text,label", *rows]))
    records, _ = read_table(tmp_path / "a.csv", {"text"})
    assert len(records) == 200 and "left out 1 of 201 records: line 102 repeats the header" in caplog.text


def test_few_malformed_records_are_left_out_and_counted(tmp_path, caplog):
    rows = [f"Text {number}.\t{number}" for number in range(300)]
    (tmp_path / "a.tsv").write_text("\n".join(["text\tn", *rows[:9], "No number.", *rows[9:], "A\ttab\t3"]))
    records, _ = read_table(tmp_path / "a.tsv", {"text"})
    assert len(records) == 300
    assert "a.tsv: left out 2 of 302 records: line 11 has 1 fields, the header 2" in caplog.text
    with pytest.raises(TextError, match=r"a.tsv: line 11 has 1 fields"):  # each row must have its prediction
        list(read_chunks(tmp_path / "a.tsv"))
    (tmp_path / "b.tsv").write_text("\n".join(["text\tn", *rows[:9], "No number."]))
    with pytest.raises(TextError, match=r"b.tsv: line 11 has 1 fields, the header 2. A text that contains"):
        read_table(tmp_path / "b.tsv", {"text"})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"One.\n" * 3000 + b"T\0wo.\n", "is not text: line 3001 holds a NUL byte"),
        ("a.txt", "One.\n".encode("utf-16"), "line 1 holds a NUL byte, as UTF-16, compressed"),
        ("a.txt.gz", gzip.compress(b"Eins.\n\nStra\xdfe.", mtime=0), "line 3 holds the byte 0xdf.* iconv"),
        ("a.txt", "One.\n日本".encode("iso-2022-jp"), "is ISO-2022-JP: line 2"),
        ("a.txt", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer"),
    ],
)
def test_file_that_is_not_text_is_named_with_the_line(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TextError, match=f"{name}.*{message}"):
        list(read_lines(tmp_path / name))


def test_lines_of_old_macs_are_lines(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"One.\rTwo.\r\rThree.")
    assert list(read_lines(tmp_path / "a.txt")) == ["One.", "Two.", "", "Three."]
    (tmp_path / "b.txt").write_bytes(b"One.\rTwo.\r\n\rThree.\n")  # has other line ends
    assert list(read_lines(tmp_path / "b.txt")) == ["One.\rTwo.", "\rThree."]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "One."}\nnull\n', "line 2 is not a JSON object"),
        ("a.json", b"[]", "contains no records"),
        ("a.json", b'[{"text": "One.", "text": "Two."}]', "two columns 'text'"),
        ("a.csv", b'text,n\n"One.",1\n"Two.,2\n"Three.",3\n', "quotes of the record that ends in line 4 don't match"),
        ("a.csv", b'text,n\n"One.",1\n"Two.,2\nThree.,3\n', "quotes of the record that ends in line 4 don't match"),
        ("a.csv", b"text,text\na,b\n", "has two columns 'text'"),
        ("a.csv", b"id;text\n1;One.\n", "has one column, id;text .its separator is ';'"),
        ("a.csv", b"text\nWell, some text\n", "line 2 has 2 fields, the header 1"),
        ("a.csv.gz", gzip.compress(b"text\n" + b"word \n" * 1000, mtime=0)[:-20], "end-of-stream marker"),
        ("a.csv", b"text\n" + b"a\n" * 9000 + b"\xdf\n", "is not UTF-8 text: line 9002 holds the byte 0xdf.* iconv"),
        ("a.parquet", b"", "is empty"),
    ],
)
def test_table_that_is_damaged_or_of_another_kind_is_named(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TextError, match=f"{name}.*{message}") as error:
        read_table(tmp_path / name, {"text"})
    assert "\n" not in str(error.value)
