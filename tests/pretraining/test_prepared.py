"""Examples that are written once, and trained on from memory maps or as a stream."""

import json
from collections import Counter
from itertools import islice

import datasets
import numpy as np
import pytest

from scratch_bert.pretraining.data.collator import PretrainingCollator
from scratch_bert.pretraining.data.examples import SentencePairDataset
from scratch_bert.pretraining.data.preprocessed import PreprocessedDataset, open_examples, write_examples
from scratch_bert.pretraining.objectives import OBJECTIVES
from scratch_bert.tokenizer import train_tokenizer


def as_lists(examples):
    return [{name: np.asarray(value).tolist() for name, value in example.items()} for example in examples]


def all_examples(dataset):
    return as_lists(dataset[index] for index in range(len(dataset)))


def test_prepared_dataset_gives_the_examples_with_new_masks_each_epoch(pairs, tokenizer):
    examples = as_lists(pairs[i] for i in range(40))
    mask_seeds = [example.pop("mask_seed") for example in examples]
    dataset = PreprocessedDataset(datasets.Dataset.from_list(examples), tokenizer, OBJECTIVES["nsp"], seed=1)
    assert [{**example, "mask_seed": None} for example in examples] == [
        {**example, "mask_seed": None} for example in all_examples(dataset)
    ]
    assert [example["mask_seed"] for example in all_examples(dataset)] != mask_seeds
    assert len(dataset) == 40 and dataset.lengths().tolist() == [len(example["input_ids"]) for example in examples]
    counts = np.bincount(np.concatenate([example["input_ids"] for example in examples]), minlength=2000)
    assert np.array_equal(dataset.token_counts(2000), counts)
    first = PretrainingCollator(tokenizer)([dataset[i] for i in range(4)])
    dataset.set_epoch(1)
    second = PretrainingCollator(tokenizer)([dataset[i] for i in range(4)])
    assert not np.array_equal(first["labels"], second["labels"])
    assert np.array_equal(first["next_sentence_label"], [example["next_sentence_label"] for example in examples[:4]])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        pytest.param(
            {"input_ids": [[2, 9999, 3]], "token_type_ids": [[0] * 3], "special_tokens_mask": [[1, 0, 1]]},
            "hold the token id 9999, but the tokenizer has 2000 entries",
            id="another tokenizer",
        ),
        pytest.param(
            {"input_ids": [[1]], "special_tokens_mask": [[1]]}, "no column token_type_ids", id="missing column"
        ),
    ],
)
def test_prepared_dataset_rejects(columns, message, tokenizer):
    with pytest.raises(ValueError, match=message):
        PreprocessedDataset(datasets.Dataset.from_dict(columns), tokenizer, OBJECTIVES["none"])


@pytest.fixture
def splits(small_corpus, tokenizer):
    train, validation = small_corpus.hold_out(0.2, seed=0)

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
        rows = [{"input_ids": [n], "token_type_ids": [0], "special_tokens_mask": [0]} for n in range(count)]
        (tmp_path / "train").mkdir(exist_ok=True)
        datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "train" / f"{name}.parquet"))
    splits = {"train": {"files": ["a", "b"]}}
    (tmp_path / "examples.json").write_text(json.dumps({"sentence_objective": "none", "splits": splits}))
    tokenizer.save_pretrained(tmp_path)
    stream = open_examples(tmp_path).streamed("train", seed=0, buffer=5)
    counts = Counter(example["input_ids"][0] for example in islice(stream, 300))
    assert (
        set(counts) == set(range(90)) and max(counts.values()) <= 8
    )  # about three passes, and more of what both files hold


def test_prepared_directory_holds_the_documents_of_the_segments(splits, tmp_path):
    written = splits()
    write_examples(tmp_path / "prepared", written)
    table = datasets.Dataset.from_parquet(
        str(tmp_path / "prepared" / "train" / "examples.parquet"), cache_dir=str(tmp_path / "c")
    )
    documents = np.stack([table["document_a"], table["document_b"]], axis=1)
    assert np.array_equal(documents, written["train"].documents())


def test_prepared_directory_is_all_or_nothing(splits, tmp_path, monkeypatch):
    written = splits()
    monkeypatch.setattr(type(written["train"].tokenizer), "save_pretrained", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_examples(tmp_path / "new" / "prepared", written)
    assert list((tmp_path / "new").iterdir()) == []


def test_prepared_directory_is_not_overwritten(splits, tmp_path):
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "notes").touch()
    with pytest.raises(ValueError, match="prepared is not empty"):
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
    with pytest.raises(FileNotFoundError, match="prepared holds no examples.json: write them with inspect_data.py"):
        open_examples(tmp_path / "prepared")
