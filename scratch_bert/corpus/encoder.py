"""Encoding of a pair as an example, the model's input: [CLS] A [SEP] B [SEP]."""

import numpy as np
from transformers import PreTrainedTokenizerBase

from .tokenizer import segment_ids, vocabulary_size


class ExampleEncoder:
    """Encodes a pair of segments of a corpus as an example: `input_ids`, `token_type_ids` and `special_tokens_mask`,
    (S,) each, and the pair's label in `label_column`, unless that is None.

    `special_tokens_mask` is 1 at special tokens, including [UNK], which are never masked.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, label_column: str | None):
        self.label_column = label_column
        self.segment_a, self.segment_b = segment_ids(tokenizer)
        self.cls, self.sep = ([token] for token in (tokenizer.cls_token_id, tokenizer.sep_token_id))
        self.is_special = np.zeros(vocabulary_size(tokenizer), dtype=np.int64)
        self.is_special[tokenizer.all_special_ids] = 1

    def __call__(self, tokens: np.ndarray, pair: np.ndarray) -> dict[str, np.ndarray | int]:
        a_start, a_end, b_start, b_end, label = pair.tolist()
        segments = [self.cls, tokens[a_start:a_end], self.sep]
        if b_end > b_start:
            segments += [tokens[b_start:b_end], self.sep]
        input_ids = np.concatenate(segments)
        token_type_ids = np.full_like(input_ids, self.segment_a)
        token_type_ids[a_end - a_start + 2 :] = self.segment_b
        example = {
            "input_ids": input_ids,
            "token_type_ids": token_type_ids,
            "special_tokens_mask": self.is_special[input_ids],
        }
        return example | {self.label_column: label} if self.label_column else example


def mask_seed(*numbers: int) -> int:
    return hash(numbers) & 0x7FFFFFFF  # the hash of integers is the same in every process
