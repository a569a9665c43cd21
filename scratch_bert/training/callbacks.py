"""Callbacks of both kinds of training: signals save a checkpoint; early stopping goes on counting after a resume;
TensorBoard gets the model's graph."""

import logging
import os
import signal
import threading
import warnings

import torch
import transformers
from torch import distributed
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.integrations import TensorBoardCallback


logger = logging.getLogger("scratch_bert")


class SignalCallback(TrainerCallback):
    """Within `with`, Ctrl-C and SIGTERM (of a cluster that needs the machine) end the step, save a checkpoint and stop; a
    second one stops at once. SIGUSR1 saves a checkpoint. Several processes do this in the same step, whichever of them
    gets the signal."""

    stopped = False

    def __init__(self):
        self.stop = self.save = False
        self.previous_handlers = {}
        self.group = self.agreement = None

    def __enter__(self):
        self.stop = self.save = self.stopped = False
        self.process = os.getpid()
        if threading.current_thread() is threading.main_thread():  # other threads don't get signals
            handlers = {signal.SIGINT: self.request_stop, signal.SIGTERM: self.request_stop}
            if hasattr(signal, "SIGUSR1"):  # not on Windows
                handlers[signal.SIGUSR1] = self.request_save
            self.previous_handlers = {number: signal.signal(number, handlers[number]) for number in handlers}

    def request_stop(self, number, frame):
        if os.getpid() != self.process:  # a data loader's worker, which ends with its parent
            return
        self.stop = True
        signal.signal(number, self.previous_handlers[number])
        again = "Press Ctrl-C again" if number == signal.SIGINT else "Send it again"
        logger.warning(
            f"{signal.Signals(number).name}: ending this step and saving a checkpoint. {again} to stop at once."
        )

    def request_save(self, number, frame):
        self.save = True

    def on_train_begin(self, args, state, control, **kwargs):
        if args.world_size > 1 and self.group is None:
            self.group = distributed.new_group(backend="gloo")  # on the CPU: no step waits for a GPU

    def on_step_begin(self, args, state, control, **kwargs):
        if self.group is not None:
            requests = torch.tensor([self.stop, self.save], dtype=torch.int32)
            work = distributed.all_reduce(requests, distributed.ReduceOp.MAX, self.group, async_op=True)
            self.agreement = requests, work

    def on_step_end(self, args, state, control, **kwargs):
        stop, save = self.stop, self.save
        if self.agreement is not None:
            requests, work = self.agreement
            work.wait()
            stop, save = requests.bool().tolist()
        if stop or save:
            control.should_save, self.save = True, False
        if stop:
            control.should_training_stop = self.stopped = True

    def __exit__(self, *exception):
        for number, handler in self.previous_handlers.items():
            signal.signal(number, handler)


class PatienceCallback(EarlyStoppingCallback):
    """Early stopping that goes on counting in a resumed run.

    `restore_callback_states_from_checkpoint` would also restore the patience, whatever the options of the resumed run
    say, and fails if the checkpoint was saved without early stopping.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        self.early_stopping_patience_counter = saved["attributes"]["early_stopping_patience_counter"]


class TensorBoardGraphCallback(TensorBoardCallback):
    """Trainer's callback for TensorBoard, which also writes the graph of the model in evaluation mode: for one sequence of
    `max_position_embeddings` tokens, with logits of all of them."""

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        super().on_train_begin(args, state, control, model=model, **kwargs)
        if self.tb_writer is None:  # in another process than the main one
            return
        ids = torch.ones((1, model.config.max_position_embeddings), dtype=torch.long, device=model.device)  # (1, S)
        # Tracing warns of what matters to those who would run the trace, and reads deprecated properties of the model.
        verbosity = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.tb_writer.add_graph(model, (ids, torch.ones_like(ids), torch.zeros_like(ids)), use_strict_trace=False)
        transformers.logging.set_verbosity(verbosity)
