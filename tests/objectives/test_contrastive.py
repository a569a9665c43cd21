"""The objectives of examples/own_objective_contrastive.py: what an objective from outside can define."""

import json
from importlib.util import module_from_spec, spec_from_file_location

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from helpers import NO_DROPOUT, ROOT, SMALL
from scratch_bert import (
    ScratchBertConfig,
    ScratchBertForMaskedLM,
    ScratchBertForPreTraining,
    ScratchBertModel,
    pretrain,
)
from scratch_bert.pretraining import OBJECTIVES, PretrainingCollator, SentencePairDataset
from scratch_bert.pretraining.evaluation import open_with_objective


NAMES = ["contrastive", "nsp+contrastive"]


@pytest.fixture(autouse=True)
def example():
    """The example's module, which registers its objectives."""
    before = dict(OBJECTIVES)
    spec = spec_from_file_location("own_objective_contrastive", ROOT / "examples/own_objective_contrastive.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    OBJECTIVES.clear()
    OBJECTIVES.update(before)


@pytest.fixture
def make(corpus, tokenizer):
    def make(name, **options):
        dataset = SentencePairDataset(corpus, tokenizer, 64, objective=name, **options)
        sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 64}
        torch.manual_seed(0)
        model = OBJECTIVES[name].model_class(ScratchBertConfig(**SMALL | NO_DROPOUT | sizes))
        torch.nn.init.normal_(model.bert.embeddings.word_embeddings.weight, std=0.5)
        return dataset, model, PretrainingCollator(tokenizer, mlm_probability=0.01)

    return make


def loop_of_segments(model, dataset, indices, tokenizer):
    """InfoNCE, a segment at a time, each as the tokenizer would encode its tokens alone."""
    encoder = ScratchBertModel(model.config, add_pooling_layer=False).eval()
    encoder.load_state_dict({k: v for k, v in model.bert.state_dict().items() if not k.startswith("pooler")})

    def mean(start, end):
        tokens = dataset.corpus.tokens[start:end].tolist()
        ids = torch.tensor([[tokenizer.cls_token_id, *tokens, tokenizer.sep_token_id]])
        return F.normalize(encoder(ids).last_hidden_state.mean(1), dim=-1)

    pairs = dataset.pairs[indices]
    segments = [(mean(*pair[:2]), mean(*pair[2:4]) if pair[3] > pair[2] else None) for pair in pairs.tolist()]
    losses = []
    for (a, b), pair in zip(segments, pairs.tolist(), strict=True):
        if b is None or pair[4] != 0:
            continue
        scores = torch.stack([(a * other).sum() / 0.05 for _, other in segments if other is not None])
        losses.append(scores.logsumexp(0) - (a * b).sum() / 0.05)
    return torch.stack(losses).mean()


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_contrastive_loss_is_that_of_a_loop_over_segments_encoded_alone(name, make, tokenizer):
    dataset, model, collator = make(name, single_segment_prob=0.2)
    indices = np.arange(40, 60)
    batch = collator([dataset[i] for i in indices])
    if name == "contrastive":  # whose inputs are masked: not here
        batch["input_ids"] = torch.where(batch["labels"] != -100, batch["labels"], batch["input_ids"])
        batch["labels"][:] = -100
        batch["labels"][0, 1] = 5
    with torch.enable_grad():
        outputs = model.eval()(**batch)
    expected = loop_of_segments(model, dataset, indices, tokenizer)
    assert outputs.contrastive_loss.item() == pytest.approx(expected.item(), abs=1e-4)
    parts = [outputs.mlm_loss, outputs.contrastive_loss, outputs.nsp_loss]
    assert outputs.loss.item() == pytest.approx(sum(part.item() for part in parts if part is not None), abs=1e-5)
    base = ScratchBertForMaskedLM if name == "contrastive" else ScratchBertForPreTraining
    plain = base(model.config).eval()
    plain.load_state_dict(model.state_dict())
    names = set(batch) - {name for name in batch if name.startswith("segment_")}
    assert outputs.mlm_loss is not None
    assert torch.allclose(outputs.logits, plain(**{name: batch[name] for name in names})[1], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "saved_as"), [("contrastive", "ScratchBertForMaskedLM"), ("nsp+contrastive", "ScratchBertForPreTraining")]
)
def test_contrastive_run_ends_with_a_model_that_opens_without_its_objective(name, saved_as, tmp_path):
    texts = [f"This is number {n}. It has two neighbours. They are {n - 1} and {n + 1}." for n in range(80)]
    options = {"vocab_size": 120, "max_seq_length": 32, "max_steps": 4, "logging_steps": 2, "use_cpu": True}
    options |= {"output_dir": tmp_path / "run", "cache_dir": tmp_path / "cache"}
    metrics = pretrain(texts, sentence_objective=name, **options)
    assert metrics["eval_contrastive_chance_accuracy"] > 0 and "eval_contrastive_loss" in metrics
    log = json.loads((tmp_path / "run" / "checkpoint-4" / "trainer_state.json").read_text())["log_history"]
    assert any("contrastive_loss" in entry for entry in log)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["architectures"][0] == saved_as
    assert "contrastive accuracy" in (tmp_path / "run" / "README.md").read_text()


def test_contrastive_evaluates_what_a_checkpoint_can_do(saved):
    for name in NAMES:
        assert open_with_objective(OBJECTIVES[name], str(saved), False)[1].name == name


def test_contrastive_examples_are_not_packed_again(tmp_path):
    texts = [f"This is number {n}. It has two neighbours." for n in range(40)]
    options = {"sentence_objective": "contrastive", "pack_sequences": True, "max_seq_length": 32, "use_cpu": True}
    with pytest.raises(ValueError, match="compares the segments of a batch: leave out pack_sequences"):
        pretrain(texts, output_dir=tmp_path / "run", cache_dir=tmp_path / "cache", **options)
