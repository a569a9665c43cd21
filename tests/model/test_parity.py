"""transformers' BERT is the reference: same weights in, same numbers out, and each loads the other's checkpoints."""

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from helpers import HEADS, SECOND_NAME, SMALL, TOLERANCE, assert_same_gradients, bert_and_ours, make_batch
from scratch_bert import ScratchBertForPreTraining


SIZES = {
    "small": {},
    "wide heads": {  # those of BERT; other segments and LayerNorms
        "vocab_size": 300,
        "hidden_size": 128,
        "num_attention_heads": 2,
        "intermediate_size": 256,
        "max_position_embeddings": 128,
        "type_vocab_size": 3,
        "layer_norm_eps": 1e-3,
    },
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("captured", [False, True], ids=["", "hidden states"])
@pytest.mark.parametrize("unpad_inputs", [True, False], ids=["unpadded", "padded"])
@pytest.mark.parametrize("auto_class", HEADS)
def test_parity_of_outputs_losses_and_gradients(auto_class, unpad_inputs, captured, attention, size):
    bert, ours = bert_and_ours(auto_class, **SIZES[size], attn_implementation=attention)
    ours.config.unpad_inputs = unpad_inputs
    batch = make_batch(auto_class, rows=5, length=37)
    options = {"output_hidden_states": captured, "output_attentions": captured and attention == "eager"}
    theirs, mine = bert(**batch, **options), ours(**batch, **options)

    mask = batch["attention_mask"].flatten(0, -2).bool()  # (B, S): outputs at padded positions may differ
    for name in set(theirs) - {"cross_attentions"}:
        expected, actual = theirs[name], mine[name]
        if name in ("hidden_states", "attentions"):
            assert len(expected) == len(actual)
        for x, y in zip(*((t,) if torch.is_tensor(t) else t for t in (expected, actual)), strict=True):
            assert x.shape == y.shape
            if x.shape[:2] == mask.shape:
                x, y = x[mask], y[mask]
            elif name == "attentions":  # (B, A, S, S)
                x, y = x.transpose(1, 2)[mask], y.transpose(1, 2)[mask]
            torch.testing.assert_close(y, x, **TOLERANCE, msg=lambda m, name=name: f"{name}: {m}")

    if auto_class != "AutoModel":
        theirs.loss.backward()
        mine.loss.backward()
        assert_same_gradients(ours, bert)


@pytest.mark.parametrize("asked", ["arguments", "config"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("auto_class", ["AutoModel", "AutoModelForMaskedLM"])
def test_parity_of_the_gradients_of_hidden_states_and_attentions(auto_class, attention, asked):
    batch, captured = make_batch(auto_class, rows=5), []
    for model in bert_and_ours(auto_class, attn_implementation=attention):
        options = {"output_hidden_states": True, "output_attentions": attention == "eager"}
        if asked == "config":
            model.config.update(options)
            options = {}
        outputs = model(**batch, **options)
        captured.append([*outputs.hidden_states, *(outputs.attentions or ())])
        for states in captured[-1]:
            states.retain_grad()
        loss = outputs.pooler_output.square().sum() if auto_class == "AutoModel" else outputs.loss
        loss.backward()
    layers = SMALL["num_hidden_layers"]
    assert len(captured[1]) == (2 * layers + 1 if attention == "eager" else layers + 1)
    for index, (theirs, mine) in enumerate(zip(*captured, strict=True)):
        torch.testing.assert_close(mine.grad, theirs.grad, **TOLERANCE, msg=lambda m, i=index: f"{i}: {m}")


@pytest.mark.parametrize(
    ("problem_type", "num_labels"),
    [("regression", 1), ("regression", 3), ("single_label_classification", 3), ("multi_label_classification", 3)],
)
def test_parity_of_sequence_classification_losses(problem_type, num_labels):
    options = {"problem_type": problem_type, "num_labels": num_labels}
    bert, ours = bert_and_ours("ForSequenceClassification", **options)
    batch = make_batch("AutoModelForSequenceClassification")
    if problem_type != "single_label_classification":
        batch["labels"] = torch.rand(4, num_labels).round()
        if num_labels == 1:
            batch["labels"] = batch["labels"].view(-1)
    torch.testing.assert_close(ours(**batch).loss, bert(**batch).loss, **TOLERANCE)


@pytest.mark.parametrize("auto_class", HEADS)
@pytest.mark.parametrize("direction", ["bert to ours", "ours to bert"])
def test_parity_of_checkpoints_in_both_directions(auto_class, direction, tmp_path):
    bert, ours = bert_and_ours(auto_class)
    for name, tensor in ours.state_dict().items():  # none is there twice, which would have been overwritten
        assert torch.equal(tensor, bert.state_dict()[name]), name
    source, target = (bert, type(ours)) if direction == "bert to ours" else (ours, type(bert))
    source.save_pretrained(tmp_path)
    loaded, info = target.from_pretrained(tmp_path, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert len(info[kind]) == 0, (kind, info[kind])
    for name in source.state_dict().keys() - {SECOND_NAME}:
        assert torch.equal(loaded.state_dict()[name], source.state_dict()[name]), name


def test_parity_of_the_encoder_of_a_pretraining_checkpoint(tmp_path):
    bert, ours = bert_and_ours("AutoModelForPreTraining")
    batch = make_batch("AutoModel")
    ours.save_pretrained(tmp_path / "ours")
    bert.save_pretrained(tmp_path / "bert")
    theirs = transformers.BertModel.from_pretrained(tmp_path / "ours").eval()
    mine, info = HEADS["AutoModel"].from_pretrained(tmp_path / "bert", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    torch.testing.assert_close(mine.eval()(**batch).pooler_output, theirs(**batch).pooler_output, **TOLERANCE)


def test_checkpoint_with_old_key_names_loads(tmp_path):
    bert, ours = bert_and_ours("AutoModelForPreTraining")
    bert.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for key, tensor in state.items()
    }
    state["bert.embeddings.position_ids"] = torch.arange(40)[None]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded, info = ScratchBertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    torch.testing.assert_close(loaded.state_dict(), ours.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("activation", ["relu", "gelu_new", "silu"])
def test_parity_of_other_activations(activation):
    bert, ours = bert_and_ours("AutoModelForMaskedLM", hidden_act=activation)
    batch = make_batch("AutoModelForMaskedLM")
    torch.testing.assert_close(ours(**batch).loss, bert(**batch).loss, **TOLERANCE)
