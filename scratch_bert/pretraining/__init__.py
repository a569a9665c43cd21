"""Pretraining, in the order that the data goes: text → corpus → pairs → dataset → collator → trainer.

from scratch_bert.pretraining.arguments import DataArguments, ModelArguments, PretrainingArguments
from scratch_bert.pretraining.run import prepare

run = prepare(ModelArguments(), DataArguments(train_file=["text/"]), PretrainingArguments(output_dir="runs/mine"))
metrics = run.train()
"""
