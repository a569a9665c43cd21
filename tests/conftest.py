"""What the tests share: small models and a small tokenized corpus, without network or GPU."""

import atexit
import os
import shutil
import tempfile


# Set before torch, transformers and datasets are imported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp()
atexit.register(shutil.rmtree, os.environ["HF_DATASETS_CACHE"], ignore_errors=True)

import pytest
import torch
import transformers

from helpers import SMALL
from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining
from scratch_bert.pretraining.corpus import TokenizedCorpus
from scratch_bert.pretraining.dataset import SentencePairDataset
from scratch_bert.pretraining.text import TextSource, builtin_documents
from scratch_bert.tokenizer import train_tokenizer


@pytest.fixture(autouse=True)
def _seeded_and_quiet():
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def documents():
    """The built-in corpus, as sentences."""
    return list(TextSource([builtin_documents()]).documents())


@pytest.fixture(scope="session")
def tokenizer(documents):
    sentences = [sentence for document in documents for sentence in document]
    return train_tokenizer(sentences, vocab_size=2000, model_max_length=128)


@pytest.fixture(scope="session")
def corpus(documents, tokenizer):
    return TokenizedCorpus.from_documents(documents, tokenizer)


@pytest.fixture
def pairs(corpus, tokenizer):
    return SentencePairDataset(corpus, tokenizer, max_seq_length=128)


@pytest.fixture(scope="session")
def saved(tmp_path_factory, tokenizer):
    """The directory of a small model with random weights, and its tokenizer. To be read only: tests share it."""
    directory = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    model = ScratchBertForPreTraining(ScratchBertConfig(**{**SMALL, "vocab_size": len(tokenizer)}))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
