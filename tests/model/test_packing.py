"""Packing: several sequences in a batch entry give what each gives alone."""

import inspect

import pytest
import torch
from transformers import DataCollatorWithFlattening

from helpers import HEADS, MODERN, TOLERANCE, assert_same_gradients, bert_and_ours, make_batch, make_inputs, make_pair
from scratch_bert.examples.collator import PretrainingCollator, pack_sequences


PACKABLE = ["AutoModel", "AutoModelForPreTraining", "AutoModelForMaskedLM", "AutoModelForTokenClassification"]


@pytest.mark.parametrize("architecture", [{}, MODERN], ids=["bert", "modern"])
@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("auto_class", PACKABLE)
def test_packing_gives_the_outputs_and_gradients_of_separate_sequences(auto_class, attention, unpad, architecture):
    model, unpacked = make_pair(auto_class, attention, architecture | {"unpad_inputs": unpad}, architecture)
    batch = make_batch(auto_class, rows=7, length=20)
    packed = pack_sequences(batch, 40, pad_token_id=0)
    assert packed["input_ids"].shape[0] < 7 and packed["input_ids"].shape[1] == 40
    mine, expected = model(**packed), unpacked(**batch)
    if auto_class == "AutoModel":
        in_order = [outputs.pooler_output.sort(dim=0).values for outputs in (mine, expected)]
        torch.testing.assert_close(*in_order, **TOLERANCE)
    else:
        torch.testing.assert_close(mine.loss, expected.loss, **TOLERANCE)
    for outputs in (mine, expected):
        (outputs.pooler_output.square().sum() if auto_class == "AutoModel" else outputs.loss).backward()
    assert_same_gradients(model, unpacked)


def test_packing_keeps_columns_of_other_names_and_types():
    batch = make_batch("AutoModelForPreTraining", rows=7)
    weights = torch.rand(batch["input_ids"].shape) * batch["attention_mask"]
    packed = pack_sequences(batch | {"weights": weights, "distance": torch.arange(7)}, 40, pad_token_id=0)
    torch.testing.assert_close(packed["weights"].sum(), weights.sum())
    assert packed["distance"].flatten().sort().values.tolist()[-7:] == list(range(7))


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


LENGTHS = (4, 9, 1, 6)


@pytest.mark.parametrize("unpad_inputs", [True, False], ids=["unpadded", "padded"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"return_seq_idx": True},
        {"return_flash_attn_kwargs": True},
        {"return_flash_attn_kwargs": True, "return_position_ids": False},
        {"position_ids_start": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("auto_class", ["AutoModel", "AutoModelForMaskedLM", "AutoModelForSequenceClassification"])
def test_batches_of_the_stock_collator_that_flattens(auto_class, options, attention, unpad_inputs):
    model = make_pair(auto_class, attention, one={"unpad_inputs": unpad_inputs})[0].eval()
    batch = DataCollatorWithFlattening(**options)([{"input_ids": list(range(5, 5 + length))} for length in LENGTHS])
    del batch["labels"]
    found, expected, start = model(**batch)[-1].flatten(0, -2), [], 0  # the pooler's output, or the logits
    for length in LENGTHS:
        first = options.get("position_ids_start", 0) if "position_ids" in batch else start
        alone = model(torch.arange(5, 5 + length)[None], position_ids=torch.arange(first, first + length)[None])
        expected.append(alone[-1].flatten(0, -2))
        start += length
    torch.testing.assert_close(found, torch.cat(expected), **TOLERANCE)


@pytest.mark.parametrize(
    "position_ids",
    [
        [[0] * 6, [0] * 6],  # all alike
        [[3, 4, 5, 6, 7, 8]],  # from 3
        [[0, 0, 0, 1, 2, 3]],  # padded on the left
        [[3, 1, 0, 2, 5, 4]],
        [[0, 2, 4, 0, 2, 4]],
        [[0, 1, 2, 0, 1, 2]] * 2,  # two batch entries
    ],
)
def test_other_positions_are_those_of_one_sequence(position_ids):
    bert, model = bert_and_ours()
    ids = make_inputs(rows=len(position_ids), length=6)["input_ids"]
    outputs, expected = (each(ids, position_ids=torch.tensor(position_ids)) for each in (model, bert))
    torch.testing.assert_close(outputs.last_hidden_state, expected.last_hidden_state, **TOLERANCE)
    assert outputs.pooler_output.shape == expected.pooler_output.shape


def test_a_flattened_batch_with_a_mask_is_what_the_mask_says():
    """A mask of ones says that all tokens belong together, as in BERT."""
    bert, model = bert_and_ours()
    batch = {"input_ids": torch.arange(5, 13)[None], "position_ids": torch.arange(4).repeat(2)[None]}
    batch["attention_mask"] = torch.ones(1, 8).long()
    torch.testing.assert_close(model(**batch)[0], bert(**batch)[0], **TOLERANCE)


IDS, OTHER_LENGTHS = torch.full((2, 4), 5), "cu_seq_lens_q must run from 0 to the number of tokens"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"cu_seq_lens_q": torch.tensor([0, 4, 9]), "input_ids": torch.full((1, 8), 5)}, OTHER_LENGTHS),
        ({"cu_seq_lens_q": torch.tensor([0, 4, 8])}, OTHER_LENGTHS),  # two batch entries
        ({"seq_idx": torch.tensor([[1, 1, 0, 0]] * 2)}, "seq_idx must not decrease"),
        ({"seq_idx": torch.zeros_like(IDS), "attention_mask": torch.ones(2, 1, 4, 4)}, r"mask of shape \(B, S\)"),
    ],
)
def test_sequences_that_contradict_the_batch_are_refused(inputs, message):
    with pytest.raises(ValueError, match=message):
        make_pair("AutoModel")[0](**{"input_ids": IDS} | inputs)


@pytest.mark.parametrize("auto_class", PACKABLE)
def test_packing_survives_trainer(auto_class):
    """Trainer drops the columns that a model's forward does not name."""
    assert "seq_idx" in inspect.signature(HEADS[auto_class].forward).parameters
