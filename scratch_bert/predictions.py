"""What a pretrained model has learnt, as text: its guesses for masked words and its next-sentence judgements."""

import numpy as np
import torch

from .modeling_scratch_bert import ScratchBertForPreTraining
from .pairs import SentencePairDataset


CONTEXT = 8  # words of text to show on each side of a masked one


@torch.no_grad()
def masked_word_guesses(
    model: ScratchBertForPreTraining, dataset: SentencePairDataset, count: int = 6, top_k: int = 3, seed: int = 0
) -> list[tuple[str, str, list[tuple[str, float]]]]:
    """Whole words of `count` rows, masked one at a time: (text around it, the word, its `top_k` guesses with their
    probabilities). Rows and words are drawn by `seed`."""
    rng, tokenizer, guesses = np.random.default_rng(seed), dataset.tokenizer, []
    for index in rng.permutation(len(dataset))[:count].tolist():
        row = dataset[index]
        tokens = tokenizer.convert_ids_to_tokens(row["input_ids"])
        whole_words = [
            i for i in range(1, len(tokens) - 1) if tokens[i].isalpha() and not tokens[i + 1].startswith("##")
        ]
        if not whole_words:
            continue
        masked = int(rng.choice(whole_words))
        input_ids = torch.tensor([row["input_ids"]], device=model.device)  # (1, S)
        input_ids[0, masked] = tokenizer.mask_token_id
        logits = model(input_ids, token_type_ids=torch.tensor([row["token_type_ids"]], device=model.device))[0]
        top = logits[0, masked].float().softmax(-1).topk(top_k)
        words = tokenizer.convert_ids_to_tokens(top.indices.tolist())
        ids = input_ids[0].tolist()
        around = ids[max(1, masked - CONTEXT) : masked + CONTEXT + 1]
        guesses.append((tokenizer.decode(around), tokens[masked], list(zip(words, top.values.tolist(), strict=True))))
    return guesses


@torch.no_grad()
def next_sentence_judgements(
    model: ScratchBertForPreTraining, dataset: SentencePairDataset
) -> list[tuple[str, str, bool, float]]:
    """One true continuation and one random pair: (A's end, B's begin, B follows A, the model's probability of it)."""
    judgements, corpus = [], dataset.corpus
    for label in (0, 1):
        matching = np.flatnonzero(dataset.pairs[:, 4] == label)
        if len(matching) == 0:
            continue
        index = int(matching[len(matching) // 2])
        a_start, a_end, b_start, b_end, _ = dataset.pairs[index].tolist()
        row = dataset[index]
        inputs = {key: torch.tensor([row[key]], device=model.device) for key in ("input_ids", "token_type_ids")}
        follows = model(**inputs).seq_relationship_logits.float().softmax(-1)[0, 0].item()
        end_of_a = dataset.tokenizer.decode(corpus.tokens[max(a_start, a_end - 2 * CONTEXT) : a_end].tolist())
        start_of_b = dataset.tokenizer.decode(corpus.tokens[b_start : min(b_end, b_start + 2 * CONTEXT)].tolist())
        judgements.append((end_of_a, start_of_b, label == 0, follows))
    return judgements


def describe_predictions(model: ScratchBertForPreTraining, dataset: SentencePairDataset) -> str:
    """Both kinds of predictions as a table for the terminal; puts the model in evaluation mode."""
    model.eval()
    lines = ["Masked words of held-out text: the word, then the model's guesses"]
    for text, word, guesses in masked_word_guesses(model, dataset):
        shown = ", ".join(f"{guess} {probability:.0%}" for guess, probability in guesses)
        lines += [f"  … {text} …", f"      {word:<16} {shown}"]
    lines.append("Does B follow A?")
    for end_of_a, start_of_b, follows, probability in next_sentence_judgements(model, dataset):
        answer = "yes" if follows else "no"
        lines += [f"  A: … {end_of_a}", f"  B: {start_of_b} …", f"      {answer:<16} the model: {probability:.0%} yes"]
    return "\n".join(lines)
