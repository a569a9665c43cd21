"""Pseudo-log-likelihoods of sentences by a masked language model (Salazar et al., 2020, section 2.1), which decide
minimal pairs: of two sentences, the model prefers the one with the higher value.

Each token of a sentence is masked in a copy of its own, and the log-probabilities of the masked tokens are added up.
Dimensions: N sentences, K masked tokens in all, U different copies, B copies in a batch, S tokens, V vocabulary.
"""

import inspect
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import (
    BatchEncoding,
    BertForMaskedLM,
    BertForPreTraining,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)


BATCH_TOKENS = 4096  # in a batch of copies: few enough for the caches of a CPU
BATCH_TOKENS_ON_ACCELERATORS = 65_536
BATCH_LOGITS = 2**29  # of models that compute them at all positions: 2 GiB in fp32


def encode_sentences(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], max_length: int | None = None
) -> BatchEncoding:
    """The tokens of N sentences: lists of N lists, with `special_tokens_mask`, 1 at tokens that are not to be masked.

    Raises `ValueError`, which cites the sentence, for one that has no token, or more than `max_length` with the
    special tokens.
    """
    encoded = tokenizer(list(sentences), return_special_tokens_mask=True, return_attention_mask=False, verbose=False)
    for sentence, special in zip(sentences, encoded["special_tokens_mask"], strict=True):
        if all(special):
            raise ValueError(f"The sentence {sentence!r:.80} has no tokens.")
        if max_length is not None and len(special) > max_length:
            raise ValueError(
                f"The sentence {sentence!r:.80} has {len(special)} tokens, but the model takes {max_length} at most."
            )
    return encoded


@torch.inference_mode()
def pseudo_log_likelihoods(
    model: PreTrainedModel, encoded: BatchEncoding, mask_token_id: int, bf16: bool = False, description: str = ""
) -> torch.Tensor:
    """The pseudo-log-likelihood of each sentence, in nats: (N,) float64. `encoded` is what `encode_sentences` returns.

    `model` is any model with an MLM head, in evaluation mode; `bf16` is autocast, `description` the progress bar's. A
    batch has copies of one length, so there is no padding. Copies that several sentences have in common, such as those
    of a pair that differs in one token, are computed once: sentences of the same tokens get exactly the same value.
    """
    lengths = np.array([len(ids) for ids in encoded["input_ids"]])
    total = sum(special.count(0) for special in encoded["special_tokens_mask"])
    sums = torch.zeros(len(lengths), dtype=torch.float64)
    with tqdm(
        total=total, desc=description, unit=" tokens", unit_scale=True, leave=False, disable=None, dynamic_ncols=True
    ) as progress:
        for length in np.unique(lengths)[::-1]:
            sentences = np.flatnonzero(lengths == length)
            arrays = {name: np.array([rows[number] for number in sentences]) for name, rows in encoded.items()}
            for rows, scores in _score_masked_tokens(model, arrays, mask_token_id, bf16):
                sums.index_add_(0, torch.from_numpy(sentences[rows]), scores.cpu().double())
                progress.update(len(rows))
    return sums


def _score_masked_tokens(
    model: PreTrainedModel, arrays: dict[str, np.ndarray], mask_token_id: int, bf16: bool
) -> Iterator[tuple[np.ndarray, torch.Tensor]]:
    """The masked tokens of sentences of one length, given by `arrays` (rows, S), in batches: their rows, and their
    log-probabilities."""
    ids, device = arrays["input_ids"], model.device
    rows, positions = np.nonzero(arrays["special_tokens_mask"] == 0)  # (K,), (K,)
    masked = ids[rows]  # (K, S)
    masked[np.arange(len(rows)), positions] = mask_token_id
    # The position tells copies apart as well, as the text may contain [MASK].
    copies, first, copy_of = np.unique(
        np.column_stack([masked, positions]), axis=0, return_index=True, return_inverse=True
    )  # (U, S + 1), (U,), (K,)
    copy_of = copy_of.reshape(-1)  # NumPy 2.0 gives (K, 1)
    order = np.argsort(copy_of, kind="stable")
    copy_of, targets = copy_of[order], ids[rows, positions][order]
    other_inputs = {
        name: array[rows[first]]
        for name, array in arrays.items()
        if name in inspect.signature(model.forward).parameters and name != "input_ids"
    }  # (U, S)
    tokens = BATCH_TOKENS if device.type == "cpu" else BATCH_TOKENS_ON_ACCELERATORS
    if not _has_bert_head(model):
        tokens = min(tokens, BATCH_LOGITS // model.config.vocab_size)
    size = max(tokens // ids.shape[1], 1)
    for start in range(0, len(copies), size):
        batch, (low, high) = slice(start, start + size), np.searchsorted(copy_of, [start, start + size])
        inputs = {"input_ids": copies[batch, :-1], **{name: array[batch] for name, array in other_inputs.items()}}
        inputs = {name: torch.from_numpy(array).to(device) for name, array in inputs.items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            logits = _masked_logits(model, inputs, torch.from_numpy(copies[batch, -1]).to(device))
        copy, target = (torch.from_numpy(part).to(device) for part in (copy_of[low:high] - start, targets[low:high]))
        yield rows[order[low:high]], logits.float().log_softmax(-1)[copy, target]


def _masked_logits(model: PreTrainedModel, inputs: dict[str, torch.Tensor], positions: torch.Tensor) -> torch.Tensor:
    """The logits (B, V) at one position (B,) of each sequence. The MLM head of BERT and scratch_bert, which may cost
    more than the encoder, is computed there alone."""
    batch = torch.arange(len(positions), device=positions.device)
    if not _has_bert_head(model):
        return model(**inputs).logits[batch, positions]
    return model.cls.predictions(model.base_model(**inputs).last_hidden_state[batch, positions])


def _has_bert_head(model: PreTrainedModel) -> bool:
    return model.config.model_type == "scratch_bert" or isinstance(model, (BertForMaskedLM, BertForPreTraining))
