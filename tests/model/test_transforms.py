"""PyTorch's ways to run a model other than eagerly, on training data or without data, where transformers' BERT runs in them."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, jacrev, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from helpers import HEADS, TOLERANCE, make_batch, make_inputs, make_model, make_pair


pytestmark = [  # PyTorch's own
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]
CLASSIFIER = "AutoModelForSequenceClassification"


@pytest.mark.parametrize("auto_class", HEADS)
def test_a_training_step_without_values_or_memory(auto_class):
    """As tools do that estimate memory, or plan how to shard a model."""
    with FakeTensorMode() as mode:
        model = make_model(HEADS[auto_class], num_labels=3).train()
        batch = {name: mode.from_tensor(values) for name, values in make_batch(auto_class).items()}
        outputs = model(**batch)
        (outputs.last_hidden_state.sum() if auto_class == "AutoModel" else outputs.loss).backward()
    shapes = [p.grad.shape == p.shape for p in model.parameters() if p.grad is not None]
    assert shapes and all(shapes)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_gradients_of_each_example_by_vmap(attention):
    """As for differential privacy: torch.func's tutorial on per-sample gradients."""
    model = make_pair(CLASSIFIER, attention)[0].eval()
    ids, labels = make_inputs()["input_ids"].clamp(min=5), torch.tensor([0, 1, 2, 0])
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(weights, ids, label):
        return functional_call(model, weights, (ids[None],), {"labels": label[None]}).loss

    found = vmap(grad(loss), in_dims=(None, 0, 0))(weights, ids, labels)
    for row in range(4):
        model.zero_grad()
        model(ids[row : row + 1], labels=labels[row : row + 1]).loss.backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found[name][row], parameter.grad, **TOLERANCE)


@pytest.mark.parametrize("auto_class", [CLASSIFIER, "AutoModelForMaskedLM"])
def test_functional_gradients_are_those_of_backward(auto_class):
    model = make_pair(auto_class)[0]
    batch = make_batch(auto_class)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    found = grad(lambda weights: functional_call(model, weights, (), batch).loss)(weights)
    model(**batch).loss.backward()
    torch.testing.assert_close(found, {name: p.grad for name, p in model.named_parameters()}, **TOLERANCE)


def test_jacobian_of_the_logits():
    model = make_pair(CLASSIFIER)[0].eval()
    embeddings = model.get_input_embeddings()(make_inputs(rows=1)["input_ids"]).detach().requires_grad_()
    found = jacrev(lambda embeddings: model(inputs_embeds=embeddings).logits[0])(embeddings)  # (L, 1, S, H)
    (expected,) = torch.autograd.grad(model(inputs_embeds=embeddings).logits[0, 2], embeddings)
    torch.testing.assert_close(found[2], expected, **TOLERANCE)


def test_graphs_by_make_fx_and_by_jit_trace():
    model = make_pair(CLASSIFIER)[0].eval()
    one, other = make_inputs(), make_inputs(rows=2, length=9, seed=3)
    graph = make_fx(lambda ids: model(ids).logits)(one["input_ids"])
    torch.testing.assert_close(graph(one["input_ids"]), model(one["input_ids"]).logits, **TOLERANCE)
    model.config.return_dict = False
    traced = torch.jit.trace(model, tuple(one.values()))
    torch.testing.assert_close(traced(*other.values())[0], model(*other.values())[0], **TOLERANCE)
