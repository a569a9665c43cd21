"""Model cards: the parts that all of them share, and the card of a converted model. No card names a path, user or host."""

import hashlib
import re
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.repocard_data import eval_results_to_model_index
from huggingface_hub.utils import yaml_dump
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import cached_file
from yaml import YAMLError

from .. import __version__
from ..model import configuration_scratch_bert, modeling_scratch_bert, operations_scratch_bert
from ..model.configuration_scratch_bert import BERT_VALUES
from ..model.modeling_scratch_bert import AUTO_MODELS
from ..repository import one_line


TEMPLATE = Path(__file__).with_name("model_card.md")
_MARK_START = "<!-- Written by a training"  # in the marks of all versions
MARK = f"{_MARK_START} run. Delete this line to keep your changes: the next run then leaves the card alone. -->"
TAGS = ["bert", "scratch_bert"]
PIPELINES = {  # multiple choice and NSP have none
    "AutoModel": "feature-extraction",
    "AutoModelForPreTraining": "fill-mask",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForQuestionAnswering": "question-answering",
}


def is_customized(directory: Path) -> bool:
    """Whether the directory has a README.md written by a user: without the mark of a training run."""
    card = directory / "README.md"
    return card.exists() and _MARK_START not in card.read_text(encoding="utf-8")


def write_card(
    directory: Path,
    model_name: str,
    auto_class: str,
    config: PreTrainedConfig,
    metadata: dict[str, Any],
    **context: Any,
) -> None:
    """Write `directory`/README.md from the template model_card.md: `metadata` into the YAML header, `context` into the text."""
    metadata = {"library_name": "transformers", "pipeline_tag": PIPELINES.get(auto_class), "tags": TAGS} | metadata
    ModelCard.from_template(
        ModelCardData(**metadata),
        template_path=str(TEMPLATE),
        model_name=model_name,
        auto_class=auto_class,
        config=config,
        beyond_bert={
            name: getattr(config, name)
            for name, value in BERT_VALUES.items()
            if config.model_type == "scratch_bert" and getattr(config, name) != value
        },
        package_version=__version__,
        code_hash=code_hash(),
        **context,
    ).save(directory / "README.md")


def read_card(directory: Path) -> str:
    """The text of `directory`/README.md, with its line ends. Raises `ValueError` or `OSError` if there is none."""
    file = directory / "README.md"
    if not file.is_file():
        raise FileNotFoundError(f"{directory} has no README.md: write a model card, to which results can be added.")
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} cannot be read: it is not UTF-8 ({error}). Save it as UTF-8.") from None


def with_results(card: str, title: str, task: str, results: list[EvalResult], section: str, model_name: str) -> str:
    """The text of a card with `results` in its metadata, all of this `task_name`, and a `section` of Markdown, in place of those
    that an earlier call has added. All other text stays as it is, character by character.

    `title` marks the section, which is added before the one about the model, if the card is of ours, and otherwise at the
    end. `model_name` is for metadata that name none. Raises `ValueError` for metadata that can't be read.
    """
    line_end = "\r\n" if "\r\n" in card else "\n"
    header = REGEX_YAML_BLOCK.match(card)
    metadata = _with_index(header[2] if header else "", line_end, task, results, model_name)
    if header:
        before, body = f"{header[1]}{metadata}{header[3]}", card[header.end() :]
    else:
        before, body = f"---{line_end}{metadata}{line_end}---{line_end * 2}", card
    start, end = f"<!-- {title}: the next evaluation replaces this section. -->", f"<!-- End of {title}. -->"
    section = f"{start}\n\n{section}\n\n{end}".replace("\n", line_end)
    old = re.search(rf"{re.escape(start)}.*?{re.escape(end)}", body, re.DOTALL)
    if old:
        return f"{before}{body[: old.start()]}{section}{body[old.end() :]}"
    following = re.search(r"^## Model\r?$", body, re.MULTILINE)
    if following:
        return f"{before}{body[: following.start()]}{section}{line_end * 2}{body[following.start() :]}"
    gap = line_end if body.endswith("\n") else line_end * 2
    return f"{before}{body}{gap}{section}{line_end}"


def _with_index(metadata: str, line_end: str, task: str, results: list[EvalResult], model_name: str) -> str:
    """A card's YAML with these results in its `model-index`, in place of others of this task."""
    try:
        root, values = yaml.compose(metadata, yaml.SafeLoader), yaml.safe_load(metadata) or {}
        index: list[dict[str, Any]] = values.get("model-index") or [{"name": model_name, "results": []}]
        first = index[0]
        others = [result for result in first["results"] if (result.get("task") or {}).get("name") != task]
    except (YAMLError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"The metadata of the model card (README.md) cannot be read: {one_line(error)}.") from None
    new = eval_results_to_model_index(first["name"], results)[0]["results"] if results else []
    text = yaml_dump({"model-index": [{**first, "results": others + new}, *index[1:]]}, sort_keys=False)
    text = text.rstrip("\n").replace("\n", line_end)
    for key, value in root.value if root else ():
        if key.value == "model-index":
            return f"{metadata[: key.start_mark.index]}{text}{metadata[_last(value).end_mark.index :]}"
    return f"{metadata}{line_end}{text}" if metadata else text


def _last(node: yaml.Node) -> yaml.Node:
    """The last node of a value in block style. It ends before the comments that follow; the value's own mark is behind them."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        node = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
    return node


def write_conversion_card(
    directory: Path, model: PreTrainedModel, difference: float, source: str, revision: str | None = None
) -> None:
    """Write the README.md of a model converted from `source`, a directory or a Hub repository."""
    base_model = None if Path(source).exists() else source
    inherited = {
        name: value
        for name, value in _metadata_of(source, revision).items()
        if name in ("language", "datasets") or name.startswith("license")
    }
    write_card(
        directory,
        model_name=directory.name,
        auto_class=next(name for name, model_class in AUTO_MODELS.items() if type(model) is model_class),
        config=model.config,
        metadata={"base_model": base_model, **inherited},
        base_model=base_model,
        difference=difference,
    )


def _metadata_of(source: str, revision: str | None) -> dict:
    """The metadata of the source's own card; empty if there is none that can be read."""
    optional = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    card = cached_file(source, "README.md", revision=revision, **optional)
    try:
        return ModelCard.load(card).data.to_dict() if card else {}
    except (ValueError, YAMLError):
        return {}


def code_hash() -> str:
    """The first 16 digits of the SHA-256 of a checkpoint's three code files, concatenated in the order of their names."""
    modules = (configuration_scratch_bert, modeling_scratch_bert, operations_scratch_bert)
    return hashlib.sha256(b"".join(Path(module.__file__).read_bytes() for module in modules)).hexdigest()[:16]
