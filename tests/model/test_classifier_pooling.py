"""What a classifier of sequences reads of the tokens, against a loop over rows and tokens."""

import pytest
import torch

from helpers import make_inputs, make_model
from scratch_bert import ScratchBertConfig
from scratch_bert.model.modeling_scratch_bert import ScratchBertForSequenceClassification


def classifier(pooling, **options):
    torch.manual_seed(0)
    model = make_model(ScratchBertForSequenceClassification, classifier_pooling=pooling, num_labels=3, **options)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def two_segments(first_id=0, padded_left=False):
    """Four rows of two segments, the last of one alone."""
    inputs = make_inputs()
    lengths = inputs["attention_mask"].sum(1)
    second = torch.arange(20) >= lengths[:, None] // 2
    second[-1] = False
    inputs["token_type_ids"] = (second.long() + first_id) * inputs["attention_mask"]
    if padded_left:
        inputs = {name: torch.stack([row.roll(20 - int(n)) for row, n in zip(rows, lengths, strict=True)])
                  for name, rows in inputs.items()}  # fmt: skip
    return inputs


def features(states, embeddings, tokens, types, pooling):
    """The features of one row, token by token."""
    kept = [i for i in range(len(tokens)) if tokens[i]]
    if pooling == "mean":
        return states[kept].mean(0)
    first = [i for i in kept if types[i] == types[kept[0]]]
    second = [i for i in kept if i not in first]
    zeros = torch.zeros(states.shape[1])
    parts = [states[first].mean(0), states[second].mean(0) if second else zeros]
    sizes = embeddings.square().mean(-1, keepdim=True).sqrt()
    for layer in (embeddings / sizes, states):
        for own, other in ((first, second), (second, first)):
            differences, products = [zeros], [zeros]
            if second:
                differences, products = [], []
                for i in own:
                    cosines = torch.stack([torch.cosine_similarity(layer[i], layer[j], dim=0) for j in other])
                    counterpart = ((10 * cosines).softmax(0)[:, None] * layer[other]).sum(0)
                    differences.append((layer[i] - counterpart).abs())
                    products.append(layer[i] * counterpart)
            parts += [torch.stack(differences).mean(0), torch.stack(products).mean(0)]
    return torch.cat(parts)


@pytest.mark.parametrize("unpad", [True, False])
@pytest.mark.parametrize("options", [{}, {"first_id": 1}, {"padded_left": True}, {"first_id": 1, "padded_left": True}])
@pytest.mark.parametrize("pooling", ["mean", "pairs"])
def test_logits_are_those_of_a_loop(pooling, options, unpad):
    model, inputs = classifier(pooling, type_vocab_size=3, unpad_inputs=unpad), two_segments(**options)
    with torch.no_grad():
        logits = model(**inputs).logits
        states = model.bert(**inputs).last_hidden_state
        embeddings = model.get_input_embeddings()(inputs["input_ids"])
        rows = zip(states, embeddings, inputs["attention_mask"], inputs["token_type_ids"], strict=True)
        expected = model.classifier(torch.stack([features(*row, pooling) for row in rows]))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "pairs"])
def test_inputs_alone_are_one_segment_without_padding(pooling):
    model, ids = classifier(pooling), torch.randint(5, 120, (2, 9))
    all_inputs = {"attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, model(ids, **all_inputs).logits)


def test_token_types_of_one_row_are_those_of_all():
    model, ids = classifier("pairs"), torch.randint(5, 120, (3, 9))
    types = (torch.arange(9) > 3).long()[None]
    with torch.no_grad():
        logits = model(ids, token_type_ids=types).logits
        torch.testing.assert_close(logits, model(ids, token_type_ids=types.repeat(3, 1)).logits)


def test_cls_is_read_through_the_pooler_as_in_bert():
    assert ScratchBertConfig().classifier_pooling == "cls"
    assert classifier("cls").bert.pooler is not None
    assert classifier("mean").bert.pooler is None


def test_classifier_of_pairs_starts_at_zero_and_learns():
    model = make_model(ScratchBertForSequenceClassification, classifier_pooling="pairs", num_labels=3)
    outputs = model(**two_segments(), labels=torch.tensor([0, 1, 2, 0]))
    assert not outputs.logits.any() and model.classifier.weight.requires_grad
    outputs.loss.backward()
    assert model.classifier.weight.grad.any(1).all()


@pytest.mark.parametrize("pooling", ["mean", "pairs"])
def test_embeddings_give_what_their_ids_give(pooling):
    model, inputs = classifier(pooling), two_segments()
    embeddings = model.get_input_embeddings()(inputs["input_ids"])
    others = {name: values for name, values in inputs.items() if name != "input_ids"}
    torch.testing.assert_close(model(inputs_embeds=embeddings, **others).logits, model(**inputs).logits)


@pytest.mark.parametrize(
    "extra",
    [
        {"seq_idx": torch.zeros(1, 9, dtype=torch.long)},
        {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1]])},
        {"attention_mask": torch.ones(1, 1, 9, 9)},
    ],
    ids=list,
)
def test_packed_sequences_and_other_masks_are_refused(extra):
    with pytest.raises(ValueError, match="classifier_pooling=mean"):
        classifier("mean")(torch.randint(5, 120, (1, 9)), **extra)
