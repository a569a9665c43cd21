"""Predictions of a pretrained model as text: top-k for masked words, and NSP or SOP."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, zip_longest

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..text import is_word
from .quotation import find_passages


CONTEXT = 8  # tokens to show on each side of a masked word
SENTENCE_ENDS = frozenset(".!?。！？।؟")
_CHINESE_OR_JAPANESE = "[\u3001-\u30ff\u3400-\u9fff\uff01-\uff65]"


@torch.no_grad()
def mlm_predictions(
    model: PreTrainedModel, dataset: Dataset, tokenizer: PreTrainedTokenizerBase, count: int = 4, top_k: int = 3
) -> list[tuple[str, str, list[tuple[str, float]]]]:
    """Top-k predictions for `count` one-token words, masked one at a time: (context, word, tokens with probabilities).

    Examples and a word of each are drawn; with fewer than `count` examples, a second word of each, and so on.
    """
    predictions = []
    for example, position in _draw_words(dataset, tokenizer, count):
        inputs = _inputs(model, example)
        inputs["input_ids"][0, position] = tokenizer.mask_token_id
        context = inputs["input_ids"][0, max(1, position - CONTEXT) : position + CONTEXT + 1].tolist()
        outputs = model(**inputs)
        logits = outputs["prediction_logits" if "prediction_logits" in outputs else "logits"]
        top = logits[0, position].float().softmax(-1).topk(top_k)
        tokens = tokenizer.convert_ids_to_tokens(top.indices.tolist())
        word = tokenizer.convert_ids_to_tokens(int(example["input_ids"][position]))
        predictions.append((as_text(tokenizer, context), word, list(zip(tokens, top.values.tolist(), strict=True))))
    return predictions


@torch.no_grad()
def nsp_predictions(
    model: PreTrainedModel, dataset: Dataset, tokenizer: PreTrainedTokenizerBase, count: int = 4
) -> list[tuple[str, str, bool, float]]:
    """NSP or SOP predictions for `count` drawn examples, half of each label: (end of A, start of B, whether the label
    is 0, predicted probability of 0)."""
    predictions = []
    for example, a, b, label in _draw_pairs(dataset, tokenizer, count):
        logits = model(**_inputs(model, example)).seq_relationship_logits.float()
        predictions.append((as_text(tokenizer, a), as_text(tokenizer, b), label, logits.softmax(-1)[0, 0].item()))
    return predictions


def examples_to_try(
    dataset: Dataset, tokenizer: PreTrainedTokenizerBase, documents: Iterable[list[str]] = ()
) -> dict[str, list]:
    """Pieces of text to try a model on: `texts` with a masked word, their `answers`, and, of an objective with pairs,
    `pairs` (A, B, whether the label is 0). They are quoted from the `documents`, lists of paragraphs, if they are found
    there; otherwise, they are decoded tokens."""
    masked = _draw_sentences(dataset, tokenizer, count=6)
    has_pairs = len(dataset) and "next_sentence_label" in dataset[0]
    pairs = [pair[1:] for pair in _draw_pairs(dataset, tokenizer, count=6)] if has_pairs else []
    passages = [ids for ids, _ in masked] + [ids for a, b, _ in pairs for ids in (a, b)]
    quotations = find_passages(passages, tokenizer, documents)
    texts, answers = [], []
    for (ids, position), quotation in zip(masked, quotations, strict=False):  # the first ones
        if quotation:
            texts.append(quotation.write(position, tokenizer.mask_token))
            answers.append(quotation.token(position))
        else:
            texts.append(_with_mask(tokenizer, ids, position))
            answers.append(as_text(tokenizer, ids[position : position + 1]))
    written = [
        quotation.write() if quotation else as_text(tokenizer, ids)
        for quotation, ids in zip(quotations, passages, strict=True)
    ][len(masked) :]
    labels = [label for *_, label in pairs]
    return {"texts": texts, "answers": answers, "pairs": list(zip(written[::2], written[1::2], labels, strict=True))}


def _with_mask(tokenizer: PreTrainedTokenizerBase, ids: list[int], position: int) -> str:
    """Tokens as text, with one masked."""
    mask = tokenizer.mask_token
    text = as_text(tokenizer, [*ids[:position], tokenizer.mask_token_id, *ids[position + 1 :]])
    continues = tokenizer.convert_ids_to_tokens(ids[position]).startswith("##")
    return text.replace(f" {mask}", mask) if continues else text


def _draw_sentences(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, count: int) -> list[tuple[list[int], int]]:
    """Up to `count` sentences, or pieces of long ones: (token ids, position of a word to mask)."""
    drawn = []
    for example, position in _draw_words(dataset, tokenizer, 20 * count):
        ids = example["input_ids"].tolist()
        tokens = tokenizer.convert_ids_to_tokens(ids)
        ends = [i for i, token in enumerate(tokens) if token in SENTENCE_ENDS or token == tokenizer.sep_token]
        start = max([0, *(end for end in ends if end < position)]) + 1
        start = _start_of_word(tokens, max(start, position - 2 * CONTEXT), position)
        stop = min([len(tokens) - 1, *(end for end in ends if end > position)])
        stop = min(stop + (tokens[stop] in SENTENCE_ENDS), position + 2 * CONTEXT)
        following = [*tokens, ""]  # at `stop`
        stop = next((i for i in range(stop, position + 1, -1) if not following[i].startswith("##")), stop)
        words = [is_word(token.removeprefix("##")) for token in tokens[start:stop]]
        if len(words) > 5 and sum(words) >= 0.8 * len(words):
            drawn.append((ids[start:stop], position - start))
    return drawn[:count]


def as_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int] | np.ndarray) -> str:
    """Tokens as text, without the spaces that BERT's tokenizers put between Chinese and Japanese characters, masked or
    not, around an English apostrophe, around hyphens and dashes of two, and inside parentheses."""
    one, mask = _CHINESE_OR_JAPANESE, re.escape(tokenizer.mask_token)
    text = re.sub(rf"(?<={one}) (?={one}|{mask})|(?<={mask}) (?={one})", "", tokenizer.decode(ids))
    text = re.sub(r"(?<=\w) ?' ?(?=(?:s|t|re|ve|ll|d|m)\b(?! '))", "'", text)
    text = re.sub(r"(?<=\w) (-|- -) (?=\w)", lambda hyphens: hyphens[1].replace(" ", ""), text)
    text = re.sub(r"(?<=\() | (?=\))", "", text)
    return text.strip().removeprefix("##")


def _start_of_word(tokens: list[str], start: int, stop: int) -> int:
    """The first position from `start` on where a word begins; `start` if there is none, as in a long Thai phrase."""
    return next((i for i in range(start, stop) if not tokens[i].startswith("##")), start)


def _draw_words(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, count: int) -> Iterator[tuple[dict, int]]:
    """Draw `count` words that are one token: (example, position of the word in it); or parts of words, from an example
    without such words, as in Thai, where they have no spaces between them."""
    rng, words = np.random.default_rng(0), []
    for index in rng.permutation(len(dataset))[:count].tolist():
        example = dataset[index]
        tokens = tokenizer.convert_ids_to_tokens(example["input_ids"].tolist())
        parts = [i for i in range(1, len(tokens) - 1) if is_word(tokens[i].removeprefix("##"))]
        positions = [i for i in parts if not (tokens[i].startswith("##") or tokens[i + 1].startswith("##"))]
        words.append([(example, int(i)) for i in rng.permutation(positions or parts)])
    rounds = chain.from_iterable(zip_longest(*words))  # None where an example has no more words
    return islice(filter(None, rounds), count)


def _draw_pairs(
    dataset: Dataset, tokenizer: PreTrainedTokenizerBase, count: int
) -> Iterator[tuple[dict, list[int], list[int], bool]]:
    """Draw `count` examples, half of each label: (example, token ids of the end of A and the start of B, whether the
    label is 0)."""
    wanted = {0: count - count // 2, 1: count // 2}
    for index in np.random.default_rng(0).permutation(len(dataset)).tolist():
        if not any(wanted.values()):
            return
        example = dataset[index]
        label = int(example["next_sentence_label"])
        if not wanted.get(label):
            continue
        wanted[label] -= 1
        ids, b_start = example["input_ids"].tolist(), int(np.argmax(example["token_type_ids"]))
        tokens, a_end = tokenizer.convert_ids_to_tokens(ids), b_start - 1
        end_of_a = ids[_start_of_word(tokens, max(1, a_end - 2 * CONTEXT), a_end) : a_end]
        yield example, end_of_a, ids[b_start : min(b_start + 2 * CONTEXT, len(ids) - 1)], label == 0


def _inputs(model: torch.nn.Module, example: dict) -> dict[str, torch.Tensor]:
    names = [name for name in ("input_ids", "token_type_ids", "position_ids", "seq_idx") if name in example]
    return {name: torch.tensor(np.array([example[name]]), dtype=torch.long, device=model.device) for name in names}
