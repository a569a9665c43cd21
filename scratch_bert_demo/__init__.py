"""A web page to try models on: their answers (model.py), HTML (drawing.py), and the page itself (page.py),
which imports Gradio by environment.py."""
