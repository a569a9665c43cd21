"""The model: files that are copied beside every checkpoint. They import each other by `from .name import …`, which
transformers follows when it copies them, and otherwise only torch, transformers and huggingface_hub."""

from pathlib import Path


CODE_FILES = sorted(Path(__file__).parent.glob("*_scratch_bert.py"))
