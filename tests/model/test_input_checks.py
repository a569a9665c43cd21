"""Inputs that the models refuse, with errors that name the limit."""

import pytest
import torch
from transformers import BertConfig

from helpers import HEADS, make_batch, make_model, num_labels
from scratch_bert import ScratchBertModel


def changed(name, change):
    """Applied to the batch: a tensor in its place, or a function of the one that is there."""
    return lambda batch: {**batch, name: change(batch[name]) if callable(change) else change}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        pytest.param(
            changed("input_ids", lambda ids: ids + 120),
            IndexError,
            "input_ids .*0 and 119.*vocab_size is 120",
            id="input_ids above vocab_size",
        ),
        pytest.param(
            changed("input_ids", lambda ids: ids - 1), IndexError, "input_ids .*run from -1", id="input_ids below 0"
        ),
        pytest.param(
            changed("token_type_ids", lambda ids: ids + 2),
            IndexError,
            "type_vocab_size is 2",
            id="token_type_ids above type_vocab_size",
        ),
        pytest.param(
            changed("position_ids", torch.full((1, 20), 40)),
            IndexError,
            "max_position_embeddings is 40",
            id="position_ids above max_position_embeddings",
        ),
        pytest.param(
            changed("labels", torch.full((4, 20), 120)),
            IndexError,
            "labels other than -100.*119",
            id="labels above vocab_size",
        ),
        pytest.param(
            changed("next_sentence_label", torch.tensor([0, 1, 2, 0])),
            IndexError,
            "next_sentence_label.*0 and 1",
            id="next_sentence_label above 1",
        ),
        pytest.param(
            changed("attention_mask", torch.ones(4, 19)),
            ValueError,
            r"attention_mask .*\(4, 19\).*\(4, 20\)",
            id="attention_mask of another length",
        ),
        pytest.param(
            changed("token_type_ids", torch.zeros(20).long()),
            ValueError,
            r"token_type_ids .*\(4, 20\)",
            id="token_type_ids of one dimension",
        ),
        pytest.param(
            changed("position_ids", torch.zeros(3, 20).long()),
            ValueError,
            r"\(4, 20\) or \(1, 20\)",
            id="position_ids of another batch size",
        ),
        pytest.param(
            changed("labels", torch.zeros(4, 21).long()),
            ValueError,
            r"labels .*\(4, 21\).*\(4, 20\)",
            id="labels of another length",
        ),
        pytest.param(
            changed("next_sentence_label", torch.zeros(3).long()),
            ValueError,
            "next_sentence_label",
            id="next_sentence_label of another batch size",
        ),
        pytest.param(
            changed("input_ids", torch.zeros(20).long()),
            ValueError,
            r"input_ids of shape \(B, S\).*\(20,\)",
            id="input_ids of one dimension",
        ),
        pytest.param(changed("input_ids", None), ValueError, "either input_ids or inputs_embeds", id="no input"),
        pytest.param(changed("inputs_embeds", torch.zeros(4, 20, 32)), ValueError, "not both", id="two inputs"),
    ],
)
def test_input_checks_name_the_limit(change, error, message):
    with pytest.raises(error, match=message):
        make_model()(**change(make_batch("AutoModelForPreTraining")))


def test_input_checks_the_sequence_length():
    with pytest.raises(ValueError, match="41 tokens.*max_position_embeddings=40"):
        make_model(ScratchBertModel)(torch.zeros(1, 41, dtype=torch.long))


def test_input_checks_the_width_of_inputs_embeds():
    with pytest.raises(ValueError, match=r"inputs_embeds .*\(2, 5, 31\).*\(2, 5, 32\)"):
        make_model(ScratchBertModel)(inputs_embeds=torch.zeros(2, 5, 31))


@pytest.mark.parametrize(
    ("auto_class", "change", "message"),
    [
        pytest.param(
            "AutoModelForSequenceClassification",
            {"labels": torch.zeros(3).long()},
            r"labels .*\(3,\).*\(4,\)",
            id="labels of another batch size",
        ),
        pytest.param(
            "AutoModelForSequenceClassification",
            {"labels": torch.zeros(4, 2)},
            r"labels .*\(4, 2\).*\(4, 3\)",
            id="labels of another number",
        ),
        pytest.param(
            "AutoModelForSequenceClassification",
            {"labels": torch.zeros(4).long(), "problem_type": "multi_label_classification"},
            r"labels .*\(4,\).*\(4, 3\)",
            id="one label of several",
        ),
        pytest.param(
            "AutoModelForMultipleChoice", {"input_ids": None}, r"input_ids of shape \(B, C, S\)", id="no input"
        ),
        pytest.param(
            "AutoModelForMultipleChoice",
            {"input_ids": torch.zeros(4, 20).long()},
            r"input_ids of shape \(B, C, S\)",
            id="no choices",
        ),
        pytest.param(
            "AutoModelForQuestionAnswering",
            {"start_positions": torch.zeros(3).long()},
            r"start_positions .*\(4,\)",
            id="start_positions of another batch size",
        ),
    ],
)
def test_input_checks_of_task_models(auto_class, change, message):
    model = make_model(HEADS[auto_class], num_labels=num_labels(auto_class))
    change = dict(change)
    model.config.problem_type = change.pop("problem_type", None)
    with pytest.raises(ValueError, match=message):
        model(**{**make_batch(auto_class), **change})


def test_labels_of_several_classes_may_be_integers():
    auto_class = "AutoModelForSequenceClassification"
    model = make_model(HEADS[auto_class], num_labels=3, problem_type="multi_label_classification")
    batch, labels = make_batch(auto_class), torch.tensor([[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1]])
    assert model(**{**batch, "labels": labels}).loss == model(**{**batch, "labels": labels.float()}).loss


@pytest.mark.parametrize("config", [BertConfig(), {"hidden_size": 8}], ids=["BertConfig", "dict"])
def test_configs_of_another_model_are_rejected(config):
    with pytest.raises(
        ValueError, match=f"A ScratchBertModel needs a ScratchBertConfig, not a {type(config).__name__}"
    ):
        ScratchBertModel(config)
