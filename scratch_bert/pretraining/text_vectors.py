"""Vectors of texts: the mean of a model's last hidden states over a text's tokens."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .minimal_pairs import BATCH_TOKENS, BATCH_TOKENS_ON_ACCELERATORS, encode_windows


@torch.inference_mode()
def encode_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str | None],
    *,
    normalize: bool = False,
    bf16: bool = False,
) -> np.ndarray:
    """The vectors of N texts, (N, H) float32: means over all tokens but special ones, of all windows of the model's
    length into which a text is cut. A text without tokens has zeros.

    `model` is any encoder, with a head or without, in evaluation mode; `normalize` gives vectors the length 1; `bf16`
    is autocast. A batch has windows of one length, so there is no padding.
    """
    encoded, text_of, _ = encode_windows(model, tokenizer, texts)
    device, encoder = model.device, model.base_model
    budget = BATCH_TOKENS if device.type == "cpu" else BATCH_TOKENS_ON_ACCELERATORS
    lengths = np.array([len(ids) for ids in encoded["input_ids"]])
    sums = torch.zeros(len(texts), model.config.hidden_size)
    counts = torch.zeros(len(texts), 1)
    for length in np.unique(lengths):
        windows = np.flatnonzero(lengths == length)
        size = max(budget // length, 1)
        for batch in np.split(windows, range(size, len(windows), size)):
            inputs = {
                name: torch.tensor([rows[window] for window in batch]) for name, rows in encoded.items()
            }  # (B, S)
            special = inputs.pop("special_tokens_mask")
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                inputs = {name: ids.to(device) for name, ids in inputs.items()}
                states = encoder(**inputs).last_hidden_state.float()  # (B, S, H)
            kept = 1.0 - special.unsqueeze(-1)  # (B, S, 1)
            rows = torch.tensor([text_of[window] for window in batch])
            sums.index_add_(0, rows, (states * kept.to(device)).sum(1).cpu())
            counts.index_add_(0, rows, kept.sum(1))
    vectors = sums / counts.clamp(min=1)
    return (torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors).numpy()
