"""Pseudo-log-likelihoods of sentences by a masked language model (Salazar et al., 2020, section 2.1), which decide
minimal pairs: of two sentences, the model prefers the one with the higher value.

Each token of a sentence is masked in a separate copy, and the log-probabilities of the masked tokens are added up.
Dimensions: N sentences, K masked tokens in all, C copies, U different ones, M predictions in a batch, S tokens,
V vocabulary.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from transformers import (
    BatchEncoding,
    BertForMaskedLM,
    BertForPreTraining,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..logs import progress_bar


BATCH_TOKENS = 4096  # in a batch of copies: few enough for the caches of a CPU
BATCH_TOKENS_ON_ACCELERATORS = 65_536
COPIED_TOKENS = 2**23  # of the sentences whose copies are made at a time: bounds the memory
BATCH_LOGITS = 2**29  # of models that compute them at all positions: 2 GiB in fp32


def encode_sentences(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], max_length: int | None = None
) -> BatchEncoding:
    """The tokens of N sentences: lists of N lists, with `special_tokens_mask`, 1 at tokens that are not to be masked.

    Raises `ValueError`, which cites the sentence, for one that has no token, or more than `max_length` with the
    special tokens.
    """
    sentences = list(sentences)
    encoded = tokenizer(sentences, return_special_tokens_mask=True, return_attention_mask=False, verbose=False)
    for sentence, special in zip(sentences, encoded["special_tokens_mask"], strict=True):
        if all(special):
            raise ValueError(f"The sentence {sentence!r:.80} has no tokens.")
        if max_length is not None and len(special) > max_length:
            raise ValueError(
                f"The sentence {sentence!r:.80} has {len(special)} tokens, but the model takes {max_length} at most."
            )
    return encoded


def encode_windows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str | None]
) -> tuple[dict[str, list[list[int]]], list[int], list[list[tuple[int, int]]]]:
    """The tokens of texts of any length, as from `encode_sentences`, in windows that the model takes; the number of
    each window's text; and the start and end in the text of each window's tokens, in characters.

    Raises `ValueError` for one text in place of several, and for a model in training mode, whose dropout is random.
    """
    if (
        isinstance(texts, str | Mapping)
        or not hasattr(texts, "__len__")
        or not all(isinstance(text, str | None) for text in texts)
        or hasattr(texts, "columns")
    ):
        raise ValueError(f"A list of texts is needed, not {type(texts).__name__} {texts!r:.60}.")
    if model.training:
        raise ValueError("The model is in training mode: call model.eval() first.")
    if not len(texts):
        return {"input_ids": [], "special_tokens_mask": []}, [], []
    encoded = tokenizer(
        [text or "" for text in texts],
        truncation=True,
        max_length=min(model.config.max_position_embeddings, tokenizer.model_max_length),
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        return_attention_mask=False,
        verbose=False,
    )
    text_of, offsets = (encoded.pop(name) for name in ("overflow_to_sample_mapping", "offset_mapping"))
    return dict(encoded), text_of, offsets


@torch.inference_mode()
def pseudo_log_likelihoods(
    model: PreTrainedModel,
    encoded: BatchEncoding,
    mask_token_id: int,
    bf16: bool = False,
    description: str = "Scoring",
) -> torch.Tensor:
    """The pseudo-log-likelihood of each sentence, in nats: (N,) float64. `encoded` is what `encode_sentences` returns.

    `model` is any model with an MLM head, in evaluation mode; `bf16` is autocast, `description` the progress bar's. A
    batch has copies of one length, so there is no padding. Copies that several sentences have in common, such as those
    of a pair that differs in one token, are computed once: sentences of the same tokens get exactly the same value.
    """
    sums = torch.zeros(len(encoded["input_ids"]), dtype=torch.float64)
    for rows, _, scores in token_log_probabilities(model, encoded, mask_token_id, bf16=bf16, description=description):
        sums.index_add_(0, torch.from_numpy(rows), scores.double())
    return sums


@torch.inference_mode()
def token_log_probabilities(
    model: PreTrainedModel,
    encoded: Mapping[str, list[list[int]]],
    mask_token_id: int,
    copies: int | None = None,
    bf16: bool = False,
    description: str = "Scoring",
) -> Iterator[tuple[np.ndarray, np.ndarray, torch.Tensor]]:
    """The log-probabilities of all tokens that are not special, each where it is masked, in batches: the numbers of
    their sentences, their positions, and the values, in nats.

    A sentence has a copy for each of its tokens; or this number of `copies`, of which copy c masks the tokens c,
    c + copies, c + 2 · copies, … at once. The other arguments are those of `pseudo_log_likelihoods`.
    """
    lengths = np.array([len(ids) for ids in encoded["input_ids"]])
    total = sum(special.count(0) for special in encoded["special_tokens_mask"])
    with progress_bar(description, "tokens", total) as advance:
        for length in np.unique(lengths)[::-1]:
            sentences = np.flatnonzero(lengths == length)
            size = 2 * max(COPIED_TOKENS // length**2, 1)  # even: both sentences of a pair
            for part in np.split(sentences, range(size, len(sentences), size)):
                arrays = {name: np.array([rows[number] for number in part]) for name, rows in encoded.items()}
                for rows, positions, scores in _score_masked_tokens(model, arrays, mask_token_id, copies, bf16):
                    yield part[rows], positions, scores.cpu()
                    advance(len(rows))


def _score_masked_tokens(
    model: PreTrainedModel, arrays: dict[str, np.ndarray], mask_token_id: int, copies: int | None, bf16: bool
) -> Iterator[tuple[np.ndarray, np.ndarray, torch.Tensor]]:
    """The masked tokens of sentences of one length, given by `arrays` (rows, S), in batches: their rows, positions,
    and log-probabilities."""
    ids, device = arrays["input_ids"], model.device
    rows, positions = np.nonzero(arrays["special_tokens_mask"] == 0)  # (K,), (K,)
    # The plan: a copy for each row and block, and the tokens that it masks. Without `copies`, each token is a block.
    block = positions
    if copies is not None:
        block = (np.cumsum(arrays["special_tokens_mask"] == 0, axis=1) - 1)[rows, positions] % copies
    plan, copy_of = np.unique(np.column_stack([rows, block]), axis=0, return_inverse=True)  # (C, 2), (K,)
    copy_of = copy_of.reshape(-1)  # NumPy 2.0 gives (K, 1)
    masked = ids[plan[:, 0]]  # (C, S)
    masked[copy_of, positions] = mask_token_id
    # The block also tells copies apart, as the text may contain [MASK].
    different, first, number = np.unique(
        np.column_stack([masked, plan[:, 1]]), axis=0, return_index=True, return_inverse=True
    )  # (U, S + 1), (U,), (C,)
    copy_of = number.reshape(-1)[copy_of]
    order = np.argsort(copy_of, kind="stable")
    rows, positions, copy_of = rows[order], positions[order], copy_of[order]
    is_masked = np.zeros((len(different), ids.shape[1]), dtype=bool)  # (U, S)
    is_masked[copy_of, positions] = True
    other_inputs = {
        name: array[plan[first, 0]]
        for name, array in arrays.items()
        if name in inspect.signature(model.forward).parameters and name != "input_ids"
    }  # (U, S)
    tokens = BATCH_TOKENS if device.type == "cpu" else BATCH_TOKENS_ON_ACCELERATORS
    if not _has_bert_head(model):
        tokens = min(tokens, BATCH_LOGITS // model.config.vocab_size)
    size = max(tokens // ids.shape[1], 1)
    for start in range(0, len(different), size):
        batch = slice(start, start + size)
        of_batch = slice(*np.searchsorted(copy_of, [start, start + size]))
        inputs = {"input_ids": different[batch, :-1], **{name: array[batch] for name, array in other_inputs.items()}}
        inputs = {name: torch.from_numpy(array).to(device) for name, array in inputs.items()}
        predicted = np.nonzero(is_masked[batch])  # (M,), (M,)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            logits = _masked_logits(model, inputs, *(torch.from_numpy(part).to(device) for part in predicted))
        index = np.zeros(is_masked[batch].shape, dtype=int)
        index[predicted] = np.arange(len(predicted[0]))
        index = index[copy_of[of_batch] - start, positions[of_batch]]
        targets = ids[rows[of_batch], positions[of_batch]]
        index, targets = (torch.from_numpy(part).to(device) for part in (index, targets))
        yield rows[of_batch], positions[of_batch], logits.float().log_softmax(-1)[index, targets]


def _masked_logits(
    model: PreTrainedModel, inputs: dict[str, torch.Tensor], copies: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """The logits (M, V) at M positions of the copies. The MLM head of BERT and scratch_bert, which may cost more than
    the encoder, is computed there alone."""
    if not _has_bert_head(model):
        return model(**inputs).logits[copies, positions]
    return model.cls.predictions(model.base_model(**inputs).last_hidden_state[copies, positions])


def _has_bert_head(model: PreTrainedModel) -> bool:
    return model.config.model_type == "scratch_bert" or isinstance(model, (BertForMaskedLM, BertForPreTraining))
