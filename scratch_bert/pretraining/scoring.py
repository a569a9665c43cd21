"""How typical each text is for a masked language model: its pseudo-log-likelihood (Salazar et al., 2020), and the
tokens that the model expects least. For logs, typing errors, texts in another language."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .minimal_pairs import encode_windows, token_log_probabilities


FAST_COPIES = 8


def score_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str | None],
    *,
    fast: bool = False,
    surprising: int = 3,
    bf16: bool = False,
) -> list[dict[str, Any]]:
    """The scores of each text. `model` is any model with an MLM head, in evaluation mode.

    Args:
        fast: Mask an eighth of a text's tokens at a time, in 8 copies, instead of each token in a separate copy.
        surprising: The number of least probable tokens to list.
        bf16: Autocast to bf16.

    Returns:
        For each text, `log_likelihood` (nats), `tokens`, `characters`, `windows` (of the model's length, into which
        the text is cut), `per_token` and `per_character` (`log_likelihood` divided by the number), and `surprising`:
        the tokens of lowest log-probability, lowest first, with `start`, `end` (in characters), `text` and
        `log_probability`. A text without tokens has `None` for values.
    """
    encoded, text_of, offsets = encode_windows(model, tokenizer, texts)
    found: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
    copies, title = FAST_COPIES if fast else None, f"Scoring {len(texts):,} texts"
    batches = token_log_probabilities(model, encoded, tokenizer.mask_token_id, copies, bf16, title)
    for rows, positions, values in batches:
        for row, position, value in zip(rows.tolist(), positions.tolist(), values.tolist(), strict=True):
            found[text_of[row]].append((value, row, position))
    return [_summarize(text or "", sorted(found[number]), offsets, surprising) for number, text in enumerate(texts)]


def _summarize(
    text: str, tokens: list[tuple[float, int, int]], offsets: list[list[tuple[int, int]]], surprising: int
) -> dict[str, Any]:
    """The scores of a text, whose tokens are given as log-probability, window and position, lowest first."""
    total = sum(value for value, _, _ in tokens) if tokens else None
    lowest = []
    for value, window, position in tokens[:surprising]:
        start, end = offsets[window][position]
        lowest.append({"start": start, "end": end, "text": text[start:end], "log_probability": value})
    return {
        "log_likelihood": total,
        "tokens": len(tokens),
        "characters": len(text),
        "windows": len({window for _, window, _ in tokens}),
        "per_token": None if total is None else total / len(tokens),
        "per_character": None if total is None else total / len(text),
        "surprising": lowest,
    }
