import gzip
import json

import pytest
from datasets import Dataset

from scratch_bert.finetuning.readers import read_conll, read_squad
from scratch_bert.text.tables import read_table


TEXTS = ["007", 'say "hi"', "a, b", "NA"]
LABELS = ["1", "0", "1", "0"]


LINES = ["text\tlabel\tother", *(f"{text}\t{label}\t1" for text, label in zip(TEXTS, LABELS, strict=True))]
WRITERS = {
    ".csv": lambda records, file: records.to_csv(file),
    ".tsv": lambda records, file: file.write_text("\ufeff" + "\n".join(LINES) + "\n", encoding="utf-8"),  # as in MRPC
    ".json": lambda records, file: file.write_text(json.dumps(records.to_list())),
    ".jsonl": lambda records, file: records.to_json(file),
    ".parquet": lambda records, file: records.to_parquet(file),
}


# ------------------------------------------------------------------------------------------------------------ tables


@pytest.mark.parametrize(
    "name", ["a.csv", "a.tsv", "a.json", "a.jsonl", "a.parquet", "a.csv.gz", "a.tsv.gz", "a.jsonl.gz"]
)
def test_table_of_every_type_has_the_same_records(name, tmp_path):
    plain = tmp_path / name.removesuffix(".gz")
    WRITERS[plain.suffix](Dataset.from_dict({"text": TEXTS, "label": LABELS, "other": [1] * len(TEXTS)}), plain)
    if name.endswith(".gz"):
        (tmp_path / name).write_bytes(gzip.compress(plain.read_bytes()))
    records = read_table(tmp_path / name, {"text", "label"})
    assert records.select_columns(["text", "label"]).to_dict() == {"text": TEXTS, "label": LABELS}


def test_table_with_gaps_and_with_a_trailing_comma(tmp_path):
    lines = [f"{i},x,y" for i in range(12_000)] + [",x,y"] * 12_000  # an integer first, nothing later
    (tmp_path / "a.csv").write_text("\n".join(["score,text,label", *lines]) + "\n")
    assert len(read_table(tmp_path / "a.csv", {"text", "label"})) == 24_000
    (tmp_path / "b.csv").write_text("id,text,label\n1,a,x,\n2,b,y,\n")
    records = read_table(tmp_path / "b.csv", {"text", "label"})
    assert records.to_dict() == {"id": ["1", "2"], "text": ["a", "b"], "label": ["x", "y"]}


def test_table_without_a_header(tmp_path):
    (tmp_path / "a.tsv").write_text("gj04\t1\tThey ran.\n")
    records = read_table(tmp_path / "a.tsv", {"sentence"}, header=("source", "label", "sentence"))
    assert records.to_list() == [{"source": "gj04", "label": "1", "sentence": "They ran."}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,label\n", "a.csv contains no records"),
        ("a.csv.gz", b"text,label\nx,1\n", "a.csv.gz cannot be"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n{"text": \n', "a.jsonl cannot be read"),
    ],
)
def test_table_that_cannot_be_read(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / name, {"text", "label"})


# ------------------------------------------------------------------------------------------------------------- CoNLL


def write(file, *lines):
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def test_conll_words_and_tags(tmp_path):
    file = write(
        tmp_path / "a.conll", "-DOCSTART- -X- O", "", "Ada NNP B-PER", "Lovelace NNP I-PER", "", "", "ran VBD O"
    )
    assert read_conll(file).to_dict() == {
        "text": [["Ada", "Lovelace"], ["ran"]],
        "label": [["B-PER", "I-PER"], ["O"]],
    }
    file = write(tmp_path / "b.txt", "#\tO", "@ada \tB-PER", "\t", "")
    assert read_conll(file).to_list() == [{"text": ["#", "@ada"], "label": ["O", "B-PER"]}]


def test_conllu_columns(tmp_path):
    file = write(
        tmp_path / "a.conllu",
        "# sent_id = 1",
        "# text = Ada ran",
        "1-2\tAdaran\t_\t_\t_",
        "1\tAda\tada\tPROPN\t_",
        "2\tran\trun\tVERB\t_",
        "",
        "# newdoc is here now",
        "1\tNo\tno\tINTJ\t_",
    )
    expected = {"text": [["Ada", "ran"], ["No"]], "label": [["PROPN", "VERB"], ["INTJ"]]}
    assert read_conll(file).to_dict() == expected
    assert read_conll(file, word_column=2, tag_column=4).to_dict() == expected
    assert read_conll(file, word_column=3)["text"][0] == ["ada", "run"]


def test_conll_comments_are_skipped(tmp_path):
    file = write(tmp_path / "a.conll", "# id 1", "Ada B-PER", "ran O")
    assert read_conll(file).to_list() == [{"text": ["Ada", "ran"], "label": ["B-PER", "O"]}]


def test_conll_without_tags(tmp_path):
    file = write(tmp_path / "test.conll", "Ada", "ran", "", "No")
    assert read_conll(file, tagged=False).to_dict() == {"text": [["Ada", "ran"], ["No"]]}
    assert read_conll(file, tag_column=2, tagged=False).to_dict() == {"text": [["Ada", "ran"], ["No"]]}


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        pytest.param(["Ada B-PER", "Lovelace"], {}, "line 2 has 1 fields, not 2", id="uneven columns"),
        pytest.param(["Ada"], {}, "line 1 has 1 fields, not 2", id="no tag"),
        pytest.param(["Ada O"], {"tag_column": 4}, "line 1 has 2 fields, not 4", id="no such tag column"),
        pytest.param(
            ["Ada"], {"word_column": 2, "tagged": False}, "line 1 has 1 fields, not 2", id="no such word column"
        ),
        pytest.param(["Ada O"], {"word_column": 0}, "columns are counted from 1", id="column 0"),
        pytest.param([""], {}, "contains no examples", id="no sentence"),
    ],
)
def test_conll_that_cannot_be_read(lines, options, message, tmp_path):
    with pytest.raises(ValueError, match=f"bad.conll.* {message}"):
        read_conll(write(tmp_path / "bad.conll", *lines), **options)


# ------------------------------------------------------------------------------------------------------------- SQuAD


def write_squad(file, *questions, **article):
    article |= {"title": "T", "paragraphs": [{"context": "One Ada ran.", "qas": questions}]}
    file.write_text(json.dumps({"version": "1.1", "data": [article]}))
    return file


def test_squad_questions_and_answers(tmp_path):
    question = {"id": "q1", "question": "Who ran?", "answers": [{"text": "Ada", "answer_start": 4}]}
    file = write_squad(tmp_path / "a.json", question, {**question, "id": 2})
    expected = {
        "text": "One Ada ran.",
        "text_pair": "Who ran?",
        "label": {"text": ["Ada"], "answer_start": [4]},
    }
    assert read_squad(file).to_list() == [{**expected, "id": "q1"}, {**expected, "id": "2"}]
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(file.read_bytes()))
    assert read_squad(tmp_path / "a.json.gz").to_list() == read_squad(file).to_list()
    del question["answers"]
    assert read_squad(write_squad(tmp_path / "test.json", question)).to_list() == [
        {**expected, "id": "q1", "label": None}
    ]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param('{"id": 1}\n{"id": 2}', id="json lines"),
        pytest.param('[{"id": 1}]', id="list"),
        pytest.param('{"data": [{"id": 1}]}', id="other data"),
    ],
)
def test_squad_is_told_from_other_json(content, tmp_path):
    (tmp_path / "a.json").write_text(content)
    assert read_squad(tmp_path / "a.json") is None


def test_squad_without_a_field(tmp_path):
    content = {"data": [{"title": "T", "paragraphs": [{"qas": [{"id": 1}]}]}]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="a.json: data.0.paragraphs.0.context: field required"):
        read_squad(tmp_path / "a.json")
