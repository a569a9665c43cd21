"""Search in your own notes by words and meaning: from a note's first sentence to the rest of it.

pip install -e ".[integrations]"
python examples/gallery/search.py [MINUTES [FOLDER|PACKAGE …]]

The notes are the paragraphs of folders' text files, or the docstrings of installed packages, by default of all.
"""

import random
import sys
import sysconfig
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from datasets import Dataset
from domain import docstrings
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sklearn.feature_extraction.text import TfidfVectorizer

import scratch_bert
from scratch_bert.text.files import find_files
from scratch_bert.text.formats import TextSource


def of_packages(name: str) -> Iterator[tuple[str, str]]:
    for package in sorted(Path(sysconfig.get_path("purelib")).glob(f"{name}/__init__.py")):
        for text in docstrings(package.parent):
            first, _, rest = text.partition("\n\n")
            yield first, rest


def of_folder(folder: str) -> Iterator[tuple[str, str]]:
    for first, *rest in TextSource(find_files([folder], [".txt", ".md"]), "blank_line").documents():
        yield first, " ".join(rest)


def notes(found: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    """First sentence and the rest, of the notes that have both, shuffled."""
    pairs = {}
    for first, rest in (map(" ".join, map(str.split, pair)) for pair in found):
        if 20 < len(first) < 200 and len(rest) > 100:
            pairs.setdefault(first, rest[:600])
    return random.Random(0).sample([*pairs.items()], len(pairs))


def recalls(scores: np.ndarray) -> tuple[float, float]:
    """How often the right text is the first, and among the first five: for query i, it is text i."""
    ranks = (scores > scores.diagonal()[:, None]).sum(1)
    return (ranks < 1).mean(), (ranks < 5).mean()


def main(minutes: float = 10, *sources: str) -> None:
    found = (of_folder(source) if Path(source).is_dir() else of_packages(source) for source in sources or ["*"])
    pairs = notes(chain.from_iterable(found))
    if not pairs:
        sys.exit(f"There is no folder with text files and no installed package {' or '.join(sources)}.")
    count = min(1000, len(pairs) // 4)
    chosen_on, tested_on, pairs = pairs[:count], pairs[count : 2 * count], pairs[2 * count :]
    scratch_bert.pretrain(
        [f"{first}\n{rest}" for first, rest in pairs],
        output_dir="runs/search",
        preset="mini",
        vocab_size=16384,
        max_minutes=minutes,
    )

    tfidf = TfidfVectorizer(sublinear_tf=True).fit([rest for _, rest in pairs])
    states = Transformer("runs/search", max_seq_length=64)
    model = SentenceTransformer(modules=[states, Pooling(states.get_embedding_dimension(), "mean")])

    def by_words(pairs: list[tuple[str, str]]) -> np.ndarray:
        queries, texts = (tfidf.transform(part) for part in zip(*pairs, strict=True))
        return (queries @ texts.T).toarray()

    def by_vectors(pairs: list[tuple[str, str]]) -> np.ndarray:
        queries, texts = (model.encode(part) for part in zip(*pairs, strict=True))
        return model.similarity(queries, texts).numpy()

    found = {"TF-IDF": by_words(tested_on), "pretrained": by_vectors(tested_on)}
    queries, texts = zip(*pairs, strict=True)
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
        train_dataset=Dataset.from_dict({"anchor": queries, "positive": texts}),
        loss=MultipleNegativesRankingLoss(model),
    ).train()
    found["trained on pairs"] = by_vectors(tested_on)
    words, vectors = by_words(chosen_on), by_vectors(chosen_on)
    weight = max((0.25, 0.5, 1, 2), key=lambda weight: recalls(words + weight * vectors))
    found["both"] = found["TF-IDF"] + weight * found["trained on pairs"]
    print(f"Both: TF-IDF + {weight} × the vectors' similarity, chosen on other pairs")
    for name, scores in found.items():
        first, among = recalls(scores)
        print(f"{name}: {first:.1%} first, {among:.1%} among the first 5 of {len(tested_on)}")

    plt.figure(figsize=(6, 2.5))
    plt.barh(list(found)[::-1], [recalls(scores)[0] for scores in found.values()][::-1])
    plt.xlabel("the right text is the first")
    plt.savefig("runs/search/story.png", dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]), *sys.argv[2:])
