"""Callbacks of both kinds of training: signals save a checkpoint; early stopping goes on counting after a resume;
TensorBoard gets the speed, predictions, and the model's graph."""

import logging
import os
import signal
import threading
import warnings
from collections.abc import Callable

import torch
import transformers
from torch import distributed
from transformers import EarlyStoppingCallback, PreTrainedModel, Trainer, TrainerCallback
from transformers.integrations import TensorBoardCallback


logger = logging.getLogger("scratch_bert")


class SignalCallback(TrainerCallback):
    """Within `with`, Ctrl-C and SIGTERM (of a cluster that needs the machine) end the step, save a checkpoint and stop; a
    second one stops at once. SIGUSR1 saves a checkpoint.

    Several processes do so in the same step, whichever of them gets the signal: it leaves a note in the store by which they
    found each other, for the step after the next. All see it in time, as no step ends anywhere before it has begun everywhere.
    """

    notes_done = 0  # by all trainings in this process

    def __init__(self):
        self.requested: str | None = None
        self.number = signal.SIGTERM  # of the signal, unless another process got it
        self.stopped = False
        self.previous_handlers = {}

    def __enter__(self):
        self.requested, self.stopped, self.process = None, False, os.getpid()
        if threading.current_thread() is threading.main_thread():  # other threads don't get signals
            handlers = {signal.SIGINT: self.request_stop, signal.SIGTERM: self.request_stop}
            if hasattr(signal, "SIGUSR1"):  # not on Windows
                handlers[signal.SIGUSR1] = self.request_save
            self.previous_handlers = {number: signal.signal(number, handlers[number]) for number in handlers}

    def request_stop(self, number, frame):
        if os.getpid() != self.process:  # a data loader's worker, which ends with its parent
            return
        self.requested, self.number = "stop", number
        signal.signal(number, self.previous_handlers[number])
        again = "Press Ctrl-C again" if number == signal.SIGINT else "Send it again"
        logger.warning(
            f"{signal.Signals(number).name}: ending this step and saving a checkpoint. {again} to stop at once."
        )

    def request_save(self, number, frame):
        self.requested = self.requested or "save"

    def on_train_begin(self, args, state, control, **kwargs):
        SignalCallback.notes_done += 1  # what is left of an earlier training is not for this one

    def on_step_end(self, args, state, control, **kwargs):
        request = self._agreed(state.global_step, state.max_steps) if args.world_size > 1 else self.requested
        if request is None:
            return
        control.should_save = True
        control.should_training_stop |= request == "stop"
        self.stopped |= request == "stop"
        if request == self.requested:
            self.requested = None

    def on_epoch_end(self, args, state, control, **kwargs):
        if (
            self.stopped and state.epoch % 1
        ):  # saved already; an evaluation here would count as one of the unbroken run
            control.should_evaluate = control.should_save = False

    def _agreed(self, step: int, max_steps: int) -> str | None:
        """The request that all processes follow after this step."""
        store = distributed.distributed_c10d._get_default_store()
        key = f"scratch_bert/signal-{SignalCallback.notes_done}"
        if self.requested and step < max_steps:
            store.compare_set(key, "", f"{self.requested} {min(step + 2, max_steps)}")  # the first note stays
        if not store.check([key]):
            return None
        request, due = store.get(key).decode().split()
        if step < int(due):
            return None
        SignalCallback.notes_done += 1
        return request

    def __exit__(self, *exception):
        for number, handler in self.previous_handlers.items():
            signal.signal(number, handler)


class IntervalsCallback(TrainerCallback):
    """A resumed run logs, evaluates and saves at the intervals of its options, not of the checkpoint."""

    def on_train_begin(self, args, state, control, **kwargs):
        state.compute_steps(args, state.max_steps)


class PatienceCallback(EarlyStoppingCallback):
    """Early stopping that goes on counting in a resumed run.

    `restore_callback_states_from_checkpoint` would also restore the patience, whatever the options of the resumed run
    say, and fails if the checkpoint was saved without early stopping.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        self.early_stopping_patience_counter = saved["attributes"]["early_stopping_patience_counter"]


class TensorBoardRunCallback(TensorBoardCallback):
    """Trainer's callback for TensorBoard, which also

    - puts the entries speed/… of the log into a group of their own;
    - with `describe`, writes what it says of the model at each evaluation, as text;
    - with `graph`, writes the graph of the model in evaluation mode: for one sequence of `max_position_embeddings` tokens, with
      logits of all of them.
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
            indented = "".join(f"    {line}\n" for line in self.describe(model).splitlines())  # as it is, in Markdown
            self.tb_writer.add_text("predictions", indented, state.global_step)

    def _write_graph(self, model: PreTrainedModel) -> None:
        ids = torch.ones((1, model.config.max_position_embeddings), dtype=torch.long, device=model.device)  # (1, S)
        # Tracing warns of what matters to those who would run the trace, and reads deprecated properties of the model.
        verbosity = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.tb_writer.add_graph(model, (ids, torch.ones_like(ids), torch.zeros_like(ids)), use_strict_trace=False)
        transformers.logging.set_verbosity(verbosity)


def extend_tensorboard(trainer: Trainer, **options) -> None:
    """Where the trainer reports to TensorBoard, let a `TensorBoardRunCallback` with these options do it."""
    if trainer.pop_callback(TensorBoardCallback):
        trainer.add_callback(TensorBoardRunCallback(**options))
