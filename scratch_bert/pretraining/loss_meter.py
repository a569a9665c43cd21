"""The parts of the loss, and the accuracies, between two log entries."""

from collections.abc import Callable, Mapping, Sequence

import torch


class LossMeter:
    """Averages parts of the loss, the model's outputs of these `names`, and counts correct predictions.

    The sums stay on the device: reading them in each step would make the host wait.
    """

    def __init__(self, names: Sequence[str]):
        self.names, self.sums = names, {}
        self.counts: dict[str, torch.Tensor] = {}  # of each accuracy: correct predictions, all predictions

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

    def update_accuracy(self, name: str, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Compare logits (…, V) with labels (…), where -100 is no label; or logits (≥ M, V) of the M labels (…) alone,
        and perhaps of others after them."""
        if logits.shape[:-1] != labels.shape:
            labels = labels[labels != -100]  # (M,); on a GPU, the host waits for M
            logits = logits[: len(labels)]
        counts = torch.stack([(logits.argmax(-1) == labels).sum(), (labels != -100).sum()])
        self.counts[name] = self.counts[name] + counts if name in self.counts else counts

    def report(self, step: int, reduce: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, float]:
        """Return log entries after `step` steps, and start again. `reduce` sums a tensor over processes."""
        steps = max(step - self.first_step, 1) if self.sums else 1
        entries = {name: (reduce(total) / steps).item() for name, total in self.sums.items()}
        for name, counts in sorted(self.counts.items()):
            correct, count = reduce(counts).tolist()
            if count:
                entries[name] = correct / count
        self.sums, self.counts = {}, {}
        return entries
