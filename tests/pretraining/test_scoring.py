"""Scores and vectors of texts: equal to plain loops over transformers' BERT, also from files of any length."""

import io
import json
import logging
import math
import re
import sys

import numpy as np
import pandas
import pytest
import torch
from transformers import BertForMaskedLM

from helpers import ROOT, make_bert, run_script
from scratch_bert import logs
from scratch_bert.checkpoints.open import open_pretrained
from scratch_bert.corpus.tokenizer_training import train_tokenizer
from scratch_bert.hub.conversion import convert_checkpoint
from scratch_bert.pretraining.scoring import score_texts
from scratch_bert.pretraining.text_vectors import encode_texts


MAX_LENGTH = 24


def save_bert(directory, tokenizer, max_length):
    """A BERT, and beside it the same model converted to scratch_bert. To be read only."""
    torch.manual_seed(0)
    model = make_bert("ForMaskedLM", directory, tokenizer, max_position_embeddings=max_length)
    for parameter in model.parameters():
        parameter.data *= 4  # so that predictions depend on the context
    model.save_pretrained(directory)
    convert_checkpoint(str(directory), directory.parent / "converted", "scratch_bert")
    return directory


@pytest.fixture(scope="module")
def directory(tokenizer, tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("models") / "bert", tokenizer, MAX_LENGTH)


@pytest.fixture(scope="module")
def reference(directory):
    return BertForMaskedLM.from_pretrained(directory)


@pytest.fixture(scope="module")
def model(directory):
    return open_pretrained(str(directory.with_name("converted")), with_nsp=False)[0]


@pytest.fixture(scope="module")
def texts(sentences):
    """Of several lengths, one longer than the model takes, and one that is empty."""
    texts = [sentence for sentence in dict.fromkeys(sentences) if 20 < len(sentence) < 50][:8]
    return [*texts, " ".join(texts), "", f"{texts[0]} [MASK]"]


def test_progress_is_logged_without_a_terminal(model, tokenizer, texts, monkeypatch, caplog):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with caplog.at_level(logging.INFO, "scratch_bert"):
        scores = score_texts(model, tokenizer, texts)
        assert not caplog.messages  # within a minute
        monkeypatch.setattr(logs, "MINUTE", 0)
        score_texts(model, tokenizer, texts)
    total = sum(row["tokens"] for row in scores)
    assert caplog.messages[-1] == f"Scoring {len(texts)} texts: {total:,} of {total:,} tokens"


def windows_of(tokenizer, text, max_length=MAX_LENGTH):
    """The ids and the offsets of each window: special tokens are the first and the last."""
    content = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    for start in range(0, len(content["input_ids"]), max_length - 2):
        part = slice(start, start + max_length - 2)
        ids = [tokenizer.cls_token_id, *content["input_ids"][part], tokenizer.sep_token_id]
        yield torch.tensor([ids]), content["offset_mapping"][part]


@torch.no_grad()
def plain_loop(model, tokenizer, text, copies=None, max_length=MAX_LENGTH) -> list[tuple[float, int, int]]:
    """The log-probability, start and end of each token, lowest first."""
    found = []
    for ids, offsets in windows_of(tokenizer, text, max_length):
        for block in range(copies or len(offsets)):
            masked = list(range(block, len(offsets), copies or len(offsets)))
            inputs = ids.clone()
            inputs[0, [index + 1 for index in masked]] = tokenizer.mask_token_id
            log_probabilities = model(input_ids=inputs).logits[0].log_softmax(-1)
            for index in masked:
                found.append((log_probabilities[index + 1, ids[0, index + 1]].item(), *offsets[index]))
    return sorted(found)


@pytest.mark.parametrize("fast", [False, True], ids=["exact", "fast"])
def test_scores_are_those_of_a_plain_loop(fast, texts, reference, model, tokenizer, monkeypatch):
    monkeypatch.setattr("scratch_bert.pretraining.minimal_pairs.COPIED_TOKENS", 1)  # two windows at a time
    scores = score_texts(model, tokenizer, texts, fast=fast, surprising=2)
    for text, score in zip(texts, scores, strict=True):
        expected = plain_loop(reference, tokenizer, text, 8 if fast else None)
        assert score["tokens"] == len(expected) and score["characters"] == len(text)
        assert score["windows"] == math.ceil(len(expected) / (MAX_LENGTH - 2))
        assert len(score["surprising"]) == min(2, len(expected))
        if not text:
            assert score["log_likelihood"] is score["per_token"] is score["per_character"] is None
            continue
        total = sum(value for value, _, _ in expected)
        assert score["log_likelihood"] == pytest.approx(total, rel=1e-5)
        assert score["per_token"] == pytest.approx(total / len(expected), rel=1e-5)
        assert score["per_character"] == pytest.approx(total / len(text), rel=1e-5)
        for token, (value, start, end) in zip(score["surprising"], expected, strict=False):
            assert (token["start"], token["end"], token["text"]) == (start, end, text[start:end])
            assert token["log_probability"] == pytest.approx(value, rel=1e-5)


def test_fast_is_exact_up_to_eight_tokens(texts, model, tokenizer):
    exact, fast = (score_texts(model, tokenizer, texts, fast=fast) for fast in (False, True))
    same = [one["log_likelihood"] == other["log_likelihood"] for one, other in zip(exact, fast, strict=True)]
    assert same == [score["tokens"] <= 8 for score in exact] and True in same and False in same


@torch.no_grad()
def test_vectors_are_means_over_the_tokens(texts, reference, model, tokenizer):
    expected = []
    for text in texts:
        states = [reference.bert(input_ids=ids).last_hidden_state[0, 1:-1] for ids, _ in windows_of(tokenizer, text)]
        expected.append(torch.cat(states).mean(0) if states else torch.zeros(model.config.hidden_size))
    expected = torch.stack(expected)
    vectors = encode_texts(model, tokenizer, texts)
    assert vectors.dtype == np.float32
    torch.testing.assert_close(torch.from_numpy(vectors), expected, rtol=1e-5, atol=1e-5)
    normalized = torch.nn.functional.normalize(expected, dim=-1)
    vectors = encode_texts(model, tokenizer, texts, normalize=True)
    torch.testing.assert_close(torch.from_numpy(vectors), normalized, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_vectors_heed_the_segment_ids_of_the_tokenizer(sentences, texts, reference, model):
    tokenizer = train_tokenizer(sentences, 900, first_segment_id=1)
    inputs = tokenizer(texts[0], return_tensors="pt")
    assert (inputs["token_type_ids"] == 1).all()
    expected = reference.bert(**inputs).last_hidden_state[0, 1:-1].mean(0)
    torch.testing.assert_close(torch.from_numpy(encode_texts(model, tokenizer, texts[:1])[0]), expected)


@pytest.fixture
def files(texts, tmp_path, monkeypatch):
    """Texts as lines and as a table, read in chunks of three rows."""
    monkeypatch.setattr("scratch_bert.text.rows.CHUNK", 3)
    (tmp_path / "lines.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    pandas.DataFrame({"id": range(len(texts)), "line": texts}).to_csv(tmp_path / "table.csv", index=False)
    return tmp_path


@pytest.mark.parametrize("source", ["lines.txt", "table.csv", "-"])
def test_score_keeps_rows_and_columns(source, files, directory, model, tokenizer, texts, monkeypatch, capsys):
    options = ["--file", source if source == "-" else files / source, "--fast"]
    if source == "-":
        stdin = io.TextIOWrapper(io.BytesIO((files / "lines.txt").read_bytes()))
        monkeypatch.setattr(sys, "stdin", stdin)
        run_script(monkeypatch, "score.py", directory, *options, "--format", "txt", "--output_file", "-")
        lines = capsys.readouterr().out.splitlines()
    else:
        column = ["--text_column", "line"] if source == "table.csv" else []
        output = files / "scores.jsonl"
        run_script(monkeypatch, "score.py", directory, *options, *column, "--output_file", output)
        lines = output.read_text(encoding="utf-8").splitlines()
        known = sorted(row["per_token"] for row in map(json.loads, lines) if row["tokens"])
        assert re.findall(r"(?m)^ +(-\d+\.\d\d)  \S", capsys.readouterr().out) == [f"{x:.2f}" for x in known[:3]]
    rows = [json.loads(line) for line in lines]
    assert [row["line" if source == "table.csv" else "text"] for row in rows] == texts
    for row, score in zip(rows, score_texts(model, tokenizer, texts, fast=True), strict=True):
        expected = score["per_token"]
        assert row["per_token"] == (None if expected is None else pytest.approx(expected, rel=1e-4))
    assert source != "table.csv" or rows[2]["id"] == "2"


def test_columns_of_parquet_begin_with_missing_values(files, directory, monkeypatch):
    frame = pandas.DataFrame({"text": ["", "", "", "the name"], "id": pandas.array([None, None, None, 5], "Int32")})
    frame.to_parquet(files / "rows.parquet")
    output = files / "scores.parquet"
    run_script(monkeypatch, "score.py", directory, "--file", files / "rows.parquet", "--output_file", output)
    frame = pandas.read_parquet(output)
    assert frame["id"][3] == 5
    assert frame["tokens"].tolist() == [0, 0, 0, 2] and frame["per_token"].notna().tolist() == [False] * 3 + [True]
    assert [token["text"] for token in sorted(frame["surprising"][3], key=lambda token: token["start"])] == [
        "the", "name",
    ]  # fmt: skip


@pytest.mark.parametrize("output", ["vectors.npy", "vectors.parquet"])
def test_encode_writes_a_vector_for_each_line(output, files, directory, model, tokenizer, texts, monkeypatch):
    options = ["--file", files / "lines.txt", "--output_file", files / output, "--normalize"]
    run_script(monkeypatch, "encode.py", directory, *options)
    if output.endswith(".npy"):
        vectors = np.load(files / output)
    else:
        frame = pandas.read_parquet(files / output)
        assert frame["text"].tolist() == texts
        vectors = np.stack(frame["embedding"])
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, encode_texts(model, tokenizer, texts, normalize=True), atol=1e-5)
    assert sorted(path.name for path in files.iterdir()) == sorted(["lines.txt", "table.csv", output])


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        ("score.py", "--file {}/table.csv --output_file {}/out.jsonl", "has no column 'text', only id, line"),
        ("score.py", "--file {}/rows.jsonl --output_file {}/out.jsonl", "There is a column 'tokens' already"),
        ("encode.py", "--file {}/rows.jsonl --output_file {}/out.parquet", "There is a column 'embedding' already"),
        ("encode.py", "--file - --format txt --output_file {}/out.npy", "use .parquet"),
        ("encode.py", "--file {}/damaged.jsonl --output_file {}/out.npy --text_column n", "column n: 1"),
    ],
)
def test_rows_that_would_be_lost_are_refused(script, options, message, files, directory, monkeypatch):
    (files / "rows.jsonl").write_text('{"text": "a name"}\n{"text": "a name", "tokens": 2, "embedding": 3}\n')
    (files / "damaged.jsonl").write_text('{"n": "a name"}\n{"n": 5}\n')
    with pytest.raises(SystemExit, match=message):
        run_script(monkeypatch, script, directory, *options.format(files, files).split())
    assert not [*files.glob("*out*"), *files.glob(".*")]


def test_snippets_of_the_page_run(files, directory, monkeypatch, capsys):
    page = (ROOT / "docs/scoring.md").read_text(encoding="utf-8")
    monkeypatch.chdir(files)
    (files / "runs").mkdir()
    (files / "runs/mine").symlink_to(directory, target_is_directory=True)
    command = re.search(r"^scratch-bert encode (.*)$", page, flags=re.MULTILINE)[1]
    run_script(monkeypatch, "encode.py", *command.split())
    exec("\n".join(re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)), {})
    found = re.findall(r"^(-?\d\.\d{3})  ", capsys.readouterr().out, flags=re.MULTILINE)
    assert len(found) == 5 and sorted(map(float, found), reverse=True) == [*map(float, found)]


def test_one_text_and_a_model_in_training_mode_are_rejected(model, tokenizer):
    for function in (score_texts, encode_texts):
        with pytest.raises(ValueError, match="A list of texts is needed, not str 'a cat'"):
            function(model, tokenizer, "a cat")
        assert len(function(model, tokenizer, [])) == 0
        for wrong in ({"text": ["a"]}, pandas.DataFrame({"text": ["a"]}), [1.5], (text for text in ["a"])):
            with pytest.raises(ValueError, match="A list of texts is needed"):
                function(model, tokenizer, wrong)
        with pytest.raises(ValueError, match=r"call model.eval\(\) first"):
            function(model.train(), tokenizer, ["a cat"])
        model.eval()
