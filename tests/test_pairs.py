import numpy as np
import pytest

from scratch_bert.pairs import SentencePairDataset, build_pairs
from scratch_bert.tokenizer import TokenizedCorpus


def documents_of(corpus, positions):
    """The document that holds each token position."""
    starts = corpus.sentence_offsets[corpus.document_offsets]
    return np.searchsorted(starts, positions, side="right") - 1


def make_corpus(*documents):
    """Documents given by the lengths of their sentences; the tokens count up from 5."""
    sentence_lengths = [length for document in documents for length in document]
    return TokenizedCorpus(
        tokens=np.arange(5, 5 + sum(sentence_lengths), dtype=np.int32),
        sentence_offsets=np.cumsum([0, *sentence_lengths]),
        document_offsets=np.cumsum([0, *map(len, documents)]),
    )


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_statistics_over_the_builtin_corpus(pairs, corpus, epoch):
    pairs.set_epoch(epoch)
    a_start, a_end, b_start, b_end, label = pairs.pairs.T
    lengths = a_end - a_start + b_end - b_start + 3
    assert lengths.max() <= 128
    assert (a_end > a_start).all() and (b_end > b_start).all()
    assert (label == 0).mean() == pytest.approx(0.5, abs=0.02)
    same_document = documents_of(corpus, a_start) == documents_of(corpus, b_start)
    assert same_document[label == 0].all()
    assert not same_document[label == 1].any()
    for start, end in ((a_start, a_end), (b_start, b_end)):
        assert (documents_of(corpus, start) == documents_of(corpus, end - 1)).all()
    # Nine rows in ten are filled, but for documents that end.
    assert 0.75 < (lengths > 115).mean() < 0.95
    print(
        f"\nrows {len(label)}, continuations {(label == 0).mean():.4f}, negatives from the same document "
        f"{same_document[label == 1].mean():.4f}, too long {(lengths > 128).mean():.4f}, mean length {lengths.mean():.1f}"
    )


def test_a_continuation_follows_its_first_segment():
    """Brute force over a corpus of short sentences, where nothing is truncated and each id tells its place."""
    corpus = make_corpus([4, 5, 3, 6, 2] * 8, [3, 3, 9] * 9, [7] * 20)
    sentence_starts = set(corpus.sentence_offsets.tolist())
    rng = np.random.default_rng(0)
    seen = {0: 0, 1: 0}
    for _ in range(20):
        for a_start, a_end, b_start, b_end, label in build_pairs(corpus, 64, 0.1, rng).tolist():
            seen[label] += 1
            if a_end - a_start + b_end - b_start < 61:  # not truncated: segments are whole sentences
                assert {a_start, a_end, b_start, b_end} <= sentence_starts
                if label == 0:
                    assert b_start == a_end
    assert min(seen.values()) > 100


def test_unused_text_is_put_back():
    """Every sentence of a document is an A, or the B of a true pair: text gathered for a random B comes again."""
    corpus = make_corpus([4, 5, 3, 6, 2] * 8, [3, 3, 9] * 9, [7] * 20)
    rows = build_pairs(corpus, 64, 0.0, np.random.default_rng(0))
    # Truncation takes tokens from both ends at most; each sentence still shows with one token at least.
    covered = np.zeros(len(corpus.tokens), dtype=bool)
    for a_start, a_end, b_start, b_end, label in rows.tolist():
        covered[a_start:a_end] = True
        if label == 0:
            covered[b_start:b_end] = True
    assert covered.mean() > 0.9


def test_truncation_keeps_both_segments_and_cuts_either_end():
    corpus = make_corpus([300, 200, 150, 400] * 10, [500] * 10)
    rows = build_pairs(corpus, 32, 0.0, np.random.default_rng(0))
    a_start, a_end, b_start, b_end, _ = rows.T
    assert (a_end - a_start + b_end - b_start == 29).all()
    assert (np.abs((a_end - a_start) - (b_end - b_start)) <= 1).all()
    boundaries = corpus.sentence_offsets
    assert not np.isin(a_start, boundaries).any() and not np.isin(a_end, boundaries).any()


def test_lone_sentences_get_a_random_second_segment():
    corpus = make_corpus([5], [6], [7], [4])
    rows = build_pairs(corpus, 32, 0.1, np.random.default_rng(0))
    assert len(rows) == 4 and (rows[:, 4] == 1).all()
    assert (documents_of(corpus, rows[:, 0]) != documents_of(corpus, rows[:, 2])).all()


def test_random_segments_come_from_everywhere_else():
    corpus = make_corpus([5] * 3, [5] * 30, [5] * 3)
    rows = np.concatenate([build_pairs(corpus, 16, 0.0, np.random.default_rng(seed)) for seed in range(200)])
    rows = rows[(rows[:, 4] == 1) & (documents_of(corpus, rows[:, 0]) == 0)]
    counts = np.bincount(documents_of(corpus, rows[:, 2]), minlength=3)
    assert counts[0] == 0
    assert counts[1] / counts.sum() == pytest.approx(30 / 33, abs=0.05)  # by sentences, not by documents


def test_rows(pairs, tokenizer, corpus):
    for index in (0, 7, len(pairs) - 1):
        row = pairs[index]
        a_start, a_end, b_start, b_end, label = pairs.pairs[index].tolist()
        a, b = corpus.tokens[a_start:a_end].tolist(), corpus.tokens[b_start:b_end].tolist()
        assert row["input_ids"] == [tokenizer.cls_token_id, *a, tokenizer.sep_token_id, *b, tokenizer.sep_token_id]
        assert row["token_type_ids"] == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        expected = [int(token in tokenizer.all_special_ids) for token in row["input_ids"]]
        assert row["special_tokens_mask"] == expected
        assert row["next_sentence_label"] == label


def test_epochs_differ_and_come_back(corpus, tokenizer):
    def rows(dataset):
        return [dataset[i] for i in range(len(dataset))]

    first, second = (SentencePairDataset(corpus, tokenizer, seed=7) for _ in range(2))
    epoch_0 = rows(first)
    assert rows(second) == epoch_0
    first.set_epoch(3)
    epoch_3 = rows(first)
    assert len(epoch_3) == len(epoch_0) and epoch_3 != epoch_0
    second.set_epoch(1)
    second.set_epoch(3)
    assert rows(second) == epoch_3
    first.set_epoch(0)
    assert rows(first) == epoch_0
    assert rows(SentencePairDataset(corpus, tokenizer, seed=8)) != epoch_0


def test_bad_values(corpus, tokenizer):
    with pytest.raises(ValueError, match="at least two documents"):
        SentencePairDataset(make_corpus([5, 5]), tokenizer)
    with pytest.raises(ValueError, match="max_seq_length must be 5 or more"):
        SentencePairDataset(corpus, tokenizer, max_seq_length=4)
    with pytest.raises(ValueError, match="short_seq_prob"):
        SentencePairDataset(corpus, tokenizer, short_seq_prob=1.1)
