"""Trainer with model cards, complete pushes to the Hub, and a checkpoint on Ctrl-C."""

import json
import logging
import shlex
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from huggingface_hub import CommitInfo, HfApi
from transformers import Trainer
from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress

from ..hub.model_card import is_customized
from ..hub.publishing import ensure_branch, publish
from .callbacks import InterruptCallback


logger = logging.getLogger("scratch_bert")
METRICS_FILE = "metrics.json"
TIMINGS = ("_runtime", "_per_second", "_time")  # the ends of the names of the timings that Trainer adds to the metrics
STAGED = ".push-"  # prefix of the temporary directories that are pushed during training


def write_metrics(directory: str | Path, metrics: dict) -> None:
    """Write the metrics of a finished run, or of several, to `directory`/metrics.json."""
    Path(directory, METRICS_FILE).write_text(json.dumps(metrics, indent=2) + "\n")


class ScratchBertTrainer(Trainer):
    """The stock Trainer, with three differences:

    - `write_card(trainer, directory)` writes a model card, README.md, into every directory that it saves, unless a
      user has changed the card there.
    - Each push contains code, weights, tokenizer and card, in one commit. The training state (optimizer, arguments,
      random generators) stays on this machine, with every `hub_strategy`.
    - Ctrl-C ends the step, saves a checkpoint and stops the training; `interrupted` is then True.

    For another optimizer, override `create_optimizer`. `results` are metrics for the card, in addition to those of the log.
    """

    def __init__(self, *args, write_card: Callable[[Trainer, Path], None] | None = None, **kwargs):
        self.write_card = write_card
        self.results: dict[str, float] = {}
        super().__init__(*args, **kwargs)
        self._interrupt = InterruptCallback()
        self.add_callback(self._interrupt)

    def train(self, *args, **kwargs):
        with self._interrupt:
            return super().train(*args, **kwargs)

    @property
    def interrupted(self) -> bool:
        """Whether a Ctrl-C ended the training."""
        return self._interrupt.interrupted

    def raise_if_interrupted(self) -> None:
        """Raise `KeyboardInterrupt`, with how to continue, if a Ctrl-C ended the training."""
        if self.interrupted:
            step = self.state.global_step
            raise KeyboardInterrupt(
                f"Stopped at step {step}. To continue: the same command with --resume_from_checkpoint"
            )

    def latest_metrics(self) -> dict[str, float]:
        """The latest value of each entry in the log, and the `results`."""
        return {name: value for entry in self.state.log_history for name, value in entry.items()} | self.results

    def init_hf_repo(self, token: str | None = None, **options) -> None:  # older versions know no more options
        try:
            super().init_hf_repo(token=token, **options)
            if self.is_world_process_zero():
                ensure_branch(self._hub(token), self.hub_model_id, self.args.hub_revision)
        except Exception as error:  # a network fails in many ways
            raise OSError(
                f"Cannot push to the Hub: {error}. Log in with `hf auth login` or set HF_TOKEN, check the network, or "
                "leave out --push_to_hub and publish later with scratch-bert-push."
            ) from error
        if self.args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            logger.info("Pushed checkpoints contain the model only: what a resume needs stays on this machine")
        if self.is_world_process_zero():
            for left_over in Path(self.args.output_dir).glob(f"{STAGED}*"):  # of a run that was killed
                shutil.rmtree(left_over)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if self.write_card and self.args.should_save:  # before the weights, as the stock method may push
            directory = Path(output_dir or self.args.output_dir)
            directory.mkdir(parents=True, exist_ok=True)
            if not is_customized(directory):
                self.write_card(self, directory)
        super().save_model(output_dir, _internal_call)

    def push_to_hub(
        self,
        commit_message: str = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs,
    ) -> CommitInfo | Future[CommitInfo] | None:
        """Save the model in `output_dir` and push it; `kwargs` are for Trainer's own card, which is not written."""
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, **({} if private is None else {"private": private}))
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self._finish_current_push()
        api, directory = self._hub(token), self.args.output_dir
        revision = revision or self.args.hub_revision
        options = {"api": api, "revision": revision, "commit_message": commit_message}
        if not blocking:
            job = api.run_as_future(publish, directory, self.hub_model_id, **options)
            self.push_in_progress = PushInProgress([job])
            return job
        try:
            return publish(directory, self.hub_model_id, **options)
        except Exception as error:  # a network fails in many ways
            command = ["scratch-bert-push", str(directory), self.hub_model_id]
            command += ["--revision", revision] if revision else []
            raise OSError(
                f"The model is saved in {directory}, but the push to {self.hub_model_id} failed: {error}\n"
                f"To push it, log in or set HF_TOKEN, then run: {shlex.join(command)}"
            ) from error

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        if self.push_in_progress is not None and not self.push_in_progress.is_done():
            if not self.args.hub_always_push:
                logger.info(f"Step {self.state.global_step} is not pushed: the previous push is still running")
                return
            self._finish_current_push()
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        # A copy, as save_total_limit may delete the checkpoint before the push ends.
        staged = tempfile.TemporaryDirectory(dir=self.args.output_dir, prefix=STAGED)
        state = shutil.ignore_patterns("*.pt", "*.pth", "*.bin")
        try:
            shutil.copytree(checkpoint_folder, staged.name, ignore=state, dirs_exist_ok=True)
        except OSError as error:  # such as a full disk
            staged.cleanup()
            logger.warning(f"Step {self.state.global_step} is not pushed, training continues: {error}")
            return
        subfolders = {"checkpoint": "last-checkpoint", "all_checkpoints": Path(checkpoint_folder).name}
        job = self._hub().run_as_future(
            self._push_staged, staged, self.state.global_step, subfolders.get(self.args.hub_strategy)
        )
        self.push_in_progress = PushInProgress([job])

    def _push_staged(self, staged: tempfile.TemporaryDirectory, step: int, subfolder: str | None) -> None:
        options = {"revision": self.args.hub_revision, "subfolder": subfolder}
        message = f"Training in progress, step {step}"
        try:
            with staged as directory:
                publish(directory, self.hub_model_id, self._hub(), commit_message=message, **options)
        except Exception as error:  # a network failure must not end the training
            logger.warning(f"The push of step {step} failed, training continues. {type(error).__name__}: {error}")

    def _hub(self, token: str | None = None) -> HfApi:
        return HfApi(token=token or self.args.hub_token)
