"""The model: the three files that are copied beside every checkpoint. They import each other as `from .name import …`,
the form that transformers follows when it copies them, and otherwise torch, transformers and huggingface_hub alone."""
