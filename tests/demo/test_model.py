"""The demo's answers, compared with the models called directly; long, odd and invalid inputs."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
import transformers
from transformers import AutoTokenizer

from scratch_bert.finetuning.tasks.spans import merge_tags
from scratch_bert_demo.model import MAX_ATTENTION, Model


TEXT, OTHER = "the cat sleeps on the sofa .", "she opened the window ."
LONG = "paris is the capital of france . " * 3031  # 100,023 characters


@pytest.fixture(scope="module")
def places(trained, bert, tasks):
    return {"trained": trained, "bert": bert, **tasks}


@pytest.fixture(scope="module")
def ask(places):
    """A model by its name, opened once."""
    return cache(lambda name: Model(str(places[name])))


@pytest.fixture(scope="module")
def direct(places):
    """The outputs of a model that is opened with an Auto class, for texts that its tokenizer encodes."""

    @cache
    def opened(name, auto_class, attention):
        model = getattr(transformers, auto_class).from_pretrained(places[name], attn_implementation=attention)
        return AutoTokenizer.from_pretrained(places[name]), model

    def run(name, auto_class, *texts, attn_implementation=None, **options):
        tokenizer, model = opened(name, auto_class, attn_implementation)
        inputs = tokenizer(*texts, return_tensors="pt")
        with torch.no_grad():
            return model(**inputs, **options), inputs

    return run


def assert_close(found, expected):
    torch.testing.assert_close(torch.tensor(found), expected, rtol=0, atol=1e-5)


# --------------------------------------------------------------------------------------------------- pretrained heads


@pytest.mark.parametrize("name", ["trained", "bert"])
def test_fill_mask(name, ask, direct, demo_tokenizer):
    text = "the [MASK] sleeps on the [MASK] ."
    answer = ask(name).fill_mask(text, k=4)
    outputs, inputs = direct(name, "AutoModelForMaskedLM", text)
    masked = inputs["input_ids"][0] == demo_tokenizer.mask_token_id
    top = outputs.logits[0, masked].softmax(-1).topk(4)
    assert [[token for token, _ in mask] for mask in answer.value] == [
        demo_tokenizer.convert_ids_to_tokens(row) for row in top.indices.tolist()
    ]
    assert_close([[probability for _, probability in mask] for mask in answer.value], top.values)
    assert (answer.texts, answer.left_out) == ((text,), 0)


def test_fill_mask_with_another_mask_token(other_mask, ask):
    """A model reads its own mask token and [MASK] alike."""
    model = Model(str(other_mask))
    assert model.heads == {"MaskedLM"} and model.mask_token == "<mask>"
    assert model.fill_mask("the [MASK] sleeps").value == model.fill_mask("the <mask> sleeps").value
    with pytest.raises(ValueError, match="no mask"):
        ask("bert").fill_mask("the <mask> sleeps")


@pytest.mark.parametrize("name", ["trained", "bert", "nsp"])
def test_next_sentence(name, ask, direct):
    answer = ask(name).next_sentence(TEXT, OTHER)
    auto_class = "AutoModelForNextSentencePrediction" if name == "nsp" else "AutoModelForPreTraining"
    expected = []
    for pair in ((TEXT, OTHER), (OTHER, TEXT)):
        outputs, _ = direct(name, auto_class, *pair)
        logits = outputs.logits if name == "nsp" else outputs.seq_relationship_logits
        expected.append(logits.softmax(-1)[0, 0])
    assert_close(answer.value, torch.stack(expected))
    assert answer.texts == (TEXT, OTHER)


# -------------------------------------------------------------------------------------------------------- the encoder


@pytest.mark.parametrize("name", ["trained", "bert", "chooser"])
def test_attention(name, ask, direct):
    tokens, weights = ask(name).attention(TEXT).value
    outputs, _ = direct(name, "AutoModel", TEXT, attn_implementation="eager", output_attentions=True)
    expected = torch.cat(outputs.attentions)
    assert weights.shape == (2, 4, len(tokens), len(tokens)) and tokens[:3] == ["[CLS]", "the", "cat"]
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


@pytest.mark.parametrize("name", ["trained", "bert", "tagger"])
def test_embeddings(name, ask, direct, demo_tokenizer):
    """Cosines of the mean states, minus that of 64 texts of 12 random words; distances on the map are those of the two
    components."""
    texts = [TEXT, OTHER, "a", TEXT]
    similarities, places = ask(name).embeddings(texts).value
    words = [token for token in sorted(demo_tokenizer.get_vocab()) if token.isalpha()]
    drawn = torch.randint(len(words), (64, 12), generator=torch.Generator().manual_seed(0)).tolist()
    random_texts = [" ".join(words[number] for number in row) for row in drawn]
    states = [direct(name, "AutoModel", text)[0].last_hidden_state[0].mean(0) for text in texts + random_texts]
    vectors = torch.stack(states[:4]) - torch.stack(states[4:]).mean(0)
    expected = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
    torch.testing.assert_close(similarities, expected, rtol=0, atol=1e-4)
    assert similarities[0, 3] == pytest.approx(1, abs=1e-5)
    spread = vectors - vectors.mean(0)  # in two dimensions, as two of the four texts are the same
    torch.testing.assert_close(torch.cdist(places, places), torch.cdist(spread, spread), rtol=0, atol=1e-3)


def test_score_words(ask, direct, demo_tokenizer):
    """Each word is masked alone, all its tokens at a time."""
    text = "The cats sleep on the sofa."
    scored = ask("trained").score_words(text).value
    words = [text[start:end] for start, end, _, _ in scored]
    assert words == ["The", "cats", "sleep", "on", "the", "sofa", "."]
    assert [len(demo_tokenizer.tokenize(word)) > 1 for word in words][1]
    for word, (start, end, log_probability, guess) in zip(words, scored, strict=True):
        tokens = demo_tokenizer(word, add_special_tokens=False)["input_ids"]
        masked = text[:start] + " [MASK] " * len(tokens) + text[end:]
        outputs, inputs = direct("trained", "AutoModelForMaskedLM", masked)
        rows = outputs.logits[inputs["input_ids"] == demo_tokenizer.mask_token_id].softmax(-1)
        assert log_probability == pytest.approx(rows[range(len(tokens)), tokens].log().sum().item(), abs=1e-4)
        assert guess == demo_tokenizer.convert_tokens_to_string(
            demo_tokenizer.convert_ids_to_tokens(rows.argmax(-1).tolist())
        )
    *_, (start, end, _, _) = ask("trained").score_words("the cat 🙂").value  # the vocabulary lacks the last word
    assert "the cat 🙂"[start:end] == "cat"
    with pytest.raises(ValueError, match="no word of this text"):
        ask("trained").score_words("🙂")


def test_nearest_tokens(ask, direct, demo_tokenizer):
    table = transformers.AutoModel.from_pretrained(ask("bert").name).get_input_embeddings().weight.detach()
    table = table - table.mean(0)
    cat = demo_tokenizer.convert_tokens_to_ids("cat")
    cosines = torch.nn.functional.cosine_similarity(table, table[cat], dim=-1)
    cosines[[cat, *demo_tokenizer.all_special_ids]] = -torch.inf
    top = cosines.topk(10)
    found = ask("bert").nearest_tokens("Cat").value
    assert [token for token, _ in found] == demo_tokenizer.convert_ids_to_tokens(top.indices.tolist())
    assert_close([cosine for _, cosine in found], top.values)


# --------------------------------------------------------------------------------------------------- fine-tuned heads


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("classifier", lambda logits: logits.softmax(-1)),
        ("multi-label", torch.sigmoid),
        ("regression", lambda logits: logits),
    ],
)
@pytest.mark.parametrize("texts", [(TEXT,), (TEXT, OTHER)], ids=["text", "pair"])
def test_classify(name, activation, texts, ask, direct):
    model = ask(name)
    labels, values = zip(*model.classify(*texts).value, strict=True)
    outputs, _ = direct(name, "AutoModelForSequenceClassification", *texts)
    assert_close(values, activation(outputs.logits[0]))
    assert list(labels) == list(model.config.id2label.values())


def test_tag(ask, direct):
    """A word has the label of its first token."""
    text = f"{TEXT} {OTHER} cats"
    outputs, inputs = direct("tagger", "AutoModelForTokenClassification", text)
    best, labels = outputs.logits[0].softmax(-1).max(-1), ask("tagger").config.id2label
    words = []
    for word in range(max(filter(None, inputs.word_ids())) + 1):
        token, characters = inputs.word_to_tokens(0, word).start, inputs.word_to_chars(0, word)
        words.append((*characters, labels[best.indices[token].item()], best.values[token].item()))
    assert len(words) < len(inputs.tokens()) - 2  # a word has several tokens
    expected = merge_tags(words)
    found = ask("tagger").tag(text).value
    assert [span[:3] for span in found] == [span[:3] for span in expected]
    assert len({name for _, _, name, _ in found}) > 1
    assert [span[3] for span in found] == pytest.approx([span[3] for span in expected], abs=1e-5)


@pytest.mark.parametrize(
    ("labels", "spans"),
    [
        ("O B-X I-X I-X B-X", [(1, 4, "X"), (4, 5, "X")]),
        ("I-X I-X O I-X", [(0, 2, "X"), (3, 4, "X")]),
        ("B-X I-Y", [(0, 1, "X"), (1, 2, "Y")]),
        ("NOUN NOUN B", [(0, 1, "NOUN"), (1, 2, "NOUN"), (2, 3, "B")]),
        ("B-X-Y I-X-Y A-X I-X", [(0, 2, "X-Y"), (2, 3, "A-X"), (3, 4, "X")]),
    ],
)
def test_merge_tags(labels, spans):
    words = [(number, number + 1, label, 0.9 - number / 10) for number, label in enumerate(labels.split())]
    assert merge_tags(words) == [(start, end, name, 0.9 - (end - 1) / 10) for start, end, name in spans]


def test_answer(ask, direct):
    start, end, probability, no_answer = ask("answerer").answer("where is the cat", TEXT).value
    outputs, inputs = direct("answerer", "AutoModelForQuestionAnswering", "where is the cat", TEXT)
    starts, ends = outputs.start_logits[0].softmax(-1), outputs.end_logits[0].softmax(-1)
    context = [token for token, segment in enumerate(inputs.sequence_ids()) if segment == 1]
    spans = {(i, j): (starts[i] * ends[j]).item() for i in context for j in context if i <= j}
    first, last = max(spans, key=spans.get)
    assert (start, end) == (inputs.token_to_chars(first).start, inputs.token_to_chars(last).end)
    assert probability == pytest.approx(spans[first, last], abs=1e-5)
    assert no_answer == pytest.approx((starts[0] * ends[0]).item(), abs=1e-5)


def test_choose(ask, direct):
    choices = [OTHER, "the dog lies on the carpet .", "a"]
    found = ask("chooser").choose(TEXT, choices)
    logits = []
    for choice in choices:
        inputs = AutoTokenizer.from_pretrained(ask("chooser").name)([[TEXT, choice]], return_tensors="pt")
        model = transformers.AutoModelForMultipleChoice.from_pretrained(ask("chooser").name)
        logits.append(model(**{name: ids[None] for name, ids in inputs.items()}).logits[0, 0].detach())
    assert_close(found.value, torch.stack(logits).softmax(0))
    assert found.texts == tuple(choices)


# ------------------------------------------------------------------------------------------------- long and odd texts


def test_pair_is_truncated_as_by_the_tokenizer(ask, demo_tokenizer):
    for a, b in ((TEXT * 30, TEXT * 20), (TEXT * 30, OTHER), (OTHER, TEXT * 30), (TEXT, OTHER)):
        encoding, texts, left_out = ask("nsp")._encode(a, b)
        expected = demo_tokenizer(a, b, truncation="longest_first")["input_ids"]
        assert len(encoding.ids) == len(expected) <= 40
        assert encoding.ids == demo_tokenizer(*texts)["input_ids"]
        assert left_out == len(demo_tokenizer(a, b)["input_ids"]) - len(expected)
        assert a.startswith(texts[0]) and b.startswith(texts[1])


def test_long_texts_are_truncated(ask):
    """Two texts of 100,000 characters each, in a second or two."""
    started = time.perf_counter()
    answers = [
        ask("trained").fill_mask("[MASK] " + LONG),
        ask("trained").next_sentence(LONG, LONG),
        ask("classifier").classify(LONG, LONG),
        ask("tagger").tag(LONG),
        ask("answerer").answer(LONG, LONG),
        ask("chooser").choose(LONG, [LONG, LONG]),
        ask("trained").attention(LONG),
        ask("trained").embeddings([LONG, LONG]),
    ]
    assert time.perf_counter() - started < 20  # about 14 long texts are tokenized twice each
    assert all(answer.left_out > 20_000 and len(answer.texts[-1]) < 300 for answer in answers)
    start, end, *_ = answers[4].value
    assert 0 <= start < end <= len(answers[4].texts[1])
    assert len(answers[6].value[0]) == min(40, MAX_ATTENTION)


@pytest.mark.parametrize(
    "text",
    [
        "Привет 你好，世界 שלום مرحبا नमस्ते 🙂👩‍👩‍👧",
        "a\x00b\x07\x1b[31m\x85\u200f lone \ud800 surrogate",
        "<img src=x onerror=alert(1)> {{7*7}} [CLS] [SEP] [PAD] [UNK]",
        "x" * 5000,
    ],
)
def test_odd_texts_are_texts(text, ask):
    assert len(ask("trained").fill_mask(f"[MASK] {text}").value[0]) == 5
    assert 0 <= ask("bert").next_sentence(text, text).value[0] <= 1
    tokens, _ = ask("trained").attention(text).value
    assert len(tokens) > 2
    for start, end, *_ in ask("tagger").tag(text).value:
        assert 0 <= start < end <= len(text)


@pytest.mark.parametrize(
    ("name", "method", "arguments", "sentence"),
    [
        ("trained", "fill_mask", ("the cat",), r"There is no mask: write \[MASK\]"),
        ("trained", "fill_mask", (f"{LONG} [MASK]",), "no mask in the part of this long text that the model can read"),
        ("trained", "fill_mask", ("a " * 200_000,), "shorten it to 200,000 at most"),
        ("trained", "next_sentence", (TEXT, " \n"), "A text is empty"),
        ("trained", "embeddings", ([TEXT],), "from 2 to 16 texts, one per line: there are 1"),
    ],
)
def test_invalid_input_is_rejected(name, method, arguments, sentence, ask):
    with pytest.raises(ValueError, match=sentence):
        getattr(ask(name), method)(*arguments)


def test_threads_share_a_model(ask):
    """Concurrent requests succeed, each with the answer to its own input."""
    model = ask("trained")
    texts = [f"the cat {'sleeps ' * n} on the [MASK] ." for n in range(8)]
    expected = [(model.fill_mask(text).value, model.attention(text).value[1].tolist()) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            predictions = pool.map(lambda text: model.fill_mask(text).value, texts)
            weights = pool.map(lambda text: model.attention(text).value[1].tolist(), texts)
            assert list(zip(predictions, weights, strict=True)) == expected


# ----------------------------------------------------------------------------------------------------------- opening


def test_heads_are_found(ask, tasks):
    assert ask("trained").heads == ask("bert").heads == {"MaskedLM", "NextSentencePrediction"}
    for name in tasks:
        (head,) = ask(name).heads
        assert ask(name).config.architectures == [f"ScratchBertFor{head}"]
