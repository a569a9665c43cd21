"""What of a model's directory goes to the Hub: checked, without anything private, and in one commit, so that each
revision of the repository opens."""

import json
import logging
import re
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from huggingface_hub import CommitInfo, CommitOperationAdd, HfApi, get_token
from safetensors import SafetensorError, safe_open
from transformers import Trainer
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress

from .configuration_scratch_bert import AUTO_MAP


logger = logging.getLogger("scratch_bert")

# Beside the weights and the code. What is not named is not sent: optimizer state, training_args.bin, logs, …
PUBLIC_FILES = (
    "README.md",
    "curves.png",
    "LICENSE",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_PRIVATE = {
    "an access token": r"\bhf_[A-Za-z0-9]{30,}",
    "a path of this machine": r"(?<![\w.:-])(/home/|/Users/|[A-Z]:\\+Users\\+)[\w.-]+",
}


def public_files(directory: str | Path) -> list[Path]:
    """The files of a model's directory that belong in its repository.

    Raises `ValueError` that names the file and the remedy if the directory would not open from the Hub, for want of
    code, weights or tokenizer, if it has no model card, or if a file holds an access token or a path of this machine.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ValueError(f"There is no directory {directory}.")
    for name, remedy in (
        ("config.json", "it is no model's directory, as save_pretrained or Trainer writes it"),
        ("tokenizer_config.json", "save the tokenizer there, too: tokenizer.save_pretrained(directory)"),
        ("README.md", "write a model card, with what the model is, its data, its results and its limits"),
    ):
        if not (directory / name).is_file():
            raise ValueError(f"{directory} has no {name}: {remedy}.")
    files = [directory / name for name in PUBLIC_FILES if (directory / name).is_file()]
    files += _code(directory) + _weights(directory)
    for file in files:
        _check_private(file, directory)
    return sorted(files)


def _code(directory: Path) -> list[Path]:
    auto_map = json.loads((directory / "config.json").read_text(encoding="utf-8")).get("auto_map") or {}
    missing = set(AUTO_MAP) - set(auto_map)
    if missing:
        raise ValueError(
            f"{directory}/config.json names no code for {', '.join(sorted(missing))}: open the model with scratch_bert "
            "and save it again, or convert it with scripts/convert_checkpoint.py."
        )
    modules = {directory / f"{entry.split('.')[0]}.py" for entry in auto_map.values()}
    try:
        for module in sorted(modules):
            modules |= {Path(file) for file in get_relative_import_files(module)}
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise ValueError(f"{directory} has no {name}: save the model again, which puts its code there.") from None
    return list(modules)


def _weights(directory: Path) -> list[Path]:
    files, index = [directory / WEIGHTS], []
    if (directory / INDEX).is_file():
        if files[0].is_file():
            raise ValueError(f"{directory} holds {WEIGHTS} and shards of weights: delete the older of the two.")
        index = [directory / INDEX]
        shards = set(json.loads(index[0].read_text(encoding="utf-8"))["weight_map"].values())
        files = [directory / shard for shard in sorted(shards)]
    for file in files:
        try:
            with safe_open(file, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{file} is missing or cut short ({error}): save the model again.") from None
    return files + index


def _check_private(file: Path, directory: Path) -> None:
    if file.suffix not in (".md", ".json", ".py") or file.name == "tokenizer.json":  # a vocabulary is data
        return
    text = file.read_text(encoding="utf-8")
    own = {
        "a path of this machine": [str(Path.home()), str(directory.resolve().parent)],
        "an access token": [get_token()],
    }
    for what, pattern in _PRIVATE.items():
        patterns = [pattern, *(re.escape(value) + r"(?!\w)" for value in own[what] if value and len(value) > 1)]
        found = re.search("|".join(patterns), text)
        if found:
            line = text.count("\n", 0, found.start()) + 1
            raise ValueError(f"{file} holds {what} in line {line}: remove it before you publish.")


def publish(
    directory: str | Path,
    repo_id: str,
    api: HfApi,
    revision: str | None = None,
    commit_message: str = "Upload model",
    create_pr: bool = False,
    subfolder: str | None = None,
) -> CommitInfo:
    """Send a model's directory to an existing repository, in one commit; with `subfolder`, there as well.

    In the card, the name to open the model by becomes `repo_id`. Raises as `public_files`, and
    `huggingface_hub.errors.HfHubHTTPError` if the Hub refuses: then the repository is as before.
    """
    additions = []
    for file in public_files(directory):
        content = _card_for(repo_id, file) if file.name == "README.md" else file
        additions.append(CommitOperationAdd(file.name, content))
        # The code is found at the root, whichever folder the weights are in.
        if subfolder and file.suffix in (".json", ".safetensors", ".txt"):
            additions.append(CommitOperationAdd(f"{subfolder}/{file.name}", file))
    return api.create_commit(repo_id, additions, commit_message=commit_message, revision=revision, create_pr=create_pr)


def _card_for(repo_id: str, card: Path) -> bytes:
    text = card.read_text(encoding="utf-8")
    return re.sub(
        r'^name = ".*"(?=  # the directory or the repo)', f'name = "{repo_id}"', text, flags=re.MULTILINE
    ).encode()


class PublishingTrainer(Trainer):
    """The stock Trainer, but all that it saves has a model card, and each push holds code, weights, tokenizer and card
    together, in one commit, and no state of the training: with every `hub_strategy`, that stays on this machine.

    `write_card` is called with this trainer and the directory to write a README.md to; pushes need one.
    """

    def __init__(self, *args, write_card: Callable[[Trainer, Path], None] | None = None, **kwargs):
        self.write_card = write_card
        super().__init__(*args, **kwargs)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        super().init_hf_repo(token=token, private=private)
        if self.args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            logger.info("Pushed checkpoints hold the model alone: what a resume needs stays on this machine")
        if self.args.hub_revision and self.is_world_process_zero():
            self._hub(token).create_branch(self.hub_model_id, branch=self.args.hub_revision, exist_ok=True)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if self.write_card and self.args.should_save:  # before the weights, as the stock method may push
            directory = Path(output_dir or self.args.output_dir)
            directory.mkdir(parents=True, exist_ok=True)
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
        """Save the model to `output_dir` and push it; `kwargs` are for Trainer's own card, which ours replaces."""
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self._finish_current_push()
        api, arguments = self._hub(token), (self.args.output_dir, self.hub_model_id)
        options = {"revision": revision or self.args.hub_revision, "commit_message": commit_message}
        if not blocking:
            return api.run_as_future(publish, *arguments, api, **options)
        try:
            return publish(*arguments, api, **options)
        except Exception as error:  # whatever a network does
            raise OSError(
                f"The model is saved in {self.args.output_dir}, but the push to {self.hub_model_id} failed. To push it: "
                f"python scripts/push_to_hub.py {self.args.output_dir} {self.hub_model_id}. The error was: {error}"
            ) from error

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        if self.push_in_progress is not None and not self.push_in_progress.is_done():
            if not self.args.hub_always_push:
                logger.info(f"Step {self.state.global_step} is not pushed: the last push is still under way")
                return
            self._finish_current_push()
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        # A copy, as the checkpoint may be deleted before all of it is sent (save_total_limit).
        staged = tempfile.TemporaryDirectory(dir=self.args.output_dir, prefix="push-")
        state = shutil.ignore_patterns("*.pt", "*.pth", "*.bin")
        shutil.copytree(checkpoint_folder, staged.name, ignore=state, dirs_exist_ok=True)
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
        except Exception as error:  # a network that is down must not end a training of days
            logger.warning(f"The push of step {step} failed, training goes on. {type(error).__name__}: {error}")

    def _hub(self, token: str | None = None) -> HfApi:
        return HfApi(token=token or self.args.hub_token)
