"""Pretraining, in the order that the data goes: text → corpus → pairs → dataset → collator → trainer.

From Python,

    from scratch_bert.pretraining.arguments import DataArguments, ModelArguments, PretrainingArguments
    from scratch_bert.pretraining.run import pretrain

    metrics = pretrain(ModelArguments("mini"), DataArguments(train_file=["text/"]), PretrainingArguments("runs/mine"))

does what scripts/pretrain.py does.
"""
