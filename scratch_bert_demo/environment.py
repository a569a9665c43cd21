"""Gradio, imported without its environment variables, which could open this machine's files, or the page to the
network. The page's modules import it from here, and the options of their requests."""

import os
from collections.abc import Generator
from contextlib import contextmanager


SERVER_NAME = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")  # where a Space serves
for name in [name for name in os.environ if name.startswith("GRADIO_")]:
    del os.environ[name]
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"


@contextmanager
def without_proxies() -> Generator[None]:
    """For Gradio's requests to its own server: it fails for a proxy that its client can't use, though it needs none."""
    proxies = {name: os.environ.pop(name) for name in list(os.environ) if name.lower().endswith("_proxy")}
    try:
        yield
    finally:
        os.environ |= proxies


with without_proxies():
    import gradio as gr


LIMIT = {"concurrency_limit": 1, "concurrency_id": "models"}  # one at a time, so that the last question's answer stays
SILENT = {"show_progress": "hidden", "api_visibility": "private"}
__all__ = ["LIMIT", "SERVER_NAME", "SILENT", "gr", "without_proxies"]
