"""Masked language modelling alone, on contiguous text (as in RoBERTa, Liu et al. 2019, section 4.2)."""

import numpy as np

from .base import Objective
from .pairs import make_pairs, members


class MaskedLanguageModelling(Objective):
    """MLM on documents cut into full sequences at any token, from a first cut drawn uniformly; B is empty. For two
    documents of eight sentences of 10 tokens, and room for 40 tokens:

        0 6 6 6 0 ·  6 46 46 46 0 ·  46 80 80 80 0 ·  80 95 95 95 0 ·  …
    """

    name = "none"
    title = "None"
    description = "MLM alone, on contiguous text"

    def draw_pairs(self, corpus, limit, short_seq_prob, single_segment_prob, rng) -> np.ndarray:
        start, end = corpus.document_tokens.T
        phase = np.where(end - start > limit, rng.integers(limit, size=len(start)), 0)
        count = -(-(end - start + phase) // limit)
        document, number = members(count)
        cut = (start - phase)[document] + number * limit
        first, last = np.maximum(cut, start[document]), np.minimum(cut + limit, end[document])
        return make_pairs(first, last, last, last)
