"""The parts of the loss, and the MLM accuracy, between two log entries."""

from collections.abc import Callable, Mapping, Sequence

import torch


class LossMeter:
    """Averages parts of the loss, the model's outputs of these `names`, and counts correct predictions.

    The sums stay on the device: reading them in each step would make the host wait.
    """

    def __init__(self, names: Sequence[str], device: torch.device):
        self.names, self.sums = names, {}
        self.correct = torch.zeros(2, dtype=torch.long, device=device)  # correct predictions, all predictions

    def update(self, outputs: Mapping[str, torch.Tensor], step: int, weight: float, add_up: bool) -> None:
        """Add a micro-batch, with a weight, after `step` optimizer steps. Under DataParallel, a part has a number for
        each GPU: `add_up` sums them, instead of averaging."""
        if not self.sums:
            self.first_step = step
        for name in self.names:
            if outputs.get(name) is not None:
                part = outputs[name].detach()
                part = part.sum() if add_up else part.mean()
                self.sums[name] = self.sums.get(name, 0.0) + part * weight

    def update_accuracy(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Compare logits with labels (B, S): (B, S, V), or (≥ M, V) for predicted tokens and perhaps others after."""
        predicted = labels != -100
        labels = labels[predicted]  # (M,)
        logits = logits[: len(labels)] if logits.dim() == 2 else logits[predicted]  # (M, V)
        correct = (logits.argmax(-1) == labels).sum()
        self.correct = self.correct + torch.stack([correct, torch.ones_like(labels).sum()])

    def report(self, step: int, reduce: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, float]:
        """Return log entries after `step` steps, and start again. `reduce` sums a tensor over processes."""
        steps = max(step - self.first_step, 1) if self.sums else 1
        entries = {name: (reduce(total) / steps).item() for name, total in self.sums.items()}
        correct, count = reduce(self.correct).tolist()
        if count:
            entries["mlm_accuracy"] = correct / count
        self.sums, self.correct = {}, torch.zeros_like(self.correct)
        return entries
