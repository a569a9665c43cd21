"""Sentence-order prediction: are the segments A and B in the order of the text, or swapped?"""

import numpy as np

from .base import NextSentenceHead
from .pairs import cut, make_pairs, single_segments, trim


class SentenceOrderPrediction(NextSentenceHead):
    """Pairs from one document, half of them in the wrong order (label 1; Lan et al. 2020, section 3.1). For two
    documents of eight sentences of 10 tokens, and room for 40 tokens:

        0 10 10 40 0 ·  60 80 40 60 1 ·  110 120 80 110 1 ·  120 140 140 160 0

    Lone sentences are left out.
    """

    name = "sop"
    title = "Sentence-order prediction"
    description = "sentence-order prediction, A and B are in order or swapped"
    label_0 = "A and B are in order"

    def draw_pairs(self, corpus, limit, short_seq_prob, single_segment_prob, rng) -> np.ndarray:
        chunks = cut(corpus, limit, short_seq_prob, rng)
        single, single_pairs = single_segments(chunks, single_segment_prob, rng)
        complete = (chunks.num_units > 1) & ~single
        start, split, end = chunks.start[complete], chunks.split[complete], chunks.end[complete]
        pairs = trim(make_pairs(start, split, split, end), limit)
        swapped = rng.permutation(len(pairs)) % 2 == 1
        pairs[swapped] = pairs[swapped][:, [2, 3, 0, 1, 4]]
        pairs[swapped, 4] = 1
        return np.concatenate([pairs, trim(single_pairs, limit)])
