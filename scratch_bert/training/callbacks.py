"""Callbacks of both kinds of training: Ctrl-C saves a checkpoint; early stopping goes on counting after a resume."""

import logging
import signal
import threading

from transformers import EarlyStoppingCallback, TrainerCallback


logger = logging.getLogger("scratch_bert")


class InterruptCallback(TrainerCallback):
    """Within `with`, the first Ctrl-C ends the step, saves and stops; a second one stops at once."""

    interrupted = False
    previous_handler = None

    def __enter__(self):
        self.interrupted = False
        if threading.current_thread() is threading.main_thread():  # other threads don't get signals
            self.previous_handler = signal.signal(signal.SIGINT, self.interrupt)

    def interrupt(self, signum, frame):
        self.interrupted = True
        signal.signal(signal.SIGINT, self.previous_handler)
        logger.warning("Interrupted: ending this step and saving a checkpoint. Press Ctrl-C again to stop at once.")

    def on_step_end(self, args, state, control, **kwargs):
        if self.interrupted:
            control.should_save = control.should_training_stop = True

    def __exit__(self, *exception):
        if self.previous_handler is not None:
            signal.signal(signal.SIGINT, self.previous_handler)


class PatienceCallback(EarlyStoppingCallback):
    """Early stopping that goes on counting in a resumed run.

    `restore_callback_states_from_checkpoint` would also restore the patience, whatever the options of the resumed run
    say, and fails if the checkpoint was saved without early stopping.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        self.early_stopping_patience_counter = saved["attributes"]["early_stopping_patience_counter"]
