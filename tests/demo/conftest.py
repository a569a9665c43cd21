"""Models to try: a model that has memorised a few sentences, with its checkpoints, and random models with each
head."""

import json

import pytest
import torch
from transformers import BertTokenizer

from helpers import NO_DROPOUT, SMALL, make_bert
from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining
from scratch_bert.corpus.tokenizer_training import train_tokenizer
from scratch_bert.model.modeling_scratch_bert import AUTO_MODELS


SENTENCES = [
    "the cat sleeps on the sofa .",
    "the dog lies on the carpet .",
    "paris is the capital of france .",
    "rome is the capital of italy .",
    "she opened the window and cold air came into the room .",
    "he closed the door and it was warm again .",
]
# The models with task heads: their head, and their config.
TASKS = {
    "classifier": ("SequenceClassification", {"id2label": {0: "bad", 1: "fair", 2: "good"}}),
    "multi-label": (
        "SequenceClassification",
        {"id2label": {0: "a", 1: "b", 2: "c"}, "problem_type": "multi_label_classification"},
    ),
    "regression": ("SequenceClassification", {"num_labels": 1, "problem_type": "regression"}),
    "tagger": ("TokenClassification", {"id2label": {0: "O", 1: "B-X", 2: "I-X", 3: "B-Y", 4: "I-Y"}}),
    "answerer": ("QuestionAnswering", {}),
    "chooser": ("MultipleChoice", {}),
    "nsp": ("NextSentencePrediction", {}),
}


@pytest.fixture(scope="session")
def demo_tokenizer():
    return train_tokenizer(SENTENCES, vocab_size=200, min_frequency=1, model_max_length=40)


@pytest.fixture(scope="session")
def trained(tmp_path_factory, demo_tokenizer):
    """The directory of a run that memorised `SENTENCES`, with checkpoints of three steps. To be read only."""
    directory, tokenizer = tmp_path_factory.mktemp("trained"), demo_tokenizer
    torch.manual_seed(0)
    config = ScratchBertConfig(**{**SMALL, **NO_DROPOUT, "vocab_size": len(tokenizer), "initializer_range": 0.1})
    model = ScratchBertForPreTraining(config)
    batch = tokenizer(4 * SENTENCES, padding=True, return_tensors="pt")
    words = batch["input_ids"] > max(tokenizer.all_special_ids)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    log = []
    for step in range(1, 301):
        masked = words & (torch.rand(words.shape) < 0.2)
        labels = batch["input_ids"].masked_fill(~masked, -100)
        inputs = {**batch, "input_ids": batch["input_ids"].masked_fill(masked, tokenizer.mask_token_id)}
        loss = model(**inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            log.append({"step": step, "loss": loss.item(), "mlm_loss": loss.item()})
        if step % 100 == 0:
            evaluation = {"eval_mlm_loss": loss.item(), "eval_loss": loss.item(), "eval_mlm_unigram_loss": 3.5}
            log.append({"step": step} | evaluation)
            checkpoint = directory / f"checkpoint-{step}"
            save(model, tokenizer, checkpoint)
            (checkpoint / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    save(model, tokenizer, directory)
    return directory


@pytest.fixture(scope="session")
def bert(tmp_path_factory, demo_tokenizer):
    """The directory of transformers' BERT with both pretraining heads and random weights. To be read only."""
    directory = tmp_path_factory.mktemp("bert")
    torch.manual_seed(1)
    make_bert("ForPreTraining", directory, demo_tokenizer)
    return directory


@pytest.fixture(scope="session")
def other_mask(tmp_path_factory, demo_tokenizer):
    """The directory of a BERT for MLM whose mask token is <mask>. To be read only."""
    directory = tmp_path_factory.mktemp("other-mask")
    vocabulary = {token.replace("[MASK]", "<mask>"): number for token, number in demo_tokenizer.get_vocab().items()}
    torch.manual_seed(2)
    make_bert("ForMaskedLM", directory, BertTokenizer(vocab=vocabulary, mask_token="<mask>", model_max_length=40))
    return directory


@pytest.fixture(scope="session")
def tasks(tmp_path_factory, demo_tokenizer):
    """The directories of random scratch_bert models with the heads of `TASKS`, by their names. To be read only."""
    root = tmp_path_factory.mktemp("tasks")
    for seed, (name, (head, options)) in enumerate(TASKS.items()):
        torch.manual_seed(seed)
        sizes = {**SMALL, "vocab_size": len(demo_tokenizer), "initializer_range": 0.3}
        model = AUTO_MODELS[f"AutoModelFor{head}"](ScratchBertConfig(**sizes, **options))
        if name == "tagger":
            torch.nn.init.constant_(model.classifier.bias[:1], -2.0)  # otherwise many words might have the label O
        save(model, demo_tokenizer, root / name)
    return {name: root / name for name in TASKS}


def save(model, tokenizer, directory):
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
