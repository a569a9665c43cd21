"""Cross entropy as BERT's heads need it: which labels count, what it is divided by, and few copies of large logits."""

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .compat_scratch_bert import is_eager
from .inputs_scratch_bert import check_range, check_shape, is_padding_mask
from .kernels_scratch_bert import is_cpu


def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    training: bool = False,
    name: str = "labels",
) -> torch.Tensor:
    """Mean cross entropy in fp32 over the labels other than -100. Without any, it is NaN, which Trainer leaves out of
    its mean, but 0 in `training`.

    `logits` (…, L), `labels` (…). When Trainer accumulates gradients, the sum is divided by `num_items_in_batch`
    instead, the number of labels in all micro-batches of a step: their losses add up to the mean over the batch.
    Raises `ValueError` for labels of another shape and `IndexError` for a label that is neither -100 nor in [0, L);
    both messages call the labels `name`.
    """
    check_shape(name, labels, tuple(logits.shape[:-1]))
    check_range(
        f"{name} other than -100", labels.masked_fill(labels == -100, 0), logits.shape[-1], "number of classes"
    )
    total = cross_entropy_sum(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    count = labels.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch
    count = torch.as_tensor(count, device=total.device)
    return total / (count.clamp(min=1) if training else count)


def fitting_labels(labels: torch.Tensor, logits: torch.Tensor, problem_type: str | None) -> torch.Tensor:
    """Labels of sequences in the dtype of their loss. Raises `ValueError` if they don't fit the logits (B, L)."""
    batch_size, classes = logits.shape
    if problem_type == "multi_label_classification" and not labels.is_floating_point():
        labels = labels.float()  # 0 and 1
    allowed = [(batch_size,)] if classes == 1 or not labels.is_floating_point() else []
    check_shape("labels", labels, *allowed, (batch_size, classes))
    return labels


def span_loss(start_logits, end_logits, start_positions, end_positions, training: bool) -> torch.Tensor:
    """Mean of the cross entropies of the ends of an answer: logits (B, S), positions (B,). From S on, an end is
    truncated, and left out."""
    length, losses = start_logits.shape[1], []
    for name, logits, positions in (
        ("start_positions", start_logits, start_positions),
        ("end_positions", end_logits, end_positions),
    ):
        positions = positions.squeeze(-1) if positions.dim() > 1 else positions  # (B, 1), as BERT takes them, too
        labels = positions.clamp(min=0).masked_fill(positions >= length, -100)
        losses.append(cross_entropy(logits, labels, training=training, name=name))
    return sum(losses) / 2


def fraction_of_step(labels: torch.Tensor, num_items_in_batch: torch.Tensor | int) -> torch.Tensor:
    """The micro-batch's fraction of a step's MLM labels. Trainer counts these, not the sequences, so it stands in for
    the fraction of the sequences, too."""
    fraction = labels.ne(-100).sum() / torch.as_tensor(num_items_in_batch, device=labels.device)
    return fraction.nan_to_num(nan=1.0)  # 0 / 0: nothing was masked


def keep_labelled_padding(labels, attention_mask, sequence_lengths: list[int] | None) -> dict[str, bool]:
    """The option of the encoder that computes padding, if padding has labels (B, S), which BERT's loss counts.

    A collator that counts the `sequence_lengths` gives it none. On a GPU, the host waits for the answer otherwise.
    """
    if labels is None or sequence_lengths is not None or not is_padding_mask(attention_mask):
        return {}
    if labels.shape != attention_mask.shape or not is_eager(labels):
        return {}
    return {"unpad_inputs": False} if ((labels != -100) & (attention_mask == 0)).any() else {}


class ChunkedCrossEntropy(torch.autograd.Function):
    """Sum of cross entropies over many classes, chunk by chunk, without an fp32 copy of all logits."""

    @staticmethod
    def forward(ctx, logits, labels, ignore_index: int, chunk_size: int):  # (M, V), (M,)
        ctx.counted, ctx.chunk_size = labels.ne(ignore_index), chunk_size
        classes = labels.where(ctx.counted, 0)[:, None]  # (M, 1)
        log_likelihoods = logits.new_empty((len(logits), 1), dtype=torch.float32)
        chunks = (tensor.split(chunk_size) for tensor in (logits, classes, log_likelihoods))
        for scores, chosen, log_likelihood in zip(*chunks, strict=True):
            log_likelihood.copy_(scores.log_softmax(-1, dtype=torch.float32).gather(-1, chosen))
        ctx.save_for_backward(logits, classes)
        return -(log_likelihoods[:, 0] * ctx.counted).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_sum):
        logits, classes = ctx.saved_tensors
        grad, scale = torch.empty_like(logits), (grad_sum * ctx.counted)[:, None]  # (M, V), (M, 1)
        chunks = (tensor.split(ctx.chunk_size) for tensor in (logits, classes, scale, grad))
        for scores, chosen, factor, output in zip(*chunks, strict=True):
            probabilities = scores.softmax(-1, dtype=torch.float32)
            probabilities.scatter_add_(-1, chosen, -torch.ones_like(factor))
            output.copy_(probabilities.mul_(factor))
        return grad, None, None, None


def cross_entropy_sum(logits: torch.Tensor, labels: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
    """Cross entropy in fp32 of logits (M, V) and labels (M,), summed over the labels other than `ignore_index`."""
    # Chunks that fit in a CPU's cache, or keep a GPU busy.
    elements = 2**19 if is_cpu(logits.device) else 2**26
    if logits.numel() <= elements or not is_eager(logits):
        return F.cross_entropy(logits.float(), labels, ignore_index=ignore_index, reduction="sum")
    return ChunkedCrossEntropy.apply(logits, labels, ignore_index, max(1, elements // logits.shape[-1]))
