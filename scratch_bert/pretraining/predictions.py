"""What a pretrained model has learnt, as text: its guesses for masked words and its next-sentence judgements."""

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from ..model.modeling_scratch_bert import ScratchBertForMaskedLM, ScratchBertForPreTraining


CONTEXT = 8  # words of text to show on each side of a masked one


@torch.no_grad()
def masked_word_guesses(
    model: ScratchBertForPreTraining | ScratchBertForMaskedLM,
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    count: int = 6,
    top_k: int = 3,
    seed: int = 0,
) -> list[tuple[str, str, list[tuple[str, float]]]]:
    """Whole words of `count` rows, masked one at a time: (text around it, the word, its `top_k` guesses with their
    probabilities). Rows and words are drawn by `seed`."""
    rng, guesses = np.random.default_rng(seed), []
    for index in rng.permutation(len(dataset))[:count].tolist():
        row = dataset[index]
        tokens = tokenizer.convert_ids_to_tokens(row["input_ids"].tolist())
        whole_words = [
            i for i in range(1, len(tokens) - 1) if tokens[i].isalpha() and not tokens[i + 1].startswith("##")
        ]
        if not whole_words:
            continue
        masked = int(rng.choice(whole_words))
        inputs = _inputs(model, row)
        input_ids = inputs["input_ids"]  # (1, S)
        input_ids[0, masked] = tokenizer.mask_token_id
        logits = model(**inputs)[0]  # (1, S, V)
        top = logits[0, masked].float().softmax(-1).topk(top_k)
        words = tokenizer.convert_ids_to_tokens(top.indices.tolist())
        ids = input_ids[0].tolist()
        around = ids[max(1, masked - CONTEXT) : masked + CONTEXT + 1]
        guesses.append((tokenizer.decode(around), tokens[masked], list(zip(words, top.values.tolist(), strict=True))))
    return guesses


@torch.no_grad()
def next_sentence_judgements(
    model: ScratchBertForPreTraining, dataset: Dataset, tokenizer: PreTrainedTokenizerBase
) -> list[tuple[str, str, bool, float]]:
    """A row of each label, from the middle on: (A's end, B's begin, label is 0, the model's probability of that)."""
    judgements = []
    for label in (0, 1):
        rows = (dataset[index] for index in range(len(dataset) // 2, len(dataset)))
        row = next((row for row in rows if row["next_sentence_label"] == label), None)
        if row is None:
            continue
        probability = model(**_inputs(model, row)).seq_relationship_logits.float().softmax(-1)[0, 0].item()
        ids, b_start = row["input_ids"].tolist(), int(np.argmax(row["token_type_ids"]))
        end_of_a = tokenizer.decode(ids[max(1, b_start - 1 - 2 * CONTEXT) : b_start - 1])
        start_of_b = tokenizer.decode(ids[b_start : min(b_start + 2 * CONTEXT, len(ids) - 1)])
        judgements.append((end_of_a, start_of_b, label == 0, probability))
    return judgements


def _inputs(model: torch.nn.Module, row: dict) -> dict[str, torch.Tensor]:
    names = ("input_ids", "token_type_ids")
    return {name: torch.tensor(np.array([row[name]]), dtype=torch.long, device=model.device) for name in names}


def describe_predictions(
    model: ScratchBertForPreTraining | ScratchBertForMaskedLM,
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    sentence_objective: str,
) -> str:
    """Both kinds of predictions as a table for the terminal; puts the model in evaluation mode."""
    model.eval()
    lines = ["Masked words of held-out text: the word, then the model's guesses"]
    for text, word, guesses in masked_word_guesses(model, dataset, tokenizer):
        shown = ", ".join(f"{guess} {probability:.0%}" for guess, probability in guesses)
        lines += [f"  … {text} …", f"      {word:<16} {shown}"]
    if sentence_objective == "none":
        return "\n".join(lines)
    lines.append("Does B follow A?" if sentence_objective == "nsp" else "Are A and B in order?")
    for end_of_a, start_of_b, yes, probability in next_sentence_judgements(model, dataset, tokenizer):
        answer = "yes" if yes else "no"
        lines += [f"  A: … {end_of_a}", f"  B: {start_of_b} …", f"      {answer:<16} the model: {probability:.0%} yes"]
    return "\n".join(lines)
