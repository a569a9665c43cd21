"""What the tests share: small models, texts and tokenized corpora, without network, and without GPU but in `make gpu`."""

import atexit
import functools
import gc
import importlib.util
import os
import shutil
import tempfile

import jinja2
import pytest


# Set before torch, transformers and datasets are imported, by the fixtures and by the test modules: the controller of
# pytest-xdist starts its workers without them.
in_worker = "PYTEST_XDIST_WORKER" in os.environ
if in_worker:
    os.environ["OMP_NUM_THREADS"] = "1"  # a worker for each core
os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))  # or a run's threads, and its bits, follow the load
if "SCRATCH_BERT_TEST_GPU" not in os.environ:
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HOME"] = tempfile.mkdtemp(dir=os.environ["HF_HOME"] if in_worker else None)
os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.environ["HF_HOME"]
if not in_worker:  # the controller's directory holds those of its workers
    atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)


def pytest_addoption(parser):
    parser.addoption("--gpu-branches", action="store_true", help="Let the model's operations on a CPU be a GPU's.")


def pytest_collection_modifyitems(config, items):
    for item in items:
        if config.getoption("--gpu-branches") and item.get_closest_marker("cpu_branch"):
            item.add_marker(pytest.mark.skip(reason="of an operation for CPUs, or chooses branches itself"))


@pytest.fixture(autouse=True)
def _gpu_branches(request, monkeypatch):
    if request.config.getoption("--gpu-branches"):
        from helpers import GpuAutocast, varlen_attention
        from scratch_bert.model import kernels_scratch_bert as kernels
        from scratch_bert.model import losses_scratch_bert as losses
        from scratch_bert.model import padding_scratch_bert as padding

        for module in (kernels, losses, padding):
            monkeypatch.setattr(module, "is_cpu", lambda device: False)
        monkeypatch.setattr(kernels, "has_varlen_attention", lambda device: True)
        monkeypatch.setattr(kernels, "varlen_attn", varlen_attention)
        if request.path.name != "test_compile.py":  # it would end a graph
            with GpuAutocast():
                yield
            return
    yield


@pytest.fixture(autouse=True)
def _seeded_and_quiet():
    import torch
    import transformers

    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="session", autouse=True)
def _quick_garbage_collection():
    """Trainer collects garbage in every run: leave out the modules, which are imported by now."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _quick_saves():
    """Cards as where matplotlib is not installed: to draw their curves takes longer than most runs here. Their template
    is compiled once, and no disk is waited for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scratch_bert.training.model_card.find_spec", lambda name: None)
        patch.setattr("jinja2.Template", functools.cache(jinja2.Template))
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="module")
def curves():
    """For a module whose runs draw the pictures of their cards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scratch_bert.training.model_card.find_spec", importlib.util.find_spec)
        yield


@pytest.fixture(scope="session")
def documents():
    """The topics of `help()` in the built-in corpus, as sentences."""
    from helpers import without_docstrings
    from scratch_bert.text.builtin import builtin_documents
    from scratch_bert.text.formats import TextSource

    with pytest.MonkeyPatch.context() as patch:
        without_docstrings(patch)
        return list(TextSource([builtin_documents()]).documents())


@pytest.fixture(scope="session")
def sentences(documents):
    """The sentences of `documents`."""
    return [sentence for document in documents for sentence in document]


@pytest.fixture(scope="session")
def tokenizer(sentences):
    from scratch_bert.corpus.tokenizer_training import train_tokenizer

    return train_tokenizer(sentences, vocab_size=2000, model_max_length=128)


@pytest.fixture(scope="session")
def corpus(documents, tokenizer):
    from scratch_bert.corpus.corpus import TokenizedCorpus

    return TokenizedCorpus.from_documents(documents, tokenizer)


@pytest.fixture(scope="session")
def small_corpus(documents, tokenizer):
    """Twelve short documents."""
    from scratch_bert.corpus.corpus import TokenizedCorpus

    return TokenizedCorpus.from_documents([document for document in documents if len(document) < 20][:12], tokenizer)


@pytest.fixture(scope="session")
def text_file(sentences, tmp_path_factory):
    """Sixty documents of ten sentences, a sentence a line. To be read only."""
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("\n\n".join("\n".join(sentences[i : i + 10]) for i in range(0, 600, 10)), encoding="utf-8")
    return file


@pytest.fixture
def pairs(corpus, tokenizer):
    from scratch_bert.examples.dataset import SentencePairDataset

    return SentencePairDataset(corpus, tokenizer, max_seq_length=128)


@pytest.fixture(scope="session")
def bert(tmp_path_factory, tokenizer):
    """The directory of transformers' BERT with both pretraining heads and random weights. To be read only."""
    from helpers import make_bert

    directory = tmp_path_factory.mktemp("bert")
    make_bert("ForPreTraining", directory, tokenizer)
    return directory


@pytest.fixture(scope="session")
def saved(tmp_path_factory, tokenizer):
    """The directory of a small model, randomly initialised, and its tokenizer. To be read only."""
    import torch

    from helpers import SMALL
    from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining

    directory = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    model = ScratchBertForPreTraining(ScratchBertConfig(**{**SMALL, "vocab_size": len(tokenizer)}))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
