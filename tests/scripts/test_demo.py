"""scripts/demo.py where Gradio is not installed. With Gradio: tests/demo/test_page.py."""

import os
import subprocess
import sys

import pytest

from helpers import SCRIPTS, run_script


def test_missing_gradio_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "scratch_bert_demo.page", raising=False)
    monkeypatch.delitem(sys.modules, "scratch_bert_demo.environment", raising=False)
    with pytest.raises(SystemExit, match=r"^error: .*gradio.* -m pip install gradio$"):
        run_script(monkeypatch, "demo.py", tmp_path)


def test_make_demo_shows_the_runs_or_the_model_that_comes_with_the_project(tmp_path):
    make = f"make -n --no-print-directory -C {tmp_path} -f {SCRIPTS.parent}/Makefile -o .venv/installed demo".split()
    clean = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "ARGS", "RUNS")}

    def shown():
        output = subprocess.run(make, check=True, capture_output=True, text=True, env=clean).stdout
        return output.splitlines()[-1].split()[2:]

    assert shown() == ["examples/models/gutenberg-micro"]
    for path in ("ended/config.json", "begun/snapshots/0/config.json", "begun/config.json", "other/notes.txt"):
        (tmp_path / "runs" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / path).touch()
    assert shown() == ["runs/begun", "runs/ended"]
