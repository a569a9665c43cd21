import numpy as np
import pytest
import torch

from helpers import SMALL
from scratch_bert import ScratchBertConfig, ScratchBertForMaskedLM, ScratchBertForPreTraining
from scratch_bert.corpus.tokenizer_training import train_tokenizer
from scratch_bert.objectives import OBJECTIVES
from scratch_bert.objectives.predictions import as_text, examples_to_try, mlm_predictions, nsp_predictions


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(0)
    sizes = {**SMALL, "vocab_size": len(tokenizer), "max_position_embeddings": 128}
    return ScratchBertForPreTraining(ScratchBertConfig(**sizes)).eval()


def test_mlm_predictions_are_the_top_k_at_the_masked_word(model, pairs, tokenizer):
    predictions = mlm_predictions(model, pairs, tokenizer, count=4, top_k=5)
    assert len(predictions) == 4
    assert predictions == mlm_predictions(model, pairs, tokenizer, count=4, top_k=5)
    for context, word, top_k in predictions:
        assert context.count("[MASK]") == 1 and word.isalpha() and word in tokenizer.get_vocab()
        probabilities = [probability for _, probability in top_k]
        assert len(top_k) == 5 and probabilities == sorted(probabilities, reverse=True)
        assert all(token in tokenizer.get_vocab() for token, _ in top_k)


def test_mlm_predictions_are_of_a_word_of_each_example_before_a_second_one(model, tokenizer):
    texts = ["class class class", "object", "function function"]
    examples = [{name: np.array(ids) for name, ids in tokenizer(text).items()} for text in texts]
    words = [word for _, word, _ in mlm_predictions(model, examples, tokenizer, count=10)]
    assert sorted(words[:3]) == ["class", "function", "object"]
    assert words[3:] == [word for word in words[:3] if word != "object"] + ["class"]
    assert len(mlm_predictions(model, examples, tokenizer, count=5)) == 5


@pytest.mark.parametrize(
    "sentence",
    [
        "मानव अधिकारों की सार्वभौम घोषणा को स्वीकृत और घोषित किया",
        "สิทธิมนุษยชนควรได้รับความคุ้มครองโดยหลักบังคับของกฎหมาย",
        "人人生而自由，在尊严和权利上一律平等。",
        "すべての人間は、生まれながらにして自由である。",
        "ولما كان الاعتراف بالكرامة المتأصلة في جميع أعضاء الأسرة البشرية",
    ],
    ids=["Hindi", "Thai", "Chinese", "Japanese", "Arabic"],
)
def test_examples_are_found_in_every_script(sentence):
    """Vowel signs stand beside letters, and words may have no spaces between them. With its word, an example is the
    text, without spaces that it does not have."""
    own = train_tokenizer([sentence], vocab_size=70, min_frequency=1)
    found = examples_to_try([{name: np.array(ids) for name, ids in own(sentence).items()}], own)
    assert found["texts"]
    for text, answer in zip(found["texts"], found["answers"], strict=True):
        assert text.count("[MASK]") == 1 and text.replace("[MASK]", answer) in sentence


def test_examples_are_quoted_from_the_text():
    """With case, accents and spaces as they are, also across paragraphs."""
    document = ["The   old Señor Smith-Jones isn't at HOME today, said the man", "of `the_house` (he'll be 5% late)."]
    own = train_tokenizer([document], vocab_size=300, min_frequency=1, strip_accents=True)
    ids = own(" ".join(document))
    example = {name: np.array(values) for name, values in ids.items()} | {"next_sentence_label": 0}
    example["token_type_ids"][len(ids["input_ids"]) // 2 :] = 1
    found = examples_to_try([example], own, [["No."], ["What?", *document, "Nothing else."]])
    assert found == {
        "texts": [
            "[MASK] old Señor Smith-Jones isn't at HOME today, said the man",
            "The [MASK] Señor Smith-Jones isn't at HOME today, said the man of",
        ],
        "answers": ["The", "old"],
        "pairs": [
            ("The old Señor Smith-Jones isn't at HOME today, said the", "of `the_house` (he'll be 5% late).", True)
        ],
    }
    assert examples_to_try([example], own, [["No."]]) == examples_to_try([example], own)


def test_mlm_predictions_find_a_word_that_the_model_is_sure_of(pairs, tokenizer):
    """A model whose output bias makes one token all but certain."""
    sizes = {**SMALL, "vocab_size": len(tokenizer), "max_position_embeddings": 128}
    model = ScratchBertForMaskedLM(ScratchBertConfig(**sizes)).eval()
    with torch.no_grad():
        model.cls.predictions.bias[tokenizer.convert_tokens_to_ids("class")] = 50.0
    for _, _, ((token, probability), *_) in mlm_predictions(model, pairs, tokenizer):
        assert token == "class" and probability == pytest.approx(1, abs=1e-4)


def test_mlm_predictions_leave_out_examples_without_a_letter(model, tokenizer):
    ids = tokenizer.convert_tokens_to_ids(["[CLS]", ".", "2", "[SEP]"])
    examples = [{"input_ids": np.array(ids), "token_type_ids": np.zeros(4, dtype=int)}]
    assert mlm_predictions(model, examples, tokenizer) == []


def test_nsp_predictions_are_of_both_labels(model, pairs, tokenizer):
    assert [follows for *_, follows, _ in nsp_predictions(model, pairs, tokenizer, count=7)].count(True) == 4
    of_label = [int(np.flatnonzero(pairs.labels() == label)[0]) for label in (0, 1)]
    examples = [pairs[index] for index in of_label]
    predictions = nsp_predictions(model, examples, tokenizer, count=100)
    assert sorted(follows for *_, follows, _ in predictions) == [False, True]
    for end_of_a, start_of_b, follows, probability in predictions:
        example = examples[0 if follows else 1]
        a_end = example["token_type_ids"].tolist().index(1)
        a, b = (
            tokenizer.decode(ids).replace(" ", "")
            for ids in (example["input_ids"][1 : a_end - 1], example["input_ids"][a_end:-1])
        )
        assert a.endswith(end_of_a.replace(" ", "").removeprefix("##")) and b.startswith(start_of_b.replace(" ", ""))
        inputs = {name: torch.tensor(example[name])[None] for name in ("input_ids", "token_type_ids")}
        with torch.no_grad():
            expected = model(**inputs).seq_relationship_logits.softmax(-1)[0, 0].item()
        assert probability == pytest.approx(expected, abs=1e-6)


def test_text_has_no_spaces_around_apostrophes_and_hyphens_and_inside_parentheses(tokenizer):
    text = "it isn't (in the well-known file--or is it?) a class's name, or the 's' in it."
    assert as_text(tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"]) == text.replace("'s'", "' s '")


def test_nsp_predictions_leave_out_a_label_without_an_example(model, pairs, tokenizer):
    examples = [pairs[index] for index in np.flatnonzero(pairs.labels() == 1)[:4]]
    assert [follows for *_, follows, _ in nsp_predictions(model, examples, tokenizer)] == [False, False]


@pytest.mark.parametrize(
    ("objective", "heading"),
    [("nsp", "NSP: B follows A, yes or no?"), ("sop", "SOP: A and B are in order, yes or no?"), ("none", None)],
)
def test_predictions_are_described_by_objective(objective, heading, model, pairs, tokenizer):
    model.train()
    shown = OBJECTIVES[objective].describe_predictions(model, pairs, tokenizer, count=6)
    assert not model.training
    assert shown.startswith("MLM: the masked word") and shown.count("[MASK]") == 6
    assert shown.count("  B: ") == (0 if heading is None else 6)
    assert heading is None or shown.splitlines().count(heading) == 1
