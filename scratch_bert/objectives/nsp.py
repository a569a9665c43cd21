"""Next-sentence prediction: does segment B follow A, or is it from another document? (Paper, section 3.1, task 2.)"""

import math

import numpy as np

from .base import NextSentenceHead
from .pairs import Chunks, cut, make_pairs, single_segments, trim


FEW = 100  # examples, on which two standard errors of an accuracy are 0.1
LEARNED_AFTER = 12_000, 200_000  # training examples, from the default run to cpu-hour.yaml with batches of 64


class NextSentencePrediction(NextSentenceHead):
    """Pairs from one document (label 0) and from two documents (label 1). For two documents of eight sentences of 10
    tokens, and room for 40 tokens:

        0 10 10 40 0 ·  40 60 100 120 1 ·  80 100 60 80 1 ·  120 140 140 160 0

    Half of the pairs are unchanged chunks (label 0). The others come from two chunks of different documents and
    similar lengths that swap their second segments (label 1). Thus nearly every token is in one pair of an epoch, and
    lengths hardly reveal the label, as they would if random segments filled up the short chunk at a document's end. A
    lone last sentence is paired with another lone sentence. If one document has more text than all others together,
    the others' text is drawn more than once.
    """

    name = "nsp"
    title = "Next-sentence prediction"
    description = "next-sentence prediction, B follows A or is from another document"
    label_0 = "B follows A"
    min_documents = 2

    def draw_pairs(self, corpus, limit, short_seq_prob, single_segment_prob, rng) -> np.ndarray:
        chunks = cut(corpus, limit, short_seq_prob, rng)
        single, single_pairs = single_segments(chunks, single_segment_prob, rng)
        start, split, end = chunks.start, chunks.split, chunks.end
        complete, lone = (np.flatnonzero(kind & ~single) for kind in (chunks.num_units > 1, chunks.num_units == 1))
        i, j, drawn = _match(chunks, complete, complete, rng)
        lone_i, lone_j, _ = _match(chunks, lone, np.arange(len(start)), rng)
        # The second segment of a lone sentence: another lone sentence, or a chunk's second segment.
        lone_split = np.where(chunks.num_units[lone_j] > 1, split[lone_j], start[lone_j])

        swaps = _choose_swaps(drawn, num_chunks=len(complete), num_lone=len(lone_i), rng=rng)
        i, j, drawn = i[swaps], j[swaps], drawn[swaps]
        follows = np.setdiff1d(complete, np.concatenate([i, j[~drawn]]))
        pairs = [
            make_pairs(start[follows], split[follows], split[follows], end[follows], label=0),
            *_swap(chunks, i, j),
            make_pairs(start[lone_i], end[lone_i], lone_split, end[lone_j], label=1),
            single_pairs,
        ]
        return trim(np.concatenate(pairs), limit)

    def describe_plateaus(self, metrics: dict[str, float], evaluated: int, trained: int, per_minute: float) -> str:
        mlm = super().describe_plateaus(metrics, evaluated, trained, per_minute)
        chance = metrics["eval_nsp_majority_accuracy"]
        margin = max(0.02, 2 * math.sqrt(chance * (1 - chance) / evaluated))  # two standard errors
        if metrics["eval_nsp_accuracy"] > chance + margin:
            return mlm
        learned_after = "{:,} to {:,}".format(*LEARNED_AFTER)
        if mlm:
            return (
                f"{mlm} NSP is learned later than MLM, after {learned_after} examples; this run has seen {trained:,}: "
                "docs/learning.md, on NSP's plateau"
            )
        found = f"NSP cannot be distinguished from chance on {evaluated:,} examples (±{margin:.0%})."
        in_training = metrics.get("nsp_loss", math.inf)
        if in_training < 0.9 * min(metrics["eval_nsp_majority_loss"], metrics["eval_nsp_loss"]):
            return (
                f"{found} The training pairs have been memorised: their NSP loss is {in_training:.2f}, that of the "
                f"evaluation text {metrics['eval_nsp_loss']:.2f}. What helps: more text, or fewer epochs."
            )
        if evaluated < FEW:
            few = f"{evaluated} examples are too few to tell whether NSP has been learned"
            return f"{few}: evaluate on more text (validation_share, validation_file)."
        minutes = [math.ceil(count / per_minute) for count in LEARNED_AFTER if per_minute]
        time = ", here {} to {} minutes".format(*minutes) if minutes else ""
        longer = "longer training, " if trained < max(LEARNED_AFTER) else ""
        return (
            f"{found} Where it was learned, it took {learned_after} training examples{time}; this run has seen "
            f"{trained:,}. What helps: {longer}larger batches (per_device_train_batch_size), more and longer pairs "
            "(single_segment_prob and short_seq_prob near 0), text on different topics. More: docs/learning.md, on "
            "NSP's plateau"
        )

    def statistics(self, labels: np.ndarray, documents: np.ndarray) -> dict[str, int]:
        a, b = documents[labels == 1].T
        return {"same_document_negatives": int((a == b).sum())}


def _swap(chunks: Chunks, i: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of chunks i and j with swapped second segments; j is split where both pairs get about the same length."""
    start, split, end, length = chunks.start, chunks.split, chunks.end, chunks.length
    split_j = chunks.nearest_split(j, start[j] + split[i] - start[i] + (length[j] - length[i]) // 2)
    return (
        make_pairs(start[i], split[i], split_j, end[j], label=1),
        make_pairs(start[j], split_j, split[i], end[i], label=1),
    )


def _choose_swaps(drawn: np.ndarray, num_chunks: int, num_lone: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers of the swaps to make, so that as many pairs have label 0 as label 1.

    A swap gives two pairs of label 1, and removes two pairs of label 0; only one if its second chunk was `drawn`,
    which stays. `num_lone` pairs have label 1 in any case.
    """
    order = rng.permutation(len(drawn))
    order = order[np.argsort(drawn[order], kind="stable")]  # swaps with a drawn chunk come last
    # Pairs of label 0 beyond those of label 1 after 0, 1, 2, … swaps.
    surplus = num_chunks - num_lone - np.cumsum(np.append(0, 2 + np.where(drawn, 1, 2)[order]))
    number = int((surplus > 0).sum())  # the first number that reaches or exceeds balance
    if 0 < number < len(surplus) and rng.random() * (surplus[number - 1] - surplus[number]) < -surplus[number]:
        number -= 1  # at random, so that labels are balanced on average
    number = min(number, len(order))
    if number and surplus[number] == -2 * number - num_lone:  # keep at least one pair of label 0
        number -= 1
    return order[:number]


def _match(
    chunks: Chunks, chosen: np.ndarray, others: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Match chunks of different documents with segments of similar lengths: (i, j, drawn), an entry per match.

    Each of `chosen` is in one match, if possible. Where no other document is left, j is `drawn` uniformly from
    `others`, so it can be in several matches.
    """
    near, rest = _match_by_length(chunks, chosen, rng)
    far, rest = _match_by_document(chunks, rest)
    matches = np.concatenate([near, far])
    matches = np.where(rng.random((len(matches), 1)) < 0.5, matches, matches[:, ::-1])
    i, j = _draw_partners(chunks, rest, others, rng)
    drawn = np.arange(len(matches) + len(i)) >= len(matches)
    return np.concatenate([matches[:, 0], i]), np.concatenate([matches[:, 1], j]), drawn


def _match_by_length(chunks: Chunks, chosen: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Match neighbours in order of length: (matches, 2), and the chunks whose neighbour is of the same document."""
    first_length = chunks.split - chunks.start
    order = chosen[np.lexsort((rng.random(len(chosen)), first_length[chosen], chunks.length[chosen] // 4))]
    half = len(order) // 2
    matches = order[: 2 * half].reshape(half, 2)
    same = _same_document(chunks, matches)
    return matches[~same], np.concatenate([matches[same].ravel(), order[2 * half :]])


def _match_by_document(chunks: Chunks, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Match the first half with the second in the order of documents: they differ, unless one has more than half."""
    chosen = chosen[np.lexsort((chunks.length[chosen], chunks.document[chosen]))]
    half = len(chosen) // 2
    matches = np.stack([chosen[:half], chosen[len(chosen) - half :]], axis=1)
    same = _same_document(chunks, matches)
    return matches[~same], np.concatenate([matches[same].ravel(), chosen[half : len(chosen) - half]])


def _draw_partners(
    chunks: Chunks, chosen: np.ndarray, others: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Match each of `chosen` with one of `others` from another document, drawn uniformly; left out if there is none.

    `others` are in the order of their documents.
    """
    first, last = (
        np.searchsorted(chunks.document[others], chunks.document[chosen], side=side) for side in ("left", "right")
    )
    choices = len(others) - (last - first)
    chosen, first, last, choices = (array[choices > 0] for array in (chosen, first, last, choices))
    choice = rng.integers(choices)
    return chosen, others[choice + np.where(choice >= first, last - first, 0)]


def _same_document(chunks: Chunks, matches: np.ndarray) -> np.ndarray:
    document = chunks.document[matches]
    return document[:, 0] == document[:, 1]
