"""A pretraining objective of one's own, registered by its name: does B begin a sentence, or is a sentence cut in two?

BERT's second head learns its two labels; docs/library.md has an objective with a head of its own.

python examples/own_objective.py [DIRECTORY]
"""

import sys
import tempfile

import numpy as np

import scratch_bert
from scratch_bert.objectives import NextSentenceHead
from scratch_bert.objectives.pairs import cut, make_pairs, trim
from scratch_bert.pretraining import OBJECTIVES
from scratch_bert.text.builtin import builtin_documents


class SentenceBoundary(NextSentenceHead):
    name = prefix = "boundary"  # the value of sentence_objective; the beginning of its metrics' names
    title = "Sentence-boundary prediction"
    description = "whether B begins a sentence"
    label_0 = "B begins a sentence"

    def draw_pairs(self, corpus, limit, short_seq_prob, single_segment_prob, rng):
        chunks = cut(corpus, limit, short_seq_prob, rng)  # runs of sentences, split between two of them
        several = chunks.num_units > 1
        start, split, end = chunks.start[several], chunks.split[several], chunks.end[several]
        split = np.where(rng.random(len(split)) < 0.5, split, rng.integers(start + 1, end))
        pairs = make_pairs(start, split, split, end)
        pairs[:, 4] = ~np.isin(split, corpus.sentence_offsets)  # the label
        return trim(pairs, limit)


OBJECTIVES["boundary"] = SentenceBoundary()
directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
metrics = scratch_bert.pretrain(
    builtin_documents(),
    sentence_objective="boundary",
    output_dir=directory,
    cache_dir=f"{directory}/cache",
    max_steps=150,
)
for name in ("mlm_loss", "boundary_loss", "boundary_accuracy", "boundary_majority_accuracy"):
    print(f"{name:<26} {metrics[f'eval_{name}']:.3f}")
