"""The model: the three files that are copied beside every checkpoint. They import each other by `from .name import …` alone,
the form that transformers follows when it copies them."""
