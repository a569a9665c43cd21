"""The model: three files that are copied beside every checkpoint. They import each other by `from .name import …`,
which transformers follows when it copies them, and otherwise only torch, transformers and huggingface_hub."""
