import numpy as np
import pytest
from transformers import AutoTokenizer, BertTokenizer

from scratch_bert.tokenizer import TokenizedCorpus, load_tokenizer, train_wordpiece


@pytest.fixture(scope="module")
def sentences(documents):
    return [sentence for document in documents for sentence in document]


def test_training_gives_the_same_vocabulary_again(sentences, tokenizer):
    again = train_wordpiece(sentences, vocab_size=2000, model_max_length=128)
    assert again.get_vocab() == tokenizer.get_vocab()
    assert len(tokenizer) == 2000


@pytest.mark.parametrize("lowercase", [True, False])
def test_saved_tokenizers_open_with_the_auto_class(sentences, lowercase, tmp_path):
    trained = train_wordpiece(sentences, vocab_size=1000, lowercase=lowercase, model_max_length=77)
    trained.save_pretrained(tmp_path)
    for opened in (AutoTokenizer.from_pretrained(tmp_path), BertTokenizer.from_pretrained(tmp_path)):
        assert opened.get_vocab() == trained.get_vocab()
        assert opened.model_max_length == 77
        assert opened.do_lower_case == lowercase
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        assert opened.convert_tokens_to_ids(tokens) == [0, 1, 2, 3, 4]
        assert set(opened.all_special_tokens) == set(tokens)
        row = opened("The class", "An object")
        assert opened.decode(row["input_ids"]) == (
            "[CLS] the class [SEP] an object [SEP]" if lowercase else "[CLS] The class [SEP] An object [SEP]"
        )
        assert row["token_type_ids"] == sorted(row["token_type_ids"])
        assert opened("a [MASK] b")["input_ids"].count(4) == 1


def test_a_vocabulary_too_small_for_the_characters(sentences):
    with pytest.raises(ValueError, match=r"vocab_size is 20, but the text alone has \d+ "):
        train_wordpiece(sentences, vocab_size=20)


def test_min_frequency():
    texts = ["rarely"] * 2 + ["often"] * 9
    assert "rarely" not in train_wordpiece(texts, 500, min_frequency=5).get_vocab()
    assert {"rarely", "often"} <= set(train_wordpiece(texts, 500, min_frequency=2).get_vocab())


def test_loading(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).model_max_length == 128
    assert load_tokenizer(str(tmp_path), model_max_length=64).model_max_length == 64
    tokenizer_without_mask = BertTokenizer(vocab=tokenizer.get_vocab())
    tokenizer_without_mask.mask_token = None
    tokenizer_without_mask.save_pretrained(tmp_path / "bad")
    with pytest.raises(ValueError, match=r"has no \[MASK\] token"):
        load_tokenizer(str(tmp_path / "bad"))


def test_tokenized_corpus_holds_every_sentence(documents, tokenizer, corpus):
    assert corpus.num_documents == len(documents)
    assert corpus.num_sentences == sum(map(len, documents))
    flat = [sentence for document in documents for sentence in document]
    for s in (0, 1, 777, len(flat) - 1):
        ids = corpus.tokens[corpus.sentence_offsets[s] : corpus.sentence_offsets[s + 1]]
        assert ids.tolist() == tokenizer(flat[s], add_special_tokens=False)["input_ids"]
    assert np.diff(corpus.document_offsets).tolist() == [len(document) for document in documents]


def test_text_without_tokens_is_left_out_and_an_empty_corpus_is_an_error(tokenizer):
    corpus = TokenizedCorpus.from_documents([["A class.", "\u200b"], ["\u200b"], ["An object."]], tokenizer)
    assert (corpus.num_documents, corpus.num_sentences) == (2, 2)
    with pytest.raises(ValueError, match="no text"):
        TokenizedCorpus.from_documents([["\u200b"]], tokenizer)
