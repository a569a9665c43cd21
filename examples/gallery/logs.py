"""Alerts in a system's log, found by a model of its usual lines: BlueGene/L, from https://github.com/logpai/loghub.

python examples/gallery/logs.py BGL_2k.log [MINUTES]
"""

import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from transformers import AutoModelForMaskedLM, AutoTokenizer

import scratch_bert
from scratch_bert.pretraining import score_texts


def main(log: str, minutes: float = 2) -> None:
    usual, alerts = [], []
    for line in Path(log).read_text(errors="replace").splitlines():
        label, *_, kind, component, _severity, message = line.split(maxsplit=9)
        text = re.sub(r"[0-9]+", "0", f"{kind} {component} {message}")
        (usual if label == "-" else alerts).append(text)
    training, unseen = usual[::2], usual[1::2]
    scratch_bert.pretrain(
        training,
        output_dir="runs/logs",
        sentence_objective="none",
        sentence_splitter="line",
        vocab_size=2000,
        max_minutes=minutes,
    )

    model = AutoModelForMaskedLM.from_pretrained("runs/logs").eval()
    tokenizer = AutoTokenizer.from_pretrained("runs/logs")
    lines = unseen + alerts
    scores = score_texts(model, tokenizer, lines)
    values = np.array([score["per_token"] for score in scores])
    of_usual, of_alerts = np.split(values, [len(unseen)])
    limit = np.quantile(of_usual, 0.02)
    print(f"AUC: {(of_alerts[:, None] < of_usual).mean():.3f}")
    print(f"Below the 2% quantile of usual lines: {(of_alerts < limit).mean():.0%} of {len(alerts)} alerts")
    new_alerts, new_usual = (np.mean([text not in training for text in texts]) for texts in (alerts, unseen))
    print(f"Not among the training lines: {new_alerts:.0%} of the alerts, {new_usual:.1%} of usual lines")
    print("The most unusual lines, alerts with a star:")
    for text in list(dict.fromkeys(lines[number] for number in np.argsort(values)))[:10]:
        print(f"{'*' if text in alerts else ' '} {text[:100]}")

    plt.figure(figsize=(6, 3.5))
    bins = np.linspace(values.min(), 0, 50)
    plt.hist([of_usual, of_alerts], bins, label=["usual lines", "alerts"], density=True)
    plt.axvline(limit, color="grey", linewidth=1)
    plt.xlabel("log-probability per token")
    plt.ylabel("density")
    plt.legend()
    plt.savefig("runs/logs/story.png", dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
