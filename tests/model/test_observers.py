"""Hooks see padded states in every part of the model, (B, S, H), as in transformers' BERT."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from helpers import SMALL, TOLERANCE, bert_and_ours, make_inputs, make_pair
from scratch_bert.model.compat_scratch_bert import is_observed


def is_unpadded(model) -> bool:
    """Whether the model's forward leaves out padding: NaN as the embedding of [PAD] tells."""
    inputs, weight = make_inputs(), model.get_input_embeddings().weight
    with torch.no_grad():
        kept = weight[0].clone()
        weight[0] = float("nan")
        states = model(**inputs)[0]
        weight[0] = kept
    return states.isfinite().all().item()


def first(output) -> torch.Tensor:
    return output if torch.is_tensor(output) else output[0]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_forward_hooks_on_every_part_see_what_they_see_in_bert(attention):
    seen = []
    inputs, mask = make_inputs(), make_inputs()["attention_mask"].bool()
    for model in bert_and_ours(attn_implementation=attention):
        found = {}
        for name, part in model.named_modules():
            if name and not isinstance(part, nn.ModuleList):
                part.register_forward_hook(lambda *x, name=name, found=found: found.update({name: first(x[-1])}))
        model(**inputs)
        seen.append(found)
    expected, found = seen
    names = expected.keys() & found.keys()
    assert len(names) > 30 and {"encoder", "encoder.layer.1", "encoder.layer.0.attention.output.dense"} <= names
    for name in names:
        if expected[name].shape[:2] == mask.shape:
            assert found[name].shape == expected[name].shape, name
            torch.testing.assert_close(found[name][mask], expected[name][mask], **TOLERANCE, msg=f"{name} differs")


def replaced_forward(model, see):
    layer = model.encoder.layer[0]
    forward = layer.forward

    def watched(*args, **kwargs):
        output = forward(*args, **kwargs)
        see(output)
        return output

    layer.forward = watched


# How `see` is called with what a part of the model computes, a hook's last argument; a handle is removed again.
WATCHES = {
    "before a layer": lambda m, see: m.encoder.layer[1].register_forward_pre_hook(lambda part, args: see(args[0])),
    "encoder": lambda m, see: m.encoder.register_forward_hook(lambda *x: see(x[-1].last_hidden_state)),
    "embedding": lambda m, see: m.embeddings.word_embeddings.register_forward_hook(lambda *x: see(x[-1])),
    "with arguments": lambda m, see: m.encoder.layer[0].register_forward_hook(lambda *x: see(x[-1]), with_kwargs=True),
    "backward": lambda m, see: m.encoder.layer[0].register_full_backward_hook(lambda *x: see(x[-1][0])),
    "all modules": lambda model, see: nn.modules.module.register_module_forward_hook(
        lambda part, args, output: see(output) if part is model.encoder.layer[0] else None
    ),
    "replaced forward": replaced_forward,
}


@pytest.mark.parametrize("watch", WATCHES.values(), ids=WATCHES)
def test_every_way_to_look_into_the_model_sees_rows_and_positions(watch):
    model, seen = make_pair("AutoModel")[0], []
    assert is_unpadded(model)
    handle = watch(model, seen.append)
    assert not is_unpadded(model)
    model(**make_inputs()).pooler_output.sum().backward()
    assert seen[-1].shape == (4, 20, SMALL["hidden_size"])
    if handle is not None:
        handle.remove()
        assert is_unpadded(model)


def test_a_hook_that_changes_the_states_has_the_effect_that_it_has_in_bert():
    inputs = make_inputs()
    logits = []
    for model in bert_and_ours("ForSequenceClassification"):
        model.bert.encoder.layer[0].register_forward_hook(lambda *x: x[-1] * torch.linspace(0, 1, 20)[:, None])
        logits.append(model(**inputs).logits)
    torch.testing.assert_close(*logits, **TOLERANCE)


def checkpointing_with_gradients_of_inputs(model):
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()


PREPARED = {
    "hidden states": lambda model: model(**make_inputs(), output_hidden_states=True),  # whose hooks stay in the layers
    "checkpointing": checkpointing_with_gradients_of_inputs,
    "pruned": lambda model: prune.l1_unstructured(model.encoder.layer[0].intermediate.dense, "weight", amount=0.1),
    # It sees padded states.
    "of the model": lambda model: model.register_forward_hook(lambda part, args, output: None),
}


@pytest.mark.filterwarnings("ignore:.*activation_checkpointing_enable")  # a newer name that 5.17 does not have
@pytest.mark.parametrize("prepare", PREPARED.values(), ids=PREPARED)
def test_hooks_of_training_leave_padding_out(prepare):
    model = make_pair("AutoModel")[0]
    prepare(model)
    assert is_unpadded(model)


def test_dispatch_by_accelerate_leaves_padding_out():
    from accelerate import cpu_offload

    model = make_pair("AutoModel")[0].eval()
    expected = model(**make_inputs())[0]
    cpu_offload(model, execution_device=torch.device("cpu"))
    assert not is_observed(model.encoder)
    torch.testing.assert_close(model(**make_inputs())[0], expected, **TOLERANCE)


def test_gradients_of_embeddings_are_those_of_bert():
    inputs = make_inputs()
    gradients = []
    for model in bert_and_ours("ForSequenceClassification"):
        embeddings = model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
        others = {name: values for name, values in inputs.items() if name != "input_ids"}
        model(inputs_embeds=embeddings, **others).logits[:, 1].sum().backward()
        gradients.append(embeddings.grad)
    assert gradients[0].abs().max() > 1e-3
    torch.testing.assert_close(*gradients, **TOLERANCE)


def test_neftune_adds_as_much_noise_as_to_bert():
    from transformers.integrations.neftune import activate_neftune

    inputs, noises = make_inputs(), []
    for model in bert_and_ours():
        activate_neftune(model.train(), 5.0)
        model.get_input_embeddings().register_forward_hook(lambda p, x, y: noises.append(y - p.weight[x[0]]))
        model(**inputs)
    assert noises[0].shape == noises[1].shape
    torch.testing.assert_close(noises[1].abs().max(), noises[0].abs().max(), rtol=0.05, atol=0)
