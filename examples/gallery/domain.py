"""A model of one's own text beside a general one: bits per character of NumPy's documentation.

python examples/gallery/domain.py GENERAL_MODEL [MINUTES [PARAGRAPHS]]
"""

import ast
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy
from transformers import AutoModelForMaskedLM, AutoTokenizer

import scratch_bert
from scratch_bert.pretraining import score_texts


def docstrings(directory: Path) -> Iterator[str]:
    """The docstrings of a package's modules, classes and functions, without its tests."""
    for file in sorted(directory.rglob("*.py")):
        if "tests" in file.parts:
            continue
        try:
            nodes = list(ast.walk(ast.parse(file.read_bytes())))
        except SyntaxError:  # a template, or of another Python
            continue
        for node in nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield text


def paragraphs(texts: list[str]) -> set[str]:
    return {" ".join(paragraph.split()) for text in texts for paragraph in text.split("\n\n")}


def main(general: str, minutes: float = 5, most: float = 1000) -> None:
    texts = list(dict.fromkeys(docstrings(Path(numpy.__file__).parent)))
    training = [text for number, text in enumerate(texts) if number % 10]
    scratch_bert.pretrain(training, output_dir="runs/domain", max_minutes=minutes)

    unseen = sorted(text for text in paragraphs(texts[::10]) - paragraphs(training) if 100 < len(text) < 400)
    unseen = unseen[: int(most)]
    bits = []
    for name in (general, "runs/domain"):
        model = AutoModelForMaskedLM.from_pretrained(name, trust_remote_code=True).eval()
        scores = score_texts(model, AutoTokenizer.from_pretrained(name), unseen)
        bits.append([-score["per_character"] / math.log(2) for score in scores])
        print(f"{name}: {numpy.mean(bits[-1]):.2f} bits per character")
    print(f"Ahead on {numpy.mean(numpy.less(bits[1], bits[0])):.0%} of {len(unseen)} paragraphs")

    plt.figure(figsize=(5, 5))
    plt.scatter(*bits, s=8, alpha=0.5)
    plt.axline((3, 3), slope=1, color="grey", linewidth=1, label="equal")
    plt.gca().set_aspect("equal")
    plt.legend()
    plt.xlabel("bits per character: general model")
    plt.ylabel("model of NumPy's documentation")
    plt.savefig("runs/domain/story.png", dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
