"""TensorBoard: the speed in a separate group, predictions as text, and the model's graph."""

import warnings
from collections.abc import Callable

import torch
import transformers
from transformers import PreTrainedModel, Trainer
from transformers.integrations import TensorBoardCallback


class TensorBoardRunCallback(TensorBoardCallback):
    """Trainer's callback for TensorBoard, which also

    - puts the entries speed/… of the log into a separate group;
    - with `describe`, writes its description of the model at each evaluation, as text;
    - with `graph`, writes the graph of the model in evaluation mode: for one sequence of `max_position_embeddings`
      tokens, with logits for all of them.
    """

    def __init__(self, *args, describe: Callable[[PreTrainedModel], str] | None = None, graph: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        self.describe, self.graph = describe, graph

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        super().on_train_begin(args, state, control, model=model, **kwargs)
        if self.graph and self.tb_writer is not None:  # None in another process than the main one
            self._write_graph(model)

    def on_log(self, args, state, control, logs=None, **kwargs):
        speed = {name: value for name, value in logs.items() if name.startswith("speed/")}
        others = {name: value for name, value in logs.items() if name not in speed}
        super().on_log(args, state, control, logs=others, **kwargs)
        if self.tb_writer is not None:
            for name, value in speed.items():
                self.tb_writer.add_scalar(name, value, state.global_step)

    def on_evaluate(self, args, state, control, model=None, **kwargs):
        if self.describe and self.tb_writer is not None:
            indented = "".join(f"    {line}\n" for line in self.describe(model).splitlines())  # verbatim in Markdown
            self.tb_writer.add_text("predictions", indented, state.global_step)
            self.tb_writer.flush()  # after the training, nothing closes the writer

    def _write_graph(self, model: PreTrainedModel) -> None:
        ids = torch.ones((1, model.config.max_position_embeddings), dtype=torch.long, device=model.device)  # (1, S)
        # Tracing reads deprecated properties of the model, and its other warnings matter only for running the trace.
        verbosity = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.tb_writer.add_graph(model, (ids, torch.ones_like(ids), torch.zeros_like(ids)), use_strict_trace=False)
        transformers.logging.set_verbosity(verbosity)


def extend_tensorboard(trainer: Trainer, **options) -> None:
    """Replace the trainer's TensorBoard callback, if it has one, by a `TensorBoardRunCallback` with these options."""
    if trainer.pop_callback(TensorBoardCallback):
        trainer.add_callback(TensorBoardRunCallback(**options))
