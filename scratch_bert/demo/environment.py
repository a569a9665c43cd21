"""Gradio, imported without those of its environment variables that could open files of this machine, or the page to the
network. The page's modules import it from here."""

import os


SERVER_NAME = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")  # where a Space serves
# Most are read when Gradio is imported.
for name in [name for name in os.environ if name.startswith("GRADIO_")]:
    del os.environ[name]
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr


__all__ = ["SERVER_NAME", "gr"]
