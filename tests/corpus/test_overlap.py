import logging

import numpy as np
import pytest

from scratch_bert.corpus import overlap
from scratch_bert.corpus.corpus import TokenizedCorpus
from scratch_bert.corpus.overlap import report_overlap, shared_fraction


RNG = np.random.default_rng(0)
LONG = RNG.integers(5, 2000, size=(10, 400))  # documents of 400 tokens
SHORT = RNG.integers(5, 2000, size=(10, 20))


def blocks(*documents):
    return [(np.concatenate(documents), np.array([len(document) for document in documents]))]


def fraction(training, held_out):
    return shared_fraction(blocks(*training), blocks(*held_out), sum(map(len, held_out)), 2000)


@pytest.mark.parametrize("chunk", [overlap.CHUNK, 64, 100])
def test_shared_fraction_is_that_of_a_count(chunk, monkeypatch):
    monkeypatch.setattr(overlap, "CHUNK", chunk)
    training = [*LONG[:5], *SHORT[:5]]
    assert fraction(training, [*LONG[5:], *SHORT[5:]]) == 0
    assert fraction(training, training) == 1
    assert fraction(training, [LONG[0], *LONG[7:]]) == 0.25
    assert fraction(training, [SHORT[0], SHORT[7]]) == 0.5  # a complete document
    assert fraction(training, [SHORT[0][:15], SHORT[7][:15]]) == 0  # a part of one
    for length, shared in ((49, 0), (50, 50), (170, 170)):
        stretch = np.concatenate([LONG[6][:130], LONG[3][100 : 100 + length], LONG[7][:120]])
        assert fraction(training, [stretch]) == pytest.approx(shared / len(stretch))
    assert fraction([LONG[0][:30]], [LONG[0][:30]]) == 1 and fraction([LONG[0][:9]], [LONG[0][:9]]) == 0
    assert fraction([np.tile(7, 300)], [np.tile(7, 200)]) == 1


def test_shared_fraction_of_much_held_out_text_is_that_of_a_sample(monkeypatch):
    monkeypatch.setattr(overlap, "CHUNK", 100)
    monkeypatch.setattr(overlap, "MAX_HELD_OUT", 1000)
    assert fraction(LONG[:5], LONG[5:]) == 0
    assert fraction(LONG, LONG) == 1
    assert 0.3 < fraction(LONG[:5], LONG) < 0.8


def test_overlap_is_reported_once_measured(corpus, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    half = corpus.select(np.arange(corpus.num_documents // 2))
    phrase = report_overlap(half, corpus, 2000, tmp_path)
    assert phrase.endswith("overlap with the training text (passages of 50 tokens), " + overlap.MEMORISED)
    [record] = caplog.records
    assert record.levelname == "WARNING" and "Remove duplicates" in record.message
    train, held_out = corpus.split(0.1, seed=0)
    phrase = report_overlap(train, held_out, 2000, tmp_path)
    assert caplog.records[-1].levelname == "INFO" and caplog.records[-1].message == f"Held-out text: {phrase}"
    monkeypatch.setattr(overlap, "shared_fraction", None)
    assert report_overlap(train, held_out, 2000, tmp_path) == phrase


def test_overlap_of_documents_that_occur_twice(documents, tokenizer, tmp_path):
    training = TokenizedCorpus.from_documents(documents[:20], tokenizer)
    held_out = TokenizedCorpus.from_documents([*documents[20:30], documents[3]], tokenizer)
    share = held_out.select(np.array([10])).num_tokens / held_out.num_tokens
    found = shared_fraction(training.token_blocks(), held_out.token_blocks(), held_out.num_tokens, 2000)
    assert share <= found < share + 0.05
