"""The operations give what plain PyTorch gives."""

import pytest
import torch
from torch.nn import functional as F

from scratch_bert.model.operations_scratch_bert import (
    ChunkedCrossEntropy,
    Sequences,
    apply_dropout,
    attend_on_cpu,
    attend_on_gpu,
    cross_entropy_sum,
    find_attention,
    random_ones,
)


LENGTHS = [5, 1, 9, 4]


def plain_attention(query, key, value, lengths, scaling):
    """Sequence by sequence, head by head."""
    contexts = []
    for q, k, v in zip(*(states.split(lengths) for states in (query, key, value)), strict=True):
        weights = (torch.einsum("qad,kad->aqk", q, k) * scaling).softmax(-1)
        contexts.append(torch.einsum("aqk,kad->qad", weights, v))
    return torch.cat(contexts)


def test_attention_within_sequences_and_its_gradients():
    states = [torch.randn(sum(LENGTHS), 3, 8, requires_grad=True) for _ in range(3)]
    sequences = Sequences((4, 9), LENGTHS)
    expected = plain_attention(*states, LENGTHS, 0.3)
    actual = attend_on_cpu(*states, sequences, 0.3, 0.0)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)
    upstream = torch.randn_like(expected)
    for mine, plain in zip(
        torch.autograd.grad(actual, states, upstream), torch.autograd.grad(expected, states, upstream), strict=True
    ):
        torch.testing.assert_close(mine, plain, rtol=0, atol=1e-6)


def test_gradients_of_attention_with_dropout_are_those_of_its_output():
    states = [torch.randn(sum(LENGTHS), 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def attend(*states):
        torch.manual_seed(0)  # the same weights are dropped each time
        return attend_on_cpu(*states, Sequences((4, 9), LENGTHS), 0.5, 0.3)

    assert torch.autograd.gradcheck(attend, states)


def test_attention_drops_weights_and_keeps_their_mean():
    value = torch.eye(16)[:, None]  # the context is then the row of weights
    query = key = torch.randn(16, 1, 16)
    sequences = Sequences((1, 16), [16])
    weights = attend_on_cpu(query, key, value, sequences, 0.1, 0.0)
    dropped = torch.stack([attend_on_cpu(query, key, value, sequences, 0.1, 0.25) for _ in range(400)])
    assert (dropped == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], (weights / 0.75).expand_as(dropped)[kept])


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_drops_its_share_and_keeps_the_mean(p, dtype):
    states = torch.ones(999, 1001, dtype=dtype, requires_grad=True)  # an odd number of elements
    dropped = apply_dropout(states, p, training=True)
    zeros = (dropped == 0).float()
    assert zeros.mean().item() == pytest.approx(p, abs=0.002)  # four standard deviations at p = 0.5
    assert dropped[dropped != 0].unique().tolist() == [torch.tensor(1 / (1 - p), dtype=dtype).item()]
    (gradient,) = torch.autograd.grad(dropped.sum(), states)
    assert torch.equal(gradient, dropped)
    assert apply_dropout(states, p, training=False) is states
    # Four decisions come from one draw: neighbours up to eight apart must know nothing of each other.
    flat = zeros.flatten() - zeros.mean()
    for distance in range(1, 9):
        assert (flat[distance:] * flat[:-distance]).mean().abs().item() < 0.002


def test_random_numbers_follow_the_seed():
    like = torch.empty(3, 7)
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        draws.append(random_ones(like, 0.5))
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_chunked_cross_entropy_and_its_gradient(rows):
    logits = torch.randn(20, 50, requires_grad=True)
    labels = torch.randint(50, (20,)).masked_fill(torch.rand(20) < 0.3, -100)
    expected = F.cross_entropy(logits, labels, reduction="sum")
    actual = ChunkedCrossEntropy.apply(logits, labels, -100, rows)
    torch.testing.assert_close(actual, expected)
    (mine,), (plain,) = (torch.autograd.grad(3 * loss, logits) for loss in (actual, expected))
    torch.testing.assert_close(mine, plain, rtol=0, atol=1e-6)


def test_cross_entropy_of_many_classes_is_as_precise_as_in_fp32():
    logits = (5 * torch.randn(40, 30522)).to(torch.bfloat16).requires_grad_()  # more than one chunk
    labels = torch.randint(30522, (40,))
    expected = F.cross_entropy(logits.float(), labels, reduction="sum")
    actual = cross_entropy_sum(logits, labels)
    torch.testing.assert_close(actual, expected)
    (mine,), (plain,) = (torch.autograd.grad(loss, logits) for loss in (actual, expected))
    torch.testing.assert_close(mine, plain)
    assert cross_entropy_sum(logits[:0], labels[:0]).item() == 0


def test_sequences_leave_out_padding_wherever_it_is():
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]])
    sequences = Sequences.find(mask)
    assert sequences.lengths == [2, 3, 2]
    states = torch.randn(4, 4, 6)
    unpadded = sequences.unpad(states)
    assert torch.equal(unpadded[0], states[mask.bool()])
    assert torch.equal(sequences.pad(unpadded), states * mask[..., None])
    full = Sequences.find(torch.ones(3, 4))
    assert full.positions is None and full.lengths == [4, 4, 4]
    assert torch.equal(full.pad(full.unpad(states[:3])), states[:3])


def test_sequences_of_packed_rows():
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    seq_idx = torch.tensor([[0, 0, 1, 2, 0], [0, 1, 1, 1, 1]])
    sequences = Sequences.find(mask, seq_idx)
    assert sequences.lengths == [2, 1, 1, 1, 4]
    assert sequences.bounds(mask.device).tolist() == [0, 2, 3, 4, 5, 9]


@pytest.mark.parametrize(
    ("found", "options"),
    [
        (attend_on_cpu, {}),
        (None, {"longest": 4096}),
        (None, {"dropout": 0.0}),
        (None, {"implementation": "eager"}),
        (attend_on_gpu, {"device": "cuda", "dtype": torch.bfloat16, "dropout": 0.0}),
        (None, {"device": "cuda", "dtype": torch.bfloat16}),
        (None, {"device": "cuda", "dropout": 0.0}),
        (None, {"device": "cuda", "dtype": torch.float16, "dropout": 0.0, "head_dim": 20}),
    ],
)
def test_attention_without_padding_is_found_where_there_is_one(found, options, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    usual = {"implementation": "sdpa", "dtype": torch.float32, "head_dim": 64, "dropout": 0.1, "longest": 512}
    options = {"device": "cpu", **usual, **options}
    assert find_attention(**options | {"device": torch.device(options["device"])}) is found
