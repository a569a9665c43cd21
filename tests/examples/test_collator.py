import numpy as np
import pytest
import torch
from transformers import DataCollatorForLanguageModeling

from helpers import as_lists
from scratch_bert.examples.collator import PretrainingCollator


def test_mlm_masking_statistics_over_the_builtin_corpus(pairs, tokenizer):
    """Paper, section 3.1: 15% of the tokens are predicted; 80% of these are [MASK], 10% random, 10% unchanged."""
    collator = PretrainingCollator(tokenizer)
    special = torch.tensor(tokenizer.all_special_ids)
    maskable = masked = replaced = kept = 0
    for epoch in range(3):
        pairs.set_epoch(epoch)
        for start in range(0, len(pairs), 32):
            examples = [pairs[i] for i in range(start, min(start + 32, len(pairs)))]
            batch = collator(examples)
            original = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
            assert original[0, : len(examples[0]["input_ids"])].tolist() == examples[0]["input_ids"].tolist()
            chosen = batch["labels"] != -100
            assert not torch.isin(batch["labels"][chosen], special).any()
            inputs = batch["input_ids"][chosen]
            # A random replacement is never a special token.
            assert not (torch.isin(inputs, special) & (inputs != tokenizer.mask_token_id)).any()
            maskable += (~torch.isin(original, special)).sum().item()
            masked += chosen.sum().item()
            replaced += (inputs == tokenizer.mask_token_id).sum().item()
            kept += (inputs == batch["labels"][chosen]).sum().item()
            assert (batch["attention_mask"] == (original != tokenizer.pad_token_id)).all()
    assert masked / maskable == pytest.approx(0.15, abs=0.01)
    assert replaced / masked == pytest.approx(0.8, abs=0.02)
    assert kept / masked == pytest.approx(0.1, abs=0.02)
    assert (masked - replaced - kept) / masked == pytest.approx(0.1, abs=0.02)


def test_mlm_random_replacements_reach_all_ordinary_tokens_and_no_special_one(tokenizer):
    collator = PretrainingCollator(tokenizer, mlm_probability=1.0, mask_replace_prob=0.0, random_replace_prob=1.0)
    word = tokenizer.convert_tokens_to_ids("the")
    ids = torch.full((400, 128), word)
    inputs, labels = collator.torch_mask_tokens(ids.clone(), torch.zeros_like(ids))
    assert (labels == word).all()
    assert set(inputs.unique().tolist()) == set(range(len(tokenizer))) - set(tokenizer.all_special_ids)


def test_mlm_masks_follow_from_the_examples(pairs, tokenizer):
    examples = [pairs[i] for i in range(8)]
    first = PretrainingCollator(tokenizer)(examples)
    torch.rand(3)  # the global generator has no part in it
    second = PretrainingCollator(tokenizer)(examples)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    # The same text in another epoch is masked in another way.
    for example in examples:
        example["mask_seed"] += 1
    assert not torch.equal(PretrainingCollator(tokenizer)(examples)["labels"], first["labels"])
    other = PretrainingCollator(tokenizer)([pairs[i] for i in range(1, 8)])
    assert not torch.equal(other["labels"][:, :90], first["labels"][1:, :90])


def batches_of(collator, pairs, batch_size=32):
    for start in range(0, len(pairs), batch_size):
        batch = collator([pairs[i] for i in range(start, min(start + batch_size, len(pairs)))])
        chosen = batch["labels"] != -100
        yield torch.where(chosen, batch["labels"], batch["input_ids"]), chosen, batch["input_ids"]


def test_whole_word_masking_treats_the_tokens_of_a_word_alike(pairs, tokenizer):
    """Each word, read token by token: all of it is chosen or nothing, and all of it is replaced in the same way."""
    collator = PretrainingCollator(tokenizer, whole_word_mask=True)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    counts = dict.fromkeys(("maskable", "chosen", "mask", "kept", "random"), 0)
    words = 0
    for original, chosen, inputs in batches_of(collator, pairs):
        for ids, flags, seen in zip(original.tolist(), chosen.tolist(), inputs.tolist(), strict=True):
            word = []
            for position, token in enumerate(ids):
                if token in tokenizer.all_special_ids:
                    assert not flags[position]
                    word = []
                    continue
                counts["maskable"] += 1
                word = [*word, position] if tokens[token].startswith("##") and word else [position]
                if not flags[position]:
                    assert not flags[word[0]]
                    continue
                assert flags[word[0]]
                words += len(word) == 2
                kinds = {
                    "mask" if seen[i] == tokenizer.mask_token_id else "kept" if seen[i] == ids[i] else "random"
                    for i in word
                }
                # A random token can be the word's own by chance.
                assert len(kinds) == 1 or "mask" not in kinds
                counts["chosen"] += 1
                counts[kinds.pop() if len(kinds) == 1 else "random"] += 1
    assert words > 100
    assert counts["chosen"] / counts["maskable"] == pytest.approx(0.15, abs=0.01)
    for kind, share in (("mask", 0.8), ("kept", 0.1), ("random", 0.1)):
        assert counts[kind] / counts["chosen"] == pytest.approx(share, abs=0.02), kind


@pytest.mark.parametrize("whole_word_mask", [False, True])
def test_max_predictions_per_seq_are_not_exceeded(pairs, tokenizer, whole_word_mask):
    collator = PretrainingCollator(tokenizer, whole_word_mask=whole_word_mask, max_predictions_per_seq=12)
    free = PretrainingCollator(tokenizer, whole_word_mask=whole_word_mask)
    for (_, capped, _), (_, chosen, _) in zip(batches_of(collator, pairs), batches_of(free, pairs), strict=True):
        assert capped.sum(1).max() <= 12
        assert (capped & ~chosen).sum() == 0
        within = chosen.sum(1) <= 12
        assert torch.equal(capped[within], chosen[within])
        assert capped.sum(1)[~within].min() >= 6  # it takes off no more than it must: a word at most
    few = [{name: np.asarray(value)[:5] for name, value in pairs[0].items() if name.endswith(("ids", "mask"))}]
    assert collator(few)["labels"].shape == (1, 5)  # an example shorter than the limit


def test_collator_pads_as_the_stock_one(pairs, tokenizer):
    examples = [pairs[i] for i in range(16)]
    ours = PretrainingCollator(tokenizer, pad_to_multiple_of=8)(examples)
    lists = as_lists({name: one[name] for name in one if name != "mask_seed"} for one in examples)
    stock = DataCollatorForLanguageModeling(tokenizer, pad_to_multiple_of=8)(lists)
    assert set(ours) == set(stock)
    for name in ("token_type_ids", "attention_mask", "next_sentence_label"):
        assert torch.equal(ours[name], stock[name]), name

    def original(batch):
        return torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])

    assert torch.equal(original(ours), original(stock))
    assert ours["input_ids"].shape[1] % 8 == 0


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([{"input_ids": [2, 9, 3], "token_type_ids": [0]}], "input_ids and token_type_ids differ in length"),
        ([{"input_ids": [2, 9, 3], "next_sentence_label": 1}, {"input_ids": [2, 9, 3]}], "all must have the same columns"),
        ([], "A batch needs at least one example, and all must have the same columns"),
    ],
)  # fmt: skip
def test_examples_that_make_no_batch_are_rejected(examples, message, tokenizer):
    with pytest.raises(ValueError, match=message):
        PretrainingCollator(tokenizer)(examples)


def test_limit_of_predictions_is_positive(tokenizer):
    with pytest.raises(ValueError, match="max_predictions_per_seq.* got 0"):
        PretrainingCollator(tokenizer, max_predictions_per_seq=0)
