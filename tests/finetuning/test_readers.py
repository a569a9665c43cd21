import gzip
import json

import pytest

from scratch_bert.finetuning.readers import read_conll, read_squad
from scratch_bert.text.tables import read_table


def test_table_with_gaps_and_with_a_trailing_comma(tmp_path):
    lines = [f"{i},x,y" for i in range(12_000)] + [",x,y"] * 12_000  # an integer first, nothing later
    (tmp_path / "a.csv").write_text("\n".join(["score,text,label", *lines]) + "\n")
    assert len(read_table(tmp_path / "a.csv", {"text", "label"})[0]) == 24_000
    (tmp_path / "b.csv").write_text("id,text,label\n1,a,x,\n2,b,y,\n")
    records, _ = read_table(tmp_path / "b.csv", {"text", "label"})
    assert records.to_dict() == {"text": ["a", "b"], "label": ["x", "y"]}


# ------------------------------------------------------------------------------------------------------------- CoNLL


def write(file, *lines):
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def test_conll_words_and_tags(tmp_path):
    lines = "-DOCSTART- -X- O", "", "# id 1", "Ada NNP B-PER", "Lovelace NNP I-PER", "", "", "ran VBD O"
    expected = {"text": [["Ada", "Lovelace"], ["ran"]], "label": [["B-PER", "I-PER"], ["O"]]}
    assert read_conll(write(tmp_path / "a.conll", *lines)).to_dict() == expected
    file = write(tmp_path / "c.conll", "# a comment", "Ada B-PER", "", "# O", "ran O", "", "# Ada ran", "No O")
    assert read_conll(file)["text"][:] == [["Ada"], ["#", "ran"], ["No"]]
    file = write(tmp_path / "b.txt", "#\tO", "@ada \tB-PER", "\t", "")
    assert read_conll(file).to_list() == [{"text": ["#", "@ada"], "label": ["O", "B-PER"]}]


def test_conllu_columns(tmp_path):
    comments = "# sent_id = 1", "# text = Ada ran", "1-2\tAdaran\t_\t_\t_"
    words = "1\tAda\tada\tPROPN\t_", "2\tran\trun\tVERB\t_", "", "# newdoc is here now", "1\tNo\tno\tINTJ\t_"
    file = write(tmp_path / "a.conllu", *comments, *words)
    expected = {"text": [["Ada", "ran"], ["No"]], "label": [["PROPN", "VERB"], ["INTJ"]]}
    assert read_conll(file).to_dict() == expected
    assert read_conll(file, word_column=2, tag_column=4).to_dict() == expected
    assert read_conll(file, word_column=3)["text"][0] == ["ada", "run"]


def test_conll_without_tags(tmp_path):
    file = write(tmp_path / "test.conll", "Ada", "ran", "", "No")
    assert read_conll(file, tagged=False).to_dict() == {"text": [["Ada", "ran"], ["No"]]}
    assert read_conll(file, tag_column=2, tagged=False).to_dict() == {"text": [["Ada", "ran"], ["No"]]}


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (["Ada B-PER", "Lovelace"], {}, "line 2 has 1 fields, not 2"),
        (["Ada"], {}, "line 1 has 1 fields, not 2"),
        (["Ada O"], {"tag_column": 4}, "line 1 has 2 fields, not 4"),
        (["Ada O"], {"word_column": 0}, "columns are counted from 1"),
        ([""], {}, "contains no examples"),
    ],
)
def test_conll_that_cannot_be_read(lines, options, message, tmp_path):
    with pytest.raises(ValueError, match=f"bad.conll.* {message}"):
        read_conll(write(tmp_path / "bad.conll", *lines), **options)


# ------------------------------------------------------------------------------------------------------------- SQuAD


def write_squad(file, *questions):
    article = {"title": "T", "paragraphs": [{"context": "One Ada ran.", "qas": questions}]}
    file.write_text(json.dumps({"version": "1.1", "data": [article]}))
    return file


def test_squad_question_that_contradicts_itself(tmp_path):
    answers = [{"text": "Ada", "answer_start": 4}]
    question = {"id": "q7", "question": "Who ran?", "answers": answers, "is_impossible": True}
    with pytest.raises(ValueError, match="question q7 has answers, but is_impossible is true"):
        read_squad(write_squad(tmp_path / "a.json", question))


def test_squad_questions_and_answers(tmp_path):
    question = {"id": "q1", "question": "Who ran?", "answers": [{"text": "Ada", "answer_start": 4}]}
    file = write_squad(tmp_path / "a.json", question, {**question, "id": 2, "answers": []})
    texts = {"text": "One Ada ran.", "text_pair": "Who ran?"}
    expected = [
        {**texts, "label": {"text": ["Ada"], "answer_start": [4]}, "id": "q1"},
        {**texts, "label": {"text": [], "answer_start": []}, "id": "2"},
    ]
    assert read_squad(file).to_list() == expected
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(file.read_bytes()))
    assert read_squad(tmp_path / "a.json.gz").to_list() == expected
    del question["answers"]
    unlabelled = read_squad(write_squad(tmp_path / "test.json", question))
    assert unlabelled.to_list() == [{**texts, "label": None, "id": "q1"}]


@pytest.mark.parametrize("content", ['{"id": 1}\n{"id": 2}', '[{"id": 1}]', '{"data": [{"id": 1}]}'])
def test_squad_is_told_from_other_json(content, tmp_path):
    (tmp_path / "a.json").write_text(content)
    assert read_squad(tmp_path / "a.json") is None


def test_squad_without_a_field(tmp_path):
    with pytest.raises(ValueError, match="a.json is not in SQuAD's format: KeyError: 'question'"):
        read_squad(write_squad(tmp_path / "a.json", {"id": 1}))
