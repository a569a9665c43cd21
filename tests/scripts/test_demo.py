"""scripts/demo.py where Gradio is not installed, and its options. With Gradio: tests/demo/test_page.py."""

import socket
import sys

import pytest

from helpers import run_script


def test_missing_gradio_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "scratch_bert_demo.page", raising=False)
    monkeypatch.delitem(sys.modules, "scratch_bert_demo.environment", raising=False)
    with pytest.raises(SystemExit, match=r"^error: .*gradio.* pip install 'scratch_bert\[demo\]'$"):
        run_script(monkeypatch, "demo.py", tmp_path)


@pytest.mark.parametrize("port", ["0", "7860x", "used"])
def test_port_that_cannot_be_served_on_is_refused_before_the_models_are_opened(port, monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        used = str(server.getsockname()[1])
        with pytest.raises(SystemExit):
            run_script(monkeypatch, "demo.py", "nowhere", f"--port={port.replace('used', used)}")
    why = f"{used} cannot be used (Address already in use)" if port == "used" else "a port is a number from 1 to 65535"
    assert f"error: argument --port: {why}" in capsys.readouterr().err
