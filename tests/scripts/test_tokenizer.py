"""scripts/tokenizer.py, and what uses its tokenizer."""

import json

import pytest

from helpers import failure_of, run_script
from scratch_bert.corpus.tokenizer import load_tokenizer
from scratch_bert.pretraining.sources import find_texts, trained_tokenizer
from scratch_bert_options.data import DataOptions


def test_tokenizer_of_all_text_is_the_one_that_pretraining_would_train(text_file, tmp_path, monkeypatch, capsys):
    options = {"vocab_size": 500, "min_frequency": 3, "strip_accents": False}
    flags = [flag for name, value in options.items() for flag in (f"--{name}", json.dumps(value))]
    run_script(monkeypatch, "tokenizer.py", "--train_file", text_file, "--output_dir", tmp_path / "new", *flags)
    size = text_file.stat().st_size
    assert f"Read {size / 1e6:,.1f} MB of text" in capsys.readouterr().out
    tokenizer = load_tokenizer(str(tmp_path / "new"))
    args = DataOptions(train_file=[str(text_file)], cache_dir=str(tmp_path / "cache"), **options)
    trained = trained_tokenizer(args, find_texts(args)[0])
    assert tokenizer.get_vocab() == trained.get_vocab()
    assert tokenizer.backend_tokenizer.to_str() == trained.backend_tokenizer.to_str()


def test_tokenizer_of_a_sample_knows_less(text_file, tmp_path, monkeypatch):
    def train(name, *options):
        options = ["--tokenizer_type", "wordlevel", "--min_frequency", 1, *options]
        run_script(monkeypatch, "tokenizer.py", "--train_file", text_file, "--output_dir", tmp_path / name, *options)
        return set(load_tokenizer(str(tmp_path / name)).get_vocab())

    every, some = train("every"), train("some", "--sample_mb", 0.01)
    assert some < every and 100 < len(some) < len(every) / 2
    assert some == train("again", "--sample_mb", 0.01) != train("other", "--sample_mb", 0.01, "--seed", 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output_dir", "here"], "The output_dir here is not empty: choose another directory"),
        ([], "--output_dir is required"),
        (["--output_dir", "new", "--text_format", "htm"], "text_format must be one of"),
        (["--output_dir", "new", "--streaming"], "streaming has no effect without dataset_name"),
    ],
)
def test_tokenizer_is_not_trained_in_vain(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "tokenizer.json").touch()
    arguments = ["tokenizer.py", "--train_file", "nowhere.txt", *options]
    assert message in failure_of(capsys, run_script, monkeypatch, *arguments)
    assert (tmp_path / "here" / "tokenizer.json").stat().st_size == 0


def test_tokenizer_of_a_dataset_is_trained_without_a_copy(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    for name in "ab":
        lines = (json.dumps({"text": f"{name}{number} word"}) + "\n" for number in range(1000))
        (tmp_path / "data" / f"train-{name}.jsonl").write_text("".join(lines))
    options = ["--dataset_name", tmp_path / "data", "--streaming", "--sample_mb", 0.001, "--min_frequency", 1]
    options += ["--tokenizer_type", "wordlevel"]
    run_script(monkeypatch, "tokenizer.py", *options, "--output_dir", tmp_path / "new")
    vocabulary = load_tokenizer(str(tmp_path / "new")).get_vocab().keys()
    assert {"a1", "b1", "word"} < vocabulary and not {"a999", "b999"} & vocabulary
