"""Gradio, imported without those of its environment variables that could open files of this machine, or the page to
the network. The page's modules import it from here."""

import os
from collections.abc import Generator
from contextlib import contextmanager


SERVER_NAME = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")  # where a Space serves
# Most are read when Gradio is imported.
for name in [name for name in os.environ if name.startswith("GRADIO_")]:
    del os.environ[name]
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"


@contextmanager
def without_proxies() -> Generator[None]:
    """For Gradio's own requests, which are to its server on this machine: a proxy that its client can't use is an
    error even so."""
    proxies = {name: os.environ.pop(name) for name in list(os.environ) if name.lower().endswith("_proxy")}
    try:
        yield
    finally:
        os.environ |= proxies


with without_proxies():
    import gradio as gr


__all__ = ["SERVER_NAME", "gr", "without_proxies"]
