"""BLiMP by one command: reading pairs, scores by phenomenon, and results that are added to a model's metrics.json."""

import gzip
import json
import re
import shutil

import pytest
from datasets import Dataset, DatasetDict

from helpers import make_bert, run_script
from scratch_bert.checkpoints.open import open_pretrained
from scratch_bert.corpus.tokenizer_training import train_tokenizer
from scratch_bert.pretraining.blimp import describe_scores, read_pairs, summarize
from scratch_bert.pretraining.minimal_pairs import encode_sentences, pseudo_log_likelihoods


PAIRS = [
    {"sentence_good": good, "sentence_bad": bad, "UID": paradigm, "linguistics_term": phenomenon, "field": "syntax"}
    for paradigm, phenomenon, good, bad in [
        ("passive", "s-selection", "The name is found.", "The is name found."),
        ("transitive", "argument_structure", "A class has a name.", "A class a name has."),
        ("transitive", "argument_structure", "The class is found.", "The class found is."),
        ("transitive", "argument_structure", "The name is here.", "The name here is."),
        ("island", "island_effects", "What is the name?", "What the name is?"),
    ]
]


def write_pairs(file, pairs=PAIRS):
    text = "".join(json.dumps(pair) + "\n" for pair in pairs)
    file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())
    return file


@pytest.fixture
def evaluate(monkeypatch, tmp_path):
    def run(*models, data=None, options=(), name="scores.json"):
        data = data or write_pairs(tmp_path / "pairs.jsonl")
        options = [*options, "--output_file", tmp_path / name]
        options = ["--suite", "blimp", "--suite_data", data, "--model_name_or_path", *models, *options]
        run_script(monkeypatch, "evaluate_model.py", *options)
        return json.loads((tmp_path / name).read_text())

    return run


@pytest.fixture
def pairs(tmp_path):
    return read_pairs(str(write_pairs(tmp_path / "pairs.jsonl")))


def test_each_model_is_scored_with_its_own_tokenizer(evaluate, saved, sentences, pairs, tmp_path, capsys):
    other = train_tokenizer(sentences[:300], vocab_size=500)
    make_bert("ForMaskedLM", tmp_path / "bert", other)
    results = evaluate(saved, tmp_path / "bert")
    texts = [pair[column] for pair in PAIRS for column in ("sentence_good", "sentence_bad")]
    model, _ = open_pretrained(str(tmp_path / "bert"), with_nsp=False)
    good, bad = pseudo_log_likelihoods(model, encode_sentences(other, texts), other.mask_token_id).view(-1, 2).T
    expected = summarize(pairs, (good > bad).tolist())
    assert list(results) == [str(saved), str(tmp_path / "bert")] and results[str(tmp_path / "bert")] == expected
    table = capsys.readouterr().out
    assert describe_scores(results) in table and re.search(r"GPT-2 +67,000 +83.0", table)


def test_overall_and_phenomena_are_means_of_paradigms(pairs):
    scores = summarize(pairs, [True, True, False, False, False])
    assert scores["paradigms"]["transitive"] == {"accuracy": pytest.approx(1 / 3), "pairs": 3}
    assert scores["phenomena"] == {
        "argument_structure": {"accuracy": pytest.approx(2 / 3), "pairs": 4},  # with s-selection, as in the paper
        "island_effects": {"accuracy": 0.0, "pairs": 1},
    }
    assert scores["accuracy"] == pytest.approx(4 / 9) and scores["pairs"] == 5


def test_pairs_come_from_a_file_a_directory_or_the_hub(pairs, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    write_pairs(tmp_path / "data/a.jsonl", PAIRS[:2])
    write_pairs(tmp_path / "data/b.jsonl.gz", PAIRS[2:])
    assert len(pairs) == 5 and read_pairs(str(tmp_path / "data")) == pairs
    parts = {"one": PAIRS[:4], "two": PAIRS[4:]}
    monkeypatch.setattr("datasets.get_dataset_config_names", lambda name: list(parts))
    monkeypatch.setattr(
        "scratch_bert.pretraining.blimp.open_dataset",
        lambda name, config: DatasetDict({"train": Dataset.from_list(parts[config])}),
    )
    assert read_pairs("nyu-mll/blimp") == pairs


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([PAIRS[0], PAIRS[1] | {"sentence_bad": " "}], "pairs.jsonl: 1.sentence_bad: string should match .*, got ' '"),
        ([{**PAIRS[0], "sentence_good": "long " * 40}], "sentence 'long .* tokens, but the model takes 40 at most"),
    ],
)
def test_bad_pairs_are_named(pairs, message, evaluate, saved, tmp_path):
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        evaluate(saved, data=write_pairs(tmp_path / "pairs.jsonl", pairs))


def test_pairs_that_the_tokens_do_not_tell_apart_are_wrong_and_counted(evaluate, saved, tmp_path, caplog):
    same = [
        {**PAIRS[0], "sentence_bad": PAIRS[0]["sentence_good"]},
        {**PAIRS[0], "sentence_bad": "THE name is found."},
    ]
    unknown = {**PAIRS[1], "sentence_bad": "A ꙮ name."}
    results = evaluate(saved, data=write_pairs(tmp_path / "pairs.jsonl", [*same, unknown]))
    assert results[str(saved)]["paradigms"]["passive"] == {"accuracy": 0.0, "pairs": 2}
    assert "2 of 3 pairs have the same tokens in both sentences, and count as wrong" in caplog.text
    assert re.search(r"1 of \d+ tokens are unknown", caplog.text)


def test_pairs_that_are_not_of_blimp_have_no_published_scores_beside_them(evaluate, saved, tmp_path, capsys):
    evaluate(saved)
    assert "GPT-2" in capsys.readouterr().out
    others = write_pairs(tmp_path / "others.jsonl", [{**PAIRS[0], "linguistics_term": "word_order"}])
    evaluate(saved, data=others, name="others.json")
    shown = capsys.readouterr().out
    assert "word order" in shown and "GPT-2" not in shown


def test_a_model_that_fails_does_not_lose_the_scores_of_those_before(evaluate, saved, tmp_path, capsys):
    model, damaged = (shutil.copytree(saved, tmp_path / name) for name in ("model", "damaged"))
    overflowing, _ = open_pretrained(str(saved), with_nsp=False)
    overflowing.get_input_embeddings().weight.data.fill_(1e38)
    overflowing.save_pretrained(damaged)
    with pytest.raises(SystemExit, match="error: A pseudo-log-likelihood of .*damaged is not finite"):
        evaluate(model, damaged)
    assert "overall" in capsys.readouterr().out
    results = json.loads((tmp_path / "scores.json").read_text())
    assert list(results) == [str(model)]
