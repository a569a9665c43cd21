"""Publishing on the Hub: a model's public files, checked, in one commit, so that every revision of the repository opens."""

import json
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import LocalTokenNotFoundError
from huggingface_hub.utils import validate_repo_id
from safetensors import safe_open
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from ..model.configuration_scratch_bert import AUTO_MAP
from .loading import WEIGHTS, is_complete_safetensors
from .space import check_space, push_space, space_files


TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt")
# Published beside weights and code. Nothing else is: optimizer state, training_args.bin, logs, …
PUBLIC_FILES = ("README.md", "curves.png", "LICENSE", "config.json", *TOKENIZER)
INDEX = f"{WEIGHTS}.index.json"
# A push deletes these if the new model has no such file: they would be loaded instead of the new files, or beside them.
_REPLACED = re.compile(
    "|".join([r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?", r"curves\.png", *map(re.escape, TOKENIZER)])
)


def public_files(directory: str | Path) -> list[Path]:
    """The files of a model's directory that are published.

    Raises `ValueError` that names the file and the remedy if code, weights, tokenizer or model card are missing or
    damaged, or if a file contains an access token or a local path.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ValueError(f"The directory {directory} does not exist.")
    for names, remedy in (
        (["config.json"], "this is not a model's directory, as written by save_pretrained or Trainer"),
        (["tokenizer_config.json"], "save the tokenizer there as well: tokenizer.save_pretrained(directory)"),
        (["tokenizer.json", "vocab.txt"], "save the tokenizer there as well: tokenizer.save_pretrained(directory)"),
        (["README.md"], "write a model card that describes the model, its data, its results and its limits"),
    ):
        if not any((directory / name).is_file() for name in names):
            raise ValueError(f"{directory} has no {' or '.join(names)}: {remedy}.")
    config = _read_json(directory / "config.json")
    files = [directory / name for name in PUBLIC_FILES if (directory / name).is_file()]
    files += _weights(directory, config.get("vocab_size")) + _code(directory, config)
    for file in files:
        if file.suffix in (".md", ".json", ".py"):
            _check_text(file)
    _check_tokenizer(directory / "tokenizer.json", config.get("vocab_size"))
    return sorted(files)


def _read_json(file: Path) -> dict:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # not UTF-8, not JSON
        raise ValueError(f"{file} cannot be read: {error}. Save the model again.") from None


def _code(directory: Path, config: dict) -> list[Path]:
    auto_map = config.get("auto_map") or {}
    if config.get("model_type") in CONFIG_MAPPING_NAMES and not auto_map:
        return []  # its code is in transformers
    missing = set(AUTO_MAP) - set(auto_map)
    if missing:
        raise ValueError(
            f"{directory}/config.json has no auto_map entry for {', '.join(sorted(missing))}: open the model with "
            "scratch_bert and save it again, or convert it with scratch-bert-convert."
        )
    modules = {directory / f"{auto_map[name].split('.')[0]}.py" for name in AUTO_MAP}
    try:
        for module in sorted(modules):
            modules |= {Path(file) for file in get_relative_import_files(module)}
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise ValueError(f"{directory} has no {name}: save the model again, which copies its code.") from None
    return list(modules)


def _weights(directory: Path, vocab_size: int | None) -> list[Path]:
    """The files of the weights. Raises `ValueError` if they are incomplete, not finite, or of another vocabulary size."""
    files, index = [directory / WEIGHTS], []
    if (directory / INDEX).is_file():
        if files[0].is_file():
            raise ValueError(f"{directory} holds both {WEIGHTS} and sharded weights: delete the older ones.")
        index = [directory / INDEX]
        files = [directory / shard for shard in sorted(set(_read_json(index[0])["weight_map"].values()))]
    for file in files:
        if not is_complete_safetensors(file):
            raise ValueError(f"{file} is missing or truncated: save the model again.")
        with safe_open(file, framework="pt") as weights:
            for name in sorted(weights.keys()):
                weight = weights.get_tensor(name)
                if not weight.isfinite().all():
                    raise ValueError(
                        f"{file}: {name} is not finite. The training has diverged: publish an earlier checkpoint."
                    )
                if vocab_size and name.endswith("word_embeddings.weight") and len(weight) != vocab_size:
                    raise ValueError(
                        f"{file}: {name} has {len(weight):,} rows, but vocab_size in config.json is {vocab_size:,}. Save "
                        "the model again."
                    )
    return files + index


def _check_tokenizer(file: Path, vocab_size: int | None) -> None:
    """Raise `ValueError` if a tokenizer.json has ids that a model with this `vocab_size` has not."""
    content = _read_json(file) if vocab_size and file.is_file() else {}
    vocabulary = (content.get("model") or {}).get("vocab")
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    ids += [token["id"] for token in content.get("added_tokens") or []]
    if ids and max(ids) >= vocab_size:
        raise ValueError(
            f"{file} has ids up to {max(ids):,}, but vocab_size in config.json is {vocab_size:,}: this is not the model's "
            "tokenizer."
        )


def _check_text(file: Path) -> None:
    """Raise `ValueError` if the file is damaged, or contains an access token or a local path."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8: {error}") from None
    if file.suffix == ".json":
        _read_json(file)
    if file.name == "tokenizer.json":  # its vocabulary may contain anything
        return
    paths = r"/home/[\w.-]+|/Users/[\w.-]+|[A-Z]:\\+Users\\+[\w.-]+|" + re.escape(f"{Path.home()}/")
    if file.suffix == ".json":
        paths += r'|(?<=")/[\w.-]+/[^"\s]*'  # a value
    tokens = r"hf_[A-Za-z0-9]{30,}" + (f"|{re.escape(get_token())}" if get_token() else "")
    for what, pattern in (("a local path", paths), ("an access token", tokens)):
        found = re.search(rf"(?<![\w.\-/])({pattern})", text)  # not inside a word or a URL
        if found:
            line = text.count("\n", 0, found.start()) + 1
            raise ValueError(f"{file} contains {what} in line {line}: remove it before you publish.")


def push_to_hub(
    directory: str | Path,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    tag: str | None = None,
    create_pr: bool = False,
    commit_message: str = "Upload model",
    token: str | None = None,
    space: str | None = None,
    review: Callable[[list[Path], dict[str, bytes]], bool] = lambda files, space_files: True,
) -> CommitInfo | None:
    """Publish a model's directory: code, weights, tokenizer and model card in one commit.

    `repo_id` is `user/name`, or a name in your own account; a repository that does not exist is created. The commit goes
    to the branch `revision`, which is created too, and gets the `tag`; or it opens a pull request. `space` is the name of a
    Gradio Space to create or update, which shows this commit of the model. `review` is called with the checked files of
    the model and those of the Space, by path, before any connection: nothing is sent unless it returns True. Raises the
    errors of `publish` and `push_space`, and `ValueError` for a public repository that should be `private`, a `tag` that
    exists, and a pull request with a `revision`, a `tag` or a `space`.
    """
    if create_pr and (revision or tag or space):
        raise ValueError("A pull request has no revision, tag or Space of its own: leave them out.")
    for name in filter(None, (repo_id, space)):
        validate_repo_id(name)
    files = public_files(directory)
    if not review(files, space_files(repo_id, "the commit") if space else {}):
        return None
    api = HfApi(token=token)
    try:
        user = api.whoami()["name"]
    except LocalTokenNotFoundError:
        raise LocalTokenNotFoundError("You are not logged in. Run `hf auth login`, or set HF_TOKEN.") from None
    repo_id, space = (f"{user}/{name}" if name and "/" not in name else name for name in (repo_id, space))
    if space:
        check_space(space, api)
    if not create_pr:
        api.create_repo(repo_id, private=private or None, exist_ok=True)
    is_private = bool(private or space) and api.repo_info(repo_id).private
    if private and not is_private:
        raise ValueError(f"{repo_id} is already public: make it private in its settings, or choose another name.")
    if space and is_private:
        check_space(space, api, private=True)
    if tag and tag in {existing.name for existing in api.list_repo_refs(repo_id).tags}:
        raise ValueError(f"{repo_id} already has a tag {tag}: choose another.")
    ensure_branch(api, repo_id, revision)
    options = {"revision": revision, "commit_message": commit_message, "create_pr": create_pr, "space": space}
    commit = publish(directory, repo_id, api, files=files, **options)
    if tag:
        api.create_tag(repo_id, tag=tag, revision=commit.oid)
    if space:
        push_space(space, repo_id, commit.oid, api, is_private)
    return commit


def publish(
    directory: str | Path,
    repo_id: str,
    api: HfApi,
    revision: str | None = None,
    commit_message: str = "Upload model",
    create_pr: bool = False,
    subfolder: str | None = None,
    space: str | None = None,
    files: list[Path] | None = None,
) -> CommitInfo:
    """Send a model's directory to an existing repository in one commit, to its root and to `subfolder`, if given.

    The card's snippets get `repo_id` as the model's name, and the card a link to the `space`. Weights and tokenizer files
    of an earlier push that the directory does not have are deleted. `files` is the result of `public_files`, if it was
    called already. Raises its `ValueError`s otherwise, and `huggingface_hub.errors.HfHubHTTPError` if the Hub rejects the
    commit, which leaves the repository unchanged.
    """
    additions = {}
    for file in files or public_files(directory):
        additions[file.name] = _card_for(repo_id, file, space) if file.name == "README.md" else file
        # The code is loaded from the root, whichever folder the weights are in.
        if subfolder and file.suffix in (".json", ".safetensors", ".txt"):
            additions[f"{subfolder}/{file.name}"] = file
    present = set(api.list_repo_files(repo_id, revision=revision)) - additions.keys()
    folders = {"", subfolder or ""}
    stale = [path for path in present if str(PurePosixPath(path).parent).strip(".") in folders]
    operations = [CommitOperationDelete(path) for path in stale if _REPLACED.fullmatch(PurePosixPath(path).name)]
    operations += [CommitOperationAdd(path, content) for path, content in additions.items()]
    # Not `upload_folder`: with hf_xet it may make several commits, and it sends the card as it is on the disk.
    return api.create_commit(
        repo_id, operations, commit_message=commit_message, revision=revision, create_pr=create_pr
    )


def ensure_branch(api: HfApi, repo_id: str, revision: str | None) -> None:
    """Create the branch to push to, if there is none. The refs of pull requests (refs/pr/1) exist."""
    if revision and not revision.startswith("refs/"):
        api.create_branch(repo_id, branch=revision, exist_ok=True)


def _card_for(repo_id: str, card: Path, space: str | None) -> bytes:
    text = card.read_text(encoding="utf-8")
    text = re.sub(r'^name = ".*"(?=  # the directory or the repo)', f'name = "{repo_id}"', text, flags=re.MULTILINE)
    if space:  # below the title
        link = f"[Try it in a Space](https://huggingface.co/spaces/{space})"
        header, body = re.fullmatch(r"(---\n.*?\n---\n)?(.*)", text, re.DOTALL).groups(default="")
        title = re.match(r"\s*(<!--.*?-->\s*)?# .*\n", body)  # if the card begins with one
        end = title.end() if title else 0
        text = f"{header}{body[:end]}\n{link}\n{body[end:]}"
    return text.encode()
