"""Unpadding changes no output, loss or gradient."""

import pytest
import torch
from torch.nn import functional as F
from torch.profiler import profile
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from helpers import (
    HEADS,
    MODERN,
    SMALL,
    TOLERANCE,
    assert_same_gradients,
    make_batch,
    make_inputs,
    make_pair,
    varlen_attention,
)
from scratch_bert import ScratchBertConfig, ScratchBertForMaskedLM, ScratchBertModel
from scratch_bert.examples.collator import pack_sequences
from scratch_bert.model import padding_scratch_bert
from scratch_bert.model.padding_scratch_bert import plan_rows


PADDED = {"unpad_inputs": False}


@pytest.mark.parametrize("options", [{}, MODERN], ids=["bert", "modern"])
@pytest.mark.parametrize("surplus", [0, 50])  # rows
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("auto_class", HEADS)
def test_unpadding_gives_the_outputs_and_gradients_of_padding(auto_class, attention, surplus, options, monkeypatch):
    model, padded = make_pair(auto_class, attention, options, options | PADDED)
    monkeypatch.setattr(padding_scratch_bert, "surplus_rows", lambda *_: surplus)
    batch = make_batch(auto_class, rows=5, length=37)
    mine, expected = model(**batch), padded(**batch)
    if auto_class == "AutoModel":
        mask = batch["attention_mask"].bool()
        torch.testing.assert_close(mine.last_hidden_state[mask], expected.last_hidden_state[mask], **TOLERANCE)
        torch.testing.assert_close(mine.pooler_output, expected.pooler_output, **TOLERANCE)
    else:
        torch.testing.assert_close(mine.loss, expected.loss, **TOLERANCE)
    for outputs in (mine, expected):
        (outputs.pooler_output.sum() if auto_class == "AutoModel" else outputs.loss).backward()
    assert_same_gradients(model, padded)


def test_unpadding_computes_no_padding():
    """With NaN as the embedding of [PAD], outputs tell whether it was computed."""
    model, padded = make_pair("AutoModel", other=PADDED)
    inputs = make_inputs()
    for each in (model, padded):
        each.embeddings.word_embeddings.weight.data[0] = float("nan")
    assert model(**inputs).last_hidden_state.isfinite().all()
    assert not padded(**inputs).last_hidden_state.isfinite().all()
    assert not model(**inputs, unpad_inputs=False).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float])
@pytest.mark.parametrize("holes", [[], [(0, slice(0, 5))], [(1, slice(4, 6)), (2, slice(9, 12))]])  # one on the left
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_unpadding_wherever_the_padding_is(attention, holes, dtype):
    model, padded = make_pair("AutoModel", attention, other=PADDED)
    mask = torch.ones(3, 12, dtype=dtype)
    for hole in holes:
        mask[hole] = 0
    inputs = make_inputs(rows=3, length=12) | {"attention_mask": mask}
    mine, expected = model(**inputs), padded(**inputs)
    torch.testing.assert_close(mine[0][mask.bool()], expected[0][mask.bool()], **TOLERANCE)
    torch.testing.assert_close(mine.pooler_output, expected.pooler_output, **TOLERANCE)


def test_unpadding_of_long_sequences():
    """Too long for attention one sequence at a time: they take sdpa's."""
    config = {**SMALL, "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 1}
    model = ScratchBertModel(ScratchBertConfig(**{**config, "max_position_embeddings": 1200})).eval()
    inputs = make_inputs(rows=2, length=1100)
    mask = inputs["attention_mask"].bool()
    padded = model(**inputs, unpad_inputs=False)
    torch.testing.assert_close(model(**inputs)[0][mask], padded[0][mask], **TOLERANCE)


def flash_attention(module, query, key, value, mask, scaling, dropout, cu_seq_lens_q, max_length_q, **kwargs):
    """Stands in for a package that needs a GPU: one batch entry of all tokens, and where each sequence begins."""
    assert mask is None and query.shape[0] == 1
    states = (each[0].transpose(0, 1) for each in (query, key, value))
    lengths = (cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q)
    return varlen_attention(*states, *lengths, scale=scaling)[None], None


@pytest.fixture
def flash_pair(monkeypatch):
    model, plain = make_pair("AutoModel")
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", flash_attention)
    model.config._attn_implementation = "flash_attention_2"
    return model, plain


def test_flash_attention_gets_the_cu_seqlens_of_the_sequences(flash_pair):
    model, plain = flash_pair
    inputs = make_inputs()
    mask = inputs["attention_mask"].bool()
    torch.testing.assert_close(model(**inputs)[0][mask], plain(**inputs)[0][mask], **TOLERANCE)
    packed = pack_sequences(inputs, 40, pad_token_id=0)
    torch.testing.assert_close(model(**packed).pooler_output, plain(**packed).pooler_output, **TOLERANCE)
    with pytest.raises(ValueError, match="Take the attention implementation sdpa"):
        model(**packed, unpad_inputs=False)
    with pytest.raises(ValueError, match="or if hidden states or attentions are asked for"):
        model(**packed, output_hidden_states=True)


def test_flash_attention_keeps_the_cu_seqlens_of_a_collator(flash_pair):
    """As DataCollatorWithFlattening(return_flash_attn_kwargs=True) returns them."""
    model, plain = flash_pair
    ids, cu_seqlens = make_inputs(rows=1)["input_ids"], torch.tensor([0, 8, 20], dtype=torch.int32)
    lengths = {"cu_seq_lens_q": cu_seqlens, "cu_seq_lens_k": cu_seqlens, "max_length_q": 12, "max_length_k": 12}
    packed = plain(ids, seq_idx=(torch.arange(20) >= 8).long()[None]).last_hidden_state
    torch.testing.assert_close(model(ids, **lengths).last_hidden_state, packed, **TOLERANCE)


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16, torch.float64])
def test_unpadding_in_other_precisions(precision):
    model, padded = make_pair("AutoModel", other=PADDED)
    inputs = make_inputs(rows=2, length=8)
    mask = inputs["attention_mask"].bool()
    with torch.inference_mode():
        expected = padded(**inputs)[0][mask]
        torch.testing.assert_close(model.to(precision)(**inputs)[0][mask].float(), expected, rtol=0.05, atol=0.05)


def test_unpadding_under_bf16_autocast_is_near_fp32():
    model = make_pair("AutoModelForPreTraining")[0]
    batch = make_batch("AutoModelForPreTraining")
    gradients = []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = model(**batch).loss
        loss.backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert F.cosine_similarity(*gradients, dim=0) > 0.999


@pytest.mark.slow
@pytest.mark.cpu_branch
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_products_have_few_shapes(attention):
    """Others fragment the memory, and in bf16, oneDNN compiles each of them."""
    model = make_pair("AutoModelForMaskedLM", attention)[0].train()
    rows, counts = {True: set(), False: set()}, set()
    for length in range(17, 33):
        batch = make_batch("AutoModelForMaskedLM", rows=8, length=length)
        counts |= {plan_rows(batch["attention_mask"]).rows, int(batch["labels"].ne(-100).sum())}
        for bf16, found in rows.items():
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16), profile(record_shapes=True) as events:
                output = model(**batch)
            assert len(output.logits) == batch["labels"].ne(-100).sum()
            found |= {event.input_shapes[1][0] for event in events.events() if event.name == "aten::addmm"}
    for found in rows.values():
        assert found and all(number % 8 == 0 for number in found)
        assert len(found) < 16 < len(counts)  # of tokens and of predictions


def test_surplus_rows_in_fp16_leave_finite_gradients():
    """Without trained biases, rows of zeros would stay zero, and have no finite LayerNorm gradient."""
    model = ScratchBertForMaskedLM(ScratchBertConfig(**SMALL)).half().train()
    model(**make_batch("AutoModelForMaskedLM")).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


def test_question_answering_never_answers_with_padding():
    model = make_pair("AutoModelForQuestionAnswering")[0].eval()
    inputs = make_inputs()
    outputs = model(**inputs)
    padding = inputs["attention_mask"] == 0
    for logits in (outputs.start_logits, outputs.end_logits):
        assert logits[padding].max() < logits[~padding].min() and logits.isfinite().all()
