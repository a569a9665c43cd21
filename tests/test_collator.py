import pytest
import torch

from scratch_bert.collator import PreTrainingCollator


def test_masking_statistics_over_the_builtin_corpus(pairs, tokenizer):
    """Paper, section 3.1: 15% of the tokens are predicted; 80% of these are [MASK], 10% random, 10% unchanged."""
    collator = PreTrainingCollator(tokenizer)
    special = torch.tensor(tokenizer.all_special_ids)
    maskable = masked = replaced = kept = 0
    for epoch in range(3):
        pairs.set_epoch(epoch)
        for start in range(0, len(pairs), 32):
            rows = [pairs[i] for i in range(start, min(start + 32, len(pairs)))]
            batch = collator(rows)
            original = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
            assert original[0, : len(rows[0]["input_ids"])].tolist() == rows[0]["input_ids"]
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
    print(f"\nmasked {masked / maskable:.4f}, [MASK] {replaced / masked:.4f}, kept {kept / masked:.4f}")
    assert masked / maskable == pytest.approx(0.15, abs=0.01)
    assert replaced / masked == pytest.approx(0.8, abs=0.02)
    assert kept / masked == pytest.approx(0.1, abs=0.02)
    assert (masked - replaced - kept) / masked == pytest.approx(0.1, abs=0.02)


def test_random_replacements_reach_all_ordinary_tokens_and_no_special_one(tokenizer):
    collator = PreTrainingCollator(tokenizer, mlm_probability=1.0, mask_replace_prob=0.0, random_replace_prob=1.0)
    word = tokenizer.convert_tokens_to_ids("the")
    ids = torch.full((400, 128), word)
    inputs, labels = collator.torch_mask_tokens(ids.clone(), torch.zeros_like(ids))
    assert (labels == word).all()
    assert set(inputs.unique().tolist()) == set(range(len(tokenizer))) - set(tokenizer.all_special_ids)


def test_masks_follow_from_the_rows(pairs, tokenizer):
    rows = [pairs[i] for i in range(8)]
    first = PreTrainingCollator(tokenizer)(rows)
    torch.rand(3)  # the global generator has no part in it
    second = PreTrainingCollator(tokenizer)(rows)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    pairs.set_epoch(1)
    pairs.set_epoch(0)
    assert torch.equal(PreTrainingCollator(tokenizer)([pairs[i] for i in range(8)])["labels"], first["labels"])
    other = PreTrainingCollator(tokenizer)([pairs[i] for i in range(1, 8)])
    assert not torch.equal(other["labels"][:, :90], first["labels"][1:, :90])
    # The same text in another epoch is masked in another way.
    for row in rows:
        row["mask_seed"] += 1
    assert not torch.equal(PreTrainingCollator(tokenizer)(rows)["labels"], first["labels"])
