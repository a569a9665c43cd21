"""What of a model's directory goes to the Hub: checked, without anything private, and in one commit, so that each
revision of the repository opens."""

import json
import logging
import re
from pathlib import Path, PurePosixPath

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from safetensors import SafetensorError, safe_open
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from ..model.configuration_scratch_bert import AUTO_MAP


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
STAGED = ".push-"  # begins the names of the directories that a training's pushes are sent from
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# What a push deletes if the new model does without: it would be opened in place of the new files, or beside them.
_REPLACED = re.compile(
    r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?|tokenizer(_config)?\.json|special_tokens_map\.json|added_tokens\.json"
    r"|vocab\.txt|curves\.png"
)


def public_files(directory: str | Path) -> list[Path]:
    """The files of a model's directory that belong in its repository.

    Raises `ValueError` that names the file and the remedy if the directory would not open from the Hub, for want of
    code, weights or tokenizer, if it has no model card, or if a file holds an access token or a path of this machine.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ValueError(f"There is no directory {directory}.")
    for names, remedy in (
        (["config.json"], "it is no model's directory, as save_pretrained or Trainer writes it"),
        (["tokenizer_config.json"], "save the tokenizer there, too: tokenizer.save_pretrained(directory)"),
        (["tokenizer.json", "vocab.txt"], "save the tokenizer there, too: tokenizer.save_pretrained(directory)"),
        (["README.md"], "write a model card, with what the model is, its data, its results and its limits"),
    ):
        if not any((directory / name).is_file() for name in names):
            raise ValueError(f"{directory} has no {' or '.join(names)}: {remedy}.")
    files = [directory / name for name in PUBLIC_FILES if (directory / name).is_file()]
    files += _code(directory) + _weights(directory)
    for file in files:
        if file.suffix in (".md", ".json", ".py"):
            _check_text(file)
    return sorted(files)


def _read_json(file: Path) -> dict:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # no UTF-8, no JSON
        raise ValueError(f"{file} cannot be read, save the model again: {error}") from None


def _code(directory: Path) -> list[Path]:
    config = _read_json(directory / "config.json")
    auto_map = config.get("auto_map") or {}
    if config.get("model_type") in CONFIG_MAPPING_NAMES and not auto_map:
        return []  # its code comes with transformers
    missing = set(AUTO_MAP) - set(auto_map)
    if missing:
        raise ValueError(
            f"{directory}/config.json names no code for {', '.join(sorted(missing))}: open the model with scratch_bert "
            "and save it again, or convert it with scripts/convert_checkpoint.py."
        )
    modules = {directory / f"{auto_map[name].split('.')[0]}.py" for name in AUTO_MAP}
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
        files = [directory / shard for shard in sorted(set(_read_json(index[0])["weight_map"].values()))]
    for file in files:
        if not is_complete(file):
            raise ValueError(f"{file} is missing or cut short: save the model again.")
    return files + index


def is_complete(file: Path) -> bool:
    """Whether a file of weights is there, and as long as its header says."""
    try:
        with safe_open(file, framework="pt"):
            return True
    except (OSError, SafetensorError):
        return False


def _check_text(file: Path) -> None:
    """Raise `ValueError` if the file is damaged, or holds what is nobody else's business."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no UTF-8: {error}") from None
    if file.suffix == ".json":
        _read_json(file)
    if file.name == "tokenizer.json":  # what looks private in a vocabulary is data
        return
    paths = r"/home/[\w.-]+|/Users/[\w.-]+|[A-Z]:\\+Users\\+[\w.-]+|" + re.escape(f"{Path.home()}/")
    if file.suffix == ".json":
        paths += r'|(?<=")/[\w.-]+/[^"\s]*'  # a value
    tokens = r"hf_[A-Za-z0-9]{30,}" + (f"|{re.escape(get_token())}" if get_token() else "")
    for what, pattern in (("a path of this machine", paths), ("an access token", tokens)):
        found = re.search(rf"(?<![\w.\-/])({pattern})", text)  # not within a word or an address
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

    In the card, the name to open the model by becomes `repo_id`. Weights and tokenizer files of an earlier push that
    the directory does without are deleted. Raises as `public_files`, and `huggingface_hub.errors.HfHubHTTPError` if the
    Hub refuses: then the repository is as before.
    """
    additions = {}
    for file in public_files(directory):
        additions[file.name] = _card_for(repo_id, file) if file.name == "README.md" else file
        # The code is found at the root, whichever folder the weights are in.
        if subfolder and file.suffix in (".json", ".safetensors", ".txt"):
            additions[f"{subfolder}/{file.name}"] = file
    present = set(api.list_repo_files(repo_id, revision=revision)) - additions.keys()
    folders = {"", subfolder or ""}
    stale = [path for path in present if str(PurePosixPath(path).parent).strip(".") in folders]
    operations = [CommitOperationDelete(path) for path in stale if _REPLACED.fullmatch(PurePosixPath(path).name)]
    operations += [CommitOperationAdd(path, content) for path, content in additions.items()]
    return api.create_commit(
        repo_id, operations, commit_message=commit_message, revision=revision, create_pr=create_pr
    )


def make_branch(api: HfApi, repo_id: str, revision: str | None) -> None:
    """Make sure that there is a branch to push to; pull requests (refs/pr/1) make their own."""
    if revision and not revision.startswith("refs/"):
        api.create_branch(repo_id, branch=revision, exist_ok=True)


def _card_for(repo_id: str, card: Path) -> bytes:
    text = card.read_text(encoding="utf-8")
    return re.sub(
        r'^name = ".*"(?=  # the directory or the repo)', f'name = "{repo_id}"', text, flags=re.MULTILINE
    ).encode()
