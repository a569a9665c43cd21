"""What a small model sees in proteins: real sequences beside shuffled ones, and the membrane's helices in a profile.

python examples/gallery/proteins.py PROTEINS.fasta[.gz] [MINUTES]
"""

import gzip
import math
import random
import sys
from collections import Counter

import matplotlib.pyplot as plt
import numpy as np
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

import scratch_bert
from scratch_bert.pretraining import score_texts


# Bovine rhodopsin, UniProt P02699, and its seven helices in the membrane (first and last residue).
RHODOPSIN = (
    "MNGTEGPNFYVPFSNKTGVVRSPFEAPQYYLAEPWQFSMLAAYMFLLIMLGFPINFLTLYVTVQHKKLRTPLNYILLNLAVADLFMVFGGFTTTLYTSLHGYFVFGPTGC"
    "NLEGFFATLGGEIALWSLVVLAIERYVVVCKPMSNFRFGENHAIMGVAFTWVMALACAAPPLVGWSRYIPEGMQCSCGIDYYTPHEETNNESFVIYMFVVHFIIPLIVIF"
    "FCYGQLVFTVKEAAAQQQESATTQKAEKEVTRMVIIMVIAFLICWLPYAGVAFYIFTHQGSDFGPIFMTIPAFFAKTSAVYNPVIYIMMNKQFRNCMVTTLCCGKNPLGD"
    "DEASTTVSKTETSQVAPA"
)
HELICES = ((37, 61), (74, 96), (111, 133), (153, 173), (203, 224), (253, 274), (287, 308))
HYDROPHOBIC = "AVILMFWC"


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


def auc(higher, lower) -> float:
    return (np.array(higher)[:, None] > np.array(lower)).mean()


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
    print(f"Real above shuffled sequences, AUC: {auc(*scores):.3f}; trigrams: {auc(*trigrams):.3f}")
    print(
        f"Real above the same one shuffled: {np.greater(*scores).mean():.0%}; trigrams: {np.greater(*trigrams).mean():.0%}"
    )

    # Each residue masked in turn: what the others tell about it.
    starts = [min(max(place - 120, 0), len(RHODOPSIN) - 240) for place in range(len(RHODOPSIN))]
    windows = [
        RHODOPSIN[start:place] + tokenizer.mask_token + RHODOPSIN[place + 1 : start + 240]
        for place, start in enumerate(starts)
    ]
    inputs = tokenizer(windows, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id]
    expected = logits.softmax(-1)[:, tokenizer.convert_tokens_to_ids(list(HYDROPHOBIC))].sum(-1).numpy()
    expected = np.convolve(expected, np.ones(9) / 9, mode="same")
    inside = np.zeros(len(RHODOPSIN), bool)
    for first, last in HELICES:
        inside[first - 1 : last] = True
    print(f"Residues of rhodopsin's helices above the others, AUC: {auc(expected[inside], expected[~inside]):.3f}")

    plt.figure(figsize=(8, 3))
    plt.plot(range(1, len(RHODOPSIN) + 1), expected)
    for first, last in HELICES:
        plt.axvspan(first, last, alpha=0.2)
    plt.xlabel("residue of rhodopsin; shaded: its helices in the membrane")
    plt.ylabel("probability that it\nis hydrophobic")
    plt.savefig("runs/proteins/story.png", dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
