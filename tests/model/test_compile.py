"""torch.compile and torch.export give what eager execution gives."""

import shutil

import pytest
import torch

from helpers import MODERN, TOLERANCE, assert_same_gradients, make_batch, make_inputs, make_pair
from scratch_bert.examples.collator import pack_sequences
from scratch_bert.training.counting import CountingCollator


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method.*is deprecated:DeprecationWarning")  # torch.compile's own
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compile_gives_the_loss_and_gradients_of_eager_execution():
    one_layer = {"num_hidden_layers": 1}
    model, plain = make_pair("AutoModelForPreTraining", one=one_layer, other=one_layer)
    compiled = torch.compile(model)
    for seed in range(4):
        batch = make_batch("AutoModelForPreTraining", rows=6, seed=seed)
        if seed > 1:
            batch = pack_sequences(batch, 40, pad_token_id=0)
        mine, expected = compiled(**batch), plain(**batch)
        torch.testing.assert_close(mine.loss, expected.loss, **TOLERANCE)
        mine.loss.backward()
        expected.loss.backward()
        assert_same_gradients(model, plain)


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="PyTorch 2.11 takes it for an export: it computes all logits")
@pytest.mark.parametrize(
    ("auto_class", "architecture"),
    [("AutoModelForPreTraining", {}), ("AutoModelForPreTraining", MODERN), ("AutoModelForMaskedLM", {})],
)
def test_step_with_an_upper_bound_of_the_labels_is_one_graph(auto_class, architecture):
    """Where the host must count them, the graph breaks. Other batches take few more graphs."""
    model, plain = make_pair(auto_class, one=architecture, other=architecture)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    collator, bounds = CountingCollator(lambda batch: batch, compiled=True), []
    torch.compiler.reset()
    compiled = torch.compile(model, backend=backend)
    for seed in range(8):
        batch = make_batch(auto_class, rows=16, length=40, seed=seed)
        count = int((batch["labels"] != -100).sum())
        bounds.append(collator(batch)["num_masked"] / count)
        found, expected = compiled(**collator(batch)), plain(**batch)
        torch.testing.assert_close(found.loss, expected.loss, **TOLERANCE)
        logits = "prediction_logits" if "prediction_logits" in found else "logits"
        torch.testing.assert_close(found[logits][:count], expected[logits], **TOLERANCE)
        found.loss.backward()
        expected.loss.backward()
        assert_same_gradients(model, plain)
        assert len(graphs) == 1 or seed > 0
    assert min(bounds) >= 1 and 1 < max(bounds) <= 1.125 and len(graphs) <= 3
    torch.compiler.reset()
    torch.compile(plain, backend=backend)(**batch)
    assert len(graphs) > 4


@pytest.mark.slow
def test_export_gives_the_outputs_of_eager_execution():
    model = make_pair("AutoModel")[0].eval()
    inputs = make_inputs()
    mask = inputs["attention_mask"].bool()
    exported = torch.export.export(model, (), inputs).module()
    torch.testing.assert_close(exported(**inputs)[0][mask], model(**inputs)[0][mask], **TOLERANCE)
