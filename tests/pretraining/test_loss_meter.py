import pytest
import torch

from scratch_bert.pretraining.loss_meter import LossMeter


def test_parts_are_averaged_over_steps_and_start_again_after_a_report():
    meter = LossMeter(("a_loss", "b_loss", "none_loss"))
    for step, scale in ((3, 1.0), (4, 3.0)):
        for _ in range(2):  # micro-batches
            outputs = {
                "a_loss": torch.tensor(scale),
                "b_loss": torch.tensor([scale, 3 * scale]),
                "loss": torch.tensor(9.0),
            }
            meter.update({**outputs, "none_loss": None}, step, weight=0.5, add_up=False)
    assert meter.report(5, lambda total: total) == {"a_loss": 2.0, "b_loss": 4.0}
    assert meter.report(5, lambda total: total) == {}
    meter.update({"b_loss": torch.tensor([1.0, 3.0])}, 5, weight=1.0, add_up=True)
    assert meter.report(6, lambda total: 2 * total) == {"b_loss": 8.0}


@pytest.mark.parametrize("sparse", [False, True])
def test_accuracy_is_that_of_the_predicted_tokens(sparse):
    labels = torch.tensor([[-100, 1, -100], [2, -100, 0]])
    logits = torch.eye(3)[torch.tensor([[0, 1, 0], [2, 0, 2]])]  # (B, S, V): two of three are right
    meter = LossMeter(["loss"])
    meter.update({"loss": torch.tensor(1.0)}, 0, weight=1.0, add_up=False)
    for _ in range(2):
        meter.update_accuracy("mlm_accuracy", logits[labels != -100] if sparse else logits, labels)
    meter.update_accuracy("nsp_accuracy", torch.eye(2)[[0, 1, 1]], torch.tensor([0, 0, -100]))
    accuracies = {"mlm_accuracy": pytest.approx(2 / 3), "nsp_accuracy": 0.5}
    assert meter.report(1, lambda total: total) == {"loss": 1.0} | accuracies
