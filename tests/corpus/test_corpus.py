import json
import pickle
import shutil
from itertools import pairwise
from zlib import crc32

import numpy as np
import pytest

from helpers import make_corpus
from scratch_bert.corpus import cache
from scratch_bert.corpus.corpus import TokenizedCorpus
from scratch_bert.corpus.tokenizer_training import train_tokenizer
from scratch_bert.text.formats import TextSource


ARRAYS = ("tokens", "sentence_offsets", "documents")


def assert_same(corpus, other):
    for name in ARRAYS:
        assert getattr(corpus, name).dtype == getattr(other, name).dtype, name
        assert np.array_equal(getattr(corpus, name), getattr(other, name)), name


def test_corpus_holds_every_sentence(documents, sentences, tokenizer, corpus):
    assert corpus.num_documents == len(documents)
    assert corpus.num_sentences == len(sentences)
    for s in (0, 1, 777, len(sentences) - 1):
        ids = corpus.tokens[corpus.sentence_offsets[s] : corpus.sentence_offsets[s + 1]]
        assert ids.tolist() == tokenizer(sentences[s], add_special_tokens=False)["input_ids"]
    assert np.diff(corpus.documents).ravel().tolist() == [len(document) for document in documents]


# --------------------------------------------------------------------------------------------------------- on disk


@pytest.fixture(scope="module")
def source(documents, tmp_path_factory):
    """The built-in corpus, a document without a token, and one with a sentence without a token. To be read only."""
    text = tmp_path_factory.mktemp("corpus") / "text.txt"
    text.write_text("\n\n".join("\n".join(document) for document in documents) + "\n\n\u200b\n\nEnd.\n\u200b\n")
    return TextSource([text], splitter="line")


@pytest.fixture(scope="module")
def on_disk(source, tokenizer, tmp_path_factory):
    return TokenizedCorpus.from_source(source, tokenizer, tmp_path_factory.mktemp("cache"))


def test_corpus_on_disk_is_that_in_memory(on_disk, documents, tokenizer):
    assert_same(on_disk, TokenizedCorpus.from_documents([*documents, ["End."]], tokenizer))
    assert on_disk.skipped == {"documents without a token": 1, "sentences without a token": 2}
    assert on_disk.quality().startswith("0.00% unknown tokens, 2 sentences without a token, ")
    assert on_disk.quality().endswith(", 1 documents without a token skipped")
    assert not on_disk.tokens.flags.owndata and not on_disk.tokens.flags.writeable  # it is in the file


def test_corpus_on_disk_is_plain_arrays_and_json(on_disk, sentences, tokenizer):
    assert {file.name for file in on_disk.directory.iterdir()} == {*ARRAYS, "corpus.json", "manifest.json"}
    about = json.loads((on_disk.directory / "corpus.json").read_text())
    shapes = {"tokens": [on_disk.num_tokens], "sentence_offsets": [on_disk.num_sentences + 1]}
    shapes["documents"] = [on_disk.num_documents, 2]
    assert about == {**shapes, "unknown": 0, "skipped": on_disk.skipped}
    tokens = np.fromfile(on_disk.directory / "tokens", dtype=np.int32)
    offsets = np.fromfile(on_disk.directory / "sentence_offsets", dtype=np.int64)
    documents = np.fromfile(on_disk.directory / "documents", dtype=np.int64).reshape(-1, 2)
    expected = tokenizer(sentences[777], add_special_tokens=False)["input_ids"]
    assert tokens[offsets[777] : offsets[778]].tolist() == expected
    assert (len(tokens), documents[-1].tolist()) == (offsets[-1], [len(sentences), len(sentences) + 1])


def test_corpus_is_made_once_for_a_text_and_a_tokenizer(on_disk, source, sentences, tokenizer, monkeypatch):
    def read_again(*_):
        raise AssertionError("read again")

    few, cache_dir = TextSource([sentences[:50]]), on_disk.directory.parent
    with monkeypatch.context() as patch:
        patch.setattr("scratch_bert.corpus.corpus._write", read_again)
        again = TokenizedCorpus.from_source(TextSource(source.shards, splitter="line"), tokenizer, cache_dir)
        assert again.directory == on_disk.directory
        assert again.summary() == on_disk.summary() and again.skipped == on_disk.skipped
        patch.setattr(cache, "VERSION", cache.VERSION + 1)
        with pytest.raises(AssertionError, match="read again"):
            TokenizedCorpus.from_source(source, tokenizer, cache_dir)
    tokenizers = tokenizer, train_tokenizer(sentences[:50], 300)
    directories = {TokenizedCorpus.from_source(few, each, cache_dir).directory for each in tokenizers}
    assert len(directories) == 2 and on_disk.directory not in directories


@pytest.mark.parametrize("how", ["missing", "truncated", "damaged"])
def test_corpus_with_a_damaged_file_is_built_again(how, on_disk, source, tokenizer, tmp_path, caplog):
    directory = shutil.copytree(on_disk.directory, tmp_path / on_disk.directory.name)
    content = bytearray((directory / "tokens").read_bytes())
    content[len(content) // 2] ^= 1
    (directory / "tokens").unlink()
    if how != "missing":
        (directory / "tokens").write_bytes(content[: len(content) - 8 * (how == "truncated")])
    again = TokenizedCorpus.from_source(source, tokenizer, tmp_path)
    assert f"{directory} is damaged, tokens is {how}: it is built again" in caplog.text
    assert again.directory == directory and np.array_equal(again.tokens, on_disk.tokens)
    caplog.clear()
    TokenizedCorpus.from_source(source, tokenizer, tmp_path)
    assert not caplog.text


def test_corpus_is_pickled_as_the_name_of_its_directory(on_disk):
    """Documents of a split are part of it; tests/examples/test_dataset.py opens one in another process."""
    train, _ = on_disk.split(0.2, seed=0)
    sent = pickle.dumps(train)
    assert len(sent) < 5_000 < train.tokens.nbytes
    opened = pickle.loads(sent)
    assert_same(opened, train)
    assert not opened.tokens.flags.owndata
    assert (opened.directory, opened.skipped, opened.unknown) == (train.directory, train.skipped, train.unknown)


# ------------------------------------------------------------------------------------------------- text and tokens


def test_special_tokens_in_a_text_are_text_but_an_unknown_word_is_unknown(tokenizer):
    corpus = TokenizedCorpus.from_documents([["A [SEP] and a [MASK] or [UNK]."]], tokenizer)
    tokens = tokenizer.convert_ids_to_tokens(corpus.tokens.tolist())
    assert tokens.count("[UNK]") == 1 and "[SEP]" not in tokens and "[MASK]" not in tokens


def test_text_without_tokens_is_left_out_and_an_empty_corpus_is_an_error(tokenizer, tmp_path):
    corpus = TokenizedCorpus.from_documents([["A class.", "\u200b"], ["\u200b"], ["An object."]], tokenizer)
    assert (corpus.num_documents, corpus.num_sentences) == (2, 2)
    assert TokenizedCorpus.from_documents([["\u200b"]], tokenizer).num_documents == 0
    (tmp_path / "empty.txt").write_text("\u200b\n\n")
    with pytest.raises(ValueError, match="The text is empty.*1 sentences without a token, 1 documents without"):
        TokenizedCorpus.from_source(TextSource([tmp_path / "empty.txt"]), tokenizer, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_unknown_tokens_are_counted(tokenizer, tmp_path):
    corpus = TokenizedCorpus.from_source(TextSource([["A class [UNK] is. [UNK]"], ["So."]]), tokenizer, tmp_path)
    assert corpus.unknown == 2 and f"{2 / corpus.num_tokens:.2%} unknown tokens, nothing skipped" == corpus.quality()


# -------------------------------------------------------------------------------------------------- splits, blocks


def test_hold_out_is_a_seeded_draw(corpus):
    train, validation = corpus.split(0.1, seed=1)
    assert validation.num_documents == round(0.1 * corpus.num_documents)
    together = np.concatenate([train.documents, validation.documents])
    assert np.array_equal(together[np.argsort(together[:, 0])], corpus.documents)
    assert train.num_tokens + validation.num_tokens == corpus.num_tokens
    assert np.array_equal(corpus.split(0.1, seed=1)[1].documents, validation.documents)
    assert not np.array_equal(corpus.split(0.1, seed=2)[1].documents, validation.documents)


BOOKS = [[20] * 500, [20] * 400, [20] * 900, [20] * 300]


@pytest.mark.parametrize(
    ("documents", "number"),
    [
        pytest.param(BOOKS, 4, id="four books"),
        pytest.param(BOOKS[:1], 1, id="a book"),
        pytest.param([BOOKS[0], *[[20] * 5] * 200], None, id="a book and many short texts"),
        pytest.param([[10] * 12] * 5, 2, id="five short texts"),
        pytest.param(np.random.default_rng(0).integers(1, 60, size=(3, 99)).tolist(), 2, id="many lengths"),
    ],
)
@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_hold_out_of_few_or_long_documents_takes_their_ends(documents, number, fraction):
    corpus = make_corpus(*documents)
    for seed in range(3):
        train, validation = corpus.split(fraction, seed)
        share = validation.num_tokens / corpus.num_tokens
        assert fraction / 2 < share <= min(2 * fraction, (1 + fraction) / 2)
        assert train.num_tokens + validation.num_tokens == corpus.num_tokens
        if fraction == 0.1 and number:
            assert validation.num_documents == number and train.num_documents == corpus.num_documents
            assert set(validation.documents[:, 1]) <= set(corpus.documents[:, 1])  # they are ends
            assert np.diff(validation.documents).min() >= 2  # one sentence follows another
    assert make_corpus(*BOOKS).split(0, seed=1)[1] is None


def test_hold_out_of_too_little_text_is_an_error(corpus):
    for documents, fraction in ([[[10]] * 3, 0.1], [[[10] * 10] * 3, 0.01]):
        with pytest.raises(ValueError, match=r"is too short to hold out .* text_format .*validation_share=0"):
            make_corpus(*documents).split(fraction, seed=1)
    with pytest.raises(ValueError, match="validation_share must be"):
        corpus.split(1.0, seed=1)


def test_blocks_and_counts_cover_the_corpus(corpus):
    train, _ = corpus.split(0.3, seed=0)
    blocks = list(train.blocks(sentences=200))
    assert len(blocks) > 5 and all(block.num_documents >= 2 for block in blocks)
    assert np.array_equal(np.concatenate([block.documents for block in blocks]), train.documents)
    tokens = np.concatenate([corpus.tokens[start:end] for start, end in train.document_tokens])
    assert np.array_equal(train.token_counts(2000), np.bincount(tokens, minlength=2000))
    lengths = np.diff(train.document_tokens).ravel()
    assert train.checksum() == crc32(tokens.tobytes(), crc32(lengths.tobytes()))  # as runs have recorded it


def test_max_seq_length_from_a_percentile():
    corpus = make_corpus(range(1, 101))
    assert corpus.max_seq_length(70) == 3 + 2 * 71
    assert all(a <= b for a, b in pairwise(corpus.max_seq_length(percentile) for percentile in range(0, 101, 10)))
