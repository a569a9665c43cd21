"""What the tests share: small models and a small tokenized corpus, without network or GPU."""

import atexit
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path


# Set before torch, transformers and datasets are imported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp()
atexit.register(shutil.rmtree, os.environ["HF_DATASETS_CACHE"], ignore_errors=True)

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining  # noqa: E402
from scratch_bert.corpus import TextSource, builtin_documents  # noqa: E402
from scratch_bert.modeling_scratch_bert import AUTO_MODELS  # noqa: E402
from scratch_bert.rows import SentencePairDataset  # noqa: E402
from scratch_bert.tokenized_corpus import TokenizedCorpus  # noqa: E402
from scratch_bert.tokenizer import train_tokenizer  # noqa: E402


HEADS = AUTO_MODELS
SMALL = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
}


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


SCRIPTS = Path(__file__).parent.parent / "scripts"


def run_script(monkeypatch, name: str, *arguments) -> None:
    """A script in this process: quicker than in its own, but one run shares the libraries' state with the next."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(SCRIPTS / name), run_name="__main__")


def run_without_package(code: str, *arguments, home: Path, environment: dict[str, str] | None = None) -> str:
    """Run `code` in a fresh process that cannot import scratch_bert, with an empty cache in `home`."""
    preamble = """
        import sys
        sys.modules["scratch_bert"] = None  # any import of the package now raises ImportError
        import torch, transformers
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
    """
    code = textwrap.dedent(preamble) + textwrap.dedent(code)
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=home,
        env={**os.environ, "HF_HOME": str(home / "hf"), **(environment or {})},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def make_corpus(*documents):
    """Documents given by the lengths of their sentences. Each token tells its place: they count up from 5, with a gap
    between documents."""
    sentence_lengths = [length for document in documents for length in document]
    bounds = np.cumsum([0, *map(len, documents)])
    number = np.repeat(np.arange(len(documents)), [sum(document) for document in documents])
    return TokenizedCorpus(
        tokens=5 + np.arange(sum(sentence_lengths), dtype=np.int32) + number.astype(np.int32),
        sentence_offsets=np.cumsum([0, *sentence_lengths]),
        documents=np.stack([bounds[:-1], bounds[1:]], axis=1),
    )


def make_inputs(rows: int = 4, length: int = 20, seed: int = 0, vocab_size: int = SMALL["vocab_size"]) -> dict:
    """Random rows of different lengths, padded on the right: input_ids, attention_mask, token_type_ids."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, length + 1, (rows,), generator=generator)
    lengths[0] = length
    mask = (torch.arange(length) < lengths[:, None]).long()
    return {
        "input_ids": torch.randint(5, vocab_size, (rows, length), generator=generator) * mask,
        "attention_mask": mask,
        "token_type_ids": torch.randint(0, 2, (rows, length), generator=generator) * mask,
    }


def num_labels(auto_class: str) -> int:
    return 3 if "Classification" in auto_class else 2


def make_labels(auto_class: str, inputs: dict, seed: int = 0) -> dict:
    """Labels that fit `inputs` for the model behind `auto_class`, if that has `num_labels(auto_class)` labels."""
    classes = num_labels(auto_class)
    generator = torch.Generator().manual_seed(seed)
    ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
    rows, length = ids.shape[0], ids.shape[-1]

    def draw(high, shape):
        return torch.randint(high, shape, generator=generator)

    masked = mask & (torch.rand(ids.shape, generator=generator) < 0.3)
    return {
        "AutoModel": lambda: {},
        "AutoModelForPreTraining": lambda: {
            "labels": ids.masked_fill(~masked, -100),
            "next_sentence_label": draw(2, (rows,)),
        },
        "AutoModelForMaskedLM": lambda: {"labels": ids.masked_fill(~masked, -100)},
        "AutoModelForNextSentencePrediction": lambda: {"labels": draw(2, (rows,))},
        "AutoModelForSequenceClassification": lambda: {"labels": draw(classes, (rows,))},
        "AutoModelForTokenClassification": lambda: {"labels": draw(classes, ids.shape).masked_fill(~masked, -100)},
        "AutoModelForQuestionAnswering": lambda: {
            "start_positions": draw(length, (rows,)),
            "end_positions": draw(length, (rows,)),
        },
        "AutoModelForMultipleChoice": lambda: {"labels": draw(ids.shape[1], (rows,))},
    }[auto_class]()


def make_batch(auto_class: str, rows: int = 4, length: int = 20, seed: int = 0) -> dict:
    """Inputs and labels for the model behind `auto_class`."""
    if auto_class != "AutoModelForMultipleChoice":
        inputs = make_inputs(rows, length, seed)
    else:
        inputs = {k: v.view(rows, 3, length) for k, v in make_inputs(3 * rows, length, seed).items()}
    return {**inputs, **make_labels(auto_class, inputs, seed=seed)}


def write_metric(file, figures):
    """A metric as `evaluate` loads it, whose dict of figures is the given expression of predictions and references."""
    file.write_text(
        "import datasets\nimport evaluate\n"
        "class Own(evaluate.Metric):\n"
        "    def _info(self):\n"
        "        ints = {name: datasets.Value('int64') for name in ('predictions', 'references')}\n"
        "        return evaluate.MetricInfo('', '', features=datasets.Features(ints))\n"
        "    def _compute(self, predictions, references):\n"
        f"        return {figures}\n"
    )
    return file
