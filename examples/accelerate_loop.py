"""A training loop of one's own with accelerate.

python examples/accelerate_loop.py [DIRECTORY]
"""

import sys
import tempfile

from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import get_linear_schedule_with_warmup

from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining
from scratch_bert.pretraining import (
    PretrainingCollator,
    SentencePairDataset,
    init_token_embeddings,
    muon,
    train_tokenizer,
)
from scratch_bert.text.builtin import builtin_documents


STEPS = 120
directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
set_seed(0)
texts = builtin_documents()
tokenizer = train_tokenizer(texts, vocab_size=4096)
dataset = SentencePairDataset.from_texts(texts, tokenizer, cache_dir=f"{directory}/cache")
model = ScratchBertForPreTraining(ScratchBertConfig.from_preset("micro", vocab_size=len(tokenizer)))
init_token_embeddings(model, dataset)
optimizer = muon(model)
schedule = get_linear_schedule_with_warmup(optimizer, STEPS // 10, STEPS)
loader = DataLoader(dataset, batch_size=16, shuffle=True, collate_fn=PretrainingCollator(tokenizer))
accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
step = 0
while step < STEPS:
    dataset.set_epoch(step // len(loader))  # new pairs
    for batch in loader:
        outputs = model(**batch)
        accelerator.backward(outputs.loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        step += 1
        if step % 20 == 0:
            accelerator.print(f"step {step}: MLM loss {outputs.mlm_loss:.2f}, NSP loss {outputs.nsp_loss:.2f}")
        if step == STEPS:
            break
if accelerator.is_main_process:
    accelerator.unwrap_model(model).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    print(f"Saved in {directory}")
