"""Rows in, a padded and masked batch out."""

import torch
from transformers import DataCollatorForLanguageModeling


class PreTrainingCollator(DataCollatorForLanguageModeling):
    """The stock masking (paper, section 3.1: 15% of the tokens; of these 80% [MASK], 10% random, 10% kept), and

    - a random replacement is never a special token;
    - the masks of a batch follow from the `mask_seed` of its first row, if rows have one: they do not depend on the
      number of workers, and the same rows are masked in the same way again, as an evaluation wants.
    """

    def __post_init__(self):
        super().__post_init__()
        special = torch.tensor(self.tokenizer.all_special_ids)
        vocabulary = torch.arange(len(self.tokenizer))
        self.ordinary_ids = vocabulary[~torch.isin(vocabulary, special)]
        # The stock collator draws random words from the special tokens, too. So it places [MASK] only, and the random
        # words are drawn here, among the predicted tokens that it has left as they were.
        unmasked_share = 1 - self.mask_replace_prob
        self.random_share = self.random_replace_prob / unmasked_share if unmasked_share > 0 else 0.0
        self.random_replace_prob = 0.0

    def torch_call(self, examples: list[dict]) -> dict[str, torch.Tensor]:
        if "mask_seed" in examples[0]:
            self.generator = torch.Generator().manual_seed(examples[0]["mask_seed"])
            examples = [{key: value for key, value in row.items() if key != "mask_seed"} for row in examples]
        return super().torch_call(examples)

    def torch_mask_tokens(self, inputs, special_tokens_mask=None, offset_mapping=None):
        inputs, labels = super().torch_mask_tokens(inputs, special_tokens_mask, offset_mapping)
        unmasked = inputs.eq(labels)  # labels are -100 where nothing is predicted
        share = torch.full(labels.shape, self.random_share)
        random = unmasked & torch.bernoulli(share, generator=self.generator).bool()
        words = torch.randint(len(self.ordinary_ids), (int(random.sum()),), generator=self.generator)
        inputs[random] = self.ordinary_ids[words]
        return inputs, labels
