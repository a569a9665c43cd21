"""A language with little text: the endings of Basque words, learnt from a program's help pages.

apt-get download libreoffice-help-eu && dpkg-deb -x libreoffice-help-eu_*.deb help
python examples/gallery/basque.py help/usr/share/libreoffice/help/eu/text [MINUTES]
"""

import random
import re
import sys
from collections import Counter, defaultdict
from html import unescape
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from transformers import AutoModelForMaskedLM, AutoTokenizer

import scratch_bert
from scratch_bert.pretraining import score_texts


STEM = 5  # letters that two forms of a word share


def paragraphs(page: Path) -> list[str]:
    """The text of an HTML page's headings and paragraphs."""
    found = re.findall(r"<(h[1-6]|p)\b[^>]*>(.*?)</\1>", page.read_text(encoding="utf-8"), re.DOTALL)
    texts = [" ".join(unescape(re.sub(r"<[^>]+>", "", text)).split()) for _, text in found]
    return [text for text in texts if text]


def main(directory: str, minutes: float = 5) -> None:
    pages = [paragraphs(page) for page in sorted(Path(directory).rglob("*.html"))]
    random.Random(0).shuffle(pages)
    held_out, training = pages[::10], [page for number, page in enumerate(pages) if number % 10]
    scratch_bert.pretrain(
        ["\n".join(page) for page in training],
        output_dir="runs/basque",
        language="eu",
        vocab_size=8192,
        max_minutes=minutes,
    )

    # In each unseen sentence, one word gets another ending, a form that occurs in the training text.
    seen = dict.fromkeys(text for page in training for text in page)  # in their order, so that draws repeat
    counts = Counter(word for text in seen for word in re.findall(r"\w+", text))
    forms = defaultdict(list)
    for word in counts:
        forms[word[:STEM]].append(word)
    draw, pairs = random.Random(0), []
    unseen = dict.fromkeys(text for page in held_out for text in page if text not in seen)
    for text in unseen:
        words = [
            m for m in re.finditer(r"\w+", text) if len(m[0]) > STEM and len(forms[m[0][:STEM]]) > 1 and m[0] in counts
        ]
        if words and 40 < len(text) < 250:
            word = draw.choice(words)
            other = draw.choice([form for form in forms[word[0][:STEM]] if form != word[0]])
            pairs.append((text, text[: word.start()] + other + text[word.end() :], word[0], other))

    right, wrong, words, others = zip(*draw.sample(pairs, min(500, len(pairs))), strict=True)
    frequent = np.mean([counts[word] > counts[other] for word, other in zip(words, others, strict=True)])
    tokenizer = AutoTokenizer.from_pretrained("runs/basque")
    steps = sorted(int(path.name) for path in Path("runs/basque/snapshots").iterdir() if path.name.isdigit())
    shares = []
    for step in steps:
        model = AutoModelForMaskedLM.from_pretrained(f"runs/basque/snapshots/{step}").eval()
        likelihoods = [
            [score["log_likelihood"] for score in score_texts(model, tokenizer, x, fast=True)] for x in (right, wrong)
        ]
        shares.append(np.greater(*likelihoods).mean())
    print(f"{shares[-1]:.1%} of {len(right)} endings right; the more frequent form: {frequent:.1%}")

    plt.figure(figsize=(6, 3.5))
    plt.plot(steps, shares, marker="o", markersize=3, label="model")
    plt.axhline(frequent, color="grey", linewidth=1, label="the more frequent form")
    plt.xlabel("training steps")
    plt.ylabel("correct endings")
    plt.legend()
    plt.savefig("runs/basque/story.png", dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
