import gzip
import json

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from scratch_bert.finetuning.arguments import TaskArguments
from scratch_bert.finetuning.load import find_columns
from scratch_bert.finetuning.readers import Columns, hold_out, load_splits


TEXTS = ["007", 'say "hi"', "a, b", "NA"]
LABELS = ["1", "0", "1", "0"]
PLAIN = Columns({"text": ["text"], "label": ["label"]})


def rows_of(files, columns=PLAIN):
    files = {
        split: [str(file)] if file else None
        for split, file in zip(("train", "validation", "test"), files, strict=False)
    }
    splits = load_splits(columns, {"validation": None, "test": None, **files})
    return {split: rows.remove_columns("row") for split, rows in splits.items()}


def write(file, texts=TEXTS, labels=LABELS):
    rows = Dataset.from_dict({"text": texts, "label": labels, "other": [1] * len(texts)})
    kind = file.name.split(".")[1]
    plain = file.with_name(file.name.removesuffix(".gz"))
    if kind == "csv":
        rows.to_csv(plain)
    elif kind == "tsv":
        lines = ["text\tlabel\tother", *(f"{text}\t{label}\t1" for text, label in zip(texts, labels, strict=True))]
        plain.write_bytes(("\ufeff" + "\n".join(lines) + "\n").encode())  # a byte-order mark, as in MRPC's dev.tsv
    elif kind == "json":
        plain.write_text(json.dumps(rows.to_list()))
    elif kind == "jsonl":
        rows.to_json(plain)
    else:
        rows.to_parquet(plain)
    if file != plain:
        file.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    return file


@pytest.mark.parametrize(
    "name", ["a.csv", "a.tsv", "a.json", "a.jsonl", "a.parquet", "a.csv.gz", "a.tsv.gz", "a.jsonl.gz"]
)
def test_every_kind_of_table_gives_the_same_rows(name, tmp_path):
    splits = rows_of([write(tmp_path / name), write(tmp_path / f"v{name}", TEXTS[:1], LABELS[:1])])
    assert splits["train"].to_dict() == {"text": TEXTS, "label": LABELS}
    assert len(splits["validation"]) == 1


def test_rows_that_are_held_out():
    rows = Dataset.from_dict({"text": [str(i) for i in range(100)]})
    first, again, other = (hold_out(rows, 0.2, seed) for seed in (0, 0, 1))
    assert len(first["train"]) == 80 and len(first["validation"]) == 20
    assert sorted(first["train"]["text"][:] + first["validation"]["text"][:]) == sorted(map(str, range(100)))
    assert first["validation"]["text"][:] == again["validation"]["text"][:] != other["validation"]["text"][:]
    with pytest.raises(ValueError, match="No row is left to evaluate on"):
        hold_out(rows, 0.009, seed=0)


def test_each_row_says_where_it_comes_from(tmp_path):
    files = [str(write(tmp_path / name)) for name in ("a.csv", "b.tsv")]
    rows = load_splits(PLAIN, {"train": files})["train"]
    assert rows["text"][:] == TEXTS * 2
    assert rows["row"][:] == [f"{file}, row {number}" for file in files for number in range(1, 5)]


def test_a_data_set_on_disk_and_its_class_names(tmp_path, caplog):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    rows = Dataset.from_dict({"text": TEXTS, "label": [1, 0, 1, 0]}, features=features)
    unlabelled = rows.remove_columns("label")
    DatasetDict({"train": rows, "validation_matched": rows, "test": unlabelled, "dev": rows}).save_to_disk(
        tmp_path / "set"
    )
    with caplog.at_level("INFO", "scratch_bert"):
        splits = load_splits(PLAIN, {"train": None}, (str(tmp_path / "set"), None))
    assert "left out dev" in caplog.text and splits["validation"][0]["row"].endswith("set, validation_matched, row 1")
    assert splits["train"].features["label"].names == ["no", "yes"]
    assert splits["test"].column_names == ["text", "row"]


def test_words_and_tags(tmp_path):
    (tmp_path / "a.conll").write_text("-DOCSTART- -X- O\n\nAda NNP B-PER\nLovelace NNP I-PER\n\n\nran VBD O")
    (tmp_path / "b.txt").write_text("#\tO\n@ada \tB-PER\n\t\n")
    columns = find_columns("token-classification", TaskArguments(model_name_or_path="x"))
    splits = rows_of([tmp_path / "a.conll", tmp_path / "b.txt"], columns)
    assert splits["train"].to_dict() == {"text": [["Ada", "Lovelace"], ["ran"]], "label": [["B-PER", "I-PER"], ["O"]]}
    assert splits["validation"][0] == {"text": ["#", "@ada"], "label": ["O", "B-PER"]}
    for content, message in (
        ("Ada B-PER\nLovelace\n", "line 2 has 1 fields, those before it have 2"),
        ("Ada\n", "line 1 holds no tag, but only 'Ada'"),
    ):
        (tmp_path / "bad.conll").write_text(content)
        with pytest.raises(ValueError, match=f"bad.conll: {message}"):
            rows_of([tmp_path / "bad.conll"], columns)


def test_words_and_tags_in_other_columns_and_words_alone(tmp_path, caplog):
    lines = [
        "# sent_id = 1",
        "# text = Ada ran",
        "1-2\tAdaran\t_\t_\t_",
        "1\tAda\tada\tPROPN\t_",
        "2\tran\trun\tVERB\t_",
        "",
        "# newdoc is here now",
        "1\tNo\tno\tINTJ\t_",
    ]
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a.conllu").write_text("\n".join(lines))
    (tmp_path / "test.conll").write_text("Ada\nran\n\nNo\n")
    args = TaskArguments(model_name_or_path="x", text_column="2", label_column="4")
    columns = find_columns("token-classification", args)
    rows = rows_of([tmp_path / "set"] * 2, columns)["train"]
    assert rows.to_dict() == {"text": [["Ada", "ran"], ["No"]], "label": [["PROPN", "VERB"], ["INTJ"]]}
    usual = find_columns("token-classification", TaskArguments(model_name_or_path="x"))
    assert rows_of([tmp_path / "set", tmp_path / "set", tmp_path / "test.conll"], usual)["test"].to_dict() == {
        "text": [["Ada", "ran"], ["No"]]
    }
    (tmp_path / "train.conll").write_text("# id 1\nAda B-PER\nran O\n")
    caplog.set_level("INFO", "scratch_bert")
    label_alone = find_columns("token-classification", TaskArguments(model_name_or_path="x", label_column="2"))
    splits = rows_of([tmp_path / "train.conll", tmp_path / "train.conll", tmp_path / "test.conll"], label_alone)
    assert splits["train"][0] == {"text": ["Ada", "ran"], "label": ["B-PER", "O"]}
    assert splits["test"]["text"][:] == [["Ada", "ran"], ["No"]]
    assert "train.conll: left out 1 comments, such as '# id 1'" in caplog.text
    with pytest.raises(ValueError, match="line 1 has 1 fields: there is none to take for 2, 4"):
        rows_of([tmp_path / "set", tmp_path / "set", tmp_path / "test.conll"], columns)
    args.text_column = "0"
    with pytest.raises(ValueError, match="columns are counted from 1"):
        rows_of([tmp_path / "set"] * 2, find_columns("token-classification", args))


def test_squad_in_its_own_form_and_flat(tmp_path):
    answers = {"text": ["Ada"], "answer_start": [4]}
    question = {"id": "q1", "question": "Who ran?", "answers": [{"text": "Ada", "answer_start": 4}]}
    article = {"title": "x", "paragraphs": [{"context": "One Ada ran.", "qas": [question, {**question, "id": "q2"}]}]}
    (tmp_path / "own.json.gz").write_bytes(gzip.compress(json.dumps({"version": "1.1", "data": [article]}).encode()))
    flat = [
        {"id": name, "context": "One Ada ran.", "question": "Who ran?", "answers": answers} for name in ("q1", "q2")
    ]
    (tmp_path / "flat.json").write_text(json.dumps(flat))
    (tmp_path / "flat.jsonl").write_text("\n".join(map(json.dumps, flat)))
    columns = find_columns("question-answering", TaskArguments(model_name_or_path="x"))
    expected = [
        {"text": "One Ada ran.", "text_pair": "Who ran?", "label": answers, "id": name} for name in ("q1", "q2")
    ]
    for name in ("own.json.gz", "flat.json", "flat.jsonl"):
        assert rows_of([tmp_path / name, tmp_path / name], columns)["train"].to_list() == expected, name
    del question["answers"]
    article["paragraphs"][0]["qas"] = [question]
    (tmp_path / "test.json").write_text(json.dumps({"data": [article]}))
    test = rows_of([tmp_path / "own.json.gz", tmp_path / "own.json.gz", tmp_path / "test.json"], columns)["test"]
    assert test.to_list() == [{**expected[0], "label": None}]


GLUE_FILES = {
    "cola": ("gj04\t1\t\tThey ran.\n", {"text": ["They ran."], "label": ["1"]}),
    "sst2": ("sentence\tlabel\na 'fine' \"film \t1\n", {"text": ["a 'fine' \"film "], "label": ["1"]}),
    "mrpc": ("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tA\t\"B\n", {"text": ["A"], "text_pair": ['"B'], "label": ["0"]}),
    "qqp": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tA?\tB?\t1\n", {"text": ["A?"], "text_pair": ["B?"], "label": ["1"]}),
    "stsb": ("index\tgenre\tsentence1\tsentence2\tscore\n0\tnews\tA\tB\t3.5\n", {"text": ["A"], "text_pair": ["B"], "label": ["3.5"]}),
    "mnli": ("index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tA\tB\tneutral\tneutral\n", {"text": ["A"], "text_pair": ["B"], "label": ["neutral"]}),
    "qnli": ("index\tquestion\tsentence\tlabel\n0\tA?\tB\tentailment\n", {"text": ["A?"], "text_pair": ["B"], "label": ["entailment"]}),
    "rte": ("index\tsentence1\tsentence2\tlabel\n0\tA\tB\tnot_entailment\n", {"text": ["A"], "text_pair": ["B"], "label": ["not_entailment"]}),
    "wnli": ("index\tsentence1\tsentence2\tlabel\n0\tA\tB\t1\n", {"text": ["A"], "text_pair": ["B"], "label": ["1"]}),
}  # fmt: skip


@pytest.mark.parametrize("task", GLUE_FILES)
def test_files_of_glue(task, tmp_path):
    content, expected = GLUE_FILES[task]
    (tmp_path / "train.tsv").write_text(content, encoding="utf-8")
    columns = find_columns(task, TaskArguments(model_name_or_path="x"))
    assert rows_of([tmp_path / "train.tsv"] * 2, columns)["train"].to_dict() == expected


def test_a_column_of_glue_by_its_own_name(tmp_path):
    (tmp_path / "train.tsv").write_text("sentence1\tsentence2\tlabel1\tgold_label\nA\tB\tneutral\tentailment\n")
    columns = find_columns("mnli", TaskArguments(model_name_or_path="x", label_column="label1"))
    expected = {"text": ["A"], "text_pair": ["B"], "label": ["neutral"]}
    assert rows_of([tmp_path / "train.tsv"] * 2, columns)["train"].to_dict() == expected
    args = TaskArguments(
        model_name_or_path="x", text_column="sentence2", text_pair_column="sentence1", label_column="gold_label"
    )
    expected = {"text": ["B"], "text_pair": ["A"], "label": ["entailment"]}
    assert rows_of([tmp_path / "train.tsv"] * 2, find_columns("mnli", args))["train"].to_dict() == expected


def test_files_whose_columns_do_not_go_together(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nx,1\n")
    (tmp_path / "b.jsonl").write_text('{"text": "x", "label": 1}\n')
    with pytest.raises(ValueError, match="a.csv, .*b.jsonl differ in the types of their columns"):
        load_splits(PLAIN, {"train": [str(tmp_path / "a.csv"), str(tmp_path / "b.jsonl")]})


def test_cola_in_another_form_and_tables_with_odd_columns(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"sentence": "They ran.", "label": 1}\n')
    columns = find_columns("cola", TaskArguments(model_name_or_path="x"))
    assert rows_of([tmp_path / "a.jsonl"] * 2, columns)["train"][0] == {"text": "They ran.", "label": 1}
    lines = [f"{i},x,y" for i in range(12_000)] + [",x,y"] * 12_000  # a number first, nothing later
    (tmp_path / "b.csv").write_text("\n".join(["score,text,label", *lines]) + "\n")
    assert len(rows_of([tmp_path / "b.csv"] * 2)["train"]) == 24_000
    (tmp_path / "c.csv").write_text("id,text,label\n1,a,x,\n2,b,y,\n")  # a comma too many
    assert rows_of([tmp_path / "c.csv"] * 2)["train"].to_dict() == {"text": ["a", "b"], "label": ["x", "y"]}


def test_a_file_that_is_not_quite_squads(tmp_path):
    columns = find_columns("question-answering", TaskArguments(model_name_or_path="x"))
    (tmp_path / "a.json").write_text(json.dumps({"data": [{"title": "T", "paragraphs": [{"qas": [{"id": 1}]}]}]}))
    with pytest.raises(ValueError, match="a.json is not as SQuAD's files are: KeyError.'context'. in the article 'T'"):
        rows_of([tmp_path / "a.json"] * 2, columns)


def test_choices_from_several_columns(tmp_path):
    (tmp_path / "a.csv").write_text("sent1,a,b,label\nHe ran.,And fell.,And flew.,0\n")
    args = TaskArguments(model_name_or_path="x", text_column="sent1", choices_column=["a", "b"])
    rows = rows_of([tmp_path / "a.csv"] * 2, find_columns("multiple-choice", args))["train"]
    assert rows.to_list() == [{"text": "He ran.", "choices": ["And fell.", "And flew."], "label": "0"}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"review,label\nx,1\n", "a.csv has no column 'text', but review, label. Say with --text_column"),
        ("a.csv", b"text,label\n", "a.csv holds no rows"),
        ("a.csv", b"", "a.csv is empty"),
        ("a.json", b"[]", "a.json holds no rows"),
        ("a.csv", b"text,label\nStra\xdfe,1\n", "a.csv.*utf-8"),
        ("a.csv.gz", b"text,label\nx,1\n", "a.csv.gz cannot be"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n{"text": \n', "a.jsonl cannot be read as a table"),
        ("a.txt", b"x", "a.txt is no table"),
    ],
)
def test_bad_files_are_named(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"(?is).*{message}"):
        rows_of([tmp_path / name] * 2)
