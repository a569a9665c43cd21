"""Muon for the matrices between hidden states and AdamW for all other parameters, in one optimizer."""

from collections.abc import Callable, Collection

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.optim.adamw import adamw


# Parts of the names of the matrices that Muon trains, by the option `muon_matrices`.
MATRICES = {
    "hidden": ("encoder.layer.", "pooler.dense.", "transform.dense.", "projection."),
    "layers": ("encoder.layer.",),
}


def muon(
    model: nn.Module,
    lr: float = 2e-3,
    muon_lr: float = 0.02,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    dtype: torch.dtype | None = None,
    shared: bool = False,
    matrices: str = "hidden",
) -> "MuonWithAdamW":
    """Muon with AdamW, for a scratch_bert or a transformers BERT: `Trainer(…, optimizers=(muon(model), None))`.

    `muon_lr` is the peak learning rate of the `matrices`: those between hidden states (`hidden`: of the layers, the
    pooler, the MLM head and factorised embeddings), or of the `layers` alone. `lr` is that of all other parameters,
    which AdamW trains; a schedule scales both. Weight decay applies to matrices, not to biases and LayerNorms. With
    `shared`, the processes of torch.distributed, which must all have the same gradients, as with DDP, divide Muon's
    products among themselves.

    Raises `ValueError` for a model without an encoder, for other `matrices`, and for a rate that is negative or not a
    number.
    """
    if matrices not in MATRICES:
        raise ValueError(f"matrices must be one of {', '.join(MATRICES)}, got {matrices!r}.")
    if not all(rate >= 0 for rate in (lr, muon_lr, weight_decay)):
        raise ValueError(f"Rates must be 0 or more, got {lr=}, {muon_lr=}, {weight_decay=}.")
    groups = parameter_groups(model, weight_decay, muon_lr, matrices)
    if not groups[-1]["params"]:
        raise ValueError(f"muon needs a BERT: {type(model).__name__} has no matrices to train under encoder.layer.")
    return MuonWithAdamW(groups, lr=lr, betas=betas, eps=eps, dtype=dtype, shared=shared)


def parameter_groups(model: nn.Module, weight_decay: float, muon_lr: float, matrices: str = "hidden") -> list[dict]:
    """Parameter groups of a BERT for `MuonWithAdamW`: AdamW's, for embeddings and heads, and for biases and LayerNorms
    (without weight decay); and last Muon's, for the `matrices` (see `muon`)."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    decayed = {name for name, parameter in trained.items() if parameter.ndim >= 2}
    of_muon = {name for name in decayed if trained[name].ndim == 2 and any(x in name for x in MATRICES[matrices])}

    def group(names: Collection[str], weight_decay: float, **options) -> dict:
        params = [parameter for name, parameter in trained.items() if name in names]
        return {"params": params, "weight_decay": weight_decay, **options}

    return [  # Trainer logs the learning rate of the first group
        group(decayed - of_muon, weight_decay),
        group(trained.keys() - decayed, 0.0),
        group(of_muon, weight_decay, lr=muon_lr, muon=True),
    ]


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon (Jordan 2024, https://kellerjordan.github.io/posts/muon/) for groups with `muon=True`, which hold only
    matrices; AdamW for all others.

    Results are those of `torch.optim.Muon`, which updates one matrix at a time and always multiplies in bf16: a CPU
    without native bf16 spends longer on that than on the rest of the step. Here, all matrices of one shape are updated
    at once, with products in `dtype`, by default bf16 on an accelerator and fp32 on a CPU; processes may share them.
    """

    def __init__(
        self,
        params: list[dict],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
        dtype: torch.dtype | None = None,
        shared: bool = False,
    ):
        adamw_options = {"betas": betas, "eps": eps, "fused": True}
        super().__init__(
            params, {"lr": lr, "weight_decay": weight_decay, "muon": False, "momentum": momentum, **adamw_options}
        )
        self.dtype, self.shared = dtype, shared

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> float | None:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not group["muon"]:
                self._adamw_step(params, group)
                continue
            for shape in dict.fromkeys(p.shape for p in params):
                self._muon_step([p for p in params if p.shape == shape], group)
        return loss

    def _adamw_step(self, params: list[Tensor], group: dict) -> None:
        for p in params:
            if not self.state[p]:
                step = torch.zeros((), dtype=torch.float32, device=p.device)
                self.state[p] = {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        states = [self.state[p] for p in params]
        adamw(
            params,
            [p.grad for p in params],
            *([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq")),
            [],  # for AMSGrad
            [state["step"] for state in states],
            fused=group["fused"],
            amsgrad=False,
            maximize=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            **{name: group[name] for name in ("lr", "weight_decay", "eps")},
        )

    def _muon_step(self, params: list[Tensor], group: dict) -> None:
        """Update N parameters of one shape (R, C)."""
        rows, columns = params[0].shape
        for p in params:
            if not self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        grads, buffers = [p.grad for p in params], [self.state[p]["momentum_buffer"] for p in params]
        torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
        updates = torch.stack(torch._foreach_lerp(grads, buffers, group["momentum"]))  # Nesterov's: (N, R, C)
        updates = updates.to(self.dtype or (torch.float32 if updates.device.type == "cpu" else torch.bfloat16))
        updates = self._orthogonalize(updates.mT).mT if rows > columns else self._orthogonalize(updates)
        # In one type and layout, as otherwise each matrix would be added by its own kernel.
        updates = updates.to(params[0].dtype).contiguous()
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, updates.unbind(), alpha=-group["lr"] * max(1, rows / columns) ** 0.5)

    def _orthogonalize(self, matrices: Tensor) -> Tensor:
        """`orthogonalize`, by all processes together if they share the work."""
        processes = distributed.get_world_size() if self.shared else 1
        if processes == 1:
            return orthogonalize(matrices)
        count = -(-len(matrices) // processes)  # for each, but fewer for the last
        padded = F.pad(matrices, (0, 0, 0, 0, 0, count * processes - len(matrices)))
        parts = list(padded.contiguous().split(count))
        distributed.all_gather(parts, orthogonalize(parts[distributed.get_rank()]))
        return torch.cat(parts)[: len(matrices)]


def orthogonalize(matrices: Tensor) -> Tensor:
    """Replace the singular values of matrices (N, R, C), R ≤ C, by values near 1, with five Newton-Schulz iterations,
    whose coefficients favour speed over exactness (Jordan 2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT  # (N, R, R)
        gram = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, gram, x, beta=a)
    return x
