"""Rows in, a padded and masked batch out."""

import torch
from transformers import DataCollatorForLanguageModeling


class PreTrainingCollator(DataCollatorForLanguageModeling):
    """The stock masking (paper, section 3.1: 15% of the tokens; of these 80% [MASK], 10% random, 10% kept), and

    - a random replacement is never a special token (but for [MASK], which can't be told from the 80%: once in V);
    - the masks of a batch follow from the `mask_seed` of its first row, if rows have one: they do not depend on the
      number of workers, and the same rows are masked in the same way again, as an evaluation wants.
    """

    def __post_init__(self):
        super().__post_init__()
        vocabulary = torch.arange(len(self.tokenizer))
        self.special_ids = torch.tensor(self.tokenizer.all_special_ids)
        self.ordinary_ids = vocabulary[~torch.isin(vocabulary, self.special_ids)]

    def torch_call(self, examples: list[dict]) -> dict[str, torch.Tensor]:
        if "mask_seed" in examples[0]:
            self.generator = torch.Generator().manual_seed(examples[0]["mask_seed"])
            examples = [{key: value for key, value in row.items() if key != "mask_seed"} for row in examples]
        return super().torch_call(examples)

    def torch_mask_tokens(self, inputs, special_tokens_mask=None, offset_mapping=None):
        inputs, labels = super().torch_mask_tokens(inputs, special_tokens_mask, offset_mapping)
        # Special tokens are never masked, so one at a labelled position is [MASK] itself or a random replacement. (A
        # [MASK] drawn at random among others stays: it adds 0.1 / V to their share of 0.8.)
        drawn = labels.ne(-100) & torch.isin(inputs, self.special_ids)
        if self.mask_replace_prob > 0:
            drawn &= inputs.ne(self.tokenizer.mask_token_id)
        choice = torch.randint(len(self.ordinary_ids), (int(drawn.sum()),), generator=self.generator)
        inputs[drawn] = self.ordinary_ids[choice]
        return inputs, labels
