import pytest

from scratch_bert.finetuning.dataset import load_splits
from scratch_bert.finetuning.glue import GLUE
from scratch_bert.finetuning.load import find_columns
from scratch_bert_options.finetuning import TaskOptions


# The beginnings of GLUE's own files.
FILES = {
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


def read(task, file, content, **options):
    file.write_text(content, encoding="utf-8")
    columns = find_columns(task, TaskOptions(model_name_or_path="x", **options))
    return load_splits(columns, {"train": [str(file)]})["train"].remove_columns("origin").to_dict()


@pytest.mark.parametrize("task", GLUE)
def test_glue_file(task, tmp_path):
    content, expected = FILES[task]
    assert read(task, tmp_path / "train.tsv", content) == expected


def test_glue_column_requested_by_its_own_name(tmp_path):
    content = "sentence1\tsentence2\tlabel1\tgold_label\nA\tB\tneutral\tentailment\n"
    expected = {"text": ["A"], "text_pair": ["B"], "label": ["neutral"]}
    assert read("mnli", tmp_path / "train.tsv", content, label_column="label1") == expected
    swapped = {"text_column": "sentence2", "text_pair_column": "sentence1", "label_column": "gold_label"}
    expected = {"text": ["B"], "text_pair": ["A"], "label": ["entailment"]}
    assert read("mnli", tmp_path / "train.tsv", content, **swapped) == expected


def test_glue_cola_in_another_format(tmp_path):
    content = '{"sentence": "They ran.", "label": 1}\n'
    assert read("cola", tmp_path / "a.jsonl", content) == {"text": ["They ran."], "label": [1]}
