"""The callback that saves a checkpoint on Ctrl-C."""

import signal
import threading

from transformers import TrainerCallback
from transformers.utils import logging


logger = logging.get_logger(__name__)


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
