"""Examples that are written once, and trained on from memory maps or as a stream."""

import json
import re
import shutil
from collections import Counter
from itertools import islice

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import all_examples, as_lists
from scratch_bert.corpus.tokenizer_training import train_tokenizer
from scratch_bert.examples.collator import PretrainingCollator
from scratch_bert.examples.dataset import SentencePairDataset
from scratch_bert.examples.prepared import PreprocessedDataset, open_examples, write_examples
from scratch_bert.objectives import OBJECTIVES
from scratch_bert.pretraining.sources import load_data
from scratch_bert_options.data import DataOptions


def test_prepared_dataset_has_new_masks_each_epoch(pairs, tokenizer):
    examples = [dict(pairs[index]) for index in range(40)]
    table = datasets.Dataset.from_list(as_lists(examples)).remove_columns("mask_seed")
    dataset = PreprocessedDataset(table, tokenizer, OBJECTIVES["nsp"], seed=1)
    assert all(found["mask_seed"] != example["mask_seed"] for found, example in zip(dataset, examples, strict=True))
    assert len(dataset) == 40 and dataset.lengths().tolist() == [len(example["input_ids"]) for example in examples]
    counts = np.bincount(np.concatenate([example["input_ids"] for example in examples]), minlength=2000)
    assert np.array_equal(dataset.token_counts(2000), counts)
    first = PretrainingCollator(tokenizer)([dataset[i] for i in range(4)])
    dataset.set_epoch(1)
    second = PretrainingCollator(tokenizer)([dataset[i] for i in range(4)])
    assert not np.array_equal(first["labels"], second["labels"])
    assert np.array_equal(first["next_sentence_label"], [example["next_sentence_label"] for example in examples[:4]])


@pytest.fixture
def splits(small_corpus, tokenizer):
    train, validation = small_corpus.split(0.2, seed=0)

    def of(objective="nsp"):
        return {
            name: SentencePairDataset(part, tokenizer, max_seq_length=64, objective=objective)
            for name, part in (("train", train), ("validation", validation))
        }

    return of


@pytest.mark.parametrize("objective", ["nsp", "none"])
def test_prepared_directory_opens_with_its_examples_tokenizer_and_objective(objective, splits, tmp_path):
    written = splits(objective)
    write_examples(tmp_path / "new" / "prepared[1]", written)
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["prepared[1]"]
    assert {"train", "validation", "examples.json", "tokenizer.json"} <= {
        file.name for file in (tmp_path / "new" / "prepared[1]").iterdir()
    }
    opened = open_examples(tmp_path / "new" / "prepared[1]")
    assert (opened.objective.name, opened.tokenizer.model_max_length) == (objective, 64)
    assert opened.tokenizer.get_vocab() == written["train"].tokenizer.get_vocab()
    assert written["train"].tokenizer.model_max_length == 128  # as it was
    for name in ("train", "validation"):
        assert all_examples(opened.mapped(name, 0, str(tmp_path / "cache"))) == all_examples(written[name])


def test_prepared_examples_are_streamed_again_and_again_with_other_masks(splits, tmp_path):
    written = splits()["train"]
    write_examples(tmp_path / "prepared", {"train": written})
    stream = open_examples(tmp_path / "prepared").streamed("train", seed=0, buffer=10)
    examples = as_lists(islice(stream, 2 * len(written)))
    seeds = [example.pop("mask_seed") for example in examples]
    assert len(set(seeds)) > 0.99 * len(seeds)

    def contents(examples):
        return Counter(str(example["input_ids"]) for example in examples)

    first, expected = contents(examples[: len(written) // 2]), contents(all_examples(written))
    assert set(first) <= set(expected) and first.total() == len(first)
    assert [example["input_ids"] for example in examples[:20]] != [
        ids["input_ids"] for ids in all_examples(written)[:20]
    ]


def test_stream_takes_as_many_examples_of_each_file_as_it_holds(tokenizer, tmp_path):
    for name, count in (("a", 90), ("b", 10)):
        ends = tokenizer.cls_token_id, tokenizer.sep_token_id
        masks = {"token_type_ids": [0, 0, 0], "special_tokens_mask": [1, 0, 1]}
        rows = [{"input_ids": [ends[0], n + 10, ends[1]], **masks} for n in range(count)]
        (tmp_path / "train").mkdir(exist_ok=True)
        datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "train" / f"{name}.parquet"))
    splits = {"train": {"files": ["a", "b"]}}
    (tmp_path / "examples.json").write_text(json.dumps({"sentence_objective": "none", "splits": splits}))
    tokenizer.save_pretrained(tmp_path)
    stream = open_examples(tmp_path).streamed("train", seed=0, buffer=5)
    counts = Counter(example["input_ids"][1] for example in islice(stream, 300))
    assert (
        set(counts) == set(range(10, 100)) and max(counts.values()) <= 8
    )  # about three passes, and more of what both files hold


def test_prepared_directory_is_all_or_nothing(splits, tmp_path, monkeypatch):
    written = splits()
    monkeypatch.setattr(type(written["train"].tokenizer), "save_pretrained", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_examples(tmp_path / "new" / "prepared", written)
    assert list((tmp_path / "new").iterdir()) == []


def test_prepared_directory_is_not_overwritten(splits, tmp_path):
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "notes").touch()
    with pytest.raises(FileExistsError, match="prepared is not empty"):
        write_examples(tmp_path / "prepared", splits())
    assert [file.name for file in (tmp_path / "prepared").iterdir()] == ["notes"]


def test_prepared_directory_with_a_file_missing_or_another_tokenizer_is_rejected(splits, sentences, tmp_path):
    write_examples(tmp_path / "prepared", splits())
    for other in (train_tokenizer(sentences[:50], 300), train_tokenizer(sentences, 2000, first_segment_id=1)):
        with pytest.raises(ValueError, match="with another vocabulary or other segment ids: .*tokenizer_name_or_path"):
            open_examples(tmp_path / "prepared", other)
    (tmp_path / "prepared" / "train" / "examples.parquet").unlink()
    with pytest.raises(FileNotFoundError, match="prepared lacks the examples of 1 of 1 files for train"):
        open_examples(tmp_path / "prepared")
    (tmp_path / "prepared" / "examples.json").unlink()
    with pytest.raises(FileNotFoundError, match="examples.json"):
        open_examples(tmp_path / "prepared")


# ---------------------------------------------------------------------------------------------------------- damage


@pytest.fixture(scope="module")
def written(small_corpus, tokenizer, tmp_path_factory):
    """A directory of examples. To be copied."""
    directory = tmp_path_factory.mktemp("examples") / "prepared"
    write_examples(directory, {"train": SentencePairDataset(small_corpus, tokenizer, max_seq_length=64)})
    return directory


def first_row(value):
    return lambda rows: [value, *rows[1:]]


def first_number(value):
    return lambda rows: [[value, *rows[0][1:]], *rows[1:]]


COLUMNS = {
    "token": ("input_ids", first_number(9999), "column input_ids holds 9999, outside 0 to 1999"),
    "segment": ("token_type_ids", first_number(9), "token_type_ids holds 9, outside 0 to 1"),
    "label": ("next_sentence_label", first_row(7), "next_sentence_label holds 7, outside 0 to 1"),
    "row of null": ("input_ids", first_row(None), "column input_ids holds null"),
    "null in a row": ("input_ids", first_number(None), "column input_ids holds null"),
    "another type": ("input_ids", lambda rows: [7] * len(rows), "cannot be read: .*cast"),
    "no column": ("next_sentence_label", lambda rows: None, "cannot be read: .*next_sentence_label"),
    "no row": (None, None, "holds no example"),
}


@pytest.mark.parametrize("streaming", [False, True], ids=["mapped", "streamed"])
@pytest.mark.parametrize(("name", "change", "message"), COLUMNS.values(), ids=COLUMNS)
def test_prepared_examples_with_a_bad_value_are_rejected(name, change, message, streaming, written, tmp_path):
    shutil.copytree(written, tmp_path / "prepared")
    file = tmp_path / "prepared" / "train" / "examples.parquet"
    table = pq.read_table(file)
    if name:
        columns = table.to_pydict()
        columns[name] = change(columns[name])
        pq.write_table(pa.table({name: rows for name, rows in columns.items() if rows is not None}), file)
    else:
        pq.write_table(table[:0], file)
    with pytest.raises(ValueError, match=f"prepared/train.*{message}"):
        examples = open_examples(tmp_path / "prepared")
        if streaming:
            list(islice(examples.streamed("train", 0, buffer=10), 1))
        else:
            examples.mapped("train", 0, str(tmp_path / "cache"))


def test_prepared_examples_that_look_wrong_are_reported(written, tmp_path, caplog):
    shutil.copytree(written, tmp_path / "prepared")
    file = tmp_path / "prepared" / "train" / "examples.parquet"
    columns = pq.read_table(file).to_pydict()
    unknown = [[ids[0], *[1] * (len(ids) - 2), ids[-1]] for ids in columns["input_ids"]]
    pq.write_table(pa.table(columns | {"input_ids": unknown}), file)
    shutil.copy(file, file.with_name("more.parquet"))
    args = DataOptions(prepared_data=str(tmp_path / "prepared"), cache_dir=str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=r"\d\d% of the tokens are unknown"):
        load_data(args, seed=0)
    assert re.search("examples.json does not name 1 of the files, such as .*more.parquet: left out", caplog.text)


def add_entry(content):
    tokenizer = json.loads(content)
    tokenizer["model"]["vocab"]["another"] = len(tokenizer["model"]["vocab"])
    return json.dumps(tokenizer).encode()


OTHER_TOKENIZER = "prepared is not that of the examples: restore it"
NO_FILES = b'{"sentence_objective": "nsp", "splits": {"train": {}}}'


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tokenizer.json", add_entry, OTHER_TOKENIZER),
        (
            "tokenizer_config.json",
            lambda content: content.replace(b'"do_lower_case": true', b'"do_lower_case": false'),
            OTHER_TOKENIZER,
        ),
        (
            "train/examples.parquet",
            lambda content: content[:-9],
            "examples.parquet cannot be read: Parquet magic bytes not found",
        ),
        ("examples.json", lambda content: b"{", "examples.json.*Expecting property name"),
        ("examples.json", lambda content: NO_FILES, "examples.json.*splits.train.files: field required"),
    ],
)
def test_prepared_file_that_is_changed_is_rejected(name, change, message, written, tmp_path):
    file = shutil.copytree(written, tmp_path / "prepared") / name
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(ValueError, match=message):
        open_examples(tmp_path / "prepared")
