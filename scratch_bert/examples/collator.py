"""Collation of examples into a masked batch, padded or packed."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DataCollatorForLanguageModeling

from scratch_bert_options.schema import check_range

from ..corpus.tokenizer import check_tokenizer, continues_word, vocabulary_size


@dataclass
class PretrainingCollator(DataCollatorForLanguageModeling):
    """The stock collator with different masking (paper, section 3.1: 15% of the tokens are predicted, of which 80%
    become [MASK], 10% a random token, and 10% stay):

    - the masks of a batch follow from the `mask_seed` of its first example, if there is one: they do not depend on the
      number of workers, and the same batch is always masked in the same way, as evaluation needs;
    - a random token is never a special token;
    - `whole_word_mask` selects and replaces the tokens of a word together, with the same probabilities;
    - a sequence has at most `max_predictions_per_seq` tokens to predict: 20 of 128 in BERT's published code;
    - with `pack_to`, the batch is packed into fewer sequences of this many tokens (`pack_sequences`).

    Examples hold arrays, lists or numbers: columns with a value per token are padded, columns with a value per example
    are stacked. A missing `special_tokens_mask` is added. Padding is four times as fast as `tokenizer.pad`, which
    would take most of the time. Raises `ValueError` for examples whose columns differ.
    """

    max_predictions_per_seq: int | None = None
    pack_to: int | None = None

    def __post_init__(self):
        check_tokenizer(self.tokenizer, fast=self.whole_word_mask)
        # The stock masking replaces the tokens of a word independently.
        whole_word_mask, self.whole_word_mask = self.whole_word_mask, False
        super().__post_init__()
        self.whole_word_mask = whole_word_mask
        if self.max_predictions_per_seq is not None:
            check_range("max_predictions_per_seq", self.max_predictions_per_seq, "[1, inf)")
        special = torch.tensor(self.tokenizer.all_special_ids)
        vocabulary = torch.arange(vocabulary_size(self.tokenizer))
        self.ordinary_ids = vocabulary[~torch.isin(vocabulary, special)]
        if whole_word_mask:
            self.continues_word = torch.from_numpy(continues_word(self.tokenizer))

    def torch_call(  # ty: ignore[incompatible-method-override]: its base also takes lists of ids
        self, examples: list[dict]
    ) -> dict[str, torch.Tensor]:
        if len({frozenset(example) for example in examples}) != 1:
            raise ValueError("A batch needs at least one example, and all must have the same columns.")
        if "mask_seed" in examples[0]:
            self.generator = torch.Generator().manual_seed(int(examples[0]["mask_seed"]))
        # Columns with a value per token are padded (B, S), columns with a value per example stacked (B,).
        padding = {"input_ids": self.tokenizer.pad_token_id, "token_type_ids": 0, "special_tokens_mask": 1}
        batch, lengths = {}, np.array([len(example["input_ids"]) for example in examples])
        for name in (name for name in examples[0] if name not in ("mask_seed", "attention_mask", "labels")):
            values = [np.asarray(example[name]) for example in examples]
            if name in padding and [len(row) for row in values] != lengths.tolist():
                raise ValueError(f"The examples' columns input_ids and {name} differ in length.")
            batch[name] = self._pad(values, padding.get(name, 0)) if values[0].ndim else np.array(values)
        input_ids = batch["input_ids"]
        batch["attention_mask"] = (np.arange(input_ids.shape[1]) < lengths[:, None]).astype(np.int64)
        special_tokens_mask = batch.pop("special_tokens_mask", None)
        if special_tokens_mask is None:  # Trainer may have removed it
            special_tokens_mask = np.isin(input_ids, self.tokenizer.all_special_ids)
        batch = {name: torch.from_numpy(values) for name, values in batch.items()}
        batch["input_ids"], batch["labels"] = self.torch_mask_tokens(
            batch["input_ids"], torch.from_numpy(special_tokens_mask)
        )
        return batch if self.pack_to is None else pack_sequences(batch, self.pack_to, self.tokenizer.pad_token_id)

    def _pad(self, rows: list[np.ndarray], value: int) -> np.ndarray:
        length, multiple = max(map(len, rows)), self.pad_to_multiple_of or 1
        dtype = np.float32 if rows[0].dtype.kind == "f" else np.int64
        padded = np.full((len(rows), -(-length // multiple) * multiple), value, dtype)
        for target, row in zip(padded, rows, strict=True):
            target[: len(row)] = row
        return padded

    def torch_mask_tokens(self, inputs, special_tokens_mask: Any = None, offset_mapping=None):
        """Mask token ids (B, S) in place. Returns them and the labels: the ids to predict, -100 elsewhere."""
        # Two draws for each token: whether to predict it, and what to put in its place.
        draws = torch.rand(2, *inputs.shape, generator=self.generator)  # (2, B, S)
        if self.whole_word_mask:  # each token takes the draws of its word's first token
            continues = self.continues_word[inputs]
            first = torch.arange(inputs.shape[1]).expand_as(inputs).masked_fill(continues, 0).cummax(-1).values
            draws = draws.gather(-1, first.expand_as(draws))
        mask_draw, replace_draw = draws
        mask_draw = mask_draw.masked_fill(special_tokens_mask.bool(), 1.0)
        masked = mask_draw < self.mlm_probability
        cap = self.max_predictions_per_seq
        if cap is not None and cap < inputs.shape[1]:  # the lowest draws stay, but no partial word
            masked &= mask_draw < mask_draw.sort(-1).values[:, cap : cap + 1]
        labels = inputs.masked_fill(~masked, -100)
        replace = masked & (replace_draw < self.mask_replace_prob)
        inputs[replace] = self.tokenizer.mask_token_id
        randomize = masked & ~replace & (replace_draw < self.mask_replace_prob + self.random_replace_prob)
        indices = torch.randint(len(self.ordinary_ids), (int(randomize.sum()),), generator=self.generator)
        inputs[randomize] = self.ordinary_ids[indices]
        return inputs, labels


def pack_sequences(batch: dict[str, torch.Tensor], length: int, pad_token_id: int) -> dict[str, torch.Tensor]:
    """Pack a padded batch of B sequences into fewer bins of `length` tokens: first fit, the longest sequences first.

    For example, sequences of 5, 3 and 2 tokens and a length of 8 give the bins [5, 3] and [2]. Columns (B, S) become
    (bins, `length`); `position_ids`, which restart with each sequence, and `seq_idx`, its number in the bin, are new.
    Columns (B,), such as `next_sentence_label`, become (bins, K): at most K sequences in a bin, -100 where there are
    fewer.
    Raises `ValueError` for a sequence that is longer than `length`.
    """
    lengths = batch["attention_mask"].sum(1).tolist()
    if max(lengths) > length:
        raise ValueError(f"A sequence has {max(lengths)} tokens, more than the {length} of a packed sequence.")
    bins: list[list[int]] = []  # the numbers of the sequences in each
    room: list[int] = []  # free tokens in each
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        number = next((number for number, free in enumerate(room) if free >= lengths[index]), len(bins))
        if number == len(bins):
            bins.append([])
            room.append(length)
        bins[number].append(index)
        room[number] -= lengths[index]

    columns = {name: values for name, values in batch.items() if values.dim() == 2}
    columns["position_ids"] = torch.arange(batch["input_ids"].shape[1]).expand_as(batch["input_ids"])
    padding = {"input_ids": pad_token_id, "labels": -100}
    packed = {name: values.new_full((len(bins), length), padding.get(name, 0)) for name, values in columns.items()}
    packed["seq_idx"] = torch.zeros_like(packed["input_ids"])
    for number, indices in enumerate(bins):
        start = 0
        for seq_idx, index in enumerate(indices):
            span = (number, slice(start, start + lengths[index]))
            for name, values in columns.items():
                packed[name][span] = values[index, : lengths[index]]
            packed["seq_idx"][span] = seq_idx
            start += lengths[index]
    for name in (name for name, values in batch.items() if values.dim() == 1):  # (B,) to (bins, K)
        packed[name] = pad_sequence([batch[name][indices] for indices in bins], batch_first=True, padding_value=-100)
    return packed
