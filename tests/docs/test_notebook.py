"""notebooks/tour.ipynb: it is notebooks/tour.py with outputs, and runs."""

import json
import re

import pytest

from helpers import ROOT


SCRIPT, NOTEBOOK = ROOT / "notebooks/tour.py", ROOT / "notebooks/tour.ipynb"


def test_notebook_is_that_of_the_script():
    jupytext = pytest.importorskip("jupytext")
    cells, expected = (
        [(cell.cell_type, cell.source.strip("\n")) for cell in jupytext.read(file).cells]
        for file in (NOTEBOOK, SCRIPT)
    )
    assert cells == expected


def test_outputs_are_kept_small_and_without_errors_or_paths():
    text = NOTEBOOK.read_text(encoding="utf-8")
    outputs = [output for cell in json.loads(text)["cells"] for output in cell.get("outputs", [])]
    assert len(text) < 300_000
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert not re.search(r"/tmp/|/root/|/home/", text) and '"execution"' not in text  # paths, times


@pytest.mark.slow
def test_notebook_runs(monkeypatch, tmp_path):
    """With fewer steps of training, from any directory, without a display; it leaves nothing there."""
    import jupytext
    from nbclient import NotebookClient

    for name, value in (("TOUR_STEPS", "30"), ("DISPLAY", ""), ("PYTHONPATH", str(ROOT))):
        monkeypatch.setenv(name, value)
    notebook = jupytext.read(NOTEBOOK)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    text = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert re.search(r"MLM loss +\d\.\d+ +6\.\d+", text)
    assert text.count("accuracy 0.") + text.count("accuracy 1.") == 2
    assert "ScratchBertModel (1, 7, 128)" in text and "Traceback" not in text
    assert not list(tmp_path.iterdir())
