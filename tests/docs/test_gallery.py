"""The stories of docs/gallery.md, in seconds instead of minutes, on data of their kinds."""

import random
import re

import pytest

from helpers import ROOT, run_process


MINUTES = "0.05"


def run(name: str, directory, *arguments) -> str:
    """What a story prints; it also draws its picture."""
    result = run_process(ROOT / "examples/gallery" / f"{name}.py", *arguments, cwd=directory, OMP_NUM_THREADS="1")
    assert (directory / f"runs/{name}/story.png").stat().st_size > 5000
    return result.stdout


def figures(pattern: str, shown: str) -> list[float]:
    [found] = re.findall(pattern, shown)
    return list(map(float, found if isinstance(found, tuple) else [found]))


@pytest.mark.slow
def test_domain(tmp_path):
    shown = run("domain", tmp_path, ROOT / "examples/models/gutenberg-micro", MINUTES, 120)
    general, domain = map(float, re.findall(r"([\d.]+) bits per character$", shown, re.MULTILINE))
    assert 1 < domain < 10 and 1 < general < 10
    share, paragraphs = figures(r"Ahead on (\d+)% of (\d+) paragraphs", shown)
    assert share <= 100 and paragraphs == 120


@pytest.mark.slow
def test_logs(tmp_path):
    draw = random.Random(0)
    lines = []
    for number in range(600):
        label, level, message = ("-", "INFO", "instruction cache parity error corrected")
        if number % 20 == 7:
            label, level, message = ("KERNDTLB", "FATAL", "data TLB error interrupt")
        node = f"R{draw.randrange(10)}-M1"
        lines.append(f"{label} 1117838570 2005.06.03 {node} 2005-06-03-15.42.50 {node} RAS KERNEL {level} {message}")
    (tmp_path / "BGL.log").write_text("\n".join(lines) + "\n")
    [auc] = figures(r"AUC: ([\d.]+)", run("logs", tmp_path, "BGL.log", MINUTES))
    assert 0.9 < auc <= 1


@pytest.mark.slow
def test_proteins(tmp_path):
    draw = random.Random(0)
    records = (f">P{number}\n{''.join(draw.choices('ACDEFGHIKLMNPQRSTVWY', k=60))}\n" for number in range(480))
    (tmp_path / "proteins.fasta").write_text("".join(records))
    pattern = r"above shuffled: (\d+)% of (\d+) sequences; trigrams: (\d+)%"
    model, count, trigrams = figures(pattern, run("proteins", tmp_path, "proteins.fasta", MINUTES))
    assert count == 40 and abs(model - 50) < 30 and abs(trigrams - 50) < 30  # the sequences are random


@pytest.mark.slow
def test_basque(tmp_path):
    stems = ("fitxategi", "dokumentu", "irekitze", "gordetze")
    words = [stem + ending for stem in stems for ending in ("a", "ak", "an", "ko")]
    draw = random.Random(0)
    for number in range(60):
        texts = (f"<p class='x'>{' '.join(draw.choices(words, k=8))}.</p>" for _ in range(10))
        (tmp_path / f"{number}.html").write_text(f"<html><body>{''.join(texts)}</body></html>")
    pattern = r"([\d.]+)% of (\d+) endings right; the more frequent form: ([\d.]+)%"
    right, pairs, frequent = figures(pattern, run("basque", tmp_path, tmp_path, MINUTES))
    assert right <= 100 and pairs > 40 and frequent <= 100


@pytest.mark.integrations
@pytest.mark.parametrize("source", ["datasets", ROOT / "docs"], ids=["package", "folder"])
def test_search(source, tmp_path):
    run("search", tmp_path, MINUTES, source)
