"""Signals in a training: Ctrl-C, SIGTERM and SIGHUP save a checkpoint and stop it, SIGUSR1 saves a checkpoint."""

import os
import signal
import threading
from pathlib import Path

from torch import distributed
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from ..logs import logger
from .processes import from_rank_zero, process_store
from .workers import shield_workers


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP ended the training."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.exit_code = 128 + signal_number


class SignalCallback(TrainerCallback):
    """Within `with`, Ctrl-C, SIGTERM (a cluster's preemption) and SIGHUP (a closed terminal) end the step, save a
    checkpoint and stop the training; a second one stops at once. SIGUSR1 saves a checkpoint. A SIGHUP that nohup
    ignores stays ignored.

    Several processes do so after the same step, whichever of them gets the signal: it leaves a note in the store that
    they share, and rank 0 decides after which step all follow it.
    """

    trainings = 0  # in this process: notes of an earlier training are not for this one

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
                if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
                    handlers[signal.SIGHUP] = self.request_stop
            self.previous_handlers = {number: signal.signal(number, handlers[number]) for number in handlers}

    def __exit__(self, *exception):
        for number, handler in self.previous_handlers.items():
            signal.signal(number, handler)

    def request_stop(self, number, frame):
        if os.getpid() != self.process:  # a data loader's worker, which ends with its parent
            return
        self.requested, self.number = "stop", number
        signal.signal(number, self.previous_handlers[number])
        again = "Press Ctrl-C again" if number == signal.SIGINT else "Send it again"
        name = signal.Signals(number).name
        logger.warning(f"{name}: ending this step and saving a checkpoint. {again} to stop at once.")

    def request_save(self, number, frame):
        self.requested = self.requested or "save"

    def on_train_begin(self, args, state, control, train_dataloader, **kwargs):
        shield_workers(train_dataloader)
        SignalCallback.trainings += 1

    def on_step_end(self, args, state, control, **kwargs):
        request = self.requested
        if args.world_size > 1:
            request = self._requested_of_all()
        if request is None:
            return
        control.should_save = True
        args.save_only_model &= request != "stop"  # or the run could not be resumed
        control.should_training_stop |= request == "stop"
        self.stopped |= request == "stop"
        if request == self.requested:
            self.requested = None

    def on_epoch_end(self, args, state, control, **kwargs):
        # The checkpoint is saved already, and an uninterrupted run would not evaluate here.
        if self.stopped and state.epoch % 1:
            control.should_evaluate = control.should_save = False

    def _requested_of_all(self) -> str | None:
        """The request that all processes follow after this step, perhaps a later one than that of the signal."""
        store, training = process_store(), SignalCallback.trainings
        notes = {request: f"scratch_bert/signals-{training}/{request}" for request in ("stop", "save")}
        if self.requested:
            store.set(notes[self.requested], "requested")
            self.requested = None
        found = None
        if distributed.get_rank() == 0:
            found = next((request for request, note in notes.items() if store.check([note])), None)
            if found:
                store.delete_key(notes[found])
        return from_rank_zero(found or "") or None


class InterruptibleTrainer(Trainer):
    """Trainer that signals stop after a step, with a checkpoint: see `SignalCallback`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._signals = SignalCallback()
        self.add_callback(self._signals)

    def train(self, *args, **kwargs) -> TrainOutput:
        with self._signals:
            return super().train(*args, **kwargs)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C, SIGTERM or SIGHUP ended the training."""
        return self._signals.stopped

    @property
    def will_resume_later(self) -> bool:
        """Whether the training stopped before its last step, to be resumed."""
        return self.interrupted

    def raise_if_interrupted(self) -> None:
        """Raise `Interrupted`, with how to continue, if a signal ended the training or, where it has a checkpoint of
        its last step and is the only process, came after that step."""
        step = self.state.global_step
        saved = Path(self.args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}").is_dir()
        at_the_end = self._signals.requested == "stop" and saved and self.args.world_size == 1
        if self.interrupted or at_the_end:
            message = f"Stopped at step {step}. To continue: {self.options.how_to_resume()}"
            raise Interrupted(message, self._signals.number)
