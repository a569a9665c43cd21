import logging
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import datasets
import numpy as np
import pandas
import pytest

from scratch_bert.corpus.tokenizer import gives_same_input, load_tokenizer
from scratch_bert.examples.dataset import SentencePairDataset
from scratch_bert.examples.prepared import PreprocessedDataset, write_examples
from scratch_bert.pretraining.sources import build_collator, find_texts, trained_tokenizer
from scratch_bert.pretraining.sources import load_data as load_examples
from scratch_bert_options.data import DataOptions


@pytest.fixture
def arguments(text_file, saved, tmp_path):
    """Options of the text file and of an existing tokenizer, unless others are given."""

    def make(**options):
        defaults = {"cache_dir": str(tmp_path / "cache"), "tokenizer_name_or_path": str(saved), "max_seq_length": "64"}
        if not {"dataset_name", "prepared_data"} & set(options):
            defaults["train_file"] = [str(text_file)]
        return DataOptions(**{**defaults, **options})

    return make


def load_data(args, seed, tokenizer=None):
    name = args.tokenizer_name_or_path
    return load_examples(args, seed, tokenizer or (load_tokenizer(name) if name else None))


def test_tokenizer_is_trained_once_by_runs_at_the_same_time(arguments):
    """All train it; those that end later take what the first has left."""
    args = arguments(tokenizer_name_or_path=None, vocab_size=500)
    text, _ = find_texts(args)
    with ThreadPoolExecutor(4) as pool:
        tokenizers = list(pool.map(lambda _: trained_tokenizer(args, text), range(4)))
    assert all(tokenizer.get_vocab() == tokenizers[0].get_vocab() for tokenizer in tokenizers)
    assert len(list(Path(args.cache_dir).iterdir())) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"vocab_size": 400},
        {"tokenizer_type": "wordlevel"},
        {"lowercase": False},
        {"min_frequency": 100},
        {"first_segment_id": 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_tokenizer_in_the_cache_is_that_of_its_options(options, arguments):
    first, other = (arguments(tokenizer_name_or_path=None, **({"vocab_size": 500} | each)) for each in ({}, options))
    assert not gives_same_input(*(trained_tokenizer(args, find_texts(args)[0]) for args in (first, other)))
    assert len(list(Path(first.cache_dir).iterdir())) == 2


def test_examples_to_try_are_quoted_while_the_text_is_there(arguments, text_file, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(text_file.read_text().upper())
    quoted, decoded = (load_data(arguments(train_file=[str(file)]), 1) for _ in range(2))
    assert all(text.isupper() for text in quoted.examples_to_try["texts"])
    file.unlink()
    assert all(text.replace("[MASK]", "").islower() for text in decoded.examples_to_try["texts"])
    assert len(quoted.examples_to_try["texts"]) == len(decoded.examples_to_try["texts"]) > 0


def test_data_of_a_text_is_held_out_by_a_seed_of_its_own(arguments):
    data, again, other = (load_data(arguments(split_seed=split), seed) for seed, split in ((1, 1), (3, 1), (1, 2)))
    assert all(np.array_equal(data.eval_dataset[5][name], ids) for name, ids in again.eval_dataset[5].items())
    drawn = [[example["input_ids"].tolist() for example in each.train_dataset] for each in (data, again)]
    assert drawn[0] != drawn[1]
    train, held_out = data.train_dataset.corpus, data.eval_dataset.corpus
    assert (train.num_documents, held_out.num_documents) == (54, 6)
    assert np.array_equal(held_out.documents, again.eval_dataset.corpus.documents)
    assert not np.array_equal(held_out.documents, other.eval_dataset.corpus.documents)
    assert (data.max_seq_length, data.objective.name) == (64, "nsp")
    assert np.array_equal(data.token_counts, train.token_counts(2000))
    assert data.description == train.summary() and "unknown tokens" in data.quality


@pytest.mark.parametrize("tokenizer_type", ["wordpiece", "wordlevel"])
def test_data_of_chinese_text_is_split_into_sentences_and_characters(tokenizer_type, arguments, tmp_path):
    text = "今天天气很好。我们去公园吧！公园里的花好吗？\n\n今天的花很好！天气好吗？我们去吧。"
    (tmp_path / "zh.txt").write_text(text, encoding="utf-8")
    options = {"language": "zh", "tokenizer_type": tokenizer_type, "min_frequency": 1, "validation_share": 0.0}
    data = load_data(
        arguments(train_file=[str(tmp_path / "zh.txt")], tokenizer_name_or_path=None, **options, vocab_size=200), 0
    )
    corpus = data.train_dataset.corpus
    assert corpus.summary().startswith("2 documents, 6 sentences") and corpus.unknown == 0
    assert data.tokenizer.convert_ids_to_tokens(corpus.tokens.tolist()) == list(text.replace("\n", ""))


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "鉴于各联合国家已重申他们对基本人权的信念。\n\n人人生而自由，在尊严和权利上一律平等。\n\n" * 9,
            ["has no effect"],
        ),
        ("สิทธิมนุษยชนควรได้รับความคุ้มครองโดยหลักบังคับของกฎหมาย\n\nบุคคลใดจะถูกตัดสัญชาติ\n\n" * 9, ["selects phrases"]),
        (None, []),
    ],
    ids=["Chinese", "Thai", "English"],
)
def test_whole_word_masking_without_words_is_a_warning(text, warning, arguments, tmp_path, caplog):
    options = {"validation_share": 0, "sentence_objective": "none", "whole_word_mask": True}
    if text:
        (tmp_path / "text.txt").write_text(text, encoding="utf-8")
        options |= {"train_file": [str(tmp_path / "text.txt")], "tokenizer_name_or_path": None, "vocab_size": 80}
    load_data(arguments(**options), 0)
    found = [record.message for record in caplog.records if record.message.startswith("whole_word_mask")]
    assert [re.match("whole_word_mask (has no effect|selects phrases)", message)[1] for message in found] == warning


def test_data_without_held_out_text(arguments):
    assert load_data(arguments(validation_share=0.0), 0).eval_dataset is None


def test_data_of_a_length_from_a_percentile(arguments):
    data = load_data(arguments(max_seq_length="auto:70"), 0)
    assert data.max_seq_length == data.train_dataset.corpus.max_seq_length(70) == data.eval_dataset.max_seq_length
    assert 20 < data.max_seq_length < 100


def test_data_of_a_validation_file(arguments, tmp_path):
    (tmp_path / "validation.txt").write_text("One is here. Two is there.\n\nThree is here. Four is there.")
    data = load_data(arguments(validation_file=[str(tmp_path / "validation.txt")]), 0)
    assert data.train_dataset.corpus.num_documents == 60
    assert data.eval_dataset.corpus.summary().startswith("2 documents, 4 sentences")


def test_data_of_held_out_text_without_examples_is_an_error(arguments, tmp_path):
    (tmp_path / "validation.txt").write_text("One is here.\n\nThree is here.")
    with pytest.raises(
        ValueError, match=r"The validation text, 2 documents.*, gives no examples\. No document has two"
    ):
        load_data(arguments(validation_file=[str(tmp_path / "validation.txt")]), 0)


def save_splits(directory, **counts):
    texts = {name: [f"Text {n} begins. It ends." for n in range(count)] for name, count in counts.items()}
    splits = {name: datasets.Dataset.from_dict({"body": each}) for name, each in texts.items()}
    datasets.DatasetDict(splits).save_to_disk(directory)
    return {"dataset_name": str(directory), "text_column": "body"}


def test_data_of_a_data_set_is_evaluated_on_its_validation_split(arguments, tmp_path):
    data = load_data(arguments(**save_splits(tmp_path / "data", train=9, validation=4)), 0)
    assert (data.train_dataset.corpus.num_documents, data.eval_dataset.corpus.num_documents) == (9, 4)


def test_data_of_a_stream_comes_from_its_text_without_end(arguments):
    data = load_data(arguments(streaming=True, stream_buffer=5), 0)
    assert isinstance(data.train_dataset, datasets.IterableDataset) and data.eval_dataset is None
    assert (data.description, data.quality, data.max_seq_length) == ("a stream", "", 64)
    assert all(len(example["input_ids"]) <= 64 for example in data.train_dataset.take(20))


def test_data_of_a_stream_without_text_is_an_error(arguments, tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="The stream holds no text"):
        load_data(arguments(train_file=[str(tmp_path / "empty.txt")], streaming=True), 0)


def test_stream_of_other_text_than_the_tokenizers_is_an_error(arguments, tmp_path):
    (tmp_path / "greek.txt").write_text(
        "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι. Είναι ίσοι.\n\n" * 20, encoding="utf-8"
    )
    for streaming in (True, False):
        with pytest.raises(ValueError, match="tokens are unknown: the tokenizer is for other text"):
            load_data(arguments(train_file=[str(tmp_path / "greek.txt")], streaming=streaming), 0)


def test_tables_beside_plain_text(arguments, documents, tmp_path):
    frame = pandas.DataFrame({"review": [" ".join(document) for document in documents[:20]]})
    frame.to_csv(tmp_path / "reviews.csv", index=False)
    (text := tmp_path / "more.txt").write_text("\n\n".join(frame["review"]), encoding="utf-8")
    options = {"text_column": "review", "tokenizer_name_or_path": None, "vocab_size": 500}
    both = load_data(arguments(train_file=[str(tmp_path / "*.*")], **options), 0)
    one = load_data(arguments(train_file=[str(tmp_path / "reviews.csv")], validation_file=[str(text)], **options), 0)
    assert both.token_counts.sum() > 1.5 * one.token_counts.sum() > 0
    args = arguments(train_file=None, **options)
    found = load_examples(args, 0, None, frame, list(frame["review"]))
    assert found.eval_token_counts.sum() == one.eval_token_counts.sum()


def test_data_that_was_prepared(arguments, small_corpus, tokenizer, tmp_path):
    dataset = SentencePairDataset(small_corpus, tokenizer, max_seq_length=40, objective="sop")
    write_examples(tmp_path / "prepared", {"train": dataset})
    args = DataOptions(prepared_data=str(tmp_path / "prepared"), cache_dir=str(tmp_path / "cache"))
    data = load_data(args, 0)
    assert isinstance(data.train_dataset, PreprocessedDataset) and data.eval_dataset is None
    assert (data.max_seq_length, data.objective.name) == (dataset.lengths().max(), "sop")
    ids = np.concatenate([example["input_ids"] for example in dataset])
    assert data.token_counts.sum() == (~np.isin(ids, tokenizer.all_special_ids)).sum()  # the others are never masked
    assert data.description == f"{len(dataset):,} examples of up to {data.max_seq_length} tokens"


def test_collator_has_the_options_of_masking(arguments, tokenizer):
    args = arguments(mlm_probability=0.3, mask_replace_prob=0.5, random_replace_prob=0.2, whole_word_mask=True)
    args.max_predictions_per_seq = 7
    collator = build_collator(args, tokenizer, pack_to=99)
    for name in ("mlm_probability", "mask_replace_prob", "random_replace_prob", "whole_word_mask"):
        assert getattr(collator, name) == getattr(args, name), name
    assert (collator.max_predictions_per_seq, collator.pack_to) == (7, 99)
    assert build_collator(args, tokenizer).pack_to is None


def test_min_frequency_that_no_word_reaches_is_a_warning(text_file, tmp_path, caplog):
    options = {"min_frequency": 1_000_000, "vocab_size": 300, "cache_dir": str(tmp_path), "max_seq_length": "32"}
    args = DataOptions(train_file=[str(text_file)], **options)
    with caplog.at_level(logging.WARNING, "scratch_bert"):
        load_data(args, seed=0)
    assert "single characters and no word: none occurs 1,000,000 times. Lower min_frequency." in caplog.text
