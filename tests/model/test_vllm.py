"""What vLLM's Transformers backend asks of an encoder (vllm/model_executor/models/transformers, 0.33), as far as it can be
rehearsed without vLLM: how it chooses the model, builds it, and calls it with all tokens of several requests in one row."""

import ast
import inspect
import re
import textwrap

import pytest
import torch
from transformers import AutoModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from helpers import SMALL, make_model, varlen_attention
from scratch_bert import ScratchBertConfig, ScratchBertModel


LENGTHS = [5, 9, 3]


def attention_of_vllm(module, query, key, value, attention_mask, scaling, **kwargs):
    """As `vllm_attention_forward`: states (1, A, T, D) → (T, A·D). vLLM itself knows which tokens belong together."""
    assert attention_mask is None and query.shape[0] == 1
    assert isinstance(module.layer_idx, int) and not module.is_causal and module.config is not None
    cu_seqlens, longest = torch.tensor([0, *LENGTHS]).cumsum(0), max(LENGTHS)
    states = (each[0].transpose(0, 1) for each in (query, key, value))
    return varlen_attention(*states, cu_seqlens, cu_seqlens, longest, longest, scale=scaling).flatten(1), None


@pytest.fixture
def _vllm(monkeypatch):
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "vllm", attention_of_vllm)


@pytest.mark.usefixtures("_vllm")
@pytest.mark.parametrize("linear", [torch.nn.Linear, type("ReplacedLinear", (torch.nn.Linear,), {})])
def test_vllm_calls_the_model_with_all_requests_in_one_row(linear):
    reference = make_model(ScratchBertModel)
    config = ScratchBertConfig(**SMALL)
    config._attn_implementation = "vllm"  # before the model is built, on the meta device
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    model = model.to_empty(device="cpu").eval()
    for module in list(model.modules()):  # vLLM replaces all linear layers
        for name, child in module.named_children():
            if type(child) is torch.nn.Linear:
                setattr(module, name, linear(child.in_features, child.out_features))
    model.load_state_dict(reference.state_dict())
    model.embeddings.position_ids = torch.arange(SMALL["max_position_embeddings"])[None]
    ids = torch.randint(5, 100, (1, sum(LENGTHS)))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    with torch.no_grad():
        options = {"inputs_embeds": None, "use_cache": False, "return_dict": False}
        states = model(input_ids=ids, position_ids=positions, **options)[0][0]
        expected = [reference(row[None]).last_hidden_state[0] for row in ids[0].split(LENGTHS)]
    torch.testing.assert_close(states, torch.cat(expected), rtol=0, atol=1e-5)


def test_vllm_accepts_the_class():
    model = make_model(ScratchBertModel)
    assert model.is_backend_compatible()
    encoders = [module for module in model.modules() if getattr(module, "is_causal", True) is False]
    assert [module.layer_idx for module in encoders] == list(range(SMALL["num_hidden_layers"]))
    arguments = inspect.signature(ScratchBertModel.forward).parameters.keys()
    assert {"input_ids", "inputs_embeds", "position_ids"} <= arguments
    linear = {name for name, module in model.encoder.named_modules() if isinstance(module, torch.nn.Linear)}
    assert {f"encoder.{re.sub('[0-9]+', '*', name)}" for name in linear} == set(model.config.base_model_tp_plan) - {
        "embed_tokens"
    }


def test_vllm_finds_the_call_of_the_attention_function_in_the_source():
    """Its AttentionFuser replaces that call: the name assigned from `get_interface` is called once, scaling is an attribute."""
    attention = make_model(ScratchBertModel).encoder.layer[0].attention.self
    tree = ast.parse(textwrap.dedent(inspect.getsource(type(attention).forward)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (name,) = [
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and "ALL_ATTENTION_FUNCTIONS.get_interface" in ast.unparse(node.value)
    ]
    (call,) = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == name]
    (scaling,) = [keyword.value for keyword in call.keywords if keyword.arg == "scaling"]
    assert ast.unparse(scaling) == "self.scaling"
