"""Pushes to the Hub: code, weights, tokenizer and card in one commit. The training state stays on this machine."""

import shutil
import tempfile
from concurrent.futures import Future
from pathlib import Path

from huggingface_hub import CommitInfo, HfApi
from transformers import Trainer
from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress

from scratch_bert_options.commands import command, command_line
from scratch_bert_options.errors import NetworkError, plain_message
from scratch_bert_options.network import limit_waiting

from ..hub.publishing import check_names, ensure_branch, public_files, publish
from ..logs import logger


STAGED = ".push-"  # prefix of the temporary directories that are pushed during training
TRAINING_STATE = shutil.ignore_patterns("*.pt", "*.pth", "*.bin", "pytorch_model_fsdp_*", "optimizer_*")  # not pushed


class PushingTrainer(Trainer):
    """Trainer that pushes a complete model, without the training state, with every `hub_strategy`."""

    def init_hf_repo(self, token: str | None = None, **options) -> None:  # older versions have no others
        limit_waiting()
        try:
            check_names(self.args.hub_model_id or "run", self.args.hub_revision)
            if self.is_world_process_zero():
                self._hub(token).whoami()  # for an existing repository, Trainer asks for no token
            super().init_hf_repo(token=token, **options)
            if self.is_world_process_zero():
                ensure_branch(self._hub(token), self.hub_model_id, self.args.hub_revision)
        except Exception as error:  # a network fails in many ways
            raise NetworkError(
                f"Cannot push to the Hub: {_reason(error)} Log in with `{command_line('hf', 'auth', 'login')}` or set "
                f"HF_TOKEN, or leave out --push_to_hub and publish later with `{command('push')}`."
            ) from error
        if self.args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            logger.info("Pushed checkpoints contain the model only: the training state stays on this machine")

    def push_to_hub(
        self, commit_message="End of training", blocking=True, token=None, revision=None, private=None, **kwargs
    ) -> CommitInfo | Future[CommitInfo] | None:
        """Save the model in `output_dir` and push it. `kwargs` are for the stock Trainer's card, and not used."""
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, **({} if private is None else {"private": private}))
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        if self.push_in_progress is not None:
            self.push_in_progress.wait_until_done()
        api, directory = self._hub(token), self.args.output_dir
        revision = revision or self.args.hub_revision
        options = {"api": api, "revision": revision, "commit_message": commit_message}
        if not blocking:
            options["files"] = public_files(directory)  # here, as it builds a model
            job = api.run_as_future(publish, directory, self.hub_model_id, **options)
            self.push_in_progress = PushInProgress([job])
            return job
        try:
            return publish(directory, self.hub_model_id, **options)
        except Exception as error:  # a network fails in many ways
            arguments = [directory, self.hub_model_id, *(["--revision", revision] if revision else [])]
            raise NetworkError(
                f"The model is saved in {directory}, but the push to {self.hub_model_id} failed: {_reason(error)} "
                f"To push it, log in or set HF_TOKEN, then run: {command('push', *arguments)}"
            ) from error

    def push_checkpoint(self, checkpoint: Path) -> None:
        """Push the model in a checkpoint of the current step, in the background. Failures are logged. A checkpoint
        saved during a push is not pushed or, with `hub_always_push`, waits."""
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        args, step, previous = self.args, self.state.global_step, self.push_in_progress
        if previous is not None and not previous.is_done():
            if not args.hub_always_push:
                logger.info(f"Step {step} is not pushed: the previous push is still running")
                return
            previous.wait_until_done()
        self.callback_handler.on_push_begin(args, self.state, self.control)
        for left_over in Path(args.output_dir).glob(f"{STAGED}*"):  # of a run that was killed
            shutil.rmtree(left_over)
        # A copy, as save_total_limit may delete the checkpoint before the push ends.
        staged = tempfile.TemporaryDirectory(dir=args.output_dir, prefix=STAGED)
        try:
            shutil.copytree(checkpoint, staged.name, symlinks=True, ignore=TRAINING_STATE, dirs_exist_ok=True)
            # Not in the background: it builds a model, for which transformers sets the default dtype of all threads.
            files = public_files(staged.name)
        except Exception as error:  # such as a full disk, or a secret in the card
            staged.cleanup()
            logger.warning(f"Step {step} is not pushed, training continues: {_reason(error)}")
            return
        subfolder = {"checkpoint": "last-checkpoint", "all_checkpoints": checkpoint.name}.get(args.hub_strategy)
        api = self._hub()
        options = {"revision": args.hub_revision, "subfolder": subfolder, "files": files}
        job = api.run_as_future(_push, staged, self.hub_model_id, step, api=api, **options)
        self.push_in_progress = PushInProgress([job])

    def _hub(self, token: str | None = None) -> HfApi:
        return HfApi(token=token or self.args.hub_token)


def _push(staged: tempfile.TemporaryDirectory, repo_id: str, step: int, **options) -> None:
    try:
        with staged as directory:
            publish(directory, repo_id, commit_message=f"Training in progress, step {step}", **options)
    except Exception as error:  # a network failure must not end the training
        logger.warning(f"The push of step {step} failed, training continues: {_reason(error)}")


def _reason(error: Exception) -> str:
    return f"{(plain_message(error) or repr(error)).rstrip('.')}."
