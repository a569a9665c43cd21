"""Pretrain a BERT on a column of a pandas DataFrame, and let it fill a mask.

python examples/dataframe.py [DIRECTORY]
"""

import sys
import tempfile

import pandas
from transformers import pipeline

import scratch_bert
from scratch_bert.text.builtin import builtin_documents


directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
frame = pandas.DataFrame({"review": builtin_documents()})
metrics = scratch_bert.pretrain(
    frame,
    text_column="review",
    output_dir=directory,
    cache_dir=f"{directory}/cache",
    max_steps=200,
)
print(f"MLM loss on held-out text: {metrics['eval_mlm_loss']:.2f} (unigrams: {metrics['eval_mlm_unigram_loss']:.2f})")
fill = pipeline("fill-mask", model=directory)
text = f"This function returns a list {fill.tokenizer.mask_token} strings."
print(text)
for prediction in fill(text):
    print(f"  {prediction['token_str']:<12} {prediction['score']:.0%}")
