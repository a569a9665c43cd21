"""Random input: what can't be used ends with one error of the kinds that scripts show as a line, nothing else, and soon.

Each test tries the same 10 inputs each time; with FUZZ_EXAMPLES=200 in the environment, 200 others."""

import json
import math
import os
import tempfile
from pathlib import Path

import pytest
import yaml
from huggingface_hub.errors import StrictDataclassError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scratch_bert import ScratchBertConfig
from scratch_bert.cli import parse_arguments
from scratch_bert.finetuning.dataset import Columns, load_splits
from scratch_bert.hub.loading import load_config
from scratch_bert.pretraining.arguments import DataArguments, ModelArguments, PretrainingArguments
from scratch_bert.pretraining.data.text import TextSource
from scratch_bert.tokenizer import load_tokenizer, train_tokenizer


EXPECTED = (ValueError, OSError, StrictDataclassError)  # as `one_line_errors` catches
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


OPTIONS = sorted(
    name
    for arguments in (ModelArguments, DataArguments, PretrainingArguments)
    for name in arguments.__dataclass_fields__
    if name
    not in ("deepspeed", "fsdp", "ddp_backend", "local_rank", "output_dir", "cache_dir", "push_to_hub", "log_level")
)
NUMBERS = ("nan", "inf", "-1", "0", "1e30", "1e-30", "2.5", "99999999999999999999", "0x10", "true", "")


@fuzz
@given(options=st.dictionaries(st.sampled_from(OPTIONS), st.sampled_from(NUMBERS) | st.text(max_size=10), max_size=3))
def test_options_of_any_value(options):
    flags = [argument for name, value in options.items() for argument in (f"--{name}", value)]
    try:
        arguments = parse_arguments(
            ModelArguments, DataArguments, PretrainingArguments, description="", argv=[*flags, "--use_cpu", "true"]
        )
    except SystemExit as exit:
        assert exit.code in (0, 2)
    else:
        numbers = [
            getattr(arguments[2], name) for name in ("learning_rate", "weight_decay", "warmup_steps", "max_steps")
        ]
        assert all(math.isfinite(number) for number in numbers)


@fuzz
@given(
    content=BYTES | st.dictionaries(st.sampled_from(OPTIONS), VALUES, max_size=3).map(lambda v: yaml.dump(v).encode())
)
@example(content=b"1: 2")
@example(content=b"? [a]\n: 1")
def test_recipes_of_any_bytes(content):
    with tempfile.TemporaryDirectory() as directory:
        recipe = Path(directory, "recipe.yaml")
        recipe.write_bytes(content)
        try:
            parse_arguments(
                ModelArguments,
                DataArguments,
                PretrainingArguments,
                description="",
                argv=[str(recipe), "--use_cpu", "true"],
            )
        except SystemExit as exit:
            assert exit.code in (0, 2)


@fuzz
@given(
    text=st.text(max_size=50)
    | st.dictionaries(st.sampled_from(sorted(ScratchBertConfig().to_dict())), VALUES).map(json.dumps)
)
@example(text='{"id2label":[]}')
def test_config_overrides_of_any_value(text):
    try:
        ModelArguments(config_overrides=text).config()
    except EXPECTED as error:
        assert str(error)


@fuzz
@given(
    changes=st.dictionaries(
        st.sampled_from([*ScratchBertConfig().to_dict(), "auto_map", "architectures"]), VALUES, max_size=3
    )
)
@example(changes={"auto_map": None})
@example(changes={"model_type": None})
@example(changes={"dtype": []})
def test_config_files_of_any_value(changes):
    with tempfile.TemporaryDirectory() as directory:
        ScratchBertConfig().save_pretrained(directory)
        file = Path(directory, "config.json")
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
        try:
            load_config(directory, trust_remote_code=False)
        except EXPECTED as error:
            assert str(error)


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(["a few words", "a few more words"] * 3, 100).save_pretrained(directory)
    return directory


@fuzz
@given(data=st.data())
def test_tokenizer_files_of_any_damage(tokenizer_file, data):
    content = json.loads((tokenizer_file / "tokenizer.json").read_text())
    content |= data.draw(st.dictionaries(st.sampled_from(sorted(content)), VALUES, max_size=2))
    text = json.dumps(content)
    text = text[: data.draw(st.integers(0, len(text)) | st.just(len(text)))]
    with tempfile.TemporaryDirectory() as directory:
        ScratchBertConfig().save_pretrained(directory)
        for name in ("tokenizer_config.json",):
            Path(directory, name).write_text((tokenizer_file / name).read_text())
        Path(directory, "tokenizer.json").write_text(text)
        try:
            load_tokenizer(directory)
        except EXPECTED as error:
            assert str(error)
