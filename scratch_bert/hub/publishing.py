"""Publishing on the Hub: a model's public files, checked and in one commit, so that every revision opens."""

import ast
import json
import re
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import transformers
from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.utils import validate_repo_id
from pydantic import BaseModel, Field
from safetensors import safe_open
from transformers import CONFIG_MAPPING
from transformers.dynamic_module_utils import check_imports, get_relative_import_files
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from scratch_bert_options.network import limit_waiting
from scratch_bert_options.schema import check

from ..checkpoints.open import AUTO_CLASSES, find_new_weights, load_config, named_head
from ..checkpoints.weights import INDEX, WEIGHTS, find_not_finite, find_weights, read_shapes
from ..corpus.tokenizer import load_tokenizer
from ..model.configuration_scratch_bert import AUTO_MAP
from ..repository import read_json
from .code import OLD_CODE
from .model_card import BESIDE_CARDS, with_link, with_name
from .secrets import check_no_link, find_private, reject_private


TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt")
# Of sentence-transformers: the first names more modules, such as 1_Pooling, which change the model's output.
SENTENCES = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json")
# Published beside weights and code. Nothing else is: optimizer state, training_args.bin, logs, …
PUBLIC_FILES = ("README.md", *BESIDE_CARDS, "config.json", "requirements.txt", *TOKENIZER, *SENTENCES)
# A push deletes these if the new model has no such file: they would be loaded instead of the new files, or with them.
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")  # of PEFT
_WEIGHTS = r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?"
_REPLACED = re.compile(
    "|".join(
        [_WEIGHTS, *map(re.escape, (*OLD_CODE, "curves.png", "confusion.png", *_ADAPTER, *TOKENIZER, *SENTENCES))]
    )
)
# A branch or a tag, as git allows it.
_REF = re.compile(r"(?!.*(\.\.|//|@\{|/\.|\.lock(/|$)))(?![./-])[^\x00-\x20\x7f~^:?*\[\\]+(?<![./])")
_Code = Annotated[str, Field(pattern=r"^\w+\.\w+$")]  # a module beside config.json, and a class in it


class SentenceModule(BaseModel):
    """An entry of sentence-transformers' modules.json."""

    path: str = Field(pattern=r"^\w*$")  # a folder beside it, or the model itself
    type: str = Field(pattern=r"^sentence_transformers\.")  # other code would not be sent


def public_files(directory: str | Path) -> list[Path]:
    """The files of a model's directory that are published.

    Raises `ValueError`, `OSError` or `ImportError` if code, weights, tokenizer or model card are missing, damaged or
    don't fit together, or if a file is a link or contains a secret or a local path.
    """
    directory = Path(directory)
    for name, remedy in (
        ("config.json", "this is not a model's directory, as written by save_pretrained or Trainer"),
        ("tokenizer_config.json", "also save the tokenizer there: tokenizer.save_pretrained(directory)"),
        ("README.md", "write a model card that describes the model, its data, its results and its limits"),
    ):
        if not (directory / name).is_file():
            raise FileNotFoundError(f"{directory} has no {name}: {remedy}.")
    optional = [directory / name for name in PUBLIC_FILES] + _modules(directory)
    files = [file for file in optional if file.is_symlink() or file.is_file()]
    files += _code(directory, read_json(directory / "config.json")) + _weights(directory)
    for file in files:
        check_no_link(file)
    reject_private([what for file in files for what in _find_private_content(file)])
    _check_model(str(directory))
    return sorted(files)


def _modules(directory: Path) -> list[Path]:
    """The configs of the sentence-transformers modules after the model. Other files of theirs, such as weights, would
    not be sent: they are a `ValueError`."""
    file = directory / SENTENCES[0]
    if not file.is_file():
        return []
    first, *others = check(list[SentenceModule], json.loads(file.read_text(encoding="utf-8")), str(file))
    for module in others:
        check_no_link(directory / module.path)
    contents = {path.name for module in others for path in (directory / module.path).iterdir()}
    if first.path or not first.type.endswith(".Transformer") or contents - {"config.json"}:
        raise ValueError(
            f"{file} must name a Transformer here, and modules whose folders hold only a config.json, such as "
            "1_Pooling. Push other models with sentence-transformers' push_to_hub."
        )
    return [directory / module.path / "config.json" for module in others]


def _code(directory: Path, config: dict[str, Any]) -> list[Path]:
    """The modules that `auto_map` names, of the model and of the tokenizer, and those that they import. They must name
    the classes, compile, and have their packages here."""
    where = f"{directory}/config.json: auto_map"
    auto_map = check(dict[str, Any], config.get("auto_map"), where) if config.get("auto_map") else {}
    of_tokenizer = read_json(directory / "tokenizer_config.json").get("auto_map") or {}
    values = [*auto_map.values(), *of_tokenizer.values()]
    if auto_map or config.get("model_type") not in CONFIG_MAPPING_NAMES:  # else its code is in transformers
        values = [check(_Code, auto_map.get(name), f"{where}: {name}") for name in AUTO_MAP] + values
    names = chain(*([value] if isinstance(value, str) else value for value in values))  # two, or None, of a tokenizer
    classes = [check(_Code, name, where).split(".") for name in names if name]
    files = {directory / f"{module}.py" for module, _ in classes}
    try:
        files |= {Path(part) for file in files for part in get_relative_import_files(file)}
        code = {file: ast.parse(file.read_bytes(), str(file)) for file in sorted(files)}
    except (OSError, SyntaxError) as error:
        raise ValueError(f"The code in {directory} does not load: {error}. Save the model again.") from error
    for module, class_name in classes:
        file = directory / f"{module}.py"
        if class_name not in [name for statement in code[file].body for name in _names(statement)]:
            raise ValueError(f"{file} has no {class_name}, which auto_map names.")
    for file in code:
        check_imports(file)
    return list(code)


def _names(statement: ast.stmt) -> list[str]:
    """What a statement of a module imports or defines as a class."""
    if isinstance(statement, ast.ImportFrom):
        return [alias.asname or alias.name for alias in statement.names]
    return [statement.name] if isinstance(statement, ast.ClassDef) else []


def _weights(directory: Path) -> list[Path]:
    """The files of the weights, which must be complete, readable and finite."""
    index = directory / INDEX
    if index.is_file() and (directory / WEIGHTS).is_file():
        raise ValueError(f"{directory} holds both {WEIGHTS} and sharded weights: delete the older ones.")
    files = find_weights(directory)
    for file in files:
        if file.suffix != ".safetensors":
            raise ValueError(f"{file} is not a safetensors file: open the model and save it again.")
    read_shapes(files)
    for file in files:
        with safe_open(file, framework="pt") as weights:
            if name := find_not_finite((name, weights.get_tensor(name)) for name in sorted(weights.keys())):
                raise ValueError(
                    f"{file}: {name} is not finite, as the training diverged: publish an earlier checkpoint."
                )
    return files + [index] * index.is_file()


def _find_private_content(file: Path) -> list[str]:
    """What is private in a file: see `find_private`."""
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as weights:
            text = "\n".join([*map(str, (weights.metadata() or {}).items()), *weights.keys()])
    else:
        content = file.read_bytes()
        text = (_without_pixels(content) if file.suffix == ".png" else content).decode("utf-8", errors="replace")
    # Any word may be in a vocabulary.
    return find_private(text, file, paths=file.name not in ("tokenizer.json", "vocab.txt"))


def _without_pixels(png: bytes) -> bytes:
    """A picture's chunks, such as comments, without its compressed pixels, which might hold anything by chance."""
    chunks, start = [], 8
    while start < len(png):
        end = start + 12 + int.from_bytes(png[start : start + 4], "big")
        chunks.append(b"" if png[start + 4 : start + 8] == b"IDAT" else png[start:end])
        start = end
    return b"\n".join(chunks)


def _check_model(directory: str) -> None:
    """Raise `ValueError` if config, weights and tokenizer don't fit together; custom code is not run for it."""
    config = None
    if read_json(Path(directory, "config.json")).get("model_type") in CONFIG_MAPPING:
        config = load_config(directory)  # before the tokenizer, which also reads it
    load_tokenizer(directory, vocab_size=config.vocab_size if config else None)
    if config is None:
        return
    head = named_head(config)
    new_heads = ["missing"] * (head == "Model")  # which may do without a pooler
    find_new_weights(getattr(transformers, AUTO_CLASSES[head]), directory, config, new_heads)


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
    files: list[Path] | None = None,
) -> CommitInfo:
    """Publish a model's directory: code, weights, tokenizer and model card in one commit.

    Args:
        repo_id: `user/name`, or a name in your own account. A repository that does not exist is created.
        revision: The branch for the commit, which is created, too.
        tag: A new tag for the commit.
        create_pr: Open a pull request instead, which has no `revision` and no `tag`.
        space: The name of a Space that shows the model, to which the card on the Hub links.
        files: The result of `public_files`, if it was called already.

    Raises:
        ValueError: For a public repository that should be `private`, a `tag` that exists, and as `public_files`.
        huggingface_hub.errors.HfHubHTTPError: If the Hub rejects something.
    """
    check_names(repo_id, revision, tag, create_pr, space, commit_message)
    files = files or public_files(directory)
    api = HfApi(token=token)
    limit_waiting()
    repo_id = full_name(repo_id, api)
    if not create_pr:
        api.create_repo(repo_id, private=private or None, exist_ok=True)
    if private and not api.repo_info(repo_id).private:
        raise ValueError(f"{repo_id} is already public: make it private in its settings, or choose another name.")
    if tag and tag in {existing.name for existing in api.list_repo_refs(repo_id).tags}:
        raise ValueError(f"{repo_id} already has a tag {tag}: choose another.")
    ensure_branch(api, repo_id, revision)
    space = full_name(space, api) if space else None
    commit = publish(directory, repo_id, api, revision, commit_message, create_pr, space=space, files=files)
    if tag is not None:
        api.create_tag(repo_id, tag=tag, revision=commit.oid)
    return commit


def check_names(
    repo_id: str,
    revision: str | None = None,
    tag: str | None = None,
    create_pr: bool = False,
    space: str | None = None,
    commit_message: str = "",
) -> None:
    """Raise `ValueError` for arguments of `push_to_hub` that the Hub would refuse, or that are private."""
    reject_private(find_private(commit_message, "commit_message"))
    for repository in filter(None, (repo_id, space)):
        validate_repo_id(repository)
    for name in (revision, tag):
        if name is not None and not _REF.fullmatch(name):
            raise ValueError(f"{name!r} cannot be a branch or a tag: choose another name.")
    if create_pr and (revision or tag):
        raise ValueError("A pull request cannot have a revision or a tag: leave them out.")
    if tag and tag in ("main", revision):
        raise ValueError(f"The tag {tag} has the name of a branch: choose another one.")


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

    The card's snippets name `repo_id`, and the card links to the `space`. Weights and tokenizer files of an earlier
    push that the directory does not have are deleted. `files` is the result of `public_files`, if it was called
    already. Raises its errors otherwise, and `huggingface_hub.errors.HfHubHTTPError` if the Hub rejects the commit.
    """
    limit_waiting()  # anew: failures of an earlier push don't count
    additions: dict[str, Path | bytes] = {}
    for file in files or public_files(directory):
        path = file.relative_to(directory).as_posix()
        additions[path] = file
        # The code is loaded from the root, whichever folder the weights are in.
        if subfolder and file.suffix in (".json", ".safetensors", ".txt"):
            additions[f"{subfolder}/{path}"] = file
    card = with_name(Path(directory, "README.md").read_text(encoding="utf-8"), repo_id)
    additions["README.md"] = (with_link(card, space) if space else card).encode()
    present = set(api.list_repo_files(repo_id, revision=revision)) - additions.keys()
    folders = {"", subfolder or ""}
    stale = [path for path in present if str(PurePosixPath(path).parent).strip(".") in folders]
    stale = [path for path in stale if _REPLACED.fullmatch(PurePosixPath(path).name)]
    operations: list[Any] = [CommitOperationDelete(path) for path in stale]
    operations += [CommitOperationAdd(path, content) for path, content in additions.items()]
    # Not `upload_folder`: with hf_xet it may make several commits, and it sends the card as it is on the disk.
    return api.create_commit(
        repo_id, operations, commit_message=commit_message, revision=revision, create_pr=create_pr
    )


def full_name(name: str, api: HfApi) -> str:
    """The name of a repository with its owner, by default the user, who must be logged in."""
    user = api.whoami()["name"]
    return name if "/" in name else f"{user}/{name}"


def ensure_branch(api: HfApi, repo_id: str, revision: str | None) -> None:
    """Create the branch to push to, unless it exists, as the refs of pull requests (refs/pr/1) do."""
    if revision is not None and not revision.startswith("refs/"):
        api.create_branch(repo_id, branch=revision, exist_ok=True)
