"""Contrastive learning as an objective of one's own: which segment of the batch follows this segment? (Quick Thoughts,
Logeswaran & Lee 2018.)

Unlike the objective in own_objective.py, it has examples, models and metrics of its own: the two segments are encoded
separately, and compared with all others of the batch.

python examples/own_objective_contrastive.py [DIRECTORY]
"""

import sys
import tempfile
from dataclasses import dataclass

import datasets
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase
from transformers.modeling_outputs import ModelOutput
from transformers.utils.generic import can_return_tuple

import scratch_bert
from scratch_bert import ScratchBertForMaskedLM, ScratchBertForPreTraining
from scratch_bert.corpus.encoder import ExampleEncoder
from scratch_bert.objectives import OBJECTIVES, MetricRow, Objective
from scratch_bert.objectives.nsp import NextSentencePrediction
from scratch_bert.objectives.pairs import cut, make_pairs, single_segments, trim
from scratch_bert.text.builtin import builtin_documents


TEMPERATURE = 0.05
NO_SEGMENT = -1e4  # the similarity with a missing segment

# ------------------------------------------------------------------------------------------------------- examples


class SeparateEncoder(ExampleEncoder):
    """Encodes both segments as separate sequences, packed: `[CLS] A [SEP] [CLS] B [SEP]`.

    `seq_idx` (S,) is 0 for A and 1 for B, so neither attends to the other; `position_ids` (S,) restart with B.
    """

    def __call__(self, tokens: np.ndarray, pair: np.ndarray) -> dict[str, np.ndarray | int]:
        a_start, a_end, b_start, b_end, _ = pair.tolist()
        spans = [(a_start, a_end), (b_start, b_end)][: 1 + (b_end > b_start)]
        segments = [np.concatenate([self.cls, tokens[start:end], self.sep]) for start, end in spans]
        input_ids = np.concatenate(segments)
        return {
            "input_ids": input_ids,
            "token_type_ids": np.full_like(input_ids, self.segment_a),
            "special_tokens_mask": self.is_special[input_ids],
            "seq_idx": np.repeat(np.arange(len(segments)), [len(segment) for segment in segments]),
            "position_ids": np.concatenate([np.arange(len(segment)) for segment in segments]),
        }


# ---------------------------------------------------------------------------------------------------------- models


def compare_segments(states: Tensor, attention_mask: Tensor, seq_idx: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine similarities (B, B) of each A with each B of the batch, divided by the temperature, and whether each
    example has a B (B,). A segment's vector is the mean of its `states` (B, S, H)."""
    present = torch.stack([attention_mask.bool() & (seq_idx == segment) for segment in (0, 1)], 1)  # (B, 2, S)
    weights = present.to(states.dtype)
    means = (weights @ states) / weights.sum(-1, keepdim=True).clamp(min=1)  # (B, 2, H)
    has_b = present[:, 1].any(-1)
    with torch.autocast(states.device.type, enabled=False):
        a, b = F.normalize(means.float(), dim=-1).unbind(1)
        return (a @ b.mT / TEMPERATURE).masked_fill(~has_b, NO_SEGMENT), has_b


def info_nce(similarities: Tensor, follows: Tensor) -> Tensor:
    """Cross entropy of each A's own B among all of the batch: (B,), 0 where B does not follow A (`follows`, (B,))."""
    targets = torch.arange(len(similarities), device=similarities.device).masked_fill(~follows, -100)
    return F.cross_entropy(similarities, targets, reduction="none")


@dataclass
class ContrastiveOutput(ModelOutput):
    """`loss` is the sum of the losses below; `similarities` (B, B) are those of `compare_segments`."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    similarities: Tensor | None = None
    mlm_loss: Tensor | None = None
    nsp_loss: Tensor | None = None
    contrastive_loss: Tensor | None = None

    @classmethod
    def build(cls, similarities, follows, labels, num_items_in_batch, mlm_loss, nsp_loss=None, **logits):
        """The output with the sum of the losses. InfoNCE's is a mean over the pairs where B `follows` A; when Trainer
        accumulates gradients, it is scaled by the micro-batch's fraction of the masked tokens, like NSP's. Without
        `labels`, there is no loss."""
        if labels is None:
            return cls(similarities=similarities, **logits)
        loss = info_nce(similarities, follows).sum() / follows.sum().clamp(min=1)
        if num_items_in_batch is not None:
            fraction = labels.ne(-100).sum() / torch.as_tensor(num_items_in_batch, device=labels.device)
            loss = loss * fraction.nan_to_num(nan=1.0)
        losses = {"mlm_loss": mlm_loss, "nsp_loss": nsp_loss, "contrastive_loss": loss}
        total = sum(part for part in losses.values() if part is not None)
        # Left out in evaluation, where Trainer would collect them as predictions.
        losses = losses if torch.is_grad_enabled() else {}
        return cls(loss=total, similarities=similarities, **logits, **losses)


class ContrastiveMaskedLM(ScratchBertForMaskedLM):
    """MLM and InfoNCE in one forward, on segments that are encoded separately. Without `seq_idx`, MLM alone."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        seq_idx: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        num_masked: int | None = None,
        sparse_prediction: bool | None = None,
        **kwargs,
    ) -> ContrastiveOutput:
        attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        predicted = self.masked_positions(labels, num_masked, sparse_prediction)
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, None, seq_idx)
        states = self.bert(*inputs, return_dict=True, **kwargs).last_hidden_state  # (B, S, H)
        logits, mlm_loss = self.mlm_logits_and_loss(states, labels, predicted, num_items_in_batch)
        if seq_idx is None:
            return ContrastiveOutput(loss=mlm_loss, logits=logits)
        similarities, has_b = compare_segments(states, attention_mask, seq_idx)
        return ContrastiveOutput.build(similarities, has_b, labels, num_items_in_batch, mlm_loss, logits=logits)


class ContrastivePreTraining(ScratchBertForPreTraining):
    """MLM and NSP on both segments together, and InfoNCE on the same segments separately, unmasked, in a second
    forward. Without the segments, MLM and NSP alone."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        segment_input_ids: Tensor | None = None,
        segment_seq_idx: Tensor | None = None,
        segment_position_ids: Tensor | None = None,
        segment_token_type_ids: Tensor | None = None,
        segment_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs,
    ) -> ContrastiveOutput:
        options = {"labels": labels, "next_sentence_label": next_sentence_label, "return_dict": True, **kwargs}
        options["num_items_in_batch"] = num_items_in_batch
        joint = super().forward(input_ids, attention_mask, token_type_ids, **options)
        if segment_input_ids is None:
            return joint
        inputs = (segment_input_ids, segment_attention_mask, segment_token_type_ids, segment_position_ids, None)
        states = self.bert(*inputs, segment_seq_idx, return_dict=True).last_hidden_state  # (B, S', H)
        assert segment_attention_mask is not None and segment_seq_idx is not None  # they come with segment_input_ids
        similarities, follows = compare_segments(states, segment_attention_mask, segment_seq_idx)
        if next_sentence_label is not None:
            follows = follows & (next_sentence_label == 0)
        return ContrastiveOutput.build(
            similarities,
            follows,
            labels,
            num_items_in_batch,
            joint.mlm_loss,
            joint.nsp_loss,
            logits=joint.prediction_logits,
            seq_relationship_logits=joint.seq_relationship_logits,
        )


# ------------------------------------------------------------------------------------------------------ objectives


class Contrastive(Objective):
    """MLM, and InfoNCE: the next segment among the batch's second segments, separately encoded and mean-pooled.

    Chunks of the text are cut into two segments, as for NSP, which are always in order. For two documents of eight
    sentences of 10 tokens, and room for 40 tokens:

        0 10 10 40 0 ·  40 60 60 80 0 ·  80 110 110 120 0 ·  120 140 140 160 0

    A larger batch makes the objective harder: chance is one in the batch size.
    """

    name = "contrastive"
    title = "Contrastive learning"
    description = "contrastive, B follows A rather than the other segments of the batch, each encoded alone"
    model_class = ContrastiveMaskedLM
    losses = ("mlm_loss", "contrastive_loss")
    special_tokens = 4
    min_tokens = 2
    packs = True
    metric_rows = (
        MetricRow("contrastive loss", "contrastive_loss", "contrastive_chance_loss", "chance"),
        MetricRow("contrastive accuracy", "contrastive_accuracy", "contrastive_chance_accuracy", "chance"),
    )

    def draw_pairs(self, corpus, limit, short_seq_prob, single_segment_prob, rng) -> np.ndarray:
        chunks = cut(corpus, limit, short_seq_prob, rng)
        single, _ = single_segments(chunks, single_segment_prob, rng)
        single |= chunks.num_units == 1
        end_of_a = np.where(single, chunks.end, chunks.split)
        pairs = trim(make_pairs(chunks.start, end_of_a, end_of_a, chunks.end), limit)
        pairs[single, 4] = -100
        return pairs

    def encoder(self, tokenizer: PreTrainedTokenizerBase) -> SeparateEncoder:
        return SeparateEncoder(tokenizer, None)

    def features(self) -> datasets.Features:
        columns = {name: datasets.List(datasets.Value("int32")) for name in ("seq_idx", "position_ids")}
        return datasets.Features(super().features() | columns)

    def score(self, logits: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> dict[str, Tensor]:
        similarities = logits[-1]  # (B, B)
        follows = similarities.diagonal() != NO_SEGMENT
        if len(labels) > 1:  # with NSP, some of whose segments are random
            follows = follows & (labels[1] == 0)
        chance = 1 / (similarities[0] != NO_SEGMENT).sum().clamp(min=1)  # among those that have a B
        targets = torch.arange(len(follows), device=follows.device)
        return {
            "contrastive_loss": info_nce(similarities, follows),
            "contrastive_correct": follows & (similarities.argmax(-1) == targets),
            "contrastive_count": follows,
            "contrastive_chance_loss": follows * -chance.log(),
            "contrastive_chance_correct": follows * chance,
        }

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        count = max(sums["contrastive_count"], 1)
        return {
            "contrastive_loss": sums["contrastive_loss"] / count,
            "contrastive_chance_loss": sums["contrastive_chance_loss"] / count,
            "contrastive_accuracy": sums["contrastive_correct"] / count,
            "contrastive_chance_accuracy": sums["contrastive_chance_correct"] / count,
        }


class NextSentenceAndContrastive(NextSentencePrediction):
    """NSP on both segments together, and InfoNCE on the same segments separately, where B follows A."""

    name = "nsp+contrastive"
    title = "Next-sentence prediction"
    description = "NSP and contrastive, which encodes each text twice"
    model_class = ContrastivePreTraining
    losses = ("mlm_loss", "nsp_loss", "contrastive_loss")
    min_tokens = 3
    packs = True
    contrastive = Contrastive()

    @property
    def metric_rows(self) -> tuple[MetricRow, ...]:
        return (*super().metric_rows, *self.contrastive.metric_rows)

    def draw_pairs(self, corpus, limit, short_seq_prob, single_segment_prob, rng) -> np.ndarray:
        return super().draw_pairs(corpus, limit - 1, short_seq_prob, single_segment_prob, rng)  # B also has a [CLS]

    def encoder(self, tokenizer: PreTrainedTokenizerBase):
        joint, separate = super().encoder(tokenizer), self.contrastive.encoder(tokenizer)

        def encode(tokens: np.ndarray, pair: np.ndarray) -> dict[str, np.ndarray | int]:
            segments = separate(tokens, pair)
            segments["attention_mask"] = np.ones_like(segments["input_ids"])
            del segments["special_tokens_mask"]
            return joint(tokens, pair) | {f"segment_{name}": values for name, values in segments.items()}

        return encode

    def features(self) -> datasets.Features:
        names = ("input_ids", "token_type_ids", "seq_idx", "position_ids", "attention_mask")
        columns = {f"segment_{name}": datasets.List(datasets.Value("int32")) for name in names}
        return datasets.Features(super().features() | columns)

    def score(self, logits: tuple[Tensor, ...], labels: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return super().score(logits, labels) | self.contrastive.score(logits, labels)

    def summarize(self, sums: dict[str, float]) -> dict[str, float]:
        return super().summarize(sums) | self.contrastive.summarize(sums)


OBJECTIVES |= {objective.name: objective for objective in (Contrastive(), NextSentenceAndContrastive())}

if __name__ == "__main__":
    directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    metrics = scratch_bert.pretrain(
        builtin_documents(),
        sentence_objective="contrastive",
        output_dir=directory,
        cache_dir=f"{directory}/cache",
        max_steps=150,
    )
    for name in ("mlm_loss", "contrastive_loss", "contrastive_accuracy", "contrastive_chance_accuracy"):
        print(f"{name:<28} {metrics[f'eval_{name}']:.3f}")
