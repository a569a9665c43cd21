"""The parts of a model, called alone as other libraries do, give what those of transformers' BERT give."""

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from torch import nn
from transformers import Trainer, TrainingArguments

from helpers import HEADS, SMALL, TOLERANCE, bert_and_ours, edit_config, make_batch, make_inputs, make_model
from scratch_bert import ScratchBertConfig, ScratchBertForMaskedLM, ScratchBertForPreTraining
from scratch_bert.model import compat_scratch_bert
from scratch_bert.model.modeling_scratch_bert import ScratchBertAttention


CALLS = {
    "embeddings": lambda model, ids, states: model.embeddings(ids),
    "embeddings with segments": lambda model, ids, states: model.embeddings(ids, token_type_ids=torch.ones_like(ids)),
    "embeddings at positions": lambda model, ids, states: model.embeddings(
        input_ids=ids, token_type_ids=torch.zeros_like(ids), position_ids=torch.arange(3, 23)[None]
    ),
    "embeddings of embeddings": lambda model, ids, states: model.embeddings(inputs_embeds=states),
    "encoder": lambda model, ids, states: model.encoder(states).last_hidden_state,
    "layer": lambda model, ids, states: model.encoder.layer[1](states),
    "attention": lambda model, ids, states: model.encoder.layer[0].attention(states)[0],
    "self-attention": lambda model, ids, states: model.encoder.layer[0].attention.self(states)[0],
    "pooler": lambda model, ids, states: model.pooler(states),
}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_parts_give_what_those_of_bert_give(call, attention):
    ids, states = make_inputs()["input_ids"].clamp(min=5), torch.randn(4, 20, SMALL["hidden_size"])
    expected, found = (call(model, ids, states) for model in bert_and_ours(attn_implementation=attention))
    torch.testing.assert_close(found, expected, **TOLERANCE)


def test_heads_give_what_those_of_bert_give():
    states, pooled = torch.randn(4, 20, SMALL["hidden_size"]), torch.randn(4, SMALL["hidden_size"])
    for head, inputs in (
        ("ForMaskedLM", (states,)),
        ("ForNextSentencePrediction", (pooled,)),
        ("ForPreTraining", (states, pooled)),
    ):
        expected, found = (model.cls(*inputs) for model in bert_and_ours(head))
        torch.testing.assert_close(found, expected, **TOLERANCE)


def test_self_attention_says_its_heads_as_berts_does():
    for theirs, ours in zip(*(model.encoder.layer for model in bert_and_ours()), strict=True):
        for name in ("num_attention_heads", "attention_head_size"):
            assert getattr(ours.attention.self, name) == getattr(theirs.attention.self, name)


def test_one_row_of_segments_is_broadcast_over_the_batch():
    inputs = make_inputs()
    inputs["token_type_ids"] = torch.tensor([[0] * 8 + [1] * 12])
    mask = inputs["attention_mask"].bool()
    bert, ours = bert_and_ours()
    expected = bert(**inputs | {"token_type_ids": inputs["token_type_ids"].expand(4, 20)}).last_hidden_state
    torch.testing.assert_close(ours(**inputs).last_hidden_state[mask], expected[mask], **TOLERANCE)


class Doubled(nn.Module):
    """Token embeddings of another kind, without the attributes of nn.Embedding."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, ids):
        return 2 * self.inner(ids)


def test_input_embeddings_may_be_any_module():
    states = []
    for model in bert_and_ours():
        model.set_input_embeddings(Doubled(model.get_input_embeddings()))
        states.append(model(**make_inputs()).pooler_output)
    torch.testing.assert_close(*states, **TOLERANCE)


# ---------------------------------------------------------------------------------------------------------------- losses


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForPreTraining", "ForTokenClassification"])
def test_labels_on_padding_count_as_in_bert(head):
    batch = make_batch(f"AutoModel{head}")
    batch["labels"] = batch["input_ids"] if head != "ForTokenClassification" else batch["input_ids"] % 3
    assert (batch["labels"][batch["attention_mask"] == 0] == 0).any()
    bert, ours = bert_and_ours(head)
    torch.testing.assert_close(ours(**batch).loss, bert(**batch).loss, **TOLERANCE)


def test_batches_without_a_label_are_left_out_of_trainers_mean(tmp_path):
    """As of short texts, where nothing was masked: in evaluation as with BERT, and in training without a NaN."""
    texts = [make_inputs(rows=1, length=12, seed=seed) for seed in range(6)]
    examples = [{name: values[0].tolist() for name, values in text.items()} for text in texts]
    for number, example in enumerate(examples):
        example["labels"] = example["input_ids"] if number % 3 == 0 else [-100] * 12
    losses = []
    for model in bert_and_ours("ForMaskedLM"):
        arguments = TrainingArguments(
            str(tmp_path), per_device_eval_batch_size=1, per_device_train_batch_size=1, use_cpu=True, disable_tqdm=True,
            max_steps=3, learning_rate=0.0, logging_steps=1, save_strategy="no", report_to="none",
        )  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=examples, eval_dataset=examples)
        losses.append(trainer.evaluate()["eval_loss"])
    assert losses[1] == pytest.approx(losses[0], abs=1e-5, nan_ok=True)  # NaN in Trainers that average it
    trainer.train()
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    assert len(norms) == 3 and not np.isnan(norms).any()


def test_a_decoder_that_differs_from_the_embeddings_is_trained_and_saved(tmp_path):
    """As transformers' BERT does with a checkpoint of this kind."""
    torch.manual_seed(0)
    model = make_model(ScratchBertForPreTraining)
    model.set_output_embeddings(nn.Linear(SMALL["hidden_size"], SMALL["vocab_size"], bias=False))
    inputs = make_inputs()
    expected = model(**inputs).prediction_logits
    model.save_pretrained(tmp_path / "one")
    opened = ScratchBertForMaskedLM.from_pretrained(tmp_path / "one").eval()
    torch.testing.assert_close(opened(**inputs).logits, expected, **TOLERANCE)
    opened.train()(**inputs, labels=inputs["input_ids"]).loss.backward()
    decoder, embeddings = opened.get_output_embeddings().weight, opened.get_input_embeddings().weight
    assert not torch.equal(decoder.grad, embeddings.grad)
    with torch.no_grad():
        decoder -= decoder.grad
    opened.save_pretrained(tmp_path / "two")
    again = ScratchBertForMaskedLM.from_pretrained(tmp_path / "two")
    assert torch.equal(again.get_output_embeddings().weight, decoder)
    assert torch.equal(again.get_input_embeddings().weight, embeddings)


def test_a_config_that_asks_for_attentions_opens_as_berts_does(tmp_path):
    for model in bert_and_ours("ForMaskedLM"):
        model.save_pretrained(tmp_path)
        edit_config(tmp_path, output_attentions=True)
        opened = type(model).from_pretrained(tmp_path)
        assert opened(**make_inputs()).attentions == ()  # sdpa has none


def replica(module: nn.Module) -> nn.Module:
    """As DataParallel makes them: the parameters are plain tensors, and `parameters()` is empty."""
    made = module._replicate_for_data_parallel()
    for name, child in module.named_children():
        made._modules[name] = replica(child)
    for name, parameter in module._parameters.items():
        setattr(made, name, parameter if parameter is None else parameter.view_as(parameter))
    return made


@pytest.mark.parametrize("auto_class", ["AutoModelForPreTraining", "AutoModelForSequenceClassification"])
def test_replicas_of_data_parallel_compute_the_loss(auto_class):
    model, batch = make_model(HEADS[auto_class], num_labels=3), make_batch(auto_class)
    copied = replica(model)
    assert not list(copied.parameters())
    torch.testing.assert_close(copied(**batch).loss, model(**batch).loss)


def test_subclasses_of_the_classifier_compute_its_loss():
    class Mine(HEADS["AutoModelForSequenceClassification"]):
        pass

    model, batch = make_model(Mine), make_batch("AutoModelForSequenceClassification")
    batch["labels"] %= 2
    assert model(**batch).loss.item() > 0.1


def test_positions_of_answers_may_be_a_column():
    batch = make_batch("AutoModelForQuestionAnswering")
    bert, ours = bert_and_ours("ForQuestionAnswering")
    batch |= {name: batch[name][:, None] for name in ("start_positions", "end_positions")}
    torch.testing.assert_close(ours(**batch).loss, bert(**batch).loss, **TOLERANCE)


@pytest.mark.skipif(Version(transformers.__version__) < Version("5.23"), reason="older BERTs return them all")
@pytest.mark.parametrize("chosen", [[0], [1, -1], [7, -9], 1])
def test_hidden_states_by_index_are_those_of_bert(chosen):
    inputs, mask, states = make_inputs(), make_inputs()["attention_mask"].bool(), []
    for model in bert_and_ours():
        found = model(**inputs, output_hidden_states=chosen).hidden_states
        states.append([one if one is None else one[mask] for one in found])
    torch.testing.assert_close(*states, **TOLERANCE)


def test_resized_positions_keep_dtype_and_freezing():
    model = make_model(position_embedding_type="sinusoidal").bfloat16()
    model.resize_position_embeddings(50)
    assert model(torch.full((1, 50), 5)).prediction_logits.dtype == torch.bfloat16
    learned = make_model()
    learned.get_position_embeddings().weight.requires_grad_(False)
    learned.resize_position_embeddings(50)
    assert not learned.get_position_embeddings().weight.requires_grad


def test_names_of_other_models_are_refused_but_in_files():
    with pytest.raises(ValueError, match="num_layers=3 is not a field of ScratchBertConfig: use num_hidden_layers"):
        ScratchBertConfig(num_layers=3)
    with pytest.raises(ValueError, match="use num_hidden_layers"):
        ScratchBertConfig.from_preset("mini", num_layers=2)
    saved = ScratchBertConfig(**SMALL).to_dict()
    assert ScratchBertConfig.from_dict({**saved, "dim": 256}).hidden_size == SMALL["hidden_size"]


def test_hidden_states_have_padded_shapes_also_where_unpadding_is_asked_for():
    model, inputs = make_model(), make_inputs()
    outputs = model(**inputs, unpad_inputs=True, output_hidden_states=True)
    assert {states.shape for states in outputs.hidden_states} == {(4, 20, SMALL["hidden_size"])}


def test_code_of_a_subclass_that_is_not_saved_is_named(tmp_path, monkeypatch):
    class Attention(ScratchBertAttention):
        pass

    said = []
    monkeypatch.setattr(compat_scratch_bert.logger, "warning_once", said.append)
    model = ScratchBertForPreTraining(ScratchBertConfig(**SMALL))
    model.save_pretrained(tmp_path)
    assert not said
    model.bert.encoder.layer[1].attention.__class__ = Attention
    model.save_pretrained(tmp_path)
    assert len(said) == 1 and said[0].startswith("The code of Attention is not saved")
