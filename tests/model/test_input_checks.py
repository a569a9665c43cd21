"""Inputs that the models refuse, with errors that name the limit."""

import pytest
import torch
from transformers import BertConfig

from helpers import HEADS, make_batch, make_model, num_labels
from scratch_bert import ScratchBertModel


PRETRAINING, CLASSIFIER, CHOICE = (
    f"AutoModelFor{task}" for task in ("PreTraining", "SequenceClassification", "MultipleChoice")
)
OUT_OF_RANGE = {
    "input_ids": (torch.full((4, 20), 120), "input_ids .*0 and 119.*vocab_size is 120"),
    "token_type_ids": (torch.full((4, 20), -1), "type_vocab_size is 2.* run from -1"),
    "position_ids": (torch.full((1, 20), 40), "max_position_embeddings is 40"),
    "labels": (torch.full((4, 20), 120), "labels other than -100.*119"),
    "next_sentence_label": (torch.tensor([0, 1, 2, 0]), "next_sentence_label.*0 and 1"),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_ids_out_of_range_are_refused(name):
    values, message = OUT_OF_RANGE[name]
    with pytest.raises(IndexError, match=message):
        make_model()(**make_batch(PRETRAINING) | {name: values})


@pytest.mark.parametrize(
    ("auto_class", "change", "message"),
    [
        (PRETRAINING, {"attention_mask": torch.ones(4, 19)}, r"attention_mask .*\(4, 19\).*\(4, 20\)"),
        (PRETRAINING, {"position_ids": torch.zeros(3, 20).long()}, r"\(4, 20\) or \(1, 20\)"),
        (PRETRAINING, {"labels": torch.zeros(4, 21).long()}, r"labels .*\(4, 21\).*\(4, 20\)"),
        (PRETRAINING, {"next_sentence_label": torch.zeros(3).long()}, "next_sentence_label"),
        (PRETRAINING, {"input_ids": torch.zeros(20).long()}, r"input_ids of shape \(B, S\).*\(20,\)"),
        (PRETRAINING, {"input_ids": None}, "either input_ids or inputs_embeds"),
        (PRETRAINING, {"inputs_embeds": torch.zeros(4, 20, 32)}, "not both"),
        (PRETRAINING, {"input_ids": None, "inputs_embeds": torch.zeros(4, 20, 31)}, r"inputs_embeds .*\(4, 20, 32\)"),
        ("AutoModel", {"input_ids": torch.zeros(1, 41).long()}, "41 tokens.*max_position_embeddings=40"),
        (CLASSIFIER, {"labels": torch.zeros(3).long()}, r"labels .*\(3,\).*\(4,\)"),
        (CLASSIFIER, {"labels": torch.zeros(4, 2)}, r"labels .*\(4, 2\).*\(4, 3\)"),
        (CHOICE, {"input_ids": None}, r"input_ids of shape \(B, C, S\)"),
        (CHOICE, {"input_ids": torch.zeros(4, 20).long()}, r"input_ids of shape \(B, C, S\)"),
        ("AutoModelForQuestionAnswering", {"start_positions": torch.zeros(3).long()}, r"start_positions .*\(4,\)"),
    ],
)
def test_inputs_of_other_shapes_are_refused(auto_class, change, message):
    model = make_model(HEADS[auto_class], num_labels=num_labels(auto_class))
    with pytest.raises(ValueError, match=message):
        model(**make_batch(auto_class) | change)


def test_one_label_where_each_class_has_one_is_refused():
    model = make_model(HEADS[CLASSIFIER], num_labels=3, problem_type="multi_label_classification")
    with pytest.raises(ValueError, match=r"labels .*\(4,\).*\(4, 3\)"):
        model(**make_batch(CLASSIFIER))


def test_labels_of_several_classes_may_be_integers():
    model = make_model(HEADS[CLASSIFIER], num_labels=3, problem_type="multi_label_classification")
    batch, labels = make_batch(CLASSIFIER), torch.tensor([[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1]])
    assert model(**{**batch, "labels": labels}).loss == model(**{**batch, "labels": labels.float()}).loss


@pytest.mark.parametrize("config", [BertConfig(), {"hidden_size": 8}], ids=["BertConfig", "dict"])
def test_configs_of_another_model_are_rejected(config):
    with pytest.raises(ValueError, match=f"needs a ScratchBertConfig, not a {type(config).__name__}"):
        ScratchBertModel(config)
