"""scripts/demo.py where Gradio is not installed. With Gradio: tests/demo/test_page.py."""

import sys

import pytest

from helpers import run_script


def test_missing_gradio_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "scratch_bert_demo.page", raising=False)
    monkeypatch.delitem(sys.modules, "scratch_bert_demo.environment", raising=False)
    with pytest.raises(SystemExit, match=r"^error: .*gradio.* -m pip install gradio$"):
        run_script(monkeypatch, "demo.py", tmp_path)
