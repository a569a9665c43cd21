"""On a GPU: the outputs and gradients of transformers' BERT, whatever the precision and the path, and no wait of the host for
the device in a step. `pytest --gpu-branches` rehearses them on the CPU, where some check only that a step runs."""

import copy
import os
import warnings

import pytest
import torch
from transformers import BertConfig, BertForPreTraining
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available, is_kernels_available

from helpers import NO_DROPOUT, make_batch
from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining
from scratch_bert.examples.collator import pack_sequences
from scratch_bert.hub.conversion import convert_config
from scratch_bert.model.padding_scratch_bert import may_unpad, plan_batch
from scratch_bert.pretraining.optimizer import muon
from scratch_bert.training.counting import CountingCollator


pytestmark = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Heads of 64, as flash attention takes them.
SIZES = {"vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 512}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.fixture(autouse=True)
def _gpu_or_rehearsal(request):
    if DEVICE == "cpu" and not request.config.getoption("--gpu-branches"):
        (pytest.fail if "SCRATCH_BERT_TEST_GPU" in os.environ else pytest.skip)("PyTorch finds no GPU")


@pytest.fixture(autouse=True)
def _full_precision():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def make_models(attention="sdpa", **options):
    """transformers' BERT and ours, with the same weights, in training mode."""
    torch.manual_seed(0)
    config = BertConfig(**SIZES, **NO_DROPOUT, attn_implementation=attention)
    bert = BertForPreTraining(config)
    for parameter in bert.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    ours = ScratchBertForPreTraining(convert_config(config, "scratch_bert"))
    ours.set_attn_implementation(attention)
    ours.load_state_dict(bert.state_dict(), strict=False)
    for name, value in options.items():
        setattr(ours.config, name, value)
    return bert.to(DEVICE).train(), ours.to(DEVICE).train()


def to_gpu(batch):
    return {name: value.to(DEVICE) if torch.is_tensor(value) else value for name, value in batch.items()}


def loss_and_gradients(model, batch, dtype=torch.float32):
    model.zero_grad()
    with torch.autocast(DEVICE, dtype=dtype, enabled=dtype != torch.float32):
        loss = model(**batch).loss
    loss.backward()
    parameters = dict(sorted(model.named_parameters()))  # by name: BERT has another order, but no other names
    gradients = torch.cat([parameter.grad.flatten() for parameter in parameters.values()])
    return loss.item(), gradients


@pytest.mark.parametrize("unpad_inputs", [True, False], ids=["unpadded", "padded"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("precision", DTYPES)
def test_losses_and_gradients_are_those_of_bert(precision, attention, unpad_inputs):
    """In half precision: no further from BERT's in fp32 than BERT's own in that precision, but for chance."""
    bert, ours = make_models(attention, unpad_inputs=unpad_inputs)
    batch = to_gpu(make_batch("AutoModelForPreTraining", rows=16, length=128))
    loss, gradients = loss_and_gradients(bert, batch)
    mine = loss_and_gradients(ours, batch, DTYPES[precision])
    error = abs(mine[0] - loss), (mine[1] - gradients).norm() / gradients.norm()
    if precision == "fp32":
        assert error[0] < 1e-5 and error[1] < 1e-4
        return
    theirs = loss_and_gradients(bert, batch, DTYPES[precision])
    assert error[0] < 2 * abs(theirs[0] - loss) + 1e-2
    assert error[1] < 1.5 * (theirs[1] - gradients).norm() / gradients.norm()


@pytest.mark.parametrize("unpad_inputs", [True, False], ids=["unpadded", "padded"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_fields_of_the_recipes_train_in_half_precision(precision, unpad_inputs):
    fields = {"position_embedding_type": "rotary", "qk_norm": True, "embedding_size": 64, "unpad_inputs": unpad_inputs}
    ours = ScratchBertForPreTraining(ScratchBertConfig(**SIZES, **NO_DROPOUT, **fields)).to(DEVICE).train()
    batch = to_gpu(make_batch("AutoModelForPreTraining", rows=16, length=128))
    loss, gradients = loss_and_gradients(ours, batch)
    found = loss_and_gradients(ours, batch, DTYPES[precision])
    assert found[0] == pytest.approx(loss, abs=1e-2)
    assert (found[1] - gradients).norm() < 0.1 * gradients.norm()


def test_unpadded_batches_take_the_varlen_attention_of_pytorch():
    _, ours = make_models()
    batch = to_gpu(make_batch("AutoModelForPreTraining", rows=16, length=128))
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        ids, mask = batch["input_ids"], batch["attention_mask"]
        assert may_unpad(ours.bert, ids, mask, None, None)
        plan = plan_batch(ours.bert, tuple(ids.shape), ids.device, mask, None, None)
    assert plan.attention.__name__ == "varlen_attention"


@pytest.mark.parametrize("name", ["flash_attention_2", "flash_attention_3", "kernels-community/flash-attn2"])
def test_flash_attention_gives_the_loss_and_gradients_of_sdpa(name):
    available = {"flash_attention_2": is_flash_attn_2_available, "flash_attention_3": is_flash_attn_3_available}
    if not available.get(name, is_kernels_available)():
        pytest.skip(f"{name} is not installed")
    try:
        models = [make_models(each)[1] for each in ("sdpa", name)]
    except (OSError, ConnectionError) as error:
        pytest.skip(f"{name} cannot be downloaded: {error}")
    batch = to_gpu(make_batch("AutoModelForPreTraining", rows=16, length=128))
    expected, found = (loss_and_gradients(model, batch, torch.bfloat16) for model in models)
    assert found[0] == pytest.approx(expected[0], abs=1e-2)
    assert (found[1] - expected[1]).norm() < 0.05 * expected[1].norm()


def forbid_waits(forbidden: bool) -> None:
    if DEVICE == "cuda":
        torch.cuda.set_sync_debug_mode("error" if forbidden else "default")


@pytest.mark.parametrize("packed", [False, True])
def test_step_does_not_wait_for_the_device(packed):
    _, ours = make_models()
    optimizer = muon(ours)
    collator = CountingCollator(lambda batch: pack_sequences(batch, 256, 0) if packed else batch)
    batches = [to_gpu(collator(make_batch("AutoModelForPreTraining", rows=16, length=128, seed=n))) for n in range(22)]
    for number, batch in enumerate(batches):
        forbid_waits(number >= 2)  # what is set up once has been
        try:
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = ours(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        finally:
            forbid_waits(False)


@needs_gpu
def test_step_without_counts_waits_for_what_it_reads_of_mask_and_labels():
    _, ours = make_models()
    batch = to_gpu(make_batch("AutoModelForPreTraining", rows=16, length=128))
    ours(**batch)
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours(**batch).loss.backward()
    torch.cuda.set_sync_debug_mode("default")
    assert 1 <= len([one for one in caught if "synchronizing" in str(one.message)]) <= 4


@needs_gpu
@pytest.mark.slow
def test_compiled_steps_give_the_loss_and_gradients_of_eager_execution():
    _, ours = make_models()
    compiled = torch.compile(copy.deepcopy(ours))
    for seed in range(2):
        batch = to_gpu(make_batch("AutoModelForPreTraining", rows=16, length=128, seed=seed))
        expected, found = (loss_and_gradients(model, batch) for model in (ours, compiled))
        assert found[0] == pytest.approx(expected[0], abs=1e-4)
        assert (found[1] - expected[1]).norm() < 1e-3 * expected[1].norm()


def test_muon_gives_the_weights_that_it_gives_on_the_cpu():
    weights = []
    for device in ("cpu", DEVICE):
        ours = make_models()[1].to(device)
        optimizer = muon(ours, dtype=torch.float32)
        for seed in range(3):
            batch = make_batch("AutoModelForPreTraining", rows=8, seed=seed)
            ours(**{name: value.to(device) for name, value in batch.items()}).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        weights.append({name: parameter.detach().cpu() for name, parameter in ours.named_parameters()})
    for name, weight in weights[0].items():
        assert (weights[1][name] - weight).abs().max() < 1e-3, name


@needs_gpu
def test_memory_of_a_step_is_less_than_that_of_bert():
    bert, ours = make_models()
    batch = to_gpu(make_batch("AutoModelForPreTraining", rows=64, length=256))
    peaks = []
    for model in (bert, ours):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss_and_gradients(model, batch, torch.bfloat16)
        peaks.append(torch.cuda.max_memory_allocated() - before)
        model.zero_grad()
    assert peaks[1] < peaks[0]
