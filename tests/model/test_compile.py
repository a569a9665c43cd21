"""torch.compile and torch.export give what eager execution gives."""

import shutil

import pytest
import torch

from helpers import assert_same_gradients, make_batch, make_inputs, make_pair
from scratch_bert.pretraining.data.collator import pack_sequences


TOLERANCE = {"rtol": 0, "atol": 1e-5}


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


@pytest.mark.slow
def test_export_gives_the_outputs_of_eager_execution():
    model = make_pair("AutoModel")[0].eval()
    inputs = make_inputs()
    mask = inputs["attention_mask"].bool()
    exported = torch.export.export(model, (), inputs).module()
    torch.testing.assert_close(exported(**inputs)[0][mask], model(**inputs)[0][mask], **TOLERANCE)
