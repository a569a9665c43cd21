import resource
from contextlib import contextmanager
from itertools import pairwise

import datasets
import numpy as np
import pytest

from helpers import make_corpus
from scratch_bert.pretraining.corpus import TokenizedCorpus
from scratch_bert.pretraining.text import TextSource
from scratch_bert.tokenizer import train_tokenizer


def test_tokenized_corpus_holds_every_sentence(documents, tokenizer, corpus):
    assert corpus.num_documents == len(documents)
    assert corpus.num_sentences == sum(map(len, documents))
    flat = [sentence for document in documents for sentence in document]
    for s in (0, 1, 777, len(flat) - 1):
        ids = corpus.tokens[corpus.sentence_offsets[s] : corpus.sentence_offsets[s + 1]]
        assert ids.tolist() == tokenizer(flat[s], add_special_tokens=False)["input_ids"]
    assert np.diff(corpus.documents).ravel().tolist() == [len(document) for document in documents]


def test_a_corpus_on_disk_is_that_in_memory_and_is_made_once(documents, tokenizer, corpus, tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join("\n".join(document) for document in documents) + "\n\n\u200b\n\nEnd.\n\u200b\n")
    source = TextSource([text], splitter="line")
    cache = tmp_path / "cache"
    on_disk = TokenizedCorpus.from_source(source, tokenizer, cache)
    expected = TokenizedCorpus.from_documents([*documents, ["End."]], tokenizer)
    for name in ("tokens", "sentence_offsets", "documents"):
        assert np.array_equal(getattr(on_disk, name), getattr(expected, name)), name
    assert on_disk.skipped == {"documents without a sentence": 1, "sentences without a token": 2}
    assert "0.00% unknown tokens, skipped: 1 documents without a sentence, 2 sentences" in on_disk.quality()
    assert not on_disk.tokens.flags.owndata  # it lies in the file
    (file,) = cache.iterdir()
    rows = datasets.Dataset.from_file(str(file))
    sentences = [sentence for document in documents for sentence in document]
    assert rows[777]["input_ids"] == tokenizer(sentences[777], add_special_tokens=False)["input_ids"]
    # The same text and tokenizer: nothing is read again. Another tokenizer: another file.
    monkeypatch.setattr("scratch_bert.pretraining.corpus._encode", None)
    again = TokenizedCorpus.from_source(TextSource([text], splitter="line"), tokenizer, cache)
    assert again.summary() == on_disk.summary() and again.skipped == on_disk.skipped
    monkeypatch.undo()
    TokenizedCorpus.from_source(source, train_tokenizer(source, 500), cache)
    assert len(list(cache.iterdir())) == 2


def test_special_tokens_in_a_text_are_text_but_an_unknown_word_is_unknown(tokenizer):
    corpus = TokenizedCorpus.from_documents([["A [SEP] and a [MASK] or [UNK]."]], tokenizer)
    tokens = tokenizer.convert_ids_to_tokens(corpus.tokens.tolist())
    assert tokens.count("[UNK]") == 1 and "[SEP]" not in tokens and "[MASK]" not in tokens


def test_text_without_tokens_is_left_out_and_an_empty_corpus_is_an_error(tokenizer, tmp_path):
    corpus = TokenizedCorpus.from_documents([["A class.", "\u200b"], ["\u200b"], ["An object."]], tokenizer)
    assert (corpus.num_documents, corpus.num_sentences) == (2, 2)
    assert TokenizedCorpus.from_documents([["\u200b"]], tokenizer).num_documents == 0
    (tmp_path / "empty.txt").write_text("\u200b\n\n")
    with pytest.raises(ValueError, match="The text is empty.*1 documents without a sentence, 1 sentences without"):
        TokenizedCorpus.from_source(TextSource([tmp_path / "empty.txt"]), tokenizer, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_hold_out(corpus):
    train, validation = corpus.hold_out(0.1, seed=1)
    assert (train.num_documents, validation.num_documents) == (corpus.num_documents - 6, 6)
    together = np.concatenate([train.documents, validation.documents])
    assert np.array_equal(together[np.argsort(together[:, 0])], corpus.documents)
    assert train.num_tokens + validation.num_tokens == corpus.num_tokens
    assert np.array_equal(corpus.hold_out(0.1, seed=1)[1].documents, validation.documents)
    assert not np.array_equal(corpus.hold_out(0.1, seed=2)[1].documents, validation.documents)
    few = corpus.select(np.arange(4))
    assert few.hold_out(0.01, seed=1)[1].num_documents == 2
    assert few.hold_out(0, seed=1) == (few, None)
    with pytest.raises(ValueError, match=r"3 document\(s\).*--text_format.*--validation_share 0"):
        corpus.select(np.arange(3)).hold_out(0.1, seed=1)
    with pytest.raises(ValueError, match="validation_share must be"):
        corpus.hold_out(1.0, seed=1)


def test_blocks_and_counts_cover_the_corpus(corpus, tokenizer):
    train, _ = corpus.hold_out(0.3, seed=0)
    blocks = list(train.blocks(sentences=200))
    assert len(blocks) > 5 and all(block.num_documents >= 2 for block in blocks)
    assert np.array_equal(np.concatenate([block.documents for block in blocks]), train.documents)
    tokens = np.concatenate([corpus.tokens[start:end] for start, end in train.document_tokens])
    assert np.array_equal(train.token_counts(2000), np.bincount(tokens, minlength=2000))


@contextmanager
def files_of_at_most(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_nothing_behind(documents, tokenizer, tmp_path):
    source = TextSource([["\n".join(document) for document in documents]])
    with files_of_at_most(100_000), pytest.raises(OSError, match="no room for the token ids in .*--cache_dir"):
        TokenizedCorpus.from_source(source, tokenizer, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_row_length_from_a_percentile():
    corpus = make_corpus(range(1, 101))
    assert corpus.row_length(70) == 3 + 2 * 71
    assert all(a <= b for a, b in pairwise(corpus.row_length(percentile) for percentile in range(0, 101, 10)))
