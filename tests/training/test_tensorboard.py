"""TensorBoard gets the model's graph; its other entries are tested with pretraining."""

import logging
import time

import pytest
import transformers
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter
from transformers import TrainerControl, TrainerState, TrainingArguments

from helpers import make_model
from scratch_bert import ScratchBertForMaskedLM, ScratchBertForPreTraining
from scratch_bert.training.tensorboard import TensorBoardRunCallback


@pytest.mark.parametrize(
    ("model_class", "options"),
    [
        (ScratchBertForPreTraining, {}),
        (ScratchBertForPreTraining, {"norm_first": True, "position_embedding_type": "sinusoidal"}),
        (ScratchBertForMaskedLM, {"attn_implementation": "eager"}),
    ],
)
def test_graph_has_every_module_and_nothing_is_changed(model_class, options, tmp_path, recwarn, caplog):
    model = make_model(model_class, **options).train()
    callback = TensorBoardRunCallback(SummaryWriter(tmp_path), graph=True)
    arguments = TrainingArguments(tmp_path), TrainerState(is_world_process_zero=True), TrainerControl()
    transformers.utils.logging.enable_propagation()
    callback.on_train_begin(*arguments, model=model)
    transformers.utils.logging.disable_propagation()
    callback.on_train_end(*arguments)
    assert model.training and not recwarn.list and not caplog.records
    assert transformers.logging.get_verbosity() == logging.WARNING
    events = EventAccumulator(str(tmp_path)).Reload()
    names = [node.name for node in events.Graph().node]
    for part in ("word_embeddings", "ModuleList[layer]/ScratchBertLayer[1]", "[predictions]", "Linear[decoder]"):
        assert any(f"{model_class.__name__}/" in name and part in name for name in names), part
    assert "model_config/text_summary" in events.Tags()["tensors"]


def test_predictions_are_on_disk_after_the_evaluation(tmp_path, monkeypatch):
    """A thread writes them, and after the training, nothing waits for it."""
    write = RecordWriter.write
    monkeypatch.setattr(RecordWriter, "write", lambda *args: time.sleep(0.5) or write(*args))
    writer = SummaryWriter(tmp_path)
    callback = TensorBoardRunCallback(writer, describe=lambda model: "the [MASK] sleeps")
    callback.on_evaluate(TrainingArguments(tmp_path), TrainerState(global_step=7), TrainerControl())
    (event,) = EventAccumulator(str(tmp_path)).Reload().Tensors("predictions/text_summary")
    assert event.step == 7 and event.tensor_proto.string_val == [b"    the [MASK] sleeps\n"]
    writer.close()
