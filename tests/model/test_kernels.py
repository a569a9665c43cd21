"""The operations give what plain PyTorch gives."""

import pytest
import torch
from torch.nn import functional as F

from helpers import SMALL
from helpers import varlen_attention as stand_in
from scratch_bert import ScratchBertConfig, ScratchBertModel
from scratch_bert.model import kernels_scratch_bert as kernels
from scratch_bert.model.losses_scratch_bert import ChunkedCrossEntropy, cross_entropy_sum
from scratch_bert.model.padding_scratch_bert import Group, RowPlan, plan_batch, plan_rows, surplus_rows


LENGTHS = [5, 1, 9, 4]


def plain_attention(query, key, value, lengths, scaling):
    """Sequence by sequence, head by head: (A, T, D) each → (T, A, D)."""
    contexts = []
    for q, k, v in zip(*(states.split(lengths, 1) for states in (query, key, value)), strict=True):
        weights = (torch.einsum("aqd,akd->aqk", q, k) * scaling).softmax(-1)
        contexts.append(torch.einsum("aqk,akd->qad", weights, v))
    return torch.cat(contexts)


def attend(query, key, value, groups, scaling, dropout=0.0):
    """Grouped attention of states (A, T, D)."""
    plan, states = RowPlan((1, query.shape[1]), [], groups=groups), (query[None], key[None], value[None])
    return kernels.grouped_attention(None, *states, None, scaling=scaling, dropout=dropout, plan=plan)[0][0]


@pytest.mark.parametrize("heads", [3, 2**18], ids=["groups", "too many heads for groups"])
@pytest.mark.parametrize("mask", ["full", "padded", "packed"])
def test_grouped_attention_and_its_gradients(mask, heads):
    lengths = {"full": [9] * 4, "padded": [65, 5, 68, 1, 66], "packed": [68, 67, 2, 1, 2]}[mask]
    seq_idx = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    attention_mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    if mask == "packed":
        seq_idx[0, 5:] = 1
        lengths[:1] = [5, 63]
    plan = plan_rows(attention_mask, seq_idx)
    assert plan.lengths == lengths
    states = [torch.randn(*attention_mask.shape, 3 * 8, requires_grad=True) for _ in range(3)]  # (B, S, A·D)
    plan = plan.grouped(heads, 8)
    assert (heads > 3) == all(len(group.lengths) == 1 for group in plan.groups)
    extended = [group for group in plan.groups if group.lengths[-1] < group.rows]
    assert bool(extended) == (mask != "full")
    if mask == "padded" and heads == 3:
        assert any(len(group.lengths) > 1 for group in extended)
    plan = plan.extended(7)
    rows = (plan.take(each)[0].unflatten(-1, (3, 8)).transpose(0, 1) for each in states)  # (A, R, D)
    context = plan.put(attend(*rows, plan.groups, 0.3).flatten(1)[None])  # (B, S, A·D)
    tokens = (each[attention_mask.bool()].unflatten(-1, (3, 8)).transpose(0, 1) for each in states)
    expected = plain_attention(*tokens, lengths, 0.3).flatten(1)
    torch.testing.assert_close(context[attention_mask.bool()], expected, rtol=0, atol=1e-6)
    assert not context[attention_mask == 0].any()
    upstream = torch.randn_like(context)
    mine = torch.autograd.grad(context, states, upstream)
    plain = torch.autograd.grad(expected, states, upstream[attention_mask.bool()])
    torch.testing.assert_close(mine, plain, rtol=0, atol=1e-6)


def test_grouped_attention_with_dropout_has_the_gradients_of_its_output():
    groups = [Group(3, [3, 2]), Group(1, [1]), Group(2, [2])]
    states = [torch.randn(2, 9, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def seeded(*states):
        torch.manual_seed(0)  # the same weights are dropped each time
        return attend(*states, groups, 0.5, dropout=0.3)

    assert torch.autograd.gradcheck(seeded, states)


def test_grouped_attention_drops_weights_and_keeps_their_mean():
    value = torch.eye(16)[None]  # the context is then the weights
    query = key = torch.randn(1, 16, 16)
    groups = [Group(16, [16])]
    weights = attend(query, key, value, groups, 0.1)
    dropped = torch.stack([attend(query, key, value, groups, 0.1, dropout=0.25) for _ in range(400)])
    assert (dropped == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], (weights / 0.75).expand_as(dropped)[kept])


@pytest.mark.parametrize("multiple", [8, 1])
def test_sequences_of_similar_lengths_are_grouped(multiple):
    lengths = torch.randint(1, 129, (2000,)).tolist() + [77] * 50
    plan = RowPlan((len(lengths), 128), lengths, True, torch.arange(sum(lengths))).grouped(4, multiple)
    groups = plan.groups
    assert sorted(length for group in groups for length in group.lengths) == sorted(lengths)
    assert all(group.lengths == sorted(group.lengths, reverse=True) for group in groups)
    assert all(0 <= group.rows - length < multiple for group in groups for length in group.lengths)
    assert all(group.rows % multiple == 0 for group in groups)
    assert all(len(group.lengths) == 1 or 4 * len(group.lengths) * group.rows**2 <= 2**18 for group in groups)
    assert sum(group.rows * len(group.lengths) for group in groups) == plan.rows
    assert len(groups) < len(lengths) / 3
    assert multiple == 1 or len({(group.rows, len(group.lengths)) for group in groups}) < 200


@pytest.mark.cpu_branch
@pytest.mark.parametrize(("width", "dtype", "step"), [(64, "bfloat16", 8), (64, "float32", 1), (576, "bfloat16", 1)])
def test_lengths_are_multiples_of_8_in_narrow_models_in_bf16(width, dtype, step):
    config = ScratchBertConfig(**SMALL | {"hidden_size": width, "num_attention_heads": 4}, attn_implementation="sdpa")
    model = ScratchBertModel(config).to(getattr(torch, dtype))
    mask = (torch.arange(29) < torch.tensor([[29], [21], [5]])).long()
    groups = plan_batch(model, tuple(mask.shape), mask.device, mask, None, None).groups
    extended = [group.rows for group in groups if group.rows in (32, 24, 8)]
    assert len(extended) == (3 if step == 8 else 0)


def test_empty_sequences_have_no_rows():
    plan = RowPlan((2, 0), [0, 0]).grouped(4, 8)
    assert plan.rows == 0 and [group.rows for group in plan.groups] == [0]
    assert plan.put(torch.empty(1, 0, 3)).shape == (2, 0, 3)


def test_varlen_attention_hands_over_cu_seqlens(monkeypatch):
    """With a stand-in for PyTorch's function, which needs a GPU."""
    monkeypatch.setattr(kernels, "varlen_attn", stand_in)
    states = [torch.randn(1, 3, sum(LENGTHS), 8) for _ in range(3)]
    plan = RowPlan((4, 9), LENGTHS).with_cu_seqlens(torch.device("cpu"))
    assert plan.cu_seqlens.tolist() == [0, 5, 6, 15, 19]
    context, _ = kernels.varlen_attention(None, *states, None, scaling=0.3, dropout=0.0, plan=plan)
    torch.testing.assert_close(context[0], plain_attention(*(t[0] for t in states), LENGTHS, 0.3))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_drops_its_share_and_keeps_the_mean(p, dtype):
    states = torch.ones(999, 1001, dtype=dtype, requires_grad=True)  # an odd number of elements
    dropped = kernels.apply_dropout(states, p, training=True)
    zeros = (dropped == 0).float()
    assert zeros.mean().item() == pytest.approx(p, abs=0.002)  # four standard deviations at p = 0.5
    assert dropped[dropped != 0].unique().tolist() == [torch.tensor(1 / (1 - p), dtype=dtype).item()]
    (gradient,) = torch.autograd.grad(dropped.sum(), states)
    assert torch.equal(gradient, dropped)
    assert kernels.apply_dropout(states, p, training=False) is states
    # Four decisions come from one draw: neighbours up to eight apart must know nothing of each other.
    flat = zeros.flatten() - zeros.mean()
    for distance in range(1, 9):
        assert (flat[distance:] * flat[:-distance]).mean().abs().item() < 0.002


@pytest.mark.parametrize("chunk_size", [1, 3, 100])
def test_cross_entropy_in_chunks_and_its_gradient(chunk_size):
    logits = torch.randn(20, 50, requires_grad=True)
    labels = torch.randint(50, (20,)).masked_fill(torch.rand(20) < 0.3, -100)
    expected = F.cross_entropy(logits, labels, reduction="sum")
    actual = ChunkedCrossEntropy.apply(logits, labels, -100, chunk_size)
    torch.testing.assert_close(actual, expected)
    (mine,), (plain,) = (torch.autograd.grad(3 * loss, logits) for loss in (actual, expected))
    torch.testing.assert_close(mine, plain, rtol=0, atol=1e-6)


def test_cross_entropy_in_chunks_leaves_the_logits_as_they_are():
    weights = torch.randn(20, 50, requires_grad=True)
    logits, labels = weights.clone(), torch.randint(50, (20,))
    before = logits.detach().clone()
    loss = ChunkedCrossEntropy.apply(logits, labels, -100, 3)
    gradients = [torch.autograd.grad(loss, weights, retain_graph=True)[0] for _ in range(2)]
    assert torch.equal(logits, before) and torch.equal(*gradients)


def test_cross_entropy_of_many_classes_is_as_precise_as_in_fp32():
    logits = (5 * torch.randn(40, 30522)).to(torch.bfloat16).requires_grad_()  # more than one chunk
    labels = torch.randint(30522, (40,))
    expected = F.cross_entropy(logits.float(), labels, reduction="sum")
    actual = cross_entropy_sum(logits, labels)
    torch.testing.assert_close(actual, expected)
    (mine,), (plain,) = (torch.autograd.grad(loss, logits) for loss in (actual, expected))
    torch.testing.assert_close(mine, plain)
    assert cross_entropy_sum(logits[:0], labels[:0]).item() == 0


@pytest.mark.parametrize("grouped", [False, True], ids=["not grouped", "grouped"])
@pytest.mark.parametrize("surplus", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_surplus_rows_are_more_sequences(padded, surplus, grouped):
    mask = torch.tensor([[1, 1, 1], [0, 1, 1 - padded]] if padded else [[1, 1, 1], [1, 1, 1]])
    before, states = plan_rows(mask), torch.randn(2, 3, 4)
    if grouped:
        before = before.grouped(2, 1)
    plan = before.extended(surplus)
    unpadded = plan.take(states)
    assert torch.equal(unpadded[0], torch.cat([states[mask.bool()], states[0, :1].expand(surplus, -1)]))
    lengths = plan.lengths
    if grouped:
        assert lengths == before.lengths and plan.groups[: len(before.groups)] == before.groups
        lengths = [group.rows for group in plan.groups for _ in group.lengths]
    assert sum(lengths) == plan.rows == unpadded.shape[1] and all(0 < length <= 3 for length in lengths)
    assert plan.has_padding == padded
    assert torch.equal(plan.put(unpadded), states * mask[..., None])


@pytest.mark.cpu_branch
def test_few_numbers_of_rows_are_left_on_a_cpu():
    rows = [count + surplus_rows(count, torch.device("cpu")) for count in range(4097)]
    assert all(count <= number <= max(count * 1.0625, count + 7) for count, number in enumerate(rows))
    assert len(set(rows[2049:])) == 16 and len(set(rows[257:])) == 64 and rows[4096] == 4096
    assert surplus_rows(2049, torch.device("meta")) == 0 < rows[2049] - 2049


@pytest.fixture
def _gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)


ON_CPU = {"training": True, "device": torch.device("cpu"), "dtype": torch.float32, "max_seqlen": 512}
ON_GPU = {"training": False, "device": torch.device("cuda"), "dtype": torch.bfloat16, "max_seqlen": 512}


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize(
    ("found", "where", "config"),
    [
        pytest.param("grouped", ON_CPU, {}, marks=pytest.mark.cpu_branch),
        pytest.param("grouped", ON_CPU | {"max_seqlen": 256, "training": False}, {}, marks=pytest.mark.cpu_branch),
        ("padded", ON_CPU | {"max_seqlen": 4096}, {}),
        ("padded", ON_CPU | {"training": False}, {}),
        ("padded", ON_CPU, {"attn_implementation": "eager"}),
        ("flash", ON_CPU, {"attn_implementation": "flash_attention_2"}),
        ("varlen", ON_GPU, {}),
        ("padded", ON_GPU | {"training": True}, {}),
        ("padded", ON_GPU | {"dtype": torch.float32}, {}),
        ("padded", ON_GPU, {"head_dim": 20}),
    ],
)
def test_attention_is_found_for_unpadded_states(found, where, config):
    config = ScratchBertConfig(**{"attn_implementation": "sdpa", "head_dim": 64} | config)
    assert kernels.find_attention(config, **where) is getattr(kernels, f"{found}_attention")


@pytest.mark.parametrize("name", ["flash_attention_3", "kernels-community/flash-attn3", "flash_attention_4"])
def test_attention_without_dropout_is_an_error_in_training(name):
    config = ScratchBertConfig(attn_implementation="sdpa")
    config._attn_implementation_internal = name  # as set_attn_implementation does, where it is installed
    with pytest.raises(ValueError, match=f"{name} has no dropout: set attention_probs_dropout_prob to 0"):
        kernels.find_attention(config, **ON_GPU | {"training": True})
    assert kernels.find_attention(config, **ON_GPU) is kernels.flash_attention


@pytest.mark.usefixtures("_gpu")
def test_attention_under_autocast_has_its_precision(monkeypatch):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device_type: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device_type: torch.bfloat16)
    config = ScratchBertConfig(attn_implementation="sdpa")
    assert kernels.find_attention(config, **ON_GPU | {"dtype": torch.float32}) is kernels.varlen_attention
