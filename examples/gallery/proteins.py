"""What a small model sees in proteins: real sequences beside shuffled ones.

python examples/gallery/proteins.py PROTEINS.fasta[.gz] [MINUTES]
"""

import gzip
import math
import random
import sys
from collections import Counter

import matplotlib.pyplot as plt
import numpy as np
from transformers import AutoModelForMaskedLM, AutoTokenizer

import scratch_bert
from scratch_bert.pretraining import score_texts


def trigram_scores(training: list[str], sequences: list[str]) -> list[float]:
    """Log-probability per residue by the two residues before it: what a model without a memory knows."""
    pairs, triples = Counter(), Counter()
    for text in training:
        pairs.update(text[i : i + 2] for i in range(len(text) - 2))
        triples.update(text[i : i + 3] for i in range(len(text) - 2))
    return [
        np.mean([math.log((triples[t[i : i + 3]] + 1) / (pairs[t[i : i + 2]] + 20)) for i in range(len(t) - 2)])
        for t in sequences
    ]


def main(file: str, minutes: float = 8) -> None:
    opened = gzip.open if file.endswith(".gz") else open
    with opened(file, "rt") as stream:
        records = stream.read().split(">")[1:]
    sequences = ["".join(record.splitlines()[1:]) for record in records]
    random.Random(0).shuffle(sequences)
    held_out = len(sequences) // 12
    real, training = sequences[:held_out], sequences[held_out:]
    scratch_bert.pretrain(
        training,
        preset="mini",
        output_dir="runs/proteins",
        tokenizer_type="character",
        sentence_objective="none",
        sentence_splitter="line",
        max_seq_length=256,
        max_minutes=minutes,
    )

    model = AutoModelForMaskedLM.from_pretrained("runs/proteins").eval()
    tokenizer = AutoTokenizer.from_pretrained("runs/proteins")
    real = [sequence[:250] for sequence in real]
    shuffled = ["".join(random.Random(0).sample(sequence, len(sequence))) for sequence in real]
    scores = [[s["per_token"] for s in score_texts(model, tokenizer, x, fast=True)] for x in (real, shuffled)]
    trigrams = [trigram_scores(training, x) for x in (real, shuffled)]
    differences = [np.subtract(*scores), np.subtract(*trigrams)]
    shares = [np.mean(difference > 0) for difference in differences]
    print(f"Real above shuffled: {shares[0]:.0%} of {len(real)} sequences; trigrams: {shares[1]:.0%}")

    plt.figure(figsize=(6, 3.5))
    bins = np.linspace(*np.quantile(differences, [0.005, 0.995]), 40)
    plt.hist(differences, bins, label=["model", "trigrams"])
    plt.axvline(0, color="grey", linewidth=1)
    plt.xlabel("log-probability per residue: real minus shuffled sequence")
    plt.ylabel("sequences")
    plt.legend()
    plt.savefig("runs/proteins/story.png", dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
