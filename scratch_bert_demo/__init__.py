"""A web page to try models on: their answers (model.py), heat maps and CSS (drawing.py), and the page itself
(page.py), the only file that needs Gradio."""
