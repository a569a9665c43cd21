"""The scripts in examples/, as a reader runs them: as they stand, from another directory."""

import re

import pytest

from helpers import ROOT, run_process


def run(name: str, directory) -> str:
    """The output of an example that writes to `directory`, and nowhere else."""
    elsewhere = directory / "elsewhere"
    elsewhere.mkdir()
    result = run_process(ROOT / "examples" / name, directory / "run", cwd=elsewhere, OMP_NUM_THREADS="1")
    assert not list(elsewhere.iterdir())
    warnings = [line for line in result.stderr.splitlines() if "Warning" in line]
    assert all("pin_memory" in line for line in warnings), warnings  # which stock_trainer.py explains
    return result.stdout


def figures(pattern: str, shown: str) -> list[float]:
    return [float(figure) for figure in re.findall(pattern, shown, flags=re.MULTILINE)]


@pytest.mark.slow
def test_stock_trainer(tmp_path):
    before, after = figures(r"([\d.]+) (?:before|after)", run("stock_trainer.py", tmp_path))
    assert after < before - 1
    assert (tmp_path / "run/model.safetensors").is_file()


@pytest.mark.slow
def test_dataframe(tmp_path):
    shown = run("dataframe.py", tmp_path)
    loss, unigrams = figures(r"(?:text|unigrams): ([\d.]+)", shown)
    assert loss < unigrams - 0.3
    probabilities = figures(r"^  \S+ +(\d+)%$", shown)
    assert len(probabilities) == 5 and probabilities == sorted(probabilities, reverse=True)


@pytest.mark.slow
def test_own_objective(tmp_path):
    accuracy, majority = figures(r"^boundary_\w*accuracy +([\d.]+)$", run("own_objective.py", tmp_path))
    assert accuracy > majority + 0.05


@pytest.mark.slow
def test_own_objective_contrastive(tmp_path):
    shown = run("own_objective_contrastive.py", tmp_path)
    accuracy, chance = figures(r"^contrastive_\w*accuracy +([\d.]+)$", shown)
    assert accuracy > 3 * chance


@pytest.mark.slow
def test_accelerate_loop(tmp_path):
    losses = figures(r"MLM loss ([\d.]+)", run("accelerate_loop.py", tmp_path))
    assert len(losses) == 6 and losses[-1] < losses[0] - 0.5
    assert (tmp_path / "run/tokenizer.json").is_file()


@pytest.mark.integrations
def test_sentence_embeddings(tmp_path):
    """Without an argument, it pretrains a model first."""
    script = ROOT / "examples/sentence_embeddings.py"
    shown = run_process(script, cwd=tmp_path, TMPDIR=str(tmp_path), OMP_NUM_THREADS="1").stdout
    first, _, third, _ = (figures(r"\d\.\d\d", line) for line in shown.splitlines()[-4:])
    assert first[1] > max(first[2:]) and third[3] > max(third[:2])  # two sentences on lists, two on files
