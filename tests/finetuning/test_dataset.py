import json

import pyarrow
import pyarrow.parquet
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from scratch_bert.finetuning.dataset import Columns, load_splits
from scratch_bert.finetuning.load import find_columns
from scratch_bert_options.finetuning import TaskOptions


TEXTS = ["007", 'say "hi"', "a, b", "NA"]
PLAIN = Columns({"text": ["text"], "label": ["label"]})


def columns_of(task, **options):
    return find_columns(task, TaskOptions(model_name_or_path="x", **options))


def read(columns=PLAIN, **files):
    """The splits of files, without the origins of their examples."""
    splits = load_splits(columns, {split: [str(file)] for split, file in files.items()})
    return {split: examples.remove_columns("origin") for split, examples in splits.items()}


def write_table(file):
    Dataset.from_dict({"text": TEXTS, "label": ["1", "0", "1", "0"], "other": [1] * 4}).to_csv(
        file, sep="\t" if file.suffix == ".tsv" else ",", quoting=3 if file.suffix == ".tsv" else 0
    )
    return str(file)


def test_files_make_splits_with_the_origin_of_each_example(tmp_path):
    files = [write_table(tmp_path / name) for name in ("a.csv", "b.tsv")]
    splits = load_splits(PLAIN, {"train": files, "validation": files[:1], "test": None})
    assert set(splits) == {"train", "validation"} and len(splits["validation"]) == 4
    assert splits["train"].column_names == ["text", "label", "origin"]
    assert splits["train"]["text"][:] == TEXTS * 2
    assert splits["train"]["origin"][:] == [f"{file}, example {number}" for file in files for number in range(1, 5)]


def test_files_of_one_split_may_have_types_of_several_widths(tmp_path):
    texts = {"text": pyarrow.array(["a", "b"], "large_string"), "label": pyarrow.array([0, 1], "int32")}
    pyarrow.parquet.write_table(pyarrow.table(texts), tmp_path / "a.parquet")
    Dataset.from_dict({"text": ["c"], "label": [2]}).to_parquet(tmp_path / "b.parquet")
    train = load_splits(PLAIN, {"train": [str(tmp_path)]})["train"]
    assert train["text"][:] == ["a", "b", "c"] and train["label"][:] == [0, 1, 2]
    Dataset.from_dict({"text": ["c"], "label": ["2"]}).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(ValueError, match="a.parquet and the other train files have columns of different types"):
        load_splits(PLAIN, {"train": [str(tmp_path)]})


def test_column_of_conll_is_a_number(tmp_path):
    (tmp_path / "a.conll").write_text("Ada NNP B-PER\nran VBD O\n")
    columns = columns_of("token-classification", label_column="2")
    assert read(columns, train=tmp_path / "a.conll")["train"]["label"][:] == [["NNP", "VBD"]]
    with pytest.raises(ValueError, match="has no column 'pos': the columns of CoNLL are numbered from 1"):
        read(columns_of("token-classification", label_column="pos"), train=tmp_path / "a.conll")


def test_dataset_on_disk_with_class_names(tmp_path, caplog):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    examples = Dataset.from_dict({"text": TEXTS, "label": [1, 0, 1, 0]}, features=features)
    unlabelled = examples.remove_columns("label")
    saved = DatasetDict({"train": examples, "validation_matched": examples, "test": unlabelled, "dev": examples})
    saved.save_to_disk(tmp_path / "set")
    with caplog.at_level("INFO", "scratch_bert"):
        splits = load_splits(PLAIN, {"train": None}, (str(tmp_path / "set"), None))
    assert "unused splits: dev" in caplog.text
    assert splits["validation"][0]["origin"].endswith("set, validation_matched, example 1")
    assert splits["train"].features["label"].names == ["no", "yes"]
    assert splits["test"].column_names == ["text", "origin"]


def test_dataset_without_training_or_validation_examples(tmp_path):
    examples = Dataset.from_dict({"text": ["x"], "label": ["y"]})
    DatasetDict(dev=examples).save_to_disk(tmp_path / "a")
    with pytest.raises(ValueError, match="There is no split 'train', only dev"):
        load_splits(PLAIN, {}, (str(tmp_path / "a"), None))
    DatasetDict(train=examples, validation=examples.filter(lambda row: False)).save_to_disk(tmp_path / "b")
    with pytest.raises(ValueError, match="The split validation of .*b has no rows"):
        load_splits(PLAIN, {}, (str(tmp_path / "b"), None))


def test_conll_files_with_and_without_tags(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a.conllu").write_text("1\tAda\tada\tPROPN\t_\n2\tran\trun\tVERB\t_\n")
    (tmp_path / "b.txt").write_text("Ada\tPROPN\n")
    (tmp_path / "test.conll").write_text("Ada\nran\n\nNo\n")
    expected = {"text": [["Ada", "ran"]], "label": [["PROPN", "VERB"]]}
    files = {"train": tmp_path / "set", "validation": tmp_path / "b.txt", "test": tmp_path / "test.conll"}
    splits = read(columns_of("token-classification"), **files)
    assert splits["train"].to_dict() == expected
    assert splits["validation"][0] == {"text": ["Ada"], "label": ["PROPN"]}
    assert splits["test"].to_dict() == {"text": [["Ada", "ran"], ["No"]]}
    numbered = columns_of("token-classification", text_column="2", label_column="4")
    assert read(numbered, train=tmp_path / "set")["train"].to_dict() == expected


def test_squad_in_its_own_format_and_as_a_table(tmp_path):
    answers = {"text": ["Ada"], "answer_start": [4]}
    question = {"id": "q1", "question": "Who ran?", "answers": [{"text": "Ada", "answer_start": 4}]}
    articles = [{"title": "x", "paragraphs": [{"context": "One Ada ran.", "qas": [question]}]}]
    (tmp_path / "own.json").write_text(json.dumps({"version": "1.1", "data": articles}))
    flat = [{"id": "q1", "context": "One Ada ran.", "question": "Who ran?", "answers": answers}]
    (tmp_path / "flat.json").write_text(json.dumps(flat))
    (tmp_path / "flat.jsonl").write_text("\n".join(map(json.dumps, flat)))
    expected = [{"text": "One Ada ran.", "text_pair": "Who ran?", "label": answers, "id": "q1"}]
    for name in ("own.json", "flat.json", "flat.jsonl"):
        assert read(columns_of("question-answering"), train=tmp_path / name)["train"].to_list() == expected, name


def test_multiple_choice_from_several_columns(tmp_path):
    (tmp_path / "a.csv").write_text("sent1,a,b,label\nHe ran.,And fell.,And flew.,0\n")
    columns = columns_of("multiple-choice", text_column="sent1", choices_column=["a", "b"])
    assert read(columns, train=tmp_path / "a.csv")["train"].to_list() == [
        {"text": "He ran.", "choices": ["And fell.", "And flew."], "label": "0"}
    ]


def test_files_that_do_not_fit(tmp_path):
    (tmp_path / "a.csv").write_text("review,label\nx,1\n")
    with pytest.raises(ValueError, match="a.csv has no column 'text', only review, label. .* --text_column"):
        read(train=tmp_path / "a.csv")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match="a.txt is not a table"):
        read(train=tmp_path / "a.txt")
    with pytest.raises(ValueError, match="There are no training examples: pass --train_file or --dataset_name"):
        load_splits(PLAIN, {"train": None})
