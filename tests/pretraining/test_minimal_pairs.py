"""Pseudo-log-likelihoods: equal to those of a plain loop over transformers' BERT, one masked copy at a time."""

import pytest
import torch
from pretraining.test_scoring import plain_loop, save_bert
from transformers import BertForMaskedLM, RobertaConfig, RobertaForMaskedLM

from helpers import SMALL
from scratch_bert.checkpoints.open import open_pretrained
from scratch_bert.pretraining.minimal_pairs import encode_sentences, pseudo_log_likelihoods


def plain_sum(model, tokenizer, sentence: str) -> float:
    return sum(value for value, _, _ in plain_loop(model, tokenizer, sentence, max_length=128))


@pytest.fixture(scope="module")
def texts(sentences):
    """Sentences of several lengths, each also with its first word at the end, one twice, and one with a [MASK] of its own."""
    texts = [sentence for sentence in dict.fromkeys(sentences) if 20 < len(sentence) < 60][:12]
    moved = (" ".join([*text.split()[1:], text.split()[0]]) for text in texts)
    return [*texts, *moved, texts[0], f"{texts[1]} [MASK] [MASK]"]


@pytest.fixture(scope="module")
def bert(tokenizer, tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("models") / "bert", tokenizer, max_length=128)


@pytest.mark.parametrize("batch_tokens", [100, 4096])
@pytest.mark.parametrize("name", ["bert", "converted"])
def test_sums_are_those_of_a_plain_loop(name, batch_tokens, bert, texts, tokenizer, monkeypatch):
    monkeypatch.setattr("scratch_bert.pretraining.minimal_pairs.BATCH_TOKENS", batch_tokens)
    reference = BertForMaskedLM.from_pretrained(bert)
    expected = torch.tensor([plain_sum(reference, tokenizer, text) for text in texts], dtype=torch.float64)
    model, _ = open_pretrained(str(bert.with_name(name)), with_nsp=False)
    sums = pseudo_log_likelihoods(model, encode_sentences(tokenizer, texts), tokenizer.mask_token_id)
    torch.testing.assert_close(sums, expected, rtol=0, atol=1e-4)
    assert sums[0] == sums[-2] and sums.unique().numel() == 25
    assert ((sums[:12] > sums[12:24]) == (expected[:12] > expected[12:24])).all()


def test_models_with_another_structure_compute_all_logits(texts, tokenizer):
    sizes = {**SMALL, "vocab_size": len(tokenizer), "max_position_embeddings": 130, "pad_token_id": 0}
    model = RobertaForMaskedLM(RobertaConfig(**sizes, type_vocab_size=2)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    sums = pseudo_log_likelihoods(model, encode_sentences(tokenizer, texts[:3]), tokenizer.mask_token_id)
    expected = [plain_sum(model, tokenizer, text) for text in texts[:3]]
    assert sums.tolist() == pytest.approx(expected, abs=1e-4)


def test_copies_that_sentences_share_are_computed_once(bert, tokenizer, monkeypatch):
    model, _ = open_pretrained(str(bert), with_nsp=False)
    rows = []
    model.cls.predictions.register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    words = [token for token in tokenizer.get_vocab() if token.isalpha() and len(token) > 3][:5]
    pair = [" ".join(words[:4]), " ".join([*words[:3], words[4]])]
    pseudo_log_likelihoods(model, encode_sentences(tokenizer, pair), tokenizer.mask_token_id)
    assert sum(rows) == 4 + 4 - 1  # the head at the masked positions alone


def test_bf16_is_close(bert, texts, tokenizer):
    model, _ = open_pretrained(str(bert), with_nsp=False)
    encoded = encode_sentences(tokenizer, texts)
    exact, rough = (pseudo_log_likelihoods(model, encoded, tokenizer.mask_token_id, bf16=b) for b in (False, True))
    assert not torch.equal(exact, rough)
    torch.testing.assert_close(exact, rough, rtol=0.02, atol=0)


@pytest.mark.parametrize(
    ("sentence", "message"),
    [("long " * 20, "'long long .* has .* tokens, but the model takes 9 at most"), ("\u200b", "has no tokens")],
)
def test_sentences_that_cannot_be_scored_are_cited(sentence, message, tokenizer):
    with pytest.raises(ValueError, match=message):
        encode_sentences(tokenizer, ["short", sentence], max_length=9)
