import datasets
import numpy as np
import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from scratch_bert.corpus import TextSource
from scratch_bert.tokenizer import (
    TokenizedCorpus,
    continues_word,
    load_tokenizer,
    train_tokenizer,
    vocabulary_size,
)


TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def sentences(documents):
    return [sentence for document in documents for sentence in document]


def test_training_gives_the_same_vocabulary_again(sentences, tokenizer):
    again = train_tokenizer(sentences, vocab_size=2000, model_max_length=128)
    assert again.get_vocab() == tokenizer.get_vocab()
    assert len(tokenizer) == 2000
    words = [train_tokenizer(sentences, 2000, "wordlevel").get_vocab() for _ in range(2)]
    assert words[0] == words[1] and 1500 < len(words[0]) < 2000


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("tokenizer_type", ["wordpiece", "wordlevel"])
def test_saved_tokenizers_open_with_the_auto_class(sentences, tokenizer_type, lowercase, tmp_path):
    trained = train_tokenizer(sentences, 1500, tokenizer_type, lowercase=lowercase, model_max_length=77)
    trained.save_pretrained(tmp_path)
    opened = AutoTokenizer.from_pretrained(tmp_path)
    assert opened.get_vocab() == trained.get_vocab()
    assert opened.model_max_length == 77
    assert opened.convert_tokens_to_ids(TOKENS) == [0, 1, 2, 3, 4]
    assert set(opened.all_special_tokens) == set(TOKENS)
    row = opened("The class", "An object.")
    text = "[CLS] The class [SEP] An object. [SEP]"
    text = text.replace("The", "the").replace("An", "an") if lowercase else text
    assert opened.decode(row["input_ids"]).replace(" .", ".") == text
    assert row["token_type_ids"] == sorted(row["token_type_ids"]) and row["token_type_ids"][-1] == 1
    assert opened("a [MASK] b")["input_ids"].count(4) == 1
    if tokenizer_type == "wordpiece":
        assert BertTokenizer.from_pretrained(tmp_path).do_lower_case == lowercase


def test_word_level_vocabulary_is_that_of_a_count(sentences):
    """The commonest words first, those of the same count by the alphabet; rare ones are unknown."""
    texts = ["b b b, c c"] * 2 + ["a a a a d Zürich e"]
    vocab = train_tokenizer(texts, 9, "wordlevel").get_vocab()
    assert sorted(vocab, key=vocab.get) == [*TOKENS, "b", "a", "c", ","]
    assert train_tokenizer(texts, 9, "wordlevel").tokenize("A d") == ["a", "[UNK]"]
    assert "Zürich" in train_tokenizer(texts, 99, "wordlevel", lowercase=False, min_frequency=1).get_vocab()


def test_a_vocabulary_too_small_for_the_characters(sentences):
    with pytest.raises(ValueError, match=r"vocab_size is 20, but the text alone has \d+ "):
        train_tokenizer(sentences, vocab_size=20)
    with pytest.raises(ValueError, match="is empty, or no word of it occurs 2 times"):
        train_tokenizer(["once upon a time"], 500, "wordlevel")


def test_min_frequency():
    texts = ["rarely"] * 2 + ["often"] * 9
    assert "rarely" not in train_tokenizer(texts, 500, min_frequency=5).get_vocab()
    assert {"rarely", "often"} <= set(train_tokenizer(texts, 500, min_frequency=2).get_vocab())


def test_loading(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).get_vocab() == tokenizer.get_vocab()
    tokenizer_without_mask = BertTokenizer(vocab=tokenizer.get_vocab())
    tokenizer_without_mask.mask_token = None
    tokenizer_without_mask.save_pretrained(tmp_path / "bad")
    with pytest.raises(ValueError, match=r"has no \[MASK\] token"):
        load_tokenizer(str(tmp_path / "bad"))


def test_words_and_ids(tokenizer):
    continues = continues_word(tokenizer)
    assert continues.shape == (2000,) == (vocabulary_size(tokenizer),)
    tokens = tokenizer.convert_ids_to_tokens(range(2000))
    assert [token for token, inside in zip(tokens, continues, strict=True) if inside] == [
        token for token in tokens if token.startswith("##")
    ]
    gap = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 9})))
    assert vocabulary_size(gap) == 10 and not continues_word(gap).any()
    unigram = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.Unigram([("a", 0.0)])))
    with pytest.raises(ValueError, match="WordPiece and word-level tokenizers, not for Unigram"):
        continues_word(unigram)


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
    assert rows[777]["input_ids"] == tokenizer(source_sentences(documents)[777], add_special_tokens=False)["input_ids"]
    # The same text and tokenizer: nothing is read again. Another tokenizer: another file.
    monkeypatch.setattr("scratch_bert.tokenizer._encode", None)
    again = TokenizedCorpus.from_source(TextSource([text], splitter="line"), tokenizer, cache)
    assert again.summary() == on_disk.summary() and again.skipped == on_disk.skipped
    monkeypatch.undo()
    TokenizedCorpus.from_source(source, train_tokenizer(source, 500), cache)
    assert len(list(cache.iterdir())) == 2


def source_sentences(documents):
    return [sentence for document in documents for sentence in document]


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
