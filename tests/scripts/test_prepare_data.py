"""Examples prepared by tasks of datatrove: the same from any number of them, and after any death of one."""

import bz2
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from io import BytesIO

import numpy as np
import pandas
import pyarrow.parquet as pq
import pytest

from helpers import SCRIPTS, failure_of, run_process, run_script
from scratch_bert.corpus.tokenizer import load_tokenizer
from scratch_bert.examples.prepared import open_examples
from scratch_bert.pretraining.sources import load_data
from scratch_bert_options.data import DataOptions


pytestmark = pytest.mark.integrations
FILES = 6


@pytest.fixture(scope="module")
def texts(text_file):
    return [text for text in text_file.read_text(encoding="utf-8").split("\n\n") if text.strip()]


@pytest.fixture(scope="module")
def text_dir(texts, tmp_path_factory):
    """The documents in files, some of them compressed, and in two directories."""
    root = tmp_path_factory.mktemp("text")
    (root / "more").mkdir()
    for number in range(FILES):
        lines = "".join(json.dumps({"text": text, "file_path": "elsewhere"}) + "\n" for text in texts[number::FILES])
        if number % 2:
            (root / f"{number}.jsonl").write_text(lines, encoding="utf-8")
        else:
            with gzip.open(root / "more" / f"{number}.jsonl.gz", "wt", encoding="utf-8") as file:
                file.write(lines)
    return root


@pytest.fixture
def prepare(saved, text_dir, tmp_path, monkeypatch):
    """Runs the script; gives the output directory."""

    def prepare(name, *arguments, input_dir=text_dir):
        options = ["--input_dir", input_dir, "--output_dir", tmp_path / name, "--tokenizer_name_or_path", saved]
        run_script(monkeypatch, "prepare_data.py", *options, "--max_seq_length", 64, *arguments)
        return tmp_path / name

    return prepare


@pytest.fixture(scope="module")
def prepared(saved, text_dir, tmp_path_factory):
    """The examples of `text_dir`, from a process of its own. To be read only."""
    directory = tmp_path_factory.mktemp("examples") / "prepared"
    options = ["--input_dir", text_dir, "--output_dir", directory, "--tokenizer_name_or_path", saved]
    run_process(SCRIPTS / "prepare_data.py", *options, "--max_seq_length", 64)
    return directory


def contents(directory):
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*.parquet")}


def test_examples_of_a_file_are_the_same_from_any_number_of_tasks(prepared, prepare, texts, tmp_path):
    one, several = contents(prepared), contents(prepare("several", "--tasks", 8, "--workers", 2))
    assert one == several and len(one) == FILES
    opened = open_examples(prepared)
    examples = opened.mapped("train", 0, str(tmp_path / "cache"))
    tokens = sum(len(ids) for ids in opened.tokenizer(texts, add_special_tokens=False)["input_ids"])
    in_examples = (examples.lengths() - 3).sum()  # without [CLS] and two [SEP]
    assert 0.9 * tokens < in_examples <= tokens
    labels = [example["next_sentence_label"] for example in examples]
    assert 0.4 < sum(labels) / len(labels) < 0.6
    assert load_tokenizer(str(prepared)).model_max_length == 64


@pytest.mark.skipif(os.name != "posix", reason="kills a process group")
def test_preprocessing_that_was_killed_continues_with_the_missing_files(prepared, prepare, saved, text_dir, tmp_path):
    command = [sys.executable, SCRIPTS / "prepare_data.py", "--input_dir", text_dir]
    command += ["--output_dir", tmp_path / "killed", "--tokenizer_name_or_path", saved, "--max_seq_length", 64]
    process = subprocess.Popen(list(map(str, command)), start_new_session=True, stderr=subprocess.DEVNULL)
    while not list(tmp_path.glob("killed/train/**/*.parquet")) and process.poll() is None:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    next((tmp_path / "killed").rglob("*.parquet")).unlink()  # not all, however late the signal came
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "killed").rglob("*.parquet")}
    missing = f"lacks the examples of {FILES - len(before)} of {FILES} files for train: run"
    with pytest.raises(FileNotFoundError, match=missing):
        open_examples(tmp_path / "killed")
    assert contents(prepare("killed", "--tasks", 2)) == contents(prepared)
    assert before.items() <= {f: f.stat().st_mtime_ns for f in (tmp_path / "killed").rglob("*.parquet")}.items()


def test_pretraining_reads_both_splits_mapped_or_streamed(prepared, prepare, texts, tmp_path, monkeypatch):
    held_out = tmp_path / "held-out"
    held_out.mkdir()
    (held_out / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:12]))
    shutil.copytree(prepared, tmp_path / "prepared")
    prepared = prepare("prepared", "--split", "validation", input_dir=held_out)
    splits = json.loads((prepared / "examples.json").read_text())["splits"]
    assert [len(splits[split]["files"]) for split in ("train", "validation")] == [FILES, 1]
    for streaming in (False, True):
        data = load_data(DataOptions(prepared_data=str(prepared), streaming=streaming, cache_dir=str(tmp_path)), 0)
        assert data.objective.name == "nsp" and len(data.eval_dataset) > 1
        options = ["--prepared_data", prepared, "--cache_dir", tmp_path / "cache", "--bf16", "false", "--max_steps", 2]
        options += ["--streaming"] if streaming else []
        output_dir = tmp_path / f"run-{streaming}"
        run_script(monkeypatch, "pretrain.py", *options, "--output_dir", output_dir, "--preset", "tiny")
        assert json.loads((output_dir / "metrics.json").read_text())["eval_mlm_loss"] > 0


def test_main_text_of_pages_in_warc_files(prepare, texts, tmp_path):
    from warcio.statusandheaders import StatusAndHeaders
    from warcio.warcwriter import WARCWriter

    (tmp_path / "web").mkdir()
    with (tmp_path / "web" / "a.warc.gz").open("wb") as file:
        writer = WARCWriter(file, gzip=True)
        for number, text in enumerate([" ".join(texts[i : i + 3]) for i in range(0, 12, 3)]):
            page = f"<html><body><nav>menu</nav><article><p>{text.replace('<', ' ')}</p></article></body></html>"
            headers = StatusAndHeaders("200 OK", [("Content-Type", "text/html")], protocol="HTTP/1.0")
            record = writer.create_warc_record(
                f"http://example.com/{number}", "response", payload=BytesIO(page.encode()), http_headers=headers
            )
            writer.write_record(record)
    directory = prepare("prepared", "--input_format", "warc", input_dir=tmp_path / "web")
    prepared = open_examples(directory)
    tokens = {t for ids in pq.read_table(prepared.files["train"][0])["input_ids"].to_pylist() for t in ids}
    words = set(prepared.tokenizer.convert_ids_to_tokens(sorted(tokens)))
    assert len(words) > 50 and "menu" not in words and "nav" not in words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max_seq_length", "auto:70"], "max_seq_length must be a number"),
        (["--glob_pattern", "*.warc"], "There are no files .*warc in"),
        (["--executor", "slurm"], "executor_options do not fit slurm: .*'time'"),
    ],
)
def test_options_that_are_rejected(arguments, message, prepare, capsys):
    assert re.search(message, failure_of(capsys, prepare, "out", *arguments))


def test_file_that_gives_no_examples_is_named(prepare, tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "alone.jsonl").write_text(json.dumps({"text": "One document. It is alone."}) + "\n")
    with pytest.raises(SystemExit, match="error: 1 files without examples.*alone.jsonl: Next-sentence .* 2 documents"):
        prepare("out", input_dir=tmp_path / "text")
    assert not list((tmp_path / "out").rglob("*.parquet"))
    # Other options, as there is nothing yet.
    prepare("out", "--sentence_objective", "none", input_dir=tmp_path / "text")
    with (tmp_path / "text" / "alone.jsonl").open("a") as file:
        file.write(json.dumps({"text": "Another document."}) + "\n")
    with pytest.raises(SystemExit, match="alone.jsonl has changed since its examples were made: delete .*parquet"):
        prepare("out", "--sentence_objective", "none", input_dir=tmp_path / "text")


@pytest.mark.parametrize(
    ("kind", "write"),
    [
        ("csv", lambda texts: pandas.DataFrame({"id": 1, "text": texts}).to_csv(index=False).encode("utf-8-sig")),
        ("jsonl", lambda texts: pandas.DataFrame({"text": texts}).to_json(orient="records", lines=True).encode()),
        ("parquet", lambda texts: pandas.DataFrame({"text": texts}).to_parquet()),
    ],
)
def test_tables_are_read_as_by_pretrain(kind, write, prepare, texts, tmp_path, caplog):
    """All records, with quotes and compressed or not; those that can't be read are counted, or refused."""
    (tmp_path / "text").mkdir()
    plain = tmp_path / "text" / f"a.{kind}"
    with caplog.at_level("WARNING"):
        plain.write_bytes(content := write(texts * 10))
        if kind != "parquet":
            (tmp_path / "text" / f"b.{kind}.bz2").write_bytes(bz2.compress(content))
        options = ("--input_format", kind, "--sentence_objective", "none")
        found = open_examples(prepare("out", *options, input_dir=tmp_path / "text"))
        tokens = [pq.read_table(file)["input_ids"].combine_chunks().flatten() for file in found.files["train"]]
        special = load_tokenizer(str(tmp_path / "out")).all_special_ids
        counts = {int((~np.isin(ids.to_numpy(), special)).sum()) for ids in tokens}
        assert len(tokens) == 2 - (kind == "parquet") and len(counts) == 1 and not caplog.records
        if kind == "parquet":
            return
        plain.write_bytes(content + (b"1,a,b\n" if kind == "csv" else b"[1]\n"))
        prepare("more", *options, "--glob_pattern", f"*.{kind}", input_dir=tmp_path / "text")
        assert f"left out 1 of {10 * len(texts) + 1} records" in caplog.text
        for broken, message in (
            (b"1,a,b\n" * 30 if kind == "csv" else b"[1]\n" * 30, "fields|JSON"),
            (b"\xff", "UTF-8"),
        ):
            plain.write_bytes(content + broken)
            with pytest.raises(SystemExit, match=f"1 files without examples: .*({message})"):
                prepare(message[:3], *options, "--glob_pattern", f"*.{kind}", input_dir=tmp_path / "text")


def test_directory_of_examples_is_not_filled_up_from_other_text(prepare, text_dir, texts, tmp_path):
    prepare("out", "--glob_pattern", "**/*.gz")
    prepare("out")  # more of the same
    assert len(open_examples(tmp_path / "out").files["train"]) == FILES
    prepare("out", "--glob_pattern", "*.jsonl")
    assert len(open_examples(tmp_path / "out").files["train"]) == FILES // 2
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "1.jsonl").write_text(json.dumps({"text": texts[0]}) + "\n")
    with pytest.raises(SystemExit, match=f"error: .*with a different input_dir: {text_dir}, not {tmp_path}"):
        prepare("out", input_dir=tmp_path / "other")
    with pytest.raises(SystemExit, match="error: .*holds examples with a different seed: 42, not 7"):
        prepare("out", "--seed", 7)
