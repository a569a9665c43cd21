import gzip
import json
from types import MappingProxyType

import pyarrow
import pyarrow.parquet
import pytest

from scratch_bert.text.rows import CHUNK, extend_rows, read_rows, row_kinds, write_rows


ROWS = [{"id": "007", "text": 'a "quoted", ü'}, {"id": "", "text": "NA"}, {"id": "1.0", "text": " x "}]


def write(file, kind, chunks, types=MappingProxyType({})):
    """Write rows with their numbers as a new column."""

    def add(rows, number):
        return pyarrow.table({"number": [str(number + index) for index in range(len(rows))]})

    return write_rows(str(file), kind, extend_rows(chunks, add), types)


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_what_is_written_is_read(kind, tmp_path):
    file = str(tmp_path / f"rows{kind}")
    assert write(file, kind, [ROWS[:2], ROWS[2:]]) == 3
    numbered = [row | {"number": str(number)} for number, row in enumerate(ROWS, 1)]
    assert [row for chunk in read_rows(file, kind) for row in chunk] == numbered


def test_lines_and_gzipped_tables_come_in_chunks(tmp_path):
    lines = [f"line {number}" for number in range(CHUNK + 1)]
    (tmp_path / "rows.txt").write_text("\n".join(lines))
    chunks = list(read_rows(str(tmp_path / "rows.txt"), ".txt"))
    assert [len(chunk) for chunk in chunks] == [CHUNK, 1] and chunks[1] == [{"text": lines[-1]}]
    with gzip.open(tmp_path / "rows.csv.gz", "wt", encoding="utf-8-sig") as file:
        file.write('text,more\n"a\r\nb",c\nd,\n')
    file = str(tmp_path / "rows.csv.gz")
    [chunk] = read_rows(file, row_kinds(file, str(tmp_path / "out.csv"))[0])
    assert chunk == [{"text": "a\r\nb", "more": "c"}, {"text": "d", "more": ""}]


def test_values_that_are_not_text(tmp_path):
    """Parquet's first rows do not tell the types of the columns; CSV's lists are JSON."""
    rows = [{"tags": [], "start": None}, {"tags": ["a"], "start": 2**60 + 1}]
    file = str(tmp_path / "rows.parquet")
    types = {"tags": pyarrow.list_(pyarrow.string()), "start": pyarrow.int64()}
    write(file, ".parquet", [rows[:1], rows[1:]], types)
    assert pyarrow.parquet.read_table(file, columns=["tags", "start"]).to_pylist() == rows
    write(tmp_path / "rows.csv", ".csv", [rows])
    [again] = read_rows(str(tmp_path / "rows.csv"), ".csv")
    assert [(json.loads(row["tags"]), row["start"]) for row in again] == [([], ""), (["a"], str(2**60 + 1))]


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        (".csv", b"a,b\n1,2,3\n", "line 2 has 3 fields, the header 2"),
        (".csv", b"a,a\n1,2\n", "two columns 'a'"),
        (".csv", b"a\n\xe9\n", "not UTF-8"),
        (".jsonl", b'{"a": 1}\n[1]\n', "line 2 is not a JSON object"),
        (".parquet", b"nothing", "cannot be read"),
        (".csv", b"a\n", "has no rows"),
    ],
)
def test_damaged_files(kind, content, message, tmp_path):
    (tmp_path / f"rows{kind}").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(read_rows(str(tmp_path / f"rows{kind}"), kind))


@pytest.mark.parametrize(("kind", "row", "message"), [(".csv", {"a": "x", "b": "y"}, "'b' is not in the first rows")])
def test_rows_that_would_not_be_kept(kind, row, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "rows", kind, [[{"a": "first"}], [row]])
    assert [line[:5] for line in (tmp_path / "rows.part").read_text().splitlines()[1:]] == ["first"]


def test_types_are_those_of_the_suffixes_or_else_the_given_ones(tmp_path):
    assert row_kinds("-", f"{tmp_path}/out.jsonl", "csv", "csv") == (".csv", ".jsonl")
    assert row_kinds("app.log", "-", "txt", "jsonl") == (".txt", ".jsonl")
    for file in ("-", "rows.xlsx"):
        with pytest.raises(ValueError, match="pass it as --format"):
            row_kinds(file, f"{tmp_path}/out.jsonl")
    with pytest.raises(ValueError, match=r"new.csv must be one of .npy, .parquet\."):  # which --format does not change
        row_kinds("rows.csv", f"{tmp_path}/new.csv", output_kinds=(".npy", ".parquet"))
    (tmp_path / "out.csv").write_text("mine")
    with pytest.raises(ValueError, match="exists"):
        row_kinds("rows.csv", f"{tmp_path}/out.csv")
    with pytest.raises(ValueError, match="would not be compressed: leave out .gz"):
        row_kinds("rows.csv", f"{tmp_path}/new.csv.gz")
