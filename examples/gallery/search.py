"""Search in one's own notes by meaning: from a docstring's first sentence to the rest of it.

pip install -e ".[integrations]"
python examples/gallery/search.py [MINUTES [PACKAGE …]]
"""

import random
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from datasets import Dataset
from domain import docstrings
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sklearn.feature_extraction.text import TfidfVectorizer

import scratch_bert


PAIRS = 9600  # to train on: 150 batches, minutes


def notes(packages: list[Path]) -> dict[str, str]:
    """First sentence → the rest of it, for the docstrings that have both."""
    found = {}
    for package in packages:
        for text in docstrings(package):
            first, _, rest = (" ".join(part.split()) for part in text.partition("\n\n"))
            if 20 < len(first) < 200 and len(rest) > 100:
                found.setdefault(first, rest[:600])
    return found


def main(minutes: float = 10, names: Sequence[str] = ("*",)) -> None:
    installed = Path(sysconfig.get_path("purelib"))
    packages = sorted(path.parent for name in names for path in installed.glob(f"{name}/__init__.py"))
    ours = notes([installed / "numpy"])
    others = {first: rest for first, rest in notes(packages).items() if first not in ours}
    scratch_bert.pretrain(
        [f"{first}\n{rest}" for first, rest in (others | ours).items()],
        output_dir="runs/search",
        preset="mini",
        vocab_size=16384,
        max_minutes=minutes,
    )

    queries, texts = list(ours), list(ours.values())
    tfidf = TfidfVectorizer(sublinear_tf=True).fit([*others.values(), *texts])
    by_words = (tfidf.transform(queries) @ tfidf.transform(texts).T).toarray()
    states = Transformer("runs/search", max_seq_length=128)
    model = SentenceTransformer(modules=[states, Pooling(states.get_embedding_dimension(), "mean")])

    def by_vectors() -> np.ndarray:
        return model.similarity(model.encode(queries), model.encode(texts)).numpy()

    pairs = list(others.items())
    random.Random(0).shuffle(pairs)
    anchors, positives = zip(*pairs[:PAIRS], strict=True)
    found = {"TF-IDF": by_words, "pretrained": by_vectors()}
    SentenceTransformerTrainer(
        model,
        SentenceTransformerTrainingArguments(
            "runs/search/vectors",
            per_device_train_batch_size=64,
            num_train_epochs=1,
            learning_rate=2e-4,
            warmup_steps=0.1,
            save_strategy="no",
            report_to="none",
        ),
        train_dataset=Dataset.from_dict({"anchor": anchors, "positive": positives}),
        loss=MultipleNegativesRankingLoss(model),
    ).train()
    found["trained on pairs"] = by_vectors()
    found["both"] = by_words + by_vectors()
    recalls = {}
    for name, scores in found.items():
        ranks = (scores > scores.diagonal()[:, None]).sum(1)
        recalls[name] = (ranks < 5).mean()
        print(f"{name}: {(ranks < 1).mean():.1%} first, {recalls[name]:.1%} among the first 5 of {len(queries)}")

    plt.figure(figsize=(6, 2.5))
    plt.barh(list(recalls)[::-1], list(recalls.values())[::-1])
    plt.xlabel("found among the first five")
    plt.savefig("runs/search/story.png", dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]), *([sys.argv[2:]] if sys.argv[2:] else []))
