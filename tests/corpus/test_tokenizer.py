import copy
import json
import random
import string
import time
import unicodedata
from collections import Counter

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers
from tokenizers.processors import RobertaProcessing
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from scratch_bert.corpus.normalization import find_changes
from scratch_bert.corpus.tokenizer import (
    continues_word,
    gives_same_input,
    load_tokenizer,
    segment_ids,
    vocabulary_size,
)
from scratch_bert.corpus.tokenizer_training import train_tokenizer


TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CODE = '"Odd", "auto_map": {"AutoTokenizer": ["odd.Odd", "odd.Odd"]}'  # which is not run, without a question


def test_tokenizer_training_gives_the_same_vocabulary_again(sentences, tokenizer):
    again = train_tokenizer(sentences, vocab_size=2000, model_max_length=128)
    assert again.get_vocab() == tokenizer.get_vocab()
    assert len(tokenizer) == 2000
    words = [train_tokenizer(sentences, 2000, "wordlevel").get_vocab() for _ in range(2)]
    assert words[0] == words[1] and 1500 < len(words[0]) < 2000


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("tokenizer_type", ["wordpiece", "wordlevel"])
def test_tokenizer_that_is_saved_opens_with_the_auto_class(sentences, tokenizer_type, lowercase, tmp_path):
    trained = train_tokenizer(sentences, 1500, tokenizer_type, lowercase=lowercase, model_max_length=77)
    trained.save_pretrained(tmp_path)
    opened = AutoTokenizer.from_pretrained(tmp_path)
    assert opened.get_vocab() == trained.get_vocab()
    assert opened.model_max_length == 77
    assert opened.convert_tokens_to_ids(TOKENS) == [0, 1, 2, 3, 4]
    assert set(opened.all_special_tokens) == set(TOKENS)
    encoding = opened("The class", "An object.")
    text = "[CLS] The class [SEP] An object. [SEP]"
    text = text.replace("The", "the").replace("An", "an") if lowercase else text
    assert opened.decode(encoding["input_ids"]).replace(" .", ".") == text
    segments = encoding["token_type_ids"]
    assert segments == sorted(segments) and segments[-1] == 1
    assert opened("a [MASK] b")["input_ids"].count(4) == 1
    if tokenizer_type == "wordpiece":
        assert BertTokenizer.from_pretrained(tmp_path).do_lower_case == lowercase


@pytest.mark.parametrize("tokenizer_type", ["wordpiece", "wordlevel"])
def test_tokenizer_with_a_segment_id_for_padding_opens_with_the_auto_class(sentences, tokenizer_type, tmp_path):
    bert, trained = (train_tokenizer(sentences, 900, tokenizer_type, first_segment_id=first) for first in (0, 1))
    trained.save_pretrained(tmp_path)
    opened = AutoTokenizer.from_pretrained(tmp_path)
    assert segment_ids(opened) == segment_ids(trained) == (1, 2) and segment_ids(bert) == (0, 1)
    texts = ["A class.", "Object."], ["It is an object.", "No."]
    expected, encoding = (tokenizer(*texts, padding=True, return_tensors="np") for tokenizer in (bert, opened))
    assert encoding["token_type_ids"].max() == 2 and (encoding["attention_mask"] == 0).any()
    assert (encoding["token_type_ids"] == expected["token_type_ids"] + encoding["attention_mask"]).all()
    for name in ("input_ids", "attention_mask"):
        assert (encoding[name] == expected[name]).all()
    assert set(opened("a class")["token_type_ids"]) == {1}
    assert gives_same_input(opened, trained) and not gives_same_input(opened, bert)


def test_segment_ids_are_bert_s_where_a_tokenizer_has_none(tokenizer):
    roberta = copy.deepcopy(tokenizer)
    roberta.backend_tokenizer.post_processor = RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    assert segment_ids(roberta) == segment_ids(tokenizer) == (0, 1)


def test_wordlevel_vocabulary_is_that_of_a_count():
    """The most frequent words first, those of the same count in alphabetical order; rare ones are unknown."""
    texts = ["b b b, c c"] * 2 + ["a a a a d Zürich e"]
    vocab = train_tokenizer(texts, 9, "wordlevel").get_vocab()
    assert sorted(vocab, key=vocab.get) == [*TOKENS, "b", "a", "c", ","]
    assert train_tokenizer(texts, 9, "wordlevel").tokenize("A d") == ["a", "[UNK]"]
    assert "Zürich" in train_tokenizer(texts, 99, "wordlevel", lowercase=False, min_frequency=1).get_vocab()


@pytest.mark.parametrize(
    ("text", "options", "tokens"),
    [
        pytest.param("MKV LAA", {"tokenizer_type": "character"}, list("MKV▁LAA"), id="characters"),
        pytest.param("C1=CC=C", {"tokenizer_type": "character"}, list("C1=CC=C"), id="case of SMILES"),
        pytest.param("ACGTACG TTT", {"tokenizer_type": "3-mer"}, ["ACG", "TAC", "G", "TTT"], id="k-mers"),
        pytest.param("ACGT" * 500, {"tokenizer_type": "4-mer", "lowercase": True}, ["acgt"] * 500, id="a long word"),
    ],
)
def test_tokenizer_of_units_other_than_words(text, options, tokens, tmp_path):
    train_tokenizer([text], 100, **options, min_frequency=1).save_pretrained(tmp_path)
    opened = AutoTokenizer.from_pretrained(tmp_path)
    assert opened.tokenize(text) == tokens
    if "character" in options.values():
        assert opened.decode(opened(text)["input_ids"], skip_special_tokens=True) == text


SPELLINGS = {  # languages whose marks distinguish words
    "German": "Die schöne Tür führt über große Höfe",
    "Russian": "мой чай стой рай край",
    "Thai": "ที่นี่มีน้ำ",
    "Hindi": "मेरी हिन्दी किताब",
    "Arabic": "إنّ أوّل آية",
    "Korean": "모든 사람은 자유롭다",
    "Japanese": "ガラスがきれいだ",
    "Vietnamese": unicodedata.normalize("NFD", "Tất cả mọi người"),
}


@pytest.mark.parametrize("text", SPELLINGS.values(), ids=SPELLINGS)
def test_tokenizer_keeps_the_letters_of_a_language(text):
    backend = train_tokenizer([text], 100, min_frequency=1).backend_tokenizer
    assert backend.normalizer.normalize_str(text) == text.lower()
    assert find_changes(Counter(text), backend.normalizer.normalize_str) == (0, [])


def test_tokenizer_removes_rare_accents(sentences):
    """As uncased BERT does; unless an option says otherwise."""
    texts = [*sentences, "a café"]
    assert train_tokenizer(texts, 500).tokenize("Café") == train_tokenizer(texts, 500).tokenize("cafe")
    assert "é" in "".join(train_tokenizer(texts, 500, strip_accents=False, min_frequency=1).tokenize("Café"))
    stripped = train_tokenizer(["schöne Tür"] * 2, 99, strip_accents=True).backend_tokenizer.normalizer
    counts = Counter("schöne, scho\u0308ne")
    assert find_changes(counts, stripped.normalize_str) == (2 / 14, ["ö → o", "◌̈ → nothing"])


def test_tokenizer_training_without_room_for_the_characters_is_an_error(sentences):
    with pytest.raises(ValueError, match=r"vocab_size is 20, but the text alone has \d+ "):
        train_tokenizer(sentences, vocab_size=20)


@pytest.mark.parametrize("texts", [[], ["once upon a time"]], ids=["no text", "no word twice"])
def test_tokenizer_training_without_words_is_an_error(texts):
    with pytest.raises(ValueError, match="The text is empty, or no word of up to 100 characters occurs 2 times"):
        train_tokenizer(texts, 500, "wordlevel")


def test_tokenizer_is_the_same_for_one_long_line(sentences):
    """And words that occur again, however long, don't count as text without spaces."""
    texts = [*sentences[:500], "Donaudampfschifffahrtsgesellschaft " * 20_000]
    assert train_tokenizer([" ".join(texts)], 999).get_vocab() == train_tokenizer(texts, 999).get_vocab()
    assert "donaudampfschifffahrtsgesellschaft" in train_tokenizer(texts, 999).get_vocab()


def test_tokenizer_learns_from_a_script_without_spaces():
    words = ["สวัสดี", "ครับ", "ประเทศ", "ไทย"]
    text = "".join(random.Random(0).choices(words, k=20_000))  # one word, to BERT
    vocab = train_tokenizer([text], 300).get_vocab()
    assert any(len(token) >= 6 for token in vocab)
    kana = "これはひらがなです。"  # punctuation ends a word: nothing is cut
    assert train_tokenizer([kana * 30], 100).get_vocab() == train_tokenizer([kana] * 30, 100).get_vocab()


@pytest.mark.parametrize("alphabet", ["абвгдежзиклмн", string.ascii_letters + string.digits + "-"])
def test_tokenizer_training_is_quick_for_text_without_spaces(alphabet, sentences):
    """Without a bound, a megabyte takes a minute or more."""
    draw = random.Random(0)
    unbroken = "".join(draw.choices(alphabet, k=1_000_000))
    start = time.perf_counter()
    vocab = train_tokenizer([*sentences[:500], unbroken], 500).get_vocab()
    assert time.perf_counter() - start < 10
    assert "the" in vocab


def test_tokenizer_min_frequency_leaves_out_rare_words():
    for frequency in (2, 5):
        vocab = train_tokenizer(["rarely"] * 2 + ["often"] * 9, 500, min_frequency=frequency).get_vocab()
        assert ("rarely" in vocab, "often" in vocab) == (frequency == 2, True)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        pytest.param("tokenizer.json", "}", "", "cannot be read: ", id="damaged"),
        pytest.param("tokenizer_config.json", '"[MASK]"', '"[PAD]"', "has one id for two special tokens", id="one id"),
        pytest.param("tokenizer_config.json", '"[MASK]"', "null", r"has no \[MASK\] token", id="no mask"),
        pytest.param(
            "tokenizer_config.json", '"BertTokenizer"', CODE, "cannot be read: .*trust_remote_code", id="code"
        ),
    ],
)
def test_tokenizer_that_is_unfit_is_rejected_in_one_line(name, old, new, message, tmp_path):
    train_tokenizer(["some words", "some"], 100, min_frequency=1).save_pretrained(tmp_path)
    (tmp_path / name).write_text((tmp_path / name).read_text().replace(old, new))
    with pytest.raises(ValueError, match=message) as raised:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(raised.value)


def test_directory_without_a_tokenizer_is_rejected(tmp_path):
    with pytest.raises(OSError, match="has no tokenizer, that is, no tokenizer.json or vocab.txt"):
        load_tokenizer(str(tmp_path))


def test_tokenizer_without_an_unknown_token_is_rejected(tmp_path):
    train_tokenizer(["some words", "some"], 100, min_frequency=1).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    del content["model"]["vocab"]["[UNK]"]
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "[UNK]"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="cannot be read: .*UNK"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    ("entries", "says", "tokens"),
    [
        (["The", "the"], {}, ["The"]),
        (["##R", "the"], {}, ["[UNK]"]),
        (["<S>", "[unused1]", "the"], {}, ["the"]),
        (["The", "the"], {"do_lower_case": True}, ["the"]),
        (["the"], {"do_lower_case": False}, ["[UNK]"]),
    ],
)
def test_vocabulary_alone_tells_whether_it_is_cased(entries, says, tokens, tmp_path, caplog):
    """As BERT was published in 2018, without a tokenizer_config.json, or with one that doesn't say."""
    caplog.set_level("INFO", "scratch_bert")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "vocab.txt").write_text("\n".join([*TOKENS, *entries]))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 512} | says))
    assert load_tokenizer(str(tmp_path)).tokenize("The") == tokens
    assert ("vocabulary is" in caplog.text) == (not says)
    (tmp_path / "tokenizer_config.json").unlink()
    again = load_tokenizer(str(tmp_path))
    again.save_pretrained(tmp_path / "saved")
    assert load_tokenizer(str(tmp_path / "saved")).tokenize("The") == again.tokenize("The")
    (tmp_path / "config.json").unlink()  # the vocabulary alone is one of BERT's
    assert load_tokenizer(str(tmp_path)).tokenize("The") == again.tokenize("The")


def test_tokenizer_ids_with_gaps_and_continuations_of_words(tokenizer):
    continues = continues_word(tokenizer)
    assert continues.shape == (2000,) == (vocabulary_size(tokenizer),)
    tokens = tokenizer.convert_ids_to_tokens(range(2000))
    assert [token for token, inside in zip(tokens, continues, strict=True) if inside] == [
        token for token in tokens if token.startswith("##")
    ]
    gap = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 9})))
    assert vocabulary_size(gap) == 10 and not continues_word(gap).any()
    unigram = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.Unigram([("a", 0.0)])))
    with pytest.raises(ValueError, match="Whole-word masking needs a WordPiece or word-level tokenizer, not Unigram"):
        continues_word(unigram)


def test_a_normalizer_of_ones_own_survives(tokenizer, tmp_path):
    changed = copy.deepcopy(tokenizer)
    digits = normalizers.Replace(Regex("[0-9]"), "0")
    changed.backend_tokenizer.normalizer = normalizers.Sequence([changed.backend_tokenizer.normalizer, digits])
    changed.save_pretrained(tmp_path / "ones_own")
    load_tokenizer(str(tmp_path / "ones_own")).save_pretrained(tmp_path / "ours")  # as a run does
    opened = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert opened("year 1999", "a") == tokenizer("year 0000", "a")
    assert opened.model_max_length == tokenizer.model_max_length
