import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from scratch_bert.text.rows import CHUNK, read_rows, row_kind, write_rows


ROWS = [{"id": "007", "text": 'a "quoted", ü'}, {"id": "", "text": "NA"}, {"id": "1.0", "text": " x "}]


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_what_is_written_is_read(kind, tmp_path):
    file = str(tmp_path / f"rows{kind}")
    with write_rows(file, kind, {}) as append:
        append(ROWS[:2])
        append(ROWS[2:])
    assert [row for chunk in read_rows(file, row_kind(file, None)) for row in chunk] == ROWS


def test_lines_and_gzipped_tables_come_in_chunks(tmp_path):
    lines = [f"line {number}" for number in range(CHUNK + 1)]
    (tmp_path / "rows.txt").write_text("\n\n".join(lines))
    chunks = list(read_rows(str(tmp_path / "rows.txt"), ".txt"))
    assert [len(chunk) for chunk in chunks] == [CHUNK, 1] and chunks[1] == [{"text": lines[-1]}]
    with gzip.open(tmp_path / "rows.csv.gz", "wt", encoding="utf-8-sig") as file:
        file.write('text,more\n"a\r\nb",c\nd\n')
    [chunk] = read_rows(str(tmp_path / "rows.csv.gz"), row_kind("rows.csv.gz", None))
    assert chunk == [{"text": "a\r\nb", "more": "c"}, {"text": "d", "more": ""}]


def test_values_that_are_not_text(tmp_path):
    """Parquet's first rows do not tell the types of the columns; CSV's lists are JSON."""
    rows = [{"tags": [], "start": None}, {"tags": ["a"], "start": 2**60 + 1}]
    file = str(tmp_path / "rows.parquet")
    with write_rows(file, ".parquet", {"tags": pyarrow.list_(pyarrow.string()), "start": pyarrow.int64()}) as append:
        append(rows[:1])
        append(rows[1:])
    assert pyarrow.parquet.read_table(file).to_pylist() == rows
    with write_rows(str(tmp_path / "rows.csv"), ".csv", {}) as append:
        append(rows)
    [again] = read_rows(str(tmp_path / "rows.csv"), ".csv")
    assert [(json.loads(row["tags"]), row["start"]) for row in again] == [([], ""), (["a"], str(2**60 + 1))]


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        (".csv", b"a,b\n1,2,3\n", "line 2 has more fields than the header"),
        (".csv", b"a,a\n1,2\n", "two columns 'a'"),
        (".csv", b"a\n\xe9\n", "not UTF-8"),
        (".jsonl", b'{"a": 1}\n[1]\n', "line 2 is not a JSON object"),
        (".parquet", b"nothing", "cannot be read"),
    ],
)
def test_damaged_files(kind, content, message, tmp_path):
    (tmp_path / f"rows{kind}").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(read_rows(str(tmp_path / f"rows{kind}"), kind))


@pytest.mark.parametrize(
    ("kind", "row", "message"),
    [(".tsv", {"a": "x\ty"}, "does not fit into TSV"), (".csv", {"a": "x", "b": "y"}, "'b' is not in the first rows")],
)
def test_rows_that_would_not_be_kept(kind, row, message, tmp_path):
    with write_rows(str(tmp_path / "rows"), kind, {}) as append:
        append([{"a": "first"}])
        with pytest.raises(ValueError, match=message):
            append([row])
    assert (tmp_path / "rows").read_text().splitlines() == ["a", "first"]


@pytest.mark.parametrize("file", ["-", "rows.xlsx"])
def test_types_that_are_not_known(file):
    with pytest.raises(ValueError, match="pass it as --format"):
        row_kind(file, None)
