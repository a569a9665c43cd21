"""Random input: what can't be used ends with one error of the kinds that scripts show as a line, nothing else, and soon.

Each test tries the same 10 inputs each time; with FUZZ_EXAMPLES=200 in the environment, 200 others."""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from huggingface_hub.errors import StrictDataclassError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from transformers import TrainingArguments

from helpers import make_model
from scratch_bert.checkpoints.open import load_config, open_pretrained
from scratch_bert.checkpoints.output_dir import read_metrics
from scratch_bert.checkpoints.resume import check_same_run
from scratch_bert.checkpoints.saved import find_checkpoint, saved_step
from scratch_bert.examples.dataset import SentencePairDataset
from scratch_bert.examples.prepared import open_examples, write_examples
from scratch_bert.finetuning.dataset import Columns, load_splits
from scratch_bert.finetuning.load import TASKS, load_task
from scratch_bert.text.formats import TextSource
from scratch_bert_cli.command_line import read_options
from scratch_bert_options.data import DataOptions
from scratch_bert_options.finetuning import FinetuningOptions, TaskOptions
from scratch_bert_options.model import ModelOptions
from scratch_bert_options.pretraining import PretrainingOptions


EXPECTED = (ValueError, OSError, StrictDataclassError)  # as `plain_message` explains


@contextmanager
def only_expected_errors(*named: str) -> Iterator[None]:
    """The errors that a script shows: of a line or a few, that name something in `named`, if that is given."""
    try:
        yield
    except EXPECTED as error:
        assert str(error).strip() and str(error).count("\n") < 8
        assert not named or any(name in str(error) for name in named), error


CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
fuzz = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", 10)),
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    deadline=20_000,
    suppress_health_check=CHECKS,
    print_blob=True,
)

TEXTS = st.text(max_size=200) | st.text(alphabet="ab,\"\n\r\t \\'{}[]:\u2028\x00\ufeff", max_size=200)
BYTES = st.binary(max_size=200) | TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=10), children, max_size=3),
    max_leaves=10,
)


def keys(*names):
    return st.dictionaries(st.sampled_from(names) | st.text(max_size=5), VALUES, max_size=4)


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".csv", ".tsv", ".json", ".jsonl", ".parquet"])
@fuzz
@given(content=BYTES | keys("text", "id").map(lambda value: json.dumps(value).encode()))
@example(content=b"text,id\nWell, Some more,1\n")
@example(content=b'text\n"never closed\n')
@example(content=b"\xff\xfea\x00")
@example(content=b"\r\x00")
@example(content=b'{" ":[10000000000000000000],"":[null,null]}')
@example(content=b'{"":{"\\u0000":null," ":[false,0]}}')
@example(content=b"")
def test_text_of_any_bytes(suffix, content):
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, f"file{suffix}")
        file.write_bytes(content)
        try:
            documents = list(TextSource([file]).documents())
        except EXPECTED as error:
            assert "file" in str(error)
        else:
            assert all(isinstance(sentence, str) and sentence for document in documents for sentence in document)


@pytest.mark.parametrize(
    ("suffix", "file_format"),
    [(".csv", None), (".jsonl", None), (".conll", "conll"), (".conllu", "conll"), (".json", "squad")],
)
@fuzz
@given(content=BYTES | keys("text", "label", "data", "paragraphs").map(lambda value: json.dumps(value).encode()))
def test_examples_of_any_bytes(suffix, file_format, content):
    names = {"text": ["1"], "label": ["2"]} if file_format == "conll" else {"text": ["text"], "label": ["label"]}
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, f"file{suffix}")
        file.write_bytes(content)
        try:
            load_splits(Columns(names, None, file_format), {"train": [str(file)]})
        except EXPECTED as error:
            assert "file" in str(error)


GROUPS = (ModelOptions, DataOptions, PretrainingOptions)
NOT_TRIED = {"deepspeed", "fsdp", "ddp_backend", "local_rank", "output_dir", "cache_dir", "push_to_hub", "log_level"}
OPTIONS = sorted(name for group in GROUPS for name in group.__dataclass_fields__ if name not in NOT_TRIED)
NUMBERS = ("nan", "inf", "-1", "0", "1e30", "1e-30", "2.5", "99999999999999999999", "0x10", "true", "")


@fuzz
@given(
    content=BYTES
    | st.dictionaries(st.sampled_from(OPTIONS), st.sampled_from(NUMBERS) | VALUES, max_size=3).map(
        lambda options: yaml.dump(options).encode()
    )
)
@example(content=b"1: 2")
@example(content=b"? [a]\n: 1")
def test_option_files_of_any_bytes(content):
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "options.yaml")
        file.write_bytes(content)
        try:
            arguments = read_options(*GROUPS, description="", argv=[str(file), "--use_cpu", "true"])
        except SystemExit as exit:
            assert exit.code in (0, 2)
        else:
            names = ("learning_rate", "weight_decay", "warmup_steps", "max_steps")
            assert all(math.isfinite(getattr(arguments[2], name)) for name in names)


# --------------------------------------------------------------------------------------- examples, checkpoints, tables


@pytest.fixture(scope="module")
def examples_dir(small_corpus, tokenizer, tmp_path_factory):
    directory = tmp_path_factory.mktemp("examples") / "prepared"
    write_examples(directory, {"train": SentencePairDataset(small_corpus, tokenizer, max_seq_length=64)})
    return directory


def load_examples(directory):
    examples = open_examples(directory)
    examples.mapped("train", 0, str(directory / "cache"))
    list(islice(examples.streamed("train", 0, buffer=10), 2))


CELLS = st.integers(-2, 9) | st.none() | st.integers() | st.floats() | st.text(max_size=3)
ROWS = st.lists(st.lists(st.integers(0, 9) | CELLS, max_size=4) | CELLS, max_size=3)


@fuzz
@given(
    columns=st.dictionaries(
        st.sampled_from(["input_ids", "token_type_ids", "special_tokens_mask", "next_sentence_label"]), ROWS
    )
)
def test_preprocessed_columns_of_any_values(examples_dir, columns):
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(shutil.copytree(examples_dir, Path(temporary, "examples")))
        file = directory / "train" / "examples.parquet"
        table = pq.read_table(file)[:3]
        try:
            for name, rows in columns.items():
                values = pa.array((rows * 3)[: len(table)] if rows else [None] * len(table))
                table = table.set_column(table.column_names.index(name), name, values)
        except (pa.ArrowException, OverflowError, TypeError):  # no such parquet file
            return
        pq.write_table(table, file)
        with only_expected_errors("examples"):
            load_examples(directory)


@st.composite
def damaged(draw, content: bytes) -> bytes:
    """Content that is cut, or changed in a few bytes; or JSON, if it is an object, with other values or any value."""
    try:
        fields = json.loads(content)
    except ValueError:
        fields = None
    if isinstance(fields, dict) and draw(st.booleans()):
        changes = draw(st.dictionaries(st.sampled_from(sorted(fields)) | st.text(max_size=5), VALUES, max_size=3))
        return json.dumps(draw(st.just(fields | changes) | VALUES)).encode()
    damage = bytearray(content[: draw(st.integers(0, len(content)) | st.just(len(content)))])
    for place in draw(st.lists(st.integers(0, max(len(damage) - 1, 0)), max_size=3 if damage else 0)):
        damage[place] = draw(st.integers(0, 255))
    return bytes(damage)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run's directory with a checkpoint, as the stock Trainer saves it, without a manifest."""
    checkpoint = tmp_path_factory.mktemp("run") / "checkpoint-2"
    make_model().save_pretrained(checkpoint)
    for name in ("optimizer.pt", "scheduler.pt"):
        (checkpoint / name).write_bytes(b"PK\x05\x06" + bytes(18))  # an empty zip archive
    log = [{"loss": 1.0, "step": 2}]
    files = {
        checkpoint / "trainer_state.json": {"global_step": 2, "epoch": 1.0, "max_steps": 4, "log_history": log},
        checkpoint / "run.json": {"fixed": {"seed": 1}, "options": {"learning_rate": 0.1}},
        checkpoint.parent / "metrics.json": {"eval_loss": 1.0},
    }
    for file, content in files.items():
        file.write_text(json.dumps(content))
    return checkpoint.parent


@fuzz
@given(data=st.data(), name=st.sampled_from(["trainer_state.json", "run.json", "manifest.json", "metrics.json"]))
def test_json_of_runs_of_any_damage(run_dir, data, name):
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(shutil.copytree(run_dir, Path(temporary, "run")))
        checkpoint = directory / "checkpoint-2"
        file = directory / name if name == "metrics.json" else checkpoint / name
        file.write_bytes(data.draw(damaged(file.read_bytes() if file.exists() else b'{"config.json": [1, 2]}')))
        args = TrainingArguments(str(directory), resume_from_checkpoint="auto", use_cpu=True)
        read_metrics(directory)
        with only_expected_errors("checkpoint", "run"):
            check_same_run({"fixed": {"seed": 1}, "options": {}}, str(checkpoint))
            if found := find_checkpoint(args):
                assert saved_step(found) >= 0
        with only_expected_errors("trainer_state.json"):
            saved_step(str(checkpoint))


@fuzz
@given(data=st.data())
def test_model_directories_of_any_damage(saved, data):
    """Numbers are small: sizes that do not fit into memory are another question."""
    small = st.integers(-1, 70) | st.floats(-1, 2) | st.none() | st.booleans() | st.text(max_size=5) | st.just([])
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(shutil.copytree(saved, Path(temporary, "saved")))
        if data.draw(st.booleans()):
            config = json.loads((directory / "config.json").read_text())
            changes = data.draw(st.dictionaries(st.sampled_from(sorted(config)), small, min_size=1, max_size=2))
            (directory / "config.json").write_text(json.dumps(config | changes))
        else:
            (directory / "model.safetensors").write_bytes(
                data.draw(damaged((directory / "model.safetensors").read_bytes()))
            )
        with only_expected_errors():
            open_pretrained(str(directory))


LABELS = (
    st.sampled_from(["a", "b", "", "NaN", "1", "1.0", "0.5"]) | st.integers(-1, 3) | st.floats() | st.none() | VALUES
)
COLUMNS = {
    "text": st.text(max_size=8) | CELLS,
    "context": st.just("a few words") | CELLS,
    "question": st.just("what") | CELLS,
    "answers": st.just({"text": ["few"], "answer_start": [2]}) | VALUES,
    "tokens": st.lists(st.text(max_size=5) | CELLS, max_size=3) | CELLS,
    "ner_tags": st.lists(LABELS, max_size=3) | CELLS,
    "choices": st.lists(st.text(max_size=5) | CELLS, max_size=3) | CELLS,
    "label": LABELS,
}


@fuzz
@given(data=st.data(), kind=st.sampled_from(["csv", "tsv", "jsonl", "parquet", "DataFrame"]))
@pytest.mark.parametrize("task", [name for name in TASKS if "-" in name] + ["mrpc", "stsb"])
def test_tables_of_any_values(saved, task, kind, data):
    names = {
        "token-classification": ["tokens", "ner_tags"],
        "question-answering": ["context", "question", "answers"],
        "multiple-choice": ["text", "choices", "label"],
        "mrpc": ["sentence1", "sentence2", "label"],
        "stsb": ["sentence1", "sentence2", "label"],
    }.get(task, ["text", "label"])
    count, columns = data.draw(st.integers(0, 12)), {}
    for name in names:
        strategy = COLUMNS.get(name, COLUMNS["text"])
        pool = data.draw(st.lists(strategy, min_size=1, max_size=1) | st.lists(strategy, min_size=1, max_size=4))
        columns[name] = [pool[number % len(pool)] for number in range(count)]
    with tempfile.TemporaryDirectory() as temporary:
        file, table = Path(temporary, f"table.{kind}"), pd.DataFrame(columns)
        try:
            if kind in ("csv", "tsv"):
                table.to_csv(file, index=False, sep="\t" if kind == "tsv" else ",", errors="surrogatepass")
            elif kind == "jsonl":
                file.write_text("\n".join(map(json.dumps, table.to_dict("records"))))
            elif kind == "parquet":
                pq.write_table(pa.table(columns), file)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):  # no such file
            return
        task_args = TaskOptions(model_name_or_path=str(saved), validation_share=0.4)
        args = FinetuningOptions(output_dir=str(Path(temporary, "out")))
        with only_expected_errors():
            content = table if kind == "DataFrame" else [str(file)]
            loaded = load_task(task, task_args, args, load_config(str(saved)), {"train": content})
            assert len(loaded.features["train"]) and len(loaded.features["validation"])
