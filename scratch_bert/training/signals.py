"""Callbacks of both kinds of training: signals save a checkpoint; checkpoints are pushed; early stopping continues to count
after a resume; TensorBoard gets the speed, predictions, and the model's graph."""

import logging
import os
import shutil
import signal
import tempfile
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import HfApi
from torch import distributed
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, PreTrainedModel, Trainer, TrainerCallback
from transformers.integrations import TensorBoardCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy
from transformers.utils import PushInProgress

from ..hub.publishing import public_files, publish


logger = logging.getLogger("scratch_bert")
STAGED = ".push-"  # prefix of the temporary directories that are pushed during training
RUN_AHEAD = 4  # by more steps, no process is ahead of another
TRAINING_STATE = shutil.ignore_patterns("*.pt", "*.pth", "*.bin", "pytorch_model_fsdp_*", "optimizer_*")  # not pushed


class SignalCallback(TrainerCallback):
    """Within `with`, Ctrl-C, SIGTERM (a cluster's preemption) and SIGHUP (a closed terminal) end the step, save a checkpoint and
    stop the training; a second one stops at once. SIGUSR1 saves a checkpoint. A SIGHUP that nohup ignores stays ignored.

    Several processes do so in the same step, whichever of them gets the signal: it leaves a note for a later step in the
    store of their rendezvous. All see it in time: on CPUs, no step ends anywhere before it has begun everywhere; a GPU's step
    ends after its host has queued it, so there, the host waits for the GPU if it is two steps ahead.
    """

    notes_done = 0  # by all trainings in this process

    def __init__(self):
        self.requested: str | None = None
        self.number = signal.SIGTERM  # of the signal, unless another process got it
        self.stopped = False
        self.previous_handlers = {}
        self._events: deque[torch.Event] = deque()  # the ends of the latest steps on the GPU

    def __enter__(self):
        self.requested, self.stopped, self.process = None, False, os.getpid()
        if threading.current_thread() is threading.main_thread():  # other threads don't get signals
            handlers = {signal.SIGINT: self.request_stop, signal.SIGTERM: self.request_stop}
            if hasattr(signal, "SIGUSR1"):  # not on Windows
                handlers[signal.SIGUSR1] = self.request_save
                if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
                    handlers[signal.SIGHUP] = self.request_stop
            self.previous_handlers = {number: signal.signal(number, handlers[number]) for number in handlers}

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
        SignalCallback.notes_done += 1  # notes of an earlier training are not for this one

    def on_step_end(self, args, state, control, **kwargs):
        request = self.requested
        if args.world_size > 1:
            request = self._agreed(state.global_step, state.max_steps, args.device)
        if request is None:
            return
        control.should_save = True
        control.should_training_stop |= request == "stop"
        self.stopped |= request == "stop"
        if request == self.requested:
            self.requested = None

    def on_epoch_end(self, args, state, control, **kwargs):
        # The checkpoint is saved already, and an uninterrupted run would not evaluate here.
        if self.stopped and state.epoch % 1:
            control.should_evaluate = control.should_save = False

    def _agreed(self, step: int, max_steps: int, device: torch.device) -> str | None:
        """Return the request that all processes follow after this step."""
        store = distributed.distributed_c10d._get_default_store()
        key = f"scratch_bert/signal-{SignalCallback.notes_done}"
        due = min(step + 2, max_steps)
        if device.type != "cpu":
            self._events.append(torch.Event(device))
            self._events[-1].record()
            if len(self._events) > 2:
                self._events.popleft().synchronize()
            due = step + RUN_AHEAD
        if self.requested and step < max_steps and due <= max_steps:
            store.compare_set(key, "", f"{self.requested} {due}")  # the first note stays
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


def shield_workers(loader: DataLoader) -> None:
    """Let each worker of a data loader start in a process group of its own: a signal to the group of the training must not end
    workers, which the training needs until its last checkpoint."""
    stock = getattr(loader, "base_dataloader", loader)  # accelerate wraps it
    if getattr(stock.worker_init_fn, "func", None) is not _start_worker:
        stock.worker_init_fn = partial(_start_worker, stock.worker_init_fn)


def _start_worker(init: Callable[[int], None] | None, number: int) -> None:
    if hasattr(os, "setpgrp"):  # not on Windows
        os.setpgrp()
    Queue._on_queue_feeder_error = _hand_over_error
    if init is not None:
        init(number)


def _hand_over_error(queue: Queue, error: Exception, batch: tuple[int, Any]) -> None:
    """Hand over to the training why a worker can't hand over a batch, for which the training would wait without end: there are no
    more open files, or no more shared memory."""
    queue.put((batch[0], ExceptionWrapper((type(error), error, error.__traceback__), "in DataLoader worker process")))


class PushCallback(TrainerCallback):
    """Pushes the model in each checkpoint, with code, tokenizer and card but without the training state, in one commit and in the
    background. Failures are logged. A checkpoint saved during a push is not pushed or, with `hub_always_push`, waits."""

    def __init__(self, trainer: Trainer):
        self.trainer = weakref.proxy(trainer)  # which would not be freed with its last other reference

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            for left_over in Path(args.output_dir).glob(f"{STAGED}*"):  # of a run that was killed
                shutil.rmtree(left_over)

    def on_save(self, args, state, control, **kwargs):
        if not state.is_world_process_zero or args.hub_strategy == HubStrategy.END:
            return
        step, previous = state.global_step, self.trainer.push_in_progress
        if previous is not None and not previous.is_done():
            if not args.hub_always_push:
                logger.info(f"Step {step} is not pushed: the previous push is still running")
                return
            previous.wait_until_done()
        self.trainer.callback_handler.on_push_begin(args, state, control)
        checkpoint = Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}")
        # A copy, as save_total_limit may delete the checkpoint before the push ends.
        staged = tempfile.TemporaryDirectory(dir=args.output_dir, prefix=STAGED)
        try:
            shutil.copytree(checkpoint, staged.name, symlinks=True, ignore=TRAINING_STATE, dirs_exist_ok=True)
            # Not in the background: it builds a model, for which transformers sets the default dtype of all threads.
            files = public_files(staged.name, args.hub_token)
        except (OSError, ValueError) as error:  # such as a full disk, or a secret in the card
            staged.cleanup()
            logger.warning(f"Step {step} is not pushed, training continues: {error}")
            return
        subfolder = {"checkpoint": "last-checkpoint", "all_checkpoints": checkpoint.name}.get(args.hub_strategy)
        api = HfApi(token=args.hub_token)
        options = {"revision": args.hub_revision, "subfolder": subfolder, "files": files}
        job = api.run_as_future(self._push, staged, self.trainer.hub_model_id, step, api=api, **options)
        self.trainer.push_in_progress = PushInProgress([job])

    def _push(self, staged: tempfile.TemporaryDirectory, repo_id: str, step: int, **options) -> None:
        try:
            with staged as directory:
                publish(directory, repo_id, commit_message=f"Training in progress, step {step}", **options)
        except Exception as error:  # a network failure must not end the training
            logger.warning(f"The push of step {step} failed, training continues. {type(error).__name__}: {error}")


class PatienceCallback(EarlyStoppingCallback):
    """Early stopping that continues to count in a resumed run.

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
    - with `describe`, writes its description of the model at each evaluation, as text;
    - with `graph`, writes the graph of the model in evaluation mode: for one sequence of `max_position_embeddings` tokens, with
      logits for all of them.
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
