"""Model cards: what all of them share, and the card of a converted model. No card names an absolute path, user or
host."""

import html
import os
import re
import shutil
from pathlib import Path
from typing import Any
from zlib import crc32

import yaml
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from huggingface_hub.utils import yaml_dump
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import cached_file
from yaml import YAMLError

from .. import __version__
from ..model.configuration_scratch_bert import BERT_VALUES
from ..model.modeling_scratch_bert import AUTO_MODELS
from .code import CODE_NOTE, NOTE, OLD_HASH


TEMPLATE = Path(__file__).with_name("model_card.md")
_MARK_START = "<!-- Written by a training"  # in the marks of all versions
_MARK = re.compile(rf"{_MARK_START}.*?(?:CRC-32 (\w+).*?)?-->\n*", re.DOTALL)
TAGS = ["bert", "scratch_bert"]
_NAME = re.compile(r'^name = ".*"(?=  # the directory or the repo)', re.MULTILINE)  # in the snippets of a card
_TITLE = re.compile(r"\s*(<!--.*?-->\s*)?# .*\n")
# Text about the code in the repository, which a BERT does not have.
_OF_THE_CODE = re.compile(
    rf" The model's code is in this repository\.|{NOTE.pattern}\n\n|{OLD_HASH.pattern}|,\s*trust_remote_code=True",
    re.DOTALL,
)
# The calls in a card's snippets that need the code, if there is one.
_CALLS = re.compile(r"((?:from_pretrained\(|pipeline\([^()\n]*model=)name)(?=[,)])")
_CONVERSION, _END = "<!-- Of the conversion: the next one replaces this. -->", "<!-- End of the conversion. -->"
BESIDE_CARDS = ("curves.png", "confusion.png", "LICENSE")
PIPELINES = {  # multiple choice and NSP have none
    "AutoModel": "feature-extraction",
    "AutoModelForPreTraining": "fill-mask",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForQuestionAnswering": "question-answering",
}


def is_customized(directory: Path) -> bool:
    """Whether the directory has a README.md that a user has written or changed, after a training run wrote it."""
    file = directory / "README.md"
    if not file.exists():
        return False
    card = file.read_text(encoding="utf-8")
    mark = _MARK.search(card)
    return not mark or mark[1] not in (None, _checksum(card))


def mark_as_generated(file: Path) -> None:
    """Mark a card as one that the next training run may replace, unless it is changed."""
    card = file.read_text(encoding="utf-8")
    mark = f"{_MARK_START} run, CRC-32 {_checksum(card)}: the next one replaces it, unless it was changed. -->"
    file.write_text(f"{card}\n{mark}\n", encoding="utf-8")


def _checksum(card: str) -> str:
    """Of the text without its mark and white space, which editors change."""
    return f"{crc32(''.join(_MARK.sub('', card).split()).encode()):08x}"


def with_name(card: str, name: str) -> str:
    """The text of a card whose snippets open the model `name`, a path or a repository."""
    return _NAME.sub(lambda _: f'name = "{name}"', card)


def with_link(card: str, space: str) -> str:
    """The text of a card with a link to this Space below its title."""
    header = REGEX_YAML_BLOCK.match(card)
    start = header.end() if header else 0
    return card[:start] + _below_title(card[start:], f"[Try it in a Space](https://huggingface.co/spaces/{space})")


def _below_title(body: str, text: str) -> str:
    """The text of a card, without its metadata, with `text` below its title, or at its beginning if it has none."""
    title = _TITLE.match(body)
    end = title.end() if title else 0
    return f"{body[:end]}\n{text}\n{body[end:]}"


def cell(text: str) -> str:
    """Text of a user, such as a label, for a cell of a table: on one line, without markup, 60 characters at most."""
    shown = re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", " ", text).strip()
    shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
    return html.escape(shown, quote=False).translate(str.maketrans({mark: f"\\{mark}" for mark in "|`*_[]\\"}))


def path_in_card(directory: Path) -> str:
    """How snippets name a directory: by its path in the current directory, if it is there, else by its name."""
    path, here = Path(os.path.abspath(directory)), Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else path.name


def write_card(
    directory: Path,
    model_name: str,
    auto_class: str,
    config: PreTrainedConfig,
    metadata: dict[str, Any],
    sample_texts: dict[str, str] | None = None,
    **context: Any,
) -> None:
    """Write `directory`/README.md from model_card.md: `metadata` into the YAML header, `context` into the text.

    `sample_texts` are Python strings for its snippets, instead of English ones: a text with a `masked` word, and a
    `first` and a `second` sentence.
    """
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
        code_note=CODE_NOTE,
        sample_texts=sample_texts or {},
        package_version=__version__,
        **context,
    ).save(directory / "README.md")


def write_conversion_card(
    directory: Path, place: Path, model: PreTrainedModel, difference: float, source: str, revision: str | None = None
) -> bool:
    """Write the card of a model converted from `source`, a directory or a Hub repository, into `directory`, which will
    be moved to `place`: the source's card, adapted; for a scratch_bert, with our own card before one that is not ours.
    Returns whether the source has a card.
    """
    optional = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    files = {name: cached_file(source, name, revision=revision, **optional) for name in ("README.md", *BESIDE_CARDS)}
    if files["README.md"] is None:
        return False
    for name in BESIDE_CARDS:
        if file := files[name]:
            shutil.copy(file, directory / name)
    metadata, body = _split(Path(files["README.md"]).read_text(encoding="utf-8", errors="replace"))
    base_model, kind = None if Path(source).exists() else source, model.config.model_type
    if kind == "bert" or _NAME.search(body):
        body = _adapted(body, model, path_in_card(place), base_model, difference)
    else:
        auto_class = next(name for name, model_class in AUTO_MODELS.items() if type(model) is model_class)
        context: dict[str, Any] = {"path": path_in_card(place), "base_model": base_model, "difference": difference}
        write_card(directory, place.name, auto_class, model.config, metadata={}, **context)
        ours, text = _split((directory / "README.md").read_text(encoding="utf-8"))
        metadata = ours | metadata
        body = f"{text.rstrip()}\n\nThe card of the model before its conversion:\n\n{body.lstrip()}"
    tags = metadata.get("tags") or []
    tags = [tag for tag in ([tags] if isinstance(tags, str) else tags) if tag not in TAGS]
    metadata["tags"] = tags + (TAGS if kind == "scratch_bert" else [kind])
    metadata |= {"base_model": base_model} if base_model else {}
    text = f"---\n{yaml_dump(metadata, sort_keys=False)}---\n\n{body.lstrip()}"
    (directory / "README.md").write_text(text, encoding="utf-8")
    return True


def _adapted(body: str, model: PreTrainedModel, path: str, base_model: str | None, difference: float) -> str:
    """The text of a card of the converted `model`, with a note below its title in place of an earlier one."""
    kind = model.config.model_type
    other = "bert" if kind == "scratch_bert" else "scratch_bert"
    # Factorised embeddings have been multiplied out.
    body = re.sub(r"^\| options that BERT does not have \|.*\n", "", body, flags=re.MULTILINE)
    body = re.sub(r"^(\| parameters \|) [\d,]+ \|$", rf"\1 {model.num_parameters():,} |", body, flags=re.MULTILINE)
    left_out = rf"{_MARK.pattern}|{re.escape(_CONVERSION)}.*?{re.escape(_END)}\n*"
    body = _OF_THE_CODE.sub("", re.sub(left_out, "", with_name(body, path), flags=re.DOTALL))
    body = re.sub(rf"^A {other} model for", f"A {kind} model for", body, flags=re.MULTILINE)
    note = (
        f"The weights of {base_model or f'a {other}'}, converted to {kind}. "
        "On a few sequences of random tokens, the largest difference\n"
        f"between the outputs of the two models was {difference:.1e}."
    )
    if kind == "scratch_bert":
        body, note = _CALLS.sub(r"\1, trust_remote_code=True", body), f"{note}\n\n{CODE_NOTE}"
    return _below_title(body, f"{_CONVERSION}\n{note}\n{_END}")


def _split(card: str) -> tuple[dict[str, Any], str]:
    """The metadata of a card, empty if they can't be read, and its text."""
    header = REGEX_YAML_BLOCK.match(card)
    if not header:
        return {}, card
    try:
        metadata = yaml.safe_load(header[2])
    except YAMLError:
        metadata = None
    return metadata if isinstance(metadata, dict) else {}, card[header.end() :]
