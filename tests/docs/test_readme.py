"""README.md is short, fits a terminal, and its snippet runs as it stands."""

import re

import pytest

from helpers import ROOT, run_process


README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_readme_is_short_and_narrow():
    assert len(README.split()) <= 900
    lines = [line for line in README.splitlines() if not line.startswith(("|", "![")) and "](" not in line]
    assert max(map(len, lines)) <= 80


@pytest.mark.slow
def test_snippet_with_the_stock_trainer_runs_as_it_stands(documents, tmp_path):
    training = next(snippet for snippet in SNIPPETS if "Trainer(" in snippet)
    for number, name in enumerate(("a.txt", "b.txt", "c.txt")):
        text = " ".join(sentence for document in documents[number::3][:1] for sentence in document)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "snippet.py").write_text(training, encoding="utf-8")
    shown = run_process(tmp_path / "snippet.py", cwd=tmp_path, OMP_NUM_THREADS="1").stdout
    assert float(re.search(r"'train_loss': '?([\d.]+)", shown)[1]) > 0
