"""Packing: several sequences in a batch entry give what each gives alone."""

import inspect

import pytest
import torch
from transformers import DataCollatorWithFlattening

from helpers import HEADS, make_batch, make_inputs, make_pair
from scratch_bert.pretraining.data.collator import PretrainingCollator, pack_sequences


TOLERANCE = {"rtol": 0, "atol": 1e-5}
PACKABLE = ["AutoModel", "AutoModelForPreTraining", "AutoModelForMaskedLM", "AutoModelForTokenClassification"]


@pytest.mark.parametrize("unpad_inputs", [True, False], ids=["unpadded", "padded"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("auto_class", PACKABLE)
def test_packing_gives_the_outputs_and_gradients_of_separate_sequences(auto_class, attention, unpad_inputs):
    model, unpacked = make_pair(auto_class, attention, one={"unpad_inputs": unpad_inputs})
    batch = make_batch(auto_class, rows=7, length=20)
    packed = pack_sequences(batch, 40, pad_token_id=0)
    assert packed["input_ids"].shape[0] < 7 and packed["input_ids"].shape[1] == 40
    mine, expected = model(**packed), unpacked(**batch)
    if auto_class == "AutoModel":
        in_order = [outputs.pooler_output.sort(dim=0).values for outputs in (mine, expected)]
        torch.testing.assert_close(*in_order, **TOLERANCE)
        mine.pooler_output.square().sum().backward()
        expected.pooler_output.square().sum().backward()
    else:
        torch.testing.assert_close(mine.loss, expected.loss, **TOLERANCE)
        mine.loss.backward()
        expected.loss.backward()
    for (name, parameter), other in zip(model.named_parameters(), unpacked.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(parameter.grad, other.grad, **TOLERANCE, msg=lambda m, n=name: f"{n}: {m}")


def test_packing_of_single_segments_without_a_label():
    batch = make_batch("AutoModelForPreTraining", rows=7)
    batch["next_sentence_label"][1] = -100
    plain, packing = make_pair("AutoModelForPreTraining")
    packed = pack_sequences(batch, 40, pad_token_id=0)
    assert packed["input_ids"].shape[0] < 7
    torch.testing.assert_close(packing(**packed).nsp_loss, plain(**batch).nsp_loss, **TOLERANCE)


@pytest.mark.parametrize("unpad_inputs", [True, False], ids=["unpadded", "padded"])
def test_packing_with_padding_within_a_sequence(unpad_inputs):
    model = make_pair("AutoModel")[0]
    ids, seq_idx = make_inputs(rows=1, length=8)["input_ids"], torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    mask = torch.tensor([[1, 0, 1, 1, 1, 0, 0, 1]])
    packed = model(ids, mask, seq_idx=seq_idx, unpad_inputs=unpad_inputs).pooler_output
    alone = torch.cat([model(ids, mask * (seq_idx == n), seq_idx=seq_idx).pooler_output for n in (0, 1)])
    torch.testing.assert_close(packed, alone, **TOLERANCE)


def test_packing_keeps_every_example_complete(pairs, tokenizer):
    examples = [pairs[index] for index in range(32)]
    packed = PretrainingCollator(tokenizer, pack_to=256)(examples)
    plain = PretrainingCollator(tokenizer)(examples)
    assert set(packed) == {*plain, "position_ids", "seq_idx"}
    columns, sequences = ("input_ids", "token_type_ids", "labels"), []
    for entry, (numbers, mask) in enumerate(zip(packed["seq_idx"], packed["attention_mask"].bool(), strict=True)):
        labels = packed["next_sentence_label"][entry]
        for number in range(int(numbers[mask].max()) + 1):
            inside = mask & (numbers == number)
            assert packed["position_ids"][entry][inside].tolist() == list(range(int(inside.sum())))
            sequences.append((*(packed[name][entry][inside].tolist() for name in columns), int(labels[number])))
        assert (labels[number + 1 :] == -100).all()
        assert (packed["input_ids"][entry][~mask] == tokenizer.pad_token_id).all()
        assert (packed["labels"][entry][~mask] == -100).all()
    expected = [
        (*(plain[name][index][mask].tolist() for name in columns), int(plain["next_sentence_label"][index]))
        for index, mask in enumerate(plain["attention_mask"].bool())
    ]
    assert sorted(sequences) == sorted(expected)
    with pytest.raises(ValueError, match="more than the 16"):
        PretrainingCollator(tokenizer, pack_to=16)(examples)


def test_packing_by_the_stock_collator_that_flattens():
    model = make_pair("AutoModelForMaskedLM")[0].eval()
    examples = [{"input_ids": list(range(5, 5 + length))} for length in (4, 9, 6)]
    batch = DataCollatorWithFlattening(return_seq_idx=True)(examples)
    batch.pop("labels")
    logits = model(**batch).logits[0]
    alone = [model(input_ids=torch.tensor([example["input_ids"]])).logits[0] for example in examples]
    torch.testing.assert_close(logits, torch.cat(alone), **TOLERANCE)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        pytest.param({"seq_idx": torch.zeros(4, 19).long()}, ValueError, "seq_idx has the shape", id="shape"),
        pytest.param({"seq_idx": torch.full((4, 20), -1)}, IndexError, "seq_idx must lie between", id="negative"),
        pytest.param(
            {"seq_idx": torch.arange(20).flip(0).expand(4, 20)}, ValueError, "seq_idx must not decrease", id="order"
        ),
        pytest.param(
            {"seq_idx": torch.zeros(4, 20).long(), "attention_mask": torch.ones(4, 1, 20, 20).bool()},
            ValueError,
            r"attention_mask of shape \(B, S\)",
            id="mask of four dimensions",
        ),
    ],
)
def test_packing_checks_seq_idx(change, error, message):
    model = make_pair("AutoModel")[0]
    with pytest.raises(error, match=message):
        model(**make_inputs() | change)


@pytest.mark.parametrize("auto_class", PACKABLE)
def test_packing_survives_trainer(auto_class):
    """Trainer drops the columns that a model's forward does not name."""
    assert "seq_idx" in inspect.signature(HEADS[auto_class].forward).parameters
