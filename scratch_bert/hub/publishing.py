"""Publishing on the Hub: a model's public files, checked, in one commit, so that every revision of the repository
opens."""

import ast
import json
import re
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import transformers
from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, get_session, metadata_load
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError
from huggingface_hub.utils import validate_repo_id
from safetensors import safe_open
from transformers import CONFIG_MAPPING
from transformers.dynamic_module_utils import get_imports, get_relative_imports
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from yaml import YAMLError

from ..checkpoints.open import check_config, find_new_weights, load_config, reason
from ..checkpoints.weights import INDEX, WEIGHTS, find_not_finite, read_index, read_shapes
from ..corpus.tokenizer import check_vocabulary, load_tokenizer
from ..model.configuration_scratch_bert import AUTO_MAP
from ..repository import one_line, read_json
from .code import OLD_CODE
from .model_card import BESIDE_CARDS, below_title, with_name
from .secrets import check_no_link, check_private
from .space import check_space, push_space, space_files


TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt")
# Of sentence-transformers: with the modules that the first names, as 1_Pooling, they make another model of these weights.
SENTENCES = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json")
# Published beside weights and code. Nothing else is: optimizer state, training_args.bin, logs, …
PUBLIC_FILES = ("README.md", *BESIDE_CARDS, "config.json", "requirements.txt", *TOKENIZER, *SENTENCES)
PNG = b"\x89PNG\r\n\x1a\n"  # how a picture begins
# A push deletes these if the new model has no such file: they would be loaded instead of the new files, or beside them.
_REPLACED = re.compile(
    "|".join(
        [
            r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?",
            *map(re.escape, (*OLD_CODE, "curves.png", *TOKENIZER, *SENTENCES)),
        ]
    )
)
# What git does not allow in the name of a branch or a tag (git help check-ref-format), and what would be taken for the place of
# a ref or for a commit.
_NO_REF = re.compile(
    r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|(^|/)\.|\.lock(/|$)|^[/-]|[/.]$|^(@|HEAD)$|^refs/|^[0-9a-f]{40}$|.{245}"
)


def public_files(directory: str | Path, token: str | bool | None = None) -> list[Path]:
    """The files of a model's directory that are published.

    Raises `ValueError` or `OSError` that names the file and the remedy if code, weights, tokenizer or model card are
    missing, damaged or no model together, if a file is a link, or if one contains a secret, such as the `token`, or a
    local path.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ValueError(f"{directory} {'is a file, not a directory' if directory.exists() else 'does not exist'}.")
    for names, remedy in (
        (["config.json"], "this is not a model's directory, as written by save_pretrained or Trainer"),
        (["tokenizer_config.json"], "save the tokenizer there as well: tokenizer.save_pretrained(directory)"),
        (["tokenizer.json", "vocab.txt"], "save the tokenizer there as well: tokenizer.save_pretrained(directory)"),
        (["README.md"], "write a model card that describes the model, its data, its results and its limits"),
    ):
        if not any((directory / name).is_file() for name in names):
            raise ValueError(f"{directory} has no {' or '.join(names)}: {remedy}.")
    named = [directory / name for name in PUBLIC_FILES] + _modules(directory)
    for file in named:
        check_no_link(file)
    config = read_json(directory / "config.json")
    files = [file for file in named if file.is_file()] + _code(directory, config) + _weights(directory)
    for file in files:
        if not file.stat().st_size:
            raise ValueError(f"{file} is empty: write it again.")
        _check_content(file, token)
    _check_model(directory, config)
    return sorted(files)


def _modules(directory: Path) -> list[Path]:
    """The configs of the modules of sentence-transformers that follow the model, in their folders. Raises `ValueError`
    for any that have more than a config, such as weights or code, and for a model that is not a Transformer: they
    would not be sent."""
    file = directory / SENTENCES[0]
    if not file.is_file():
        return []
    try:
        modules = {module["path"]: module["type"] for module in json.loads(file.read_text(encoding="utf-8"))}
        is_complete = re.fullmatch(r"sentence_transformers\..*\.Transformer", modules.pop("")) and all(
            kind.startswith("sentence_transformers.")  # its code is not here
            and re.fullmatch(r"\w+", path)
            and not (directory / path).is_symlink()
            and {inside.name for inside in (directory / path).iterdir()} <= {"config.json"}
            for path, kind in modules.items()
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OSError):
        is_complete = False
    if not is_complete:
        raise ValueError(
            f"{file} must name a Transformer here, and modules with a config.json alone in their folders, such as "
            "1_Pooling. "
            "Push another model with push_to_hub of sentence-transformers."
        )
    return [directory / path / "config.json" for path in modules]


def _code(directory: Path, config: dict) -> list[Path]:
    """The modules that `auto_map` names and those that they import. Raises `ValueError` for code that would not be
    loaded."""
    auto_map, model_type = config.get("auto_map", {}), config.get("model_type")
    if not isinstance(auto_map, dict):
        raise ValueError(f"{directory}/config.json: auto_map is {auto_map!r}, not an object. Save the model again.")
    if isinstance(model_type, str) and model_type in CONFIG_MAPPING_NAMES and not auto_map:
        return []  # its code is in transformers
    classes = {name: auto_map.get(name) for name in AUTO_MAP}
    missing = [name for name, value in classes.items() if not value]
    if missing:
        raise ValueError(
            f"{directory}/config.json has no auto_map entry for {', '.join(sorted(missing))}: open the model with "
            "scratch_bert and save it again, or convert it with scratch-bert-convert."
        )
    for name, value in classes.items():
        if not (isinstance(value, str) and re.fullmatch(r"[^\W\d]\w*\.[^\W\d]\w*", value)):
            raise ValueError(
                f"{directory}/config.json: auto_map has {value!r} for {name}, not a module and its class."
            )
    modules: dict[str, Path] = {}
    names = sorted({value.partition(".")[0] for value in classes.values()})
    while names:
        name = names.pop()
        if name not in modules:
            modules[name] = directory / f"{name}.py"
            names += _imported_modules(modules[name])
    return list(modules.values())


def _imported_modules(file: Path) -> list[str]:
    """The modules beside this one that it imports. Raises `ValueError` if it is damaged, or imports any from
    elsewhere."""
    check_no_link(file)
    if not file.is_file():
        raise ValueError(f"{file.parent} has no {file.name}: save the model again, which copies its code.")
    try:
        with warnings.catch_warnings():  # of strings with odd escapes
            warnings.simplefilter("ignore")
            code = ast.parse(file.read_text(encoding="utf-8"))
            compile(code, file.name, "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{file} is not Python code: {one_line(error)}.") from None
    for name in get_imports(file):
        if find_spec(name) is None:
            raise ValueError(f"{file} imports {name}, which is not installed here: others could not open the model.")
    imports = {
        "." * node.level + (node.module or "")
        for node in ast.walk(code)
        if isinstance(node, ast.ImportFrom) and node.level
    }
    # transformers looks for the lines of imports, also in docstrings, and copies files beside the module only.
    for name in imports | {f".{name}" for name in get_relative_imports(file)}:
        if name not in imports or not re.fullmatch(r"\.\w+", name):
            raise ValueError(
                f"{file}: transformers can't load the import from {name!r}, as it is not that of a module beside it."
            )
    return sorted(name[1:] for name in imports)


def _weights(directory: Path) -> list[Path]:
    """The files of the weights. Raises `ValueError` if they are missing, damaged or not finite."""
    files, index, weight_map = [directory / WEIGHTS], [], {}
    if (directory / INDEX).is_file():
        if files[0].is_file():
            raise ValueError(f"{directory} holds both {WEIGHTS} and sharded weights: delete the older ones.")
        check_no_link(directory / INDEX)
        index = [directory / INDEX]
        weight_map = read_index(index[0])
        files = [directory / shard for shard in sorted(set(weight_map.values()))]
    for file in files:
        if file.suffix != ".safetensors":
            raise ValueError(f"{file} is not a safetensors file: save the model again.")
        check_no_link(file)
        if not file.is_file():
            raise ValueError(f"{file} is missing: open the model and save it again, which writes safetensors.")
    read_shapes(files, weight_map)
    for file in files:
        with safe_open(file, framework="pt") as weights:
            if name := find_not_finite((name, weights.get_tensor(name)) for name in sorted(weights.keys())):
                raise ValueError(
                    f"{file}: {name} is not finite. The training has diverged: publish an earlier checkpoint."
                )
    return files + index


def _check_content(file: Path, token: str | bool | None) -> None:
    """Raise `ValueError` if a file is damaged, or contains a secret or a local path."""
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as weights:
            text = "\n".join([*map(str, (weights.metadata() or {}).items()), *weights.keys()])
    elif file.suffix == ".png":
        content = file.read_bytes()
        if not content.startswith(PNG):
            raise ValueError(f"{file} is not a PNG picture.")
        text = content.decode("latin1")  # which may contain comments
    else:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8: {error}.") from None
    if file.suffix == ".json" and file.name != SENTENCES[0]:  # a list, which has been read
        read_json(file)
    if file.suffix == ".md":
        try:
            metadata_load(file)
        except (ValueError, YAMLError) as error:
            raise ValueError(f"{file}: the metadata at the beginning cannot be read ({one_line(error)}).") from None
    check_private(
        text, file, [token], paths=file.name not in ("tokenizer.json", "vocab.txt")
    )  # any word may be in them


def _check_model(directory: Path, content: dict) -> None:
    """Raise `ValueError` if config, weights and tokenizer are not those of one model, as far as its type is known
    here."""
    tokenizer, name = load_tokenizer(str(directory)), str(directory)
    check_config(content, directory / "config.json", trust_remote_code=True)
    if content["model_type"] not in CONFIG_MAPPING:  # custom code, which is not run
        return
    config = load_config(name)
    check_vocabulary(tokenizer, config.vocab_size, name)
    architecture = (config.architectures or [""])[0]
    auto_classes = {value.rpartition("ScratchBert")[2]: auto_class for auto_class, value in AUTO_MAP.items()}
    auto_class = auto_classes.get(architecture.removeprefix("Scratch").removeprefix("Bert"), "AutoModel")
    new_heads = ["missing"] * (auto_class == "AutoModel")  # which may do without a pooler
    find_new_weights(getattr(transformers, auto_class), name, config, new_heads)


def check_ref(name: str | None, what: str) -> None:
    """Raise `ValueError` for what git does not allow as the name of `what`, a branch or a tag. None is allowed."""
    if name is not None and (not name or _NO_REF.search(name)):
        raise ValueError(
            f"{name!r} cannot be the name of a {what}: use letters, digits, '-', '_', '.' and '/', but "
            "no name like that of a commit."
        )


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

    `repo_id` is `user/name`, or a name in your own account; a repository that does not exist is created. The commit
    goes to the branch `revision`, which is created too, and gets the `tag`; or it opens a pull request. `space` is the
    name of a Gradio Space to create or update, which shows this commit of the model. `review` is called with the
    checked files of the model and those of the Space, by path, before any connection: nothing is sent unless it
    returns True. Raises the errors of `publish` and `push_space`, and `ValueError` for a name that is not allowed, for
    a public repository that should be `private`, a `tag` that exists, and a pull request with a `revision`, a `tag` or
    a `space`.
    """
    if create_pr and (revision or tag or space):
        raise ValueError("A pull request has no revision, tag or Space of its own: leave them out.")
    for name in (repo_id, space):
        if name is not None:
            validate_repo_id(name)
    check_branch(revision)
    check_ref(tag, "tag")
    if tag is not None and tag in ("main", revision):
        raise ValueError(f"{tag} cannot be the name of both a branch and a tag: choose another tag.")
    if not commit_message.strip():
        raise ValueError("The commit message is empty: write one, or leave it out.")
    files = public_files(directory, token)
    planned = space_files(repo_id, "the commit") if space else {}
    for path, content in planned.items():
        check_private(content.decode(), path, [token])
    if not review(files, planned):
        return None
    api = HfApi(token=token)
    get_session().timeout = 300  # seconds, instead of none, for an answer
    try:
        user = api.whoami()["name"]
    except LocalTokenNotFoundError:
        raise LocalTokenNotFoundError("You are not logged in. Run `hf auth login`, or set HF_TOKEN.") from None
    except HfHubHTTPError:
        raise
    except Exception as error:  # the first contact: no network, a proxy's page instead of the Hub, a damaged token, …
        raise ConnectionError(
            f"The Hub at {api.endpoint} gives no valid answer ({reason(error)}): check the network, its proxy, HF_ENDPOINT "
            "and HF_TOKEN."
        ) from error
    repo_id = f"{user}/{repo_id}" if repo_id and "/" not in repo_id else repo_id
    space = f"{user}/{space}" if space and "/" not in space else space
    if space:
        check_space(space, api)
    if not create_pr:
        api.create_repo(repo_id, private=private or None, exist_ok=True)
    is_private = bool((private or space) and api.repo_info(repo_id).private)
    if private and not is_private:
        raise ValueError(f"{repo_id} is already public: make it private in its settings, or choose another name.")
    if space and is_private:
        check_space(space, api, private=True)
    if tag and tag in {existing.name for existing in api.list_repo_refs(repo_id).tags}:
        raise ValueError(f"{repo_id} already has a tag {tag}: choose another.")
    ensure_branch(api, repo_id, revision)
    # It checks again: the review may have taken a while.
    commit = publish(directory, repo_id, api, revision, commit_message, create_pr, space=space)
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

    The card's snippets get `repo_id` as the model's name, and the card a link to the `space`. Weights and tokenizer
    files of an earlier push that the directory does not have are deleted. `files` is the result of `public_files`, if
    it was called already. Raises its `ValueError`s otherwise, and `huggingface_hub.errors.HfHubHTTPError` if the Hub
    rejects the commit, which leaves the repository unchanged.
    """
    additions = {}
    for file in files or public_files(directory, api.token):
        path = file.relative_to(directory).as_posix()
        additions[path] = _card_for(repo_id, file, space) if path == "README.md" else file
        # The code is loaded from the root, whichever folder the weights are in.
        if subfolder and file.suffix in (".json", ".safetensors", ".txt"):
            additions[f"{subfolder}/{path}"] = file
    present = set(api.list_repo_files(repo_id, revision=revision)) - additions.keys()
    folders = {"", subfolder or ""}
    stale = [path for path in present if str(PurePosixPath(path).parent).strip(".") in folders]
    operations: list[Any] = [
        CommitOperationDelete(path) for path in stale if _REPLACED.fullmatch(PurePosixPath(path).name)
    ]
    operations += [CommitOperationAdd(path, content) for path, content in additions.items()]
    # Not `upload_folder`: with hf_xet it may make several commits, and it sends the card as it is on the disk.
    return api.create_commit(
        repo_id, operations, commit_message=commit_message, revision=revision, create_pr=create_pr
    )


def check_branch(revision: str | None) -> None:
    """Raise `ValueError` for what is neither the name of a branch nor the ref of a pull request."""
    if not re.fullmatch(r"refs/pr/\d+", revision or ""):
        check_ref(revision, "branch")


def ensure_branch(api: HfApi, repo_id: str, revision: str | None) -> None:
    """Create the branch to push to, if there is none. The refs of pull requests (refs/pr/1) exist."""
    if revision and not revision.startswith("refs/"):
        api.create_branch(repo_id, branch=revision, exist_ok=True)


def _card_for(repo_id: str, card: Path, space: str | None) -> bytes:
    text = card.read_text(encoding="utf-8")
    text = with_name(text, repo_id)
    if space:  # below the title
        link = f"[Try it in a Space](https://huggingface.co/spaces/{space})"
        matched = re.fullmatch(r"(---\n.*?\n---\n)?(.*)", text, re.DOTALL)
        header, body = matched.groups(default="")  # ty: ignore[missing-union-attribute]: it fits any text
        text = f"{header}{below_title(body, link)}"
    return text.encode()
