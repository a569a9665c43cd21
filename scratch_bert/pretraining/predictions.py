"""What a pretrained model predicts, as text: top-k predictions for masked words, and NSP or SOP predictions."""

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from ..model.modeling_scratch_bert import ScratchBertForMaskedLM, ScratchBertForPreTraining
from .pairs import OBJECTIVES


CONTEXT = 8  # tokens of text to show on each side of a masked word


@torch.no_grad()
def mlm_predictions(
    model: ScratchBertForPreTraining | ScratchBertForMaskedLM,
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    count: int = 6,
    top_k: int = 3,
    seed: int = 0,
) -> list[tuple[str, str, list[tuple[str, float]]]]:
    """Top-k predictions for a whole word in each of `count` examples: (its context, the word, tokens with probabilities).

    Examples and words are drawn by `seed`.
    """
    rng, predictions = np.random.default_rng(seed), []
    for index in rng.permutation(len(dataset))[:count].tolist():
        example = dataset[index]
        tokens = tokenizer.convert_ids_to_tokens(example["input_ids"].tolist())
        whole_words = [
            i for i in range(1, len(tokens) - 1) if tokens[i].isalpha() and not tokens[i + 1].startswith("##")
        ]
        if not whole_words:
            continue
        masked = int(rng.choice(whole_words))
        inputs = _inputs(model, example)
        input_ids = inputs["input_ids"]  # (1, S)
        input_ids[0, masked] = tokenizer.mask_token_id
        logits = model(**inputs)[0]  # (1, S, V)
        top = logits[0, masked].float().softmax(-1).topk(top_k)
        top_tokens = tokenizer.convert_ids_to_tokens(top.indices.tolist())
        context = input_ids[0, max(1, masked - CONTEXT) : masked + CONTEXT + 1].tolist()
        top_k_predictions = list(zip(top_tokens, top.values.tolist(), strict=True))
        predictions.append((tokenizer.decode(context), tokens[masked], top_k_predictions))
    return predictions


@torch.no_grad()
def nsp_predictions(
    model: ScratchBertForPreTraining, dataset: Dataset, tokenizer: PreTrainedTokenizerBase
) -> list[tuple[str, str, bool, float]]:
    """An example of each label, from the middle on: (end of A, start of B, label is 0, the predicted probability of 0)."""
    predictions = []
    for label in (0, 1):
        examples = (dataset[index] for index in range(len(dataset) // 2, len(dataset)))
        example = next((example for example in examples if example["next_sentence_label"] == label), None)
        if example is None:
            continue
        probability = model(**_inputs(model, example)).seq_relationship_logits.float().softmax(-1)[0, 0].item()
        ids, b_start = example["input_ids"].tolist(), int(np.argmax(example["token_type_ids"]))
        end_of_a = tokenizer.decode(ids[max(1, b_start - 1 - 2 * CONTEXT) : b_start - 1])
        start_of_b = tokenizer.decode(ids[b_start : min(b_start + 2 * CONTEXT, len(ids) - 1)])
        predictions.append((end_of_a, start_of_b, label == 0, probability))
    return predictions


def _inputs(model: torch.nn.Module, example: dict) -> dict[str, torch.Tensor]:
    names = ("input_ids", "token_type_ids")
    return {name: torch.tensor(np.array([example[name]]), dtype=torch.long, device=model.device) for name in names}


def describe_predictions(
    model: ScratchBertForPreTraining | ScratchBertForMaskedLM,
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    sentence_objective: str,
) -> str:
    """Both kinds of predictions as a table for the terminal; puts the model in evaluation mode."""
    model.eval()
    lines = ["MLM on held-out text: the masked word, then the top-3 predictions"]
    for context, word, top_k in mlm_predictions(model, dataset, tokenizer):
        shown = ", ".join(f"{token} {probability:.0%}" for token, probability in top_k)
        lines += [f"  … {context} …", f"      {word:<16} {shown}"]
    if not OBJECTIVES[sentence_objective].has_pairs:
        return "\n".join(lines)
    lines.append(
        f"{sentence_objective.upper()} on held-out text: {OBJECTIVES[sentence_objective].label_0}, yes or no?"
    )
    for end_of_a, start_of_b, yes, probability in nsp_predictions(model, dataset, tokenizer):
        answer = "yes" if yes else "no"
        lines += [f"  A: … {end_of_a}", f"  B: {start_of_b} …", f"      {answer:<16} predicted: {probability:.0%} yes"]
    return "\n".join(lines)
