"""A web page to try models on: what they answer (answers.py), how that is drawn (drawing.py), and the page itself (page.py),
the only file that needs Gradio."""
