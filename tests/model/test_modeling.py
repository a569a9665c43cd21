"""What a user of the models sees: options, shapes, errors, gradients."""

import math

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding, apply_rotary_pos_emb

from helpers import HEADS, NO_DROPOUT, SMALL, TOLERANCE, make_batch, make_inputs, make_model, num_labels
from scratch_bert import ScratchBertConfig, ScratchBertForMaskedLM, ScratchBertForPreTraining, ScratchBertModel
from scratch_bert.model.modeling_scratch_bert import rotate, rotations


def largest_difference(model, other, batch):
    return (model(**batch)[1] - other(**batch)[1]).abs().max().item()


# ------------------------------------------------------------------------------------------------ config options


def test_norm_first_normalises_at_the_end():
    model, inputs = make_model(ScratchBertModel, norm_first=True), make_inputs()
    outputs = model(**inputs, output_hidden_states=True)
    # The layers leave an unnormalised sum; the final norm makes each token's mean 0 and variance 1.
    last = outputs.last_hidden_state[inputs["attention_mask"].bool()][None]
    torch.testing.assert_close(last.mean(-1), torch.zeros(last.shape[:2]), atol=1e-5, rtol=0)
    torch.testing.assert_close(last.var(-1, unbiased=False), torch.ones(last.shape[:2]), atol=1e-4, rtol=0)


def test_norm_first_matches_torch_encoder_layer():
    torch.manual_seed(1)
    model = make_model(ScratchBertModel, norm_first=True, hidden_act="relu")
    layer, hidden = model.encoder.layer[0], SMALL["hidden_size"]
    reference = nn.TransformerEncoderLayer(
        hidden, SMALL["num_attention_heads"], SMALL["intermediate_size"], norm_first=True, batch_first=True
    ).eval()
    attention = layer.attention
    parts = attention.self.query, attention.self.key, attention.self.value
    reference.self_attn.in_proj_weight.data = torch.cat([part.weight for part in parts])
    reference.self_attn.in_proj_bias.data.zero_()
    reference.self_attn.out_proj.load_state_dict(attention.output.dense.state_dict())
    reference.linear1.load_state_dict(layer.intermediate.dense.state_dict())
    reference.linear2.load_state_dict(layer.output.dense.state_dict())
    states = torch.randn(2, 7, hidden)
    torch.testing.assert_close(layer(states, None), reference(states), atol=1e-4, rtol=0)


def test_sinusoidal_positions_follow_the_formula_and_are_not_saved(tmp_path):
    model = make_model(position_embedding_type="sinusoidal")
    table, hidden = model.bert.embeddings.position_embeddings.weight, SMALL["hidden_size"]
    for position in (0, 1, 17, 39):
        for i in range(0, hidden, 2):
            angle = position / 10000 ** (i / hidden)
            assert table[position, i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[position, i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)
    assert not [name for name in model.state_dict() if "position" in name]
    model.save_pretrained(tmp_path)
    loaded, info = ScratchBertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert largest_difference(model, loaded.eval(), make_inputs()) == 0
    odd = make_model(ScratchBertModel, position_embedding_type="sinusoidal", hidden_size=33, head_dim=8)
    assert odd(**make_inputs()).last_hidden_state.shape == (4, 20, 33)


def test_rotary_positions_are_those_of_llama():
    states, positions = torch.randn(2, 4, 30, 8), torch.randint(0, 500, (2, 30))
    reference = LlamaRotaryEmbedding(LlamaConfig(hidden_size=32, num_attention_heads=4))
    expected = apply_rotary_pos_emb(states, -states, *reference(states, positions))
    for one, sign in zip(expected, (1, -1), strict=True):
        torch.testing.assert_close(rotate(sign * states, rotations(positions, 8)), one, **TOLERANCE)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_rotary_positions_count_only_by_their_distances(attention):
    model = make_model(ScratchBertModel, position_embedding_type="rotary", attn_implementation=attention)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    batch = make_inputs(rows=1, length=12)
    positions = torch.arange(12)[None]
    first, moved = (model(**batch, position_ids=positions + shift)[0] for shift in (0, 20))
    torch.testing.assert_close(first, moved, **TOLERANCE)
    assert not torch.allclose(model(**batch, position_ids=2 * positions)[0], first, atol=1e-2)
    model.resize_position_embeddings(400)
    assert model(input_ids=torch.ones(1, 400, dtype=torch.long))[0].isfinite().all()
    assert not [name for name in model.state_dict() if "position" in name]


def test_norm_of_queries_and_keys_is_over_each_head_and_makes_their_size_irrelevant():
    attention = make_model(ScratchBertModel, qk_norm=True).encoder.layer[0].attention.self
    for weight in attention.parameters():
        nn.init.normal_(weight, std=0.3)
    states = torch.randn(2, 9, 32)
    heads = [f(states).view(2, 9, 4, 8).transpose(1, 2) for f in (attention.query, attention.key, attention.value)]
    for norm, number in ((attention.query_norm, 0), (attention.key_norm, 1)):
        centred = heads[number] - heads[number].mean(-1, keepdim=True)
        heads[number] = centred / centred.std(-1, unbiased=False, keepdim=True) * norm.weight + norm.bias
    expected = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(2, 9, 32)
    torch.testing.assert_close(attention(states)[0], expected, **TOLERANCE)
    with torch.no_grad():
        for part in (attention.query, attention.key):
            part.weight *= 100
            part.bias *= 100
    torch.testing.assert_close(attention(states)[0], expected, **TOLERANCE)


def test_factorised_embeddings_are_tied_and_keep_their_deviation():
    model = make_model(embedding_size=16, vocab_size=2000, hidden_size=64)
    embeddings, head = model.bert.embeddings, model.cls.predictions
    assert head.decoder.weight is embeddings.word_embeddings.weight and head.decoder.weight.shape == (2000, 16)
    assert head.projection.weight is embeddings.projection.weight
    product = embeddings.word_embeddings.weight @ embeddings.projection.weight
    assert product.std().item() == pytest.approx(embeddings.word_embeddings.weight.std().item(), rel=0.01)
    batch = make_inputs(vocab_size=2000)
    embedded = {"inputs_embeds": embeddings.word_embeddings(batch["input_ids"])}  # (B, S, E)
    assert largest_difference(model, lambda **_: model(**batch | embedded | {"input_ids": None}), batch) == 0


def test_head_dim_sets_the_width_of_attention_whose_implementation_can_be_switched():
    config = {"num_attention_heads": 3, "head_dim": 10, "initializer_range": 0.3}
    model, inputs = make_model(ScratchBertModel, **config), make_inputs()
    assert model.encoder.layer[0].attention.self.query.weight.shape == (30, 32)
    assert model.encoder.layer[0].attention.output.dense.weight.shape == (32, 30)
    mask, sdpa = inputs["attention_mask"].bool(), model(**inputs)[0]
    model.set_attn_implementation("eager")
    outputs = model(**inputs, output_attentions=True)
    assert [weights.shape for weights in outputs.attentions] == SMALL["num_hidden_layers"] * [(4, 3, 20, 20)]
    torch.testing.assert_close(outputs.attentions[0].sum(-1), torch.ones(4, 3, 20))
    torch.testing.assert_close(outputs[0][mask], sdpa[mask], **TOLERANCE)


@pytest.mark.parametrize("name", NO_DROPOUT)
def test_dropout_acts_in_training_only(name):
    model, batch = make_model(**NO_DROPOUT | {name: 0.5}), make_inputs()
    assert largest_difference(model, model, batch) == 0
    model.train()
    assert largest_difference(model, model, batch) > 0


@pytest.mark.parametrize(("value", "changes"), [(0.5, True), (0.0, False), (None, False)])
def test_dropout_of_the_classifier(value, changes):
    options = {**NO_DROPOUT, "classifier_dropout": value}
    model, batch = make_model(HEADS["AutoModelForTokenClassification"], **options).train(), make_inputs()
    assert torch.equal(model(**batch).logits, model(**batch).logits) != changes


# -------------------------------------------------------------------------------------------- weights and modules


def test_initial_weights_are_truncated_at_two_deviations():
    model = make_model(hidden_size=64, intermediate_size=256, initializer_range=0.05, vocab_size=2000)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            weight = module.weight.detach()
            assert weight.abs().max() <= 0.1, name
            if weight.numel() > 4000:  # truncation at two deviations leaves 0.88 of the deviation
                assert weight.std().item() == pytest.approx(0.88 * 0.05, rel=0.05), name
        if getattr(module, "bias", None) is not None:
            assert not module.bias.any(), name
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
    assert not model.get_input_embeddings().weight[0].any()  # padding


@pytest.mark.parametrize("tied", [True, False])
def test_word_embeddings_are_resized_and_stay_tied_or_not(tied, tmp_path):
    model = make_model(tie_word_embeddings=tied)
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
    before, bias = model.get_input_embeddings().weight[:100].clone(), torch.randn(120)
    model.cls.predictions.bias.data.copy_(bias)
    model.resize_token_embeddings(131)
    assert model.config.vocab_size == 131
    assert torch.equal(model.get_input_embeddings().weight[:100], before)
    torch.testing.assert_close(model.cls.predictions.bias, torch.cat([bias, bias.mean().repeat(11)]))
    inputs = make_inputs()
    inputs["input_ids"][0, 0] = 130
    assert model(**inputs).prediction_logits.shape == (4, 20, 131)
    model.save_pretrained(tmp_path)
    loaded, info = ScratchBertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    assert (loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight) == tied
    assert torch.equal(model(**inputs).prediction_logits, loaded.eval()(**inputs).prediction_logits)
    model.resize_token_embeddings(100)
    inputs["input_ids"].clamp_(max=99)
    assert model(**inputs).prediction_logits.shape == (4, 20, 100)
    assert torch.equal(model.cls.predictions.bias, bias[:100])


def test_pooler_can_be_left_out():
    model = ScratchBertModel(ScratchBertConfig(**SMALL), add_pooling_layer=False)
    assert model(**make_inputs()).pooler_output is None


@pytest.mark.parametrize("auto_class", HEADS)
def test_return_dict_false_gives_the_same_as_a_tuple(auto_class):
    model = make_model(HEADS[auto_class], num_labels=num_labels(auto_class))
    batch = make_batch(auto_class)
    as_dataclass, as_tuple = model(**batch), model(**batch, return_dict=False)
    model.config.return_dict = False
    as_configured = model(**batch)
    assert isinstance(as_tuple, tuple) and isinstance(as_configured, tuple)
    for x, y, z in zip(as_dataclass.to_tuple(), as_tuple, as_configured, strict=True):
        assert torch.equal(x, y) and torch.equal(x, z)


@pytest.mark.filterwarnings("ignore:.*activation_checkpointing_enable")  # a newer name that 5.17 does not have
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing_gives_the_same_gradients(use_reentrant):
    batch = make_batch("AutoModelForPreTraining")
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = make_model().train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        torch.manual_seed(1)
        model(**batch).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    torch.testing.assert_close(*gradients)


# ------------------------------------------------------------------------------------------------------- losses


def test_mlm_and_nsp_losses_add_up_and_either_may_be_given_alone():
    model = make_model()
    batch = make_batch("AutoModelForPreTraining")
    both = model(**batch)
    assert both.loss == both.mlm_loss + both.nsp_loss
    nsp_label = batch.pop("next_sentence_label")
    mlm = model(**batch)
    assert mlm.loss == mlm.mlm_loss == both.mlm_loss and mlm.nsp_loss is None
    batch.pop("labels")
    nsp = model(**batch, next_sentence_label=nsp_label)
    assert nsp.loss == nsp.nsp_loss == both.nsp_loss and nsp.mlm_loss is None
    assert model(**batch).loss is None


@pytest.mark.parametrize("count", [None, 0, torch.tensor(0)])
def test_mlm_loss_without_masked_tokens_is_zero_in_training(count):
    model = make_model(ScratchBertForMaskedLM).train()
    batch = make_batch("AutoModelForPreTraining")
    batch["labels"].fill_(-100)
    next_sentence_label = batch.pop("next_sentence_label")
    loss = model(**batch, num_items_in_batch=count).loss
    loss.backward()
    assert loss.item() == 0
    outputs = make_model().train()(**batch, next_sentence_label=next_sentence_label, num_items_in_batch=count)
    assert outputs.mlm_loss.item() == 0 and outputs.nsp_loss.item() > 0.5
    outputs.loss.backward()


# ---------------------------------------------------------------------------------------------- padding and dtype


@pytest.mark.parametrize("padding", [slice(1, 2), slice(None)], ids=["a row", "all rows"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_padding_alone_gives_finite_outputs_and_gradients(attention, dtype, norm_first, padding):
    model = make_model(attn_implementation=attention, norm_first=norm_first).to(dtype)
    batch = make_batch("AutoModelForPreTraining", rows=2, length=8)
    batch["attention_mask"][padding] = 0
    for training in (False, True):
        if training:  # without padding, which is computed for hidden states and for labels on it
            batch["labels"][padding] = -100
        outputs = model.train(training)(**batch, output_hidden_states=not training)
        for tensor in (*(outputs.hidden_states or ()), outputs.prediction_logits, outputs.seq_relationship_logits):
            assert tensor.isfinite().all()
        model.zero_grad()
        outputs.loss.backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_padding_changes_no_output(attention):
    model = make_model(ScratchBertModel, attn_implementation=attention)
    inputs = make_inputs(rows=1, length=12)
    alone = model(**inputs)[0]
    padded = {name: nn.functional.pad(tensor, (0, 9)) for name, tensor in inputs.items()}
    torch.testing.assert_close(model(**padded)[0][:, :12], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("additive", [False, True])
def test_attention_mask_of_four_dimensions_separates_sequences(attention, additive):
    model = make_model(ScratchBertModel, attn_implementation=attention)
    ids = make_inputs(rows=1, length=10)["input_ids"]
    segment = torch.tensor([0] * 4 + [1] * 6)
    mask = (segment[:, None] == segment[None, :])[None, None]  # (1, 1, S, S)
    if additive:
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]])
    packed = model(ids, attention_mask=mask, position_ids=positions)[0]
    torch.testing.assert_close(packed[:, :4], model(ids[:, :4])[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(packed[:, 4:], model(ids[:, 4:])[0], atol=1e-5, rtol=0)


def test_question_answering_loss_leaves_out_truncated_answers():
    model = make_model(HEADS["AutoModelForQuestionAnswering"])
    batch = make_batch("AutoModelForQuestionAnswering")
    expected = model(**{name: tensor[:2] for name, tensor in batch.items()}).loss
    for name in ("start_positions", "end_positions"):
        batch[name][2:] = torch.tensor([20, 500])
    torch.testing.assert_close(model(**batch).loss, expected)
    for name in ("start_positions", "end_positions"):
        batch[name][:] = 20
    assert model(**batch).loss.isnan()  # as BERT's
    assert model.train()(**batch).loss.item() == 0


def test_config_is_validated_again_when_a_model_is_built(tmp_path):
    make_model(ScratchBertModel).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="num_attention_heads"):
        ScratchBertModel.from_pretrained(tmp_path, num_attention_heads=5)


def test_learned_positions_can_start_as_sinusoids():
    torch.manual_seed(0)
    learned = make_model(position_embedding_init="sinusoidal", max_position_embeddings=64)
    fixed = make_model(position_embedding_type="sinusoidal", max_position_embeddings=64)
    positions = learned.bert.embeddings.position_embeddings.weight
    assert positions.requires_grad and positions.std().item() == pytest.approx(learned.config.initializer_range)
    sinusoids = fixed.bert.embeddings.position_embeddings.weight
    torch.testing.assert_close(positions / positions.std(), sinusoids / sinusoids.std())


def test_mimetic_attention_starts_with_correlated_weights():
    torch.manual_seed(0)
    config = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 2}
    layer = make_model(attention_init="mimetic", **config).bert.encoder.layer[0].attention
    self, output = layer.self, layer.output.dense

    def correlation(one, other):
        return torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1].item()

    assert correlation(self.query.weight, self.key.weight) == pytest.approx(0.5**0.5, abs=0.03)
    assert correlation(self.value.weight, -output.weight.T) == pytest.approx(0.5**0.5, abs=0.03)
    assert correlation(self.query.weight, self.value.weight) == pytest.approx(0, abs=0.03)
    # Queries and keys of one token agree: in every head, tokens attend to tokens like themselves.
    states = torch.randn(50, 128)
    scores = torch.einsum("iad,jad->aij", *(f(states).view(50, 2, 64) for f in (self.query, self.key)))
    assert (scores.diagonal(dim1=1, dim2=2).mean(1) > 10 * scores.mean((1, 2)).abs()).all()


def test_initial_attention_keeps_loaded_weights(tmp_path):
    model = make_model(attention_init="mimetic", position_embedding_init="sinusoidal")
    for parameter in model.parameters():
        parameter.data.uniform_(-1, 1)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict())
