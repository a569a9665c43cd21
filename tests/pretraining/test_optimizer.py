"""Muon: against PyTorch's, against a reference by singular values, and in whole runs."""

import dataclasses
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer

from helpers import NO_DROPOUT, SIZES, launch, make_model
from scratch_bert.pretraining.optimizer import MuonWithAdamW, orthogonalize, parameter_groups
from scratch_bert_options.pretraining import PretrainingOptions


SHAPES = [(48, 48), (48, 48), (96, 24), (24, 96), (96, 24), (40, 24)]  # square, tall, wide
LEARNING_RATE, MUON_LEARNING_RATE = 1e-3, 0.02
RATES = [LEARNING_RATE] * 2 + [MUON_LEARNING_RATE]  # of the optimizer's groups
# All tokens are masked, so that batches do not depend on how they are drawn.
SAME_BATCHES = {"mlm_probability": 1.0, "mask_replace_prob": 1.0, "random_replace_prob": 0.0}


def make_parameters(shapes=SHAPES):
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(0.05 * torch.randn(shape, generator=generator)) for shape in shapes]


def make_gradients(steps, shapes=SHAPES):
    generator = torch.Generator().manual_seed(1)
    return [[0.01 * torch.randn(shape, generator=generator) for shape in shapes] for _ in range(steps)]


def after_steps(optimizer, parameters, gradients):
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return parameters


def muon(parameters, **options):
    return MuonWithAdamW([{"params": parameters, "muon": True}], lr=MUON_LEARNING_RATE, weight_decay=0.1, **options)


def test_muon_in_bf16_is_that_of_pytorch():
    ours, theirs, gradients = make_parameters(), make_parameters(), make_gradients(5)
    after_steps(muon(ours, dtype=torch.bfloat16), ours, gradients)
    after_steps(torch.optim.Muon(theirs, lr=MUON_LEARNING_RATE, weight_decay=0.1), theirs, gradients)
    # The difference is 0 with AMX; kernels that round elsewhere may differ, but less than fp32 does from bf16.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def reference(parameter, gradients, momentum=0.95):
    """Muon in float64, in which Newton-Schulz iterations act on the singular values alone."""
    weight, buffer = parameter.detach().double(), torch.zeros_like(parameter, dtype=torch.float64)
    for gradient in gradients:
        buffer = momentum * buffer + (1 - momentum) * gradient.double()
        u, s, v = torch.linalg.svd(momentum * buffer + (1 - momentum) * gradient.double(), full_matrices=False)
        s = s / s.square().sum().sqrt()
        for _ in range(5):
            s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
        rows, columns = weight.shape
        weight = weight * (1 - MUON_LEARNING_RATE * 0.1)
        weight = weight - MUON_LEARNING_RATE * max(1.0, rows / columns) ** 0.5 * u @ s.diag() @ v
    return weight.float()


def test_muon_in_fp32_is_the_reference():
    parameters, gradients = make_parameters(), make_gradients(5)
    expected = [reference(p, step) for p, step in zip(parameters, zip(*gradients, strict=True), strict=True)]
    after_steps(muon(parameters), parameters, gradients)
    torch.testing.assert_close(parameters, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_singular_values_come_near_1(dtype):
    values = torch.linalg.svdvals(orthogonalize(torch.randn(3, 16, 64).to(dtype)).float())
    assert values.shape == (3, 16) and values.min() > 0.6 and values.max() < 1.3
    assert orthogonalize(torch.zeros(1, 4, 8, dtype=dtype)).eq(0).all()


def test_default_weight_decay_bounds_the_weights():
    """Each step is as large as the others, so that without a bound attention logits would grow in a long run until no
    gradient came through the softmax."""
    defaults = {field.name: field.default for field in dataclasses.fields(PretrainingOptions)}
    options = {"lr": defaults["muon_learning_rate"], "weight_decay": defaults["weight_decay"]}
    (parameter,), gradient = make_parameters([(24, 24)]), make_gradients(1, [(24, 24)])
    after_steps(MuonWithAdamW([{"params": [parameter], "muon": True}], **options), [parameter], gradient * 2000)
    assert torch.linalg.matrix_norm(parameter, 2) < 13  # and near 0.02 × 2,000 = 40 without weight decay


def test_parameters_without_gradient_stay():
    parameters = make_parameters()
    before = [parameter.detach().clone() for parameter in parameters]
    parameters[1].grad = torch.randn(SHAPES[1])
    optimizer = MuonWithAdamW([{"params": parameters[:3], "muon": True}, {"params": parameters[3:]}], lr=0.1)
    assert optimizer.step(lambda: 3.5) == 3.5
    changed = [not torch.equal(*pair) for pair in zip(parameters, before, strict=True)]
    assert changed == [False, True, False, False, False, False]


def test_groups_other_than_muons_are_adamws():
    shapes = [(50, 8), (8,), (3, 8)]
    ours, theirs, gradients = make_parameters(shapes), make_parameters(shapes), make_gradients(5, shapes)

    def groups(parameters):
        return [{"params": parameters[:1], "weight_decay": 0.1}, {"params": parameters[1:], "weight_decay": 0.0}]

    options = {"lr": LEARNING_RATE, "betas": (0.8, 0.98), "eps": 1e-6}
    after_steps(MuonWithAdamW(groups(ours), **options), ours, gradients)
    after_steps(torch.optim.AdamW(groups(theirs), fused=True, **options), theirs, gradients)
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


# ------------------------------------------------------------------------------------------------------ in a run


@pytest.fixture(scope="module")
def make_run(prepare):
    def make(output_dir, **options):
        training = {"validation_share": 0.0, "max_steps": 6, "save_steps": 3, "logging_steps": 1}
        return prepare(output_dir, learning_rate=LEARNING_RATE, **training | options)

    return make


@pytest.fixture(scope="module")
def finished(make_run, tmp_path_factory):
    """A run of six steps. To be read only."""
    run = make_run(tmp_path_factory.mktemp("runs") / "finished")
    run.train()
    return run


def test_matrices_between_hidden_states_are_muons_and_the_rest_is_adamws(finished):
    model, optimizer = finished.trainer.model, finished.trainer.optimizer.optimizer
    assert isinstance(optimizer, MuonWithAdamW) and optimizer.dtype == torch.float32
    names = {parameter: name for name, parameter in model.named_parameters()}
    decayed, others, matrices = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
    modules = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]
    modules += ["intermediate.dense", "output.dense"]
    of_layers = {f"bert.encoder.layer.{i}.{name}.weight" for i in range(2) for name in modules}
    assert set(matrices) == of_layers | {"bert.pooler.dense.weight", "cls.predictions.transform.dense.weight"}
    embeddings = {f"bert.embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type")}
    assert set(decayed) == embeddings | {"cls.seq_relationship.weight"}
    assert all(name.endswith(".bias") or "LayerNorm" in name for name in others)
    assert sorted(decayed + others + matrices) == sorted(names.values())
    assert [group["muon"] for group in optimizer.param_groups] == [False, False, True]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0, 0.1]
    assert [group["initial_lr"] for group in optimizer.param_groups] == RATES
    assert {names[p] for p in parameter_groups(model, 0.1, 0.02, "layers")[-1]["params"]} == of_layers


def test_frozen_parameters_are_in_no_group():
    model = make_model()
    model.bert.encoder.layer[0].requires_grad_(False)
    model.bert.embeddings.requires_grad_(False)
    groups = parameter_groups(model, 0.01, MUON_LEARNING_RATE)
    parameters = [parameter for group in groups for parameter in group["params"]]
    assert len(parameters) == sum(parameter.requires_grad for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in parameters)
    assert [len(group["params"]) for group in groups if group["weight_decay"]] == [1, 8]


def test_options_of_adam_and_precision_reach_the_optimizer(make_run, tmp_path):
    options = {"adam_beta1": 0.8, "adam_beta2": 0.98, "adam_epsilon": 1e-6, "weight_decay": 0.1, "bf16": True}
    optimizer = make_run(tmp_path / "run", muon_learning_rate=0.05, **options).trainer.create_optimizer()
    assert optimizer.dtype == torch.bfloat16
    assert {(group["betas"], group["eps"]) for group in optimizer.param_groups} == {((0.8, 0.98), 1e-6)}
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0, 0.1]
    assert [group["lr"] for group in optimizer.param_groups] == [LEARNING_RATE] * 2 + [0.05]


def test_schedule_is_that_of_both_and_the_log_has_adamws_learning_rate(make_run, tmp_path):
    trainer = make_run(tmp_path / "run", max_steps=4, warmup_steps=2, save_strategy="no").trainer
    rates, step = [], MuonWithAdamW.step

    def record(self, closure=None):
        rates.append([group["lr"] for group in self.param_groups])
        return step(self, closure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MuonWithAdamW, "step", record)
        trainer.train()
    factors = [0.0, 0.5, 1.0, 0.5]
    assert rates == [pytest.approx([f * rate for rate in RATES]) for f in factors]
    logged = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert logged == pytest.approx([f * LEARNING_RATE for f in factors])


def test_model_card_has_both_learning_rates(finished):
    with open(f"{finished.trainer.args.output_dir}/README.md", encoding="utf-8") as card:
        text = card.read()
    assert "| optimizer | muon, weight decay 0.1 |" in text
    assert f"| learning rate | Muon {MUON_LEARNING_RATE}, AdamW {LEARNING_RATE} (peak), linear" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "device",
    [
        pytest.param(["--use_cpu"], id="CPU"),
        pytest.param(
            [],
            marks=[pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")],
            id="GPUs",
        ),
    ],
)
def test_muon_in_two_processes_trains_as_in_one(device, text_file, tmp_path):
    options = ["--optim", "muon", "--train_file", text_file, "--cache_dir", tmp_path / "cache", "--vocab_size", 500]
    options += ["--max_seq_length", 32, "--sentence_objective", "none", "--validation_share", 0]
    layers = 3  # an odd number to divide
    options += ["--config_overrides", json.dumps({**SIZES, "num_hidden_layers": layers, **NO_DROPOUT})]
    options += [*device, "--bf16", "false", "--max_steps", 4, "--save_strategy", "no", "--disable_tqdm", "true"]
    options += [argument for name, value in SAME_BATCHES.items() for argument in (f"--{name}", value)]
    weights = []
    for processes, batch_size in ((1, 16), (2, 8)):
        output_dir = tmp_path / f"run{processes}"
        torchrun = f"torch.distributed.run --nproc_per_node {processes} --standalone"
        options_of_run = ["--output_dir", output_dir, "--per_device_train_batch_size", batch_size]
        launch(torchrun, "pretrain.py", *options, *options_of_run)
        weights.append(load_file(output_dir / "model.safetensors"))
    # Of Muon's: AdamW also moves what has no influence, such as the keys' bias, and by rounding errors.
    matrices = [name for name, value in weights[0].items() if "encoder.layer" in name and value.ndim == 2]
    assert len(matrices) == 6 * layers
    for name in matrices:
        torch.testing.assert_close(weights[0][name], weights[1][name], rtol=0, atol=1e-5, msg=name)


# ------------------------------------------------------------------------------------------------------ the options


@pytest.mark.parametrize("flag", ["is_fsdp_enabled", "is_deepspeed_enabled"])
def test_sharded_parameters_are_rejected(flag, make_run, tmp_path, monkeypatch):
    """Neither runs on one CPU: set what Trainer would set."""
    create = Trainer.create_accelerator_and_postprocess

    def on_a_cluster(self):
        create(self)
        setattr(self, flag, True)

    monkeypatch.setattr(Trainer, "create_accelerator_and_postprocess", on_a_cluster)
    with pytest.raises(ValueError, match="optim muon needs complete matrices, which FSDP and DeepSpeed divide"):
        make_run(tmp_path / "run")


def test_state_of_another_optimizer_is_rejected(finished, make_run, tmp_path):
    directory = finished.trainer.args.output_dir
    shutil.copytree(f"{directory}/checkpoint-6", tmp_path / "checkpoint-6")  # as another Trainer would save it
    for name in ("run.json", "manifest.json"):
        (tmp_path / "checkpoint-6" / name).unlink()
    run = make_run(tmp_path / "run", resume_from_checkpoint=str(tmp_path / "checkpoint-6"), optim="adamw_torch")
    with pytest.raises(OSError, match="The optimizer's state in .*checkpoint-6 cannot be loaded .*: resume with the"):
        run.train()
