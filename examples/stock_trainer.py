"""transformers' own Trainer pretrains a BERT: dataset and collator of this package, default arguments.

Without a GPU, PyTorch notes that memory is not pinned; nothing is wrong then.

python examples/stock_trainer.py [DIRECTORY]
"""

import sys
import tempfile

from transformers import Trainer, TrainingArguments, set_seed

from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining
from scratch_bert.pretraining import (
    PretrainingCollator,
    SentencePairDataset,
    init_token_embeddings,
    muon,
    train_tokenizer,
)
from scratch_bert.text.builtin import builtin_documents


directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
set_seed(0)
texts = builtin_documents()  # any list of strings, one document each
tokenizer = train_tokenizer(texts, vocab_size=4096)
dataset = SentencePairDataset.from_texts(texts, tokenizer, cache_dir=f"{directory}/cache")
train, held_out = dataset.split(0.05)
model = ScratchBertForPreTraining(ScratchBertConfig.from_preset("micro", vocab_size=len(tokenizer)))
init_token_embeddings(model, train)
trainer = Trainer(
    model,
    TrainingArguments(directory, max_steps=120),
    train_dataset=train,
    eval_dataset=held_out,
    data_collator=PretrainingCollator(tokenizer),
    processing_class=tokenizer,
    optimizers=(muon(model), None),
)
before = trainer.evaluate()["eval_loss"]
trainer.train()
after = trainer.evaluate()["eval_loss"]
trainer.save_model()
print(f"Held-out loss, MLM and NSP: {before:.2f} before training, {after:.2f} after it. Saved in {directory}")
