"""What is not computed makes no difference: padding, unlabelled positions, rows of their own for short sequences."""

import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    DataCollatorWithFlattening,
    Trainer,
    TrainingArguments,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from helpers import HEADS, SMALL, make_batch, make_inputs, num_labels
from scratch_bert import ScratchBertConfig, ScratchBertForMaskedLM, ScratchBertModel
from scratch_bert.pretraining.collator import PreTrainingCollator, pack_rows


TOLERANCE = {"rtol": 0, "atol": 1e-5}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
PRETRAINING = ["AutoModelForPreTraining", "AutoModelForMaskedLM"]


def make_pair(auto_class, attention="sdpa", one=None, other=None):
    """Two models with the same random weights, in training but without dropout, that differ in an option."""
    models = []
    for options in (one or {}, other or {}):
        torch.manual_seed(0)
        config = ScratchBertConfig(
            **SMALL, **NO_DROPOUT, **options, num_labels=num_labels(auto_class), attn_implementation=attention
        )
        model = HEADS[auto_class](config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.1)
        models.append(model.train())
    return models


def assert_same_gradients(model, other):
    expected = dict(other.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, **TOLERANCE, msg=lambda m, n=name: f"{n}: {m}")


# -------------------------------------------------------------------------------------------------------- padding


@pytest.mark.filterwarnings("ignore:.*activation_checkpointing_enable")  # a newer name that 5.17 does not have
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("auto_class", HEADS)
def test_without_padding_as_with_it(auto_class, attention, checkpointing):
    model, padded = make_pair(auto_class, attention, other={"unpad_inputs": False})
    if checkpointing:
        model.gradient_checkpointing_enable()
    batch = make_batch(auto_class, rows=5, length=37)
    mask = batch["attention_mask"].flatten(0, -2).bool()
    options = {"output_hidden_states": True, "output_attentions": attention == "eager"}
    mine, expected = model(**batch, **options), padded(**batch, **options)
    assert len(mine.hidden_states) == SMALL["num_hidden_layers"] + 1
    for x, y in zip(mine.hidden_states, expected.hidden_states, strict=True):
        assert x.shape == y.shape
        torch.testing.assert_close(x[mask], y[mask], **TOLERANCE)
    for x, y in zip(mine.attentions or (), expected.attentions or (), strict=True):
        assert x.shape == y.shape
        torch.testing.assert_close(x.transpose(1, 2)[mask], y.transpose(1, 2)[mask], **TOLERANCE)
    if auto_class == "AutoModel":
        torch.testing.assert_close(mine.pooler_output, expected.pooler_output, **TOLERANCE)
        mine.pooler_output.sum().backward()
        expected.pooler_output.sum().backward()
    else:
        torch.testing.assert_close(mine.loss, expected.loss, **TOLERANCE)
        mine.loss.backward()
        expected.loss.backward()
    assert_same_gradients(model, padded)


def test_padding_is_left_out():
    """What stands in the embedding of [PAD] cannot matter where it is not computed: not even NaN."""
    model, padded = make_pair("AutoModel", other={"unpad_inputs": False})
    batch = make_inputs()
    for each in (model, padded):
        each.embeddings.word_embeddings.weight.data[0] = float("nan")
    assert model(**batch).last_hidden_state.isfinite().all()
    assert not padded(**batch).last_hidden_state.isfinite().all()
    assert not model(**batch, unpad_inputs=False).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_padding_on_the_left_in_the_middle_or_nowhere(attention):
    model, padded = make_pair("AutoModel", attention, other={"unpad_inputs": False})
    inputs = make_inputs(rows=3, length=12)
    mask = torch.ones(3, 12, dtype=torch.long)
    for holes in ([], [(0, slice(0, 5))], [(1, slice(4, 6))], [(0, slice(0, 5)), (1, slice(4, 6)), (2, slice(9, 12))]):
        for hole in holes:
            mask[hole] = 0
        for given in (mask, mask.bool(), mask.float()):
            inputs["attention_mask"] = given
            mine, expected = model(**inputs).last_hidden_state, padded(**inputs).last_hidden_state
            torch.testing.assert_close(mine[mask.bool()], expected[mask.bool()], **TOLERANCE)
            pooled = [each(**inputs).pooler_output for each in (model, padded)]
            torch.testing.assert_close(*pooled, **TOLERANCE)


@pytest.mark.skipif(Version(transformers.__version__) < Version("5.23"), reason="older ones return them all")
def test_hidden_states_that_are_chosen():
    model = make_pair("AutoModel")[0]
    inputs = make_inputs()
    last = model(**inputs, output_hidden_states=[-1]).hidden_states
    assert last[:-1] == (None,) * SMALL["num_hidden_layers"]
    assert torch.equal(last[-1], model(**inputs).last_hidden_state)


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(precision):
    model, padded = make_pair("AutoModel", other={"unpad_inputs": False})
    inputs = make_inputs()
    mask = inputs["attention_mask"].bool()
    with torch.inference_mode():
        expected = padded(**inputs)[0][mask]
        torch.testing.assert_close(model.to(precision)(**inputs)[0][mask].float(), expected, rtol=0.05, atol=0.05)


def test_bf16_autocast_is_near_fp32():
    model = make_pair("AutoModelForPreTraining")[0]
    batch = make_batch("AutoModelForPreTraining")
    gradients = []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = model(**batch).loss
        loss.backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.999


def test_flash_attention_gets_the_bounds_of_the_sequences(monkeypatch):
    """Stands in for a package that needs a GPU: it takes one row of all tokens, and where each sequence begins."""

    def flash_attention(module, query, key, value, mask, scaling, dropout, cu_seq_lens_q, max_length_q, **kwargs):
        assert mask is None and query.shape[0] == 1
        lengths = cu_seq_lens_q.diff().tolist()
        assert max_length_q == max(lengths)
        parts = zip(*(states.split(lengths, dim=2) for states in (query, key, value)), strict=True)
        contexts = [torch.nn.functional.scaled_dot_product_attention(*part, scale=scaling) for part in parts]
        return torch.cat(contexts, dim=2).transpose(1, 2), None

    model, plain = make_pair("AutoModel")
    inputs = make_inputs()
    mask = inputs["attention_mask"].bool()
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", flash_attention)
    model.config._attn_implementation = "flash_attention_2"
    torch.testing.assert_close(model(**inputs)[0][mask], plain(**inputs)[0][mask], **TOLERANCE)
    packed = pack_rows(inputs, 40, pad_token_id=0)
    torch.testing.assert_close(model(**packed).pooler_output, plain(**packed).pooler_output, **TOLERANCE)
    with pytest.raises(ValueError, match="Take the attention implementation sdpa"):
        model(**packed, unpad_inputs=False)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_rows_of_padding_alone(attention):
    model = make_pair("AutoModelForPreTraining", attention)[0]
    batch = make_batch("AutoModelForPreTraining")
    alone = model(**{name: values[:1] for name, values in batch.items()}).mlm_loss
    batch["attention_mask"][1:] = 0
    batch["labels"][1:] = -100
    torch.testing.assert_close(model(**batch).mlm_loss, alone, **TOLERANCE)
    batch["attention_mask"][:] = 0
    batch["labels"][:] = -100
    outputs = model(**batch)
    assert outputs.mlm_loss.item() == 0 and outputs.loss.isfinite()
    outputs.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_long_sequences_take_the_attention_that_needs_no_weights():
    options = {"max_position_embeddings": 1200}
    torch.manual_seed(0)
    model = ScratchBertModel(ScratchBertConfig(**{**SMALL, **options})).eval()
    inputs = make_inputs(rows=2, length=1100)
    torch.testing.assert_close(
        model(**inputs)[0][inputs["attention_mask"].bool()],
        model(**inputs, unpad_inputs=False)[0][inputs["attention_mask"].bool()],
        **TOLERANCE,
    )


def test_question_answering_never_answers_with_padding():
    model = make_pair("AutoModelForQuestionAnswering")[0].eval()
    inputs = make_inputs()
    outputs = model(**inputs)
    padding = inputs["attention_mask"] == 0
    for logits in (outputs.start_logits, outputs.end_logits):
        assert logits[padding].max() < logits[~padding].min() and logits.isfinite().all()


# -------------------------------------------------------------------------------------------- unlabelled positions


@pytest.mark.parametrize("auto_class", PRETRAINING)
def test_predictions_where_there_are_labels_as_everywhere(auto_class):
    model, dense = make_pair(auto_class, other={"sparse_prediction": False})
    batch = make_batch(auto_class, rows=5, length=37)
    mine, expected = model(**batch), dense(**batch)
    torch.testing.assert_close(mine.loss, expected.loss, **TOLERANCE)
    name = "logits" if auto_class == "AutoModelForMaskedLM" else "prediction_logits"
    labelled = batch["labels"] != -100
    assert mine[name].shape == (labelled.sum(), SMALL["vocab_size"])
    assert expected[name].shape == (5, 37, SMALL["vocab_size"])
    torch.testing.assert_close(mine[name], expected[name][labelled], **TOLERANCE)
    mine.loss.backward()
    expected.loss.backward()
    assert_same_gradients(model, dense)


@pytest.mark.parametrize("auto_class", PRETRAINING)
def test_logits_are_dense_without_labels_and_in_evaluation(auto_class):
    model = make_pair(auto_class)[0]
    batch = make_batch(auto_class)
    shape = (*batch["input_ids"].shape, SMALL["vocab_size"])
    name = "logits" if auto_class == "AutoModelForMaskedLM" else "prediction_logits"
    labels = batch.pop("labels")
    assert model(**batch)[name].shape == shape
    assert model.eval()(**batch, labels=labels)[name].shape == shape


def test_labels_of_another_shape_are_refused():
    model = make_pair("AutoModelForMaskedLM")[0]
    batch = make_batch("AutoModelForMaskedLM")
    with pytest.raises(ValueError, match="labels has the shape"):
        model(**batch | {"labels": batch["labels"][:, :-1]})


def test_the_stock_evaluation_gives_the_figures_of_transformers_bert(tokenizer, tmp_path):
    options = {**SMALL, "vocab_size": len(tokenizer)}
    bert = BertForMaskedLM(BertConfig(**options))
    ours = ScratchBertForMaskedLM(ScratchBertConfig(**options))
    ours.load_state_dict(bert.state_dict())
    texts = ["the list is sorted in place", "a", "raise an exception if the key is not found in it"] * 5
    rows = [tokenizer(text) for text in texts]

    def compute_metrics(prediction):
        labelled = prediction.label_ids != -100
        predicted = prediction.predictions.argmax(-1)[labelled]
        return {
            "accuracy": (predicted == prediction.label_ids[labelled]).mean(),
            "mean_logit": prediction.predictions[labelled].mean(),
        }

    figures = []
    for model in (bert, ours):
        arguments = TrainingArguments(
            str(tmp_path), per_device_eval_batch_size=4, use_cpu=True, report_to="none", disable_tqdm=True
        )
        trainer = Trainer(
            model,
            arguments,
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.4, seed=1),
            eval_dataset=rows,
            compute_metrics=compute_metrics,
        )
        figures.append(trainer.evaluate())
    for name in ("eval_loss", "eval_accuracy", "eval_mean_logit"):
        assert figures[1][name] == pytest.approx(figures[0][name], abs=1e-5)


# ------------------------------------------------------------------------------------------------------ packed rows


@pytest.mark.parametrize("unpad_inputs", [True, False])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("auto_class", ["AutoModel", *PRETRAINING, "AutoModelForTokenClassification"])
def test_packed_rows_as_rows_of_their_own(auto_class, attention, unpad_inputs):
    model, unpacked = make_pair(auto_class, attention, one={"unpad_inputs": unpad_inputs})
    batch = make_batch(auto_class, rows=7, length=20)
    packed = pack_rows(batch, 40, pad_token_id=0)
    assert packed["input_ids"].shape[0] < 7 and packed["input_ids"].shape[1] == 40
    mine, expected = model(**packed), unpacked(**batch)
    if auto_class == "AutoModel":
        in_order = [outputs.pooler_output.sort(dim=0).values for outputs in (mine, expected)]
        torch.testing.assert_close(*in_order, **TOLERANCE)
        mine.pooler_output.square().sum().backward()
        expected.pooler_output.square().sum().backward()
    else:
        torch.testing.assert_close(mine.loss, expected.loss, **TOLERANCE)
        mine.loss.backward()
        expected.loss.backward()
    for (name, parameter), other in zip(model.named_parameters(), unpacked.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(parameter.grad, other.grad, **TOLERANCE, msg=lambda m, n=name: f"{n}: {m}")


def test_packing_keeps_every_row_whole(pairs, tokenizer):
    rows = [pairs[index] for index in range(32)]
    packed = PreTrainingCollator(tokenizer, pack_to=256)(rows)
    plain = PreTrainingCollator(tokenizer)(rows)
    assert set(packed) == {*plain, "position_ids", "seq_idx"}
    sequences = []
    for row, (numbers, mask) in enumerate(zip(packed["seq_idx"], packed["attention_mask"].bool(), strict=True)):
        labels = packed["next_sentence_label"][row]
        for number in range(int(numbers[mask].max()) + 1):
            inside = mask & (numbers == number)
            assert packed["position_ids"][row][inside].tolist() == list(range(int(inside.sum())))
            columns = ("input_ids", "token_type_ids", "labels")
            sequences.append((*(packed[name][row][inside].tolist() for name in columns), int(labels[number])))
        assert (labels[number + 1 :] == -100).all()
        assert (packed["input_ids"][row][~mask] == tokenizer.pad_token_id).all()
        assert (packed["labels"][row][~mask] == -100).all()
    expected = [
        (*(plain[name][row][mask].tolist() for name in columns), int(plain["next_sentence_label"][row]))
        for row, mask in enumerate(plain["attention_mask"].bool())
    ]
    assert sorted(sequences) == sorted(expected)
    with pytest.raises(ValueError, match="more than the 16"):
        PreTrainingCollator(tokenizer, pack_to=16)(rows)


def test_the_stock_collator_that_flattens_gives_separate_sequences():
    model = make_pair("AutoModelForMaskedLM")[0].eval()
    rows = [{"input_ids": list(range(5, 5 + length))} for length in (4, 9, 6)]
    batch = DataCollatorWithFlattening(return_seq_idx=True)(rows)
    batch.pop("labels")
    logits = model(**batch).logits[0]
    alone = [model(input_ids=torch.tensor([row["input_ids"]])).logits[0] for row in rows]
    torch.testing.assert_close(logits, torch.cat(alone), **TOLERANCE)


def test_numbers_of_sequences_are_checked():
    model = make_pair("AutoModel")[0]
    inputs = make_inputs()
    with pytest.raises(ValueError, match="seq_idx has the shape"):
        model(**inputs, seq_idx=torch.zeros(4, 19, dtype=torch.long))
    with pytest.raises(IndexError, match="seq_idx must lie between"):
        model(**inputs, seq_idx=torch.full((4, 20), -1))
    with pytest.raises(ValueError, match="seq_idx must not fall"):
        model(**inputs, seq_idx=torch.arange(20).flip(0).expand(4, 20))
    with pytest.raises(ValueError, match=r"attention_mask of shape \(B, S\)"):
        mask = torch.ones(4, 1, 20, 20, dtype=torch.bool)
        model(**inputs | {"attention_mask": mask}, seq_idx=torch.zeros(4, 20, dtype=torch.long))


def test_numbers_of_sequences_stay_with_trainer():
    """Trainer drops the columns that a model's forward does not name."""
    for auto_class in ("AutoModel", *PRETRAINING, "AutoModelForTokenClassification"):
        assert "seq_idx" in inspect.signature(HEADS[auto_class].forward).parameters


# ------------------------------------------------------------------------------- several processes, torch.compile


def gradients_of_a_share(rank: int, processes: int, directory: str, port: int = 0) -> None:
    """What one of several processes does in the test below; `port` is that of the store where they meet."""
    torch.manual_seed(0)
    model = ScratchBertForMaskedLM(ScratchBertConfig(**SMALL, **NO_DROPOUT)).train()
    batch = make_batch("AutoModelForMaskedLM", rows=8)
    masked = (batch["labels"] != -100).sum()
    share = {name: values.chunk(processes)[rank] for name, values in batch.items()}
    if processes > 1:
        store = torch.distributed.TCPStore("127.0.0.1", port)
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=processes)
        model = torch.nn.parallel.DistributedDataParallel(model)
    # Each process has its share of the sum that is divided by all masked tokens, and DDP takes the mean.
    (processes * model(**share, num_items_in_batch=masked).loss).backward()
    if rank == 0:
        gradients = {name: value.grad for name, value in getattr(model, "module", model).named_parameters()}
        torch.save(gradients, f"{directory}/{processes}.pt")
    if processes > 1:
        torch.distributed.barrier()  # a process that leaves while the other is at work may keep it from ending
        del model
        torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_have_the_gradients_of_one(tmp_path):
    gradients_of_a_share(0, 1, str(tmp_path))
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)  # at a free port
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    workers = []
    for rank in (0, 1):
        code = f"import test_efficiency as t; t.gradients_of_a_share({rank}, 2, {str(tmp_path)!r}, {store.port})"
        workers.append(subprocess.Popen([sys.executable, "-c", code], env=environment))
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    one, two = (torch.load(tmp_path / f"{processes}.pt") for processes in (1, 2))
    assert one.keys() == two.keys()
    for name, gradient in one.items():
        torch.testing.assert_close(two[name], gradient, **TOLERANCE, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method.*is deprecated:DeprecationWarning")  # torch.compile's own
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_as_not_compiled():
    model, plain = make_pair("AutoModelForPreTraining")
    compiled = torch.compile(model)
    for seed in range(4):
        batch = make_batch("AutoModelForPreTraining", rows=6, seed=seed)
        if seed > 1:
            batch = pack_rows(batch, 40, pad_token_id=0)
        mine, expected = compiled(**batch), plain(**batch)
        torch.testing.assert_close(mine.loss, expected.loss, **TOLERANCE)
        mine.loss.backward()
        expected.loss.backward()
        assert_same_gradients(model, plain)


@pytest.mark.slow
def test_exported_as_not_exported():
    model = make_pair("AutoModel")[0].eval()
    inputs = make_inputs()
    mask = inputs["attention_mask"].bool()
    exported = torch.export.export(model, (), inputs).module()
    torch.testing.assert_close(exported(**inputs)[0][mask], model(**inputs)[0][mask], **TOLERANCE)
