"""The stories of docs/gallery.md, in seconds instead of minutes, on data of their kinds."""

import random
import re

import pytest

from helpers import ROOT, run_process


MINUTES = "0.05"


def run(name: str, directory, *arguments) -> list[float]:
    """The figures that a story prints; it also draws its picture."""
    result = run_process(ROOT / "examples/gallery" / f"{name}.py", *arguments, cwd=directory, OMP_NUM_THREADS="1")
    assert (directory / f"runs/{name}/story.png").stat().st_size > 5000
    *_, shown = result.stdout.rpartition("\nNext:\n")
    return [float(figure) for figure in re.findall(r"(?<![\w/-])\d+\.?\d*", shown)]


@pytest.mark.slow
def test_domain(tmp_path):
    general, domain, share, paragraphs = run("domain", tmp_path, ROOT / "examples/models/gutenberg-micro", MINUTES)[
        -4:
    ]
    assert 0 < domain < 10 and 0 < general < 10 and 0 <= share <= 100 and paragraphs > 100


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
    assert 0.9 < run("logs", tmp_path, "BGL.log", MINUTES)[0] <= 1


@pytest.mark.slow
def test_proteins(tmp_path):
    draw = random.Random(0)
    records = (f">P{number}\n{''.join(draw.choices('ACDEFGHIKLMNPQRSTVWY', k=80))}\n" for number in range(120))
    (tmp_path / "proteins.fasta").write_text("".join(records))
    assert 0 <= run("proteins", tmp_path, "proteins.fasta", MINUTES)[0] <= 1


@pytest.mark.slow
def test_basque(tmp_path):
    stems = ("fitxategi", "dokumentu", "irekitze", "gordetze")
    words = [stem + ending for stem in stems for ending in ("a", "ak", "an", "ko")]
    draw = random.Random(0)
    for number in range(60):
        texts = (f"<p class='x'>{' '.join(draw.choices(words, k=8))}.</p>" for _ in range(10))
        (tmp_path / f"{number}.html").write_text(f"<html><body>{''.join(texts)}</body></html>")
    share, pairs, frequent = run("basque", tmp_path, tmp_path, MINUTES)[:3]
    assert 0 <= share <= 100 and pairs > 40 and 0 <= frequent <= 100


@pytest.mark.integrations
def test_search(tmp_path):
    run("search", tmp_path, MINUTES, "datasets")
