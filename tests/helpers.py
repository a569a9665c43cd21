"""What the tests share: small models, batches, corpora, and ways to run a script."""

import json
import os
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from datasets import ClassLabel, Dataset
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from scratch_bert import model
from scratch_bert.corpus.corpus import TokenizedCorpus
from scratch_bert.model.configuration_scratch_bert import ScratchBertConfig
from scratch_bert.model.modeling_scratch_bert import AUTO_MODELS, ScratchBertForPreTraining


ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "scripts"
CHROMIUM = Path("/usr/bin/chromium")
BROWSER_OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
BROWSER_OPTIONS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
HEADS = AUTO_MODELS
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}  # a preset's
SMALL = {"vocab_size": 120, **SIZES, "max_position_embeddings": 40}
MODERN = {"position_embedding_type": "rotary", "embedding_size": 16, "qk_norm": True}  # what BERT does not have
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TOLERANCE = {"rtol": 0, "atol": 1e-5}  # of two ways to compute the same in fp32
SECOND_NAME = "cls.predictions.decoder.bias"  # that transformers' BERT has for the bias of its MLM head
# What is published of a model.
CODE_FILES = {file.name for file in model.CODE_FILES}
MODEL_FILES = CODE_FILES | {"requirements.txt", "README.md", "config.json", "model.safetensors"}
MODEL_FILES |= {"tokenizer.json", "tokenizer_config.json"}


def read_jsonl(file):
    """The rows of a file of JSON lines."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def mlm_and_nsp(metrics):
    """Those of an evaluation's metrics."""
    return {name: value for name, value in metrics.items() if name.startswith(("eval_mlm", "eval_nsp"))}


def varlen_attention(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale):
    """PyTorch's `varlen_attn` on a CPU: states (T, A, D) → context (T, A, D)."""
    assert query.dtype == key.dtype == value.dtype
    lengths = cu_seq_q.diff().tolist()
    assert max_q == max_k == max(lengths)
    parts = zip(*(states.transpose(0, 1).split(lengths, dim=1) for states in (query, key, value)), strict=True)
    contexts = [F.scaled_dot_product_attention(*part, scale=scale) for part in parts]
    return torch.cat(contexts, dim=1).transpose(0, 1)


FP32_OPS = (
    "layer_norm",
    "softmax",
    "log_softmax",
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "sum",
    "exp",
    "log",
    "pow",
)
FP32_OPS = {getattr(owner, name) for name in FP32_OPS for owner in (torch, torch.Tensor, F) if hasattr(owner, name)}


class GpuAutocast(TorchFunctionMode):
    """Autocast on a CPU computes in fp32 what it computes in fp32 on a GPU: the operations of this model among those of
    https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32"""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in FP32_OPS and torch.is_autocast_enabled("cpu"):
            args = [one.float() if torch.is_tensor(one) and one.is_floating_point() else one for one in args]
        return function(*args, **(kwargs or {}))


def without_docstrings(monkeypatch) -> None:
    """Leave the topics of `help()` in the built-in corpus: to parse the docstrings takes seconds."""
    monkeypatch.setattr(sys, "stdlib_module_names", frozenset())


def run_script(monkeypatch, name: str, *arguments) -> None:
    """A script in this process: quicker than in its own, but one run shares the libraries' state with the next."""
    without_docstrings(monkeypatch)
    monkeypatch.syspath_prepend(SCRIPTS)  # as Python does
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(SCRIPTS / name), run_name="__main__")


def failure_of(capsys, run: Callable, *arguments) -> str:
    """The message or exit code of a script that must fail, and what it writes to stderr."""
    with pytest.raises(SystemExit) as stop:
        run(*arguments)
    assert stop.value.code not in (0, None)
    return f"{stop.value.code}\n{capsys.readouterr().err}"


def run_process(*command, check: bool = True, cwd: Path | None = None, **environment) -> subprocess.CompletedProcess:
    """Run Python with these arguments and environment variables in its own process, and capture the output as text."""
    options = {"capture_output": True, "text": True, "cwd": cwd, "env": {**os.environ, **environment}}
    result = subprocess.run([sys.executable, *map(str, command)], **options)
    assert not check or result.returncode == 0, result.stderr
    return result


def launch(launcher: str, script: str, *arguments) -> subprocess.CompletedProcess:
    """Run a script in several processes. `launcher` is a module with its options, such as torch.distributed.run."""
    return run_process("-m", *launcher.split(), SCRIPTS / script, *arguments, OMP_NUM_THREADS="1")


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
    environment = {"HF_HOME": str(home / "hf"), **(environment or {})}
    return run_process("-c", code, *arguments, cwd=home, **environment).stdout


def as_lists(examples):
    return [{name: np.asarray(value).tolist() for name, value in example.items()} for example in examples]


def all_examples(dataset):
    return as_lists(dataset[index] for index in range(len(dataset)))


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


def make_bert(head: str, directory: Path | None = None, tokenizer=None, **options) -> transformers.PreTrainedModel:
    """transformers' `Bert{head}` with random weights, biases and LayerNorms among them. Saved in `directory`, if given.

    `head` is the end of the class's name, as in `ForMaskedLM`; `options` are config fields beside those of `SMALL`. A
    `tokenizer` sets the vocabulary size, and is saved as well.
    """
    sizes = SMALL if tokenizer is None else {**SMALL, "vocab_size": len(tokenizer)}
    config = transformers.BertConfig(**{**sizes, "num_labels": num_labels(head), **options})
    model = getattr(transformers, f"Bert{head}")(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    if directory is not None:
        for part in (model, tokenizer):
            if part is not None:
                part.save_pretrained(directory)
    return model


def bert_and_ours(head: str = "Model", **options) -> tuple:
    """transformers' BERT and ours with the same random weights, in evaluation mode. `options` are config fields, and
    `head` is the end of the name of an Auto class, too."""
    torch.manual_seed(0)
    head = head.removeprefix("AutoModel") or "Model"
    bert = make_bert(head, **options)
    options = {"num_labels": bert.config.num_labels, **options}
    ours = make_model(HEADS["AutoModel" + head.removeprefix("Model")], **options)
    result = ours.load_state_dict(bert.state_dict(), strict=False)
    assert result.missing_keys == [] and set(result.unexpected_keys) <= {SECOND_NAME}
    return bert, ours


def make_model(cls: type = ScratchBertForPreTraining, **options):
    """A small model with random weights, in evaluation mode."""
    return cls(ScratchBertConfig(**{**SMALL, **options})).eval()


def make_pair(auto_class: str, attention: str = "sdpa", one: dict | None = None, other: dict | None = None) -> list:
    """Two models with the same random weights, in training mode without dropout, whose config fields differ."""
    models = []
    for options in (one or {}, other or {}):
        torch.manual_seed(0)
        options = {**SMALL, **NO_DROPOUT, "num_labels": num_labels(auto_class), **options}
        model = HEADS[auto_class](ScratchBertConfig(**options, attn_implementation=attention)).train()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        models.append(model)
    return models


def assert_same_gradients(model, other) -> None:
    found, expected = ({name: weight.grad for name, weight in one.named_parameters()} for one in (model, other))
    torch.testing.assert_close(found, {name: expected[name] for name in found}, rtol=0, atol=1e-5)


def assert_same_weights(*directories: Path) -> None:
    """Of two saved models, to the bit."""
    torch.testing.assert_close(*(load_file(path / "model.safetensors") for path in directories), rtol=0, atol=0)


def make_batch(auto_class: str, rows: int = 4, length: int = 20, seed: int = 0) -> dict:
    """Inputs and labels for the model behind `auto_class`, if that has `num_labels(auto_class)` labels."""
    choices = 3 if auto_class == "AutoModelForMultipleChoice" else 1
    inputs = make_inputs(choices * rows, length, seed)
    if choices > 1:
        inputs = {name: values.view(rows, choices, length) for name, values in inputs.items()}
    ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
    generator = torch.Generator().manual_seed(seed)
    masked = mask & (torch.rand(ids.shape, generator=generator) < 0.3)

    def draw(high, *shape):
        return torch.randint(high, shape or (rows,), generator=generator)

    match auto_class.removeprefix("AutoModel"):
        case "ForPreTraining":
            labels = {"labels": ids.masked_fill(~masked, -100), "next_sentence_label": draw(2)}
        case "ForMaskedLM":
            labels = {"labels": ids.masked_fill(~masked, -100)}
        case "ForTokenClassification":
            labels = {"labels": draw(num_labels(auto_class), *ids.shape).masked_fill(~masked, -100)}
        case "ForQuestionAnswering":
            labels = {"start_positions": draw(length), "end_positions": draw(length)}
        case "ForNextSentencePrediction" | "ForSequenceClassification" | "ForMultipleChoice":
            labels = {"labels": draw(choices if choices > 1 else num_labels(auto_class))}
        case _:
            labels = {}
    return {**inputs, **labels}


def write_glue(task, names, texts, labels):
    """nyu-mll/glue with these labels for each split, in the current directory: load_dataset takes it before the Hub."""
    hub = Path("nyu-mll/glue")
    hub.mkdir(parents=True)
    files = "".join(f"    - {{split: {split}, path: '{split}.parquet'}}\n" for split in labels)
    (hub / "README.md").write_text(f"---\nconfigs:\n- config_name: {task}\n  data_files:\n{files}---\n")
    for split, ids in labels.items():
        examples = Dataset.from_dict({**texts, "label": ids}).cast_column("label", ClassLabel(names=names))
        examples.to_parquet(hub / f"{split}.parquet")


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


def edit_config(directory: Path, **changes) -> None:
    """Set these fields of config.json; None removes the field."""
    config = json.loads((directory / "config.json").read_text()) | changes
    (directory / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def edit_weights(directory: Path, edit: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    file = directory / "model.safetensors"
    save_file(edit(load_file(file)), file, metadata={"format": "pt"})


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])
