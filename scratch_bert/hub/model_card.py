"""Model cards: the template, what each card has, and the card of a conversion. No card names a path, a user or a host."""

import hashlib
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from transformers import PreTrainedConfig
from transformers.utils import cached_file
from yaml import YAMLError

from .. import __version__
from ..model import configuration_scratch_bert, modeling_scratch_bert, operations_scratch_bert
from ..model.configuration_scratch_bert import BERT_VALUES, ScratchBertConfig
from .conversion import Conversion


TEMPLATE = Path(__file__).with_name("model_card.md")
_WRITTEN_BY_US = "<!-- Written by a training"
MARK = f"{_WRITTEN_BY_US} run. Without this line, the next run leaves the card as you have changed it. -->"
TAGS = ["bert", "scratch_bert"]
PIPELINES = {
    "AutoModel": "feature-extraction",
    "AutoModelForPreTraining": "fill-mask",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForQuestionAnswering": "question-answering",
}


def is_customized(directory: Path) -> bool:
    """Whether the directory has a README.md that no training run has written, or that a user has taken over."""
    card = directory / "README.md"
    return card.exists() and _WRITTEN_BY_US not in card.read_text(encoding="utf-8")


def write_card(
    directory: Path,
    model_name: str,
    auto_class: str,
    config: PreTrainedConfig,
    metadata: dict[str, Any],
    **context: Any,
) -> None:
    """Fill the template as `directory`/README.md.

    `metadata` goes to the card's YAML block, beside library, pipeline and tags; `context` to the template.
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
        package_version=__version__,
        code_hash=code_hash(),
        **context,
    ).save(directory / "README.md")


def write_conversion_card(directory: Path, conversion: Conversion, source: str, revision: str | None = None) -> None:
    """Write the README.md of a checkpoint that was converted from `source`, a directory or a Hub repository."""
    model_class = conversion.model_class
    base_model = None if Path(source).exists() else source
    inherited = {
        name: value
        for name, value in _metadata_of(source, revision).items()
        if name in ("language", "datasets") or name.startswith("license")
    }
    write_card(
        directory,
        model_name=directory.name,
        auto_class=model_class.replace("ScratchBert", "Auto" if model_class == "ScratchBertModel" else "AutoModel"),
        config=ScratchBertConfig.from_pretrained(directory),
        metadata={"base_model": base_model, **inherited},
        base_model=base_model,
        difference=conversion.difference,
    )


def _metadata_of(source: str, revision: str | None) -> dict:
    """The metadata of the source's own card, if there is one that can be read."""
    optional = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    card = cached_file(source, "README.md", revision=revision, **optional)
    try:
        return ModelCard.load(card).data.to_dict() if card else {}
    except (ValueError, YAMLError):
        return {}


def code_hash() -> str:
    """SHA-256 of the three files that travel with a checkpoint, its first 16 digits: `cat` them in this order."""
    modules = (configuration_scratch_bert, modeling_scratch_bert, operations_scratch_bert)
    return hashlib.sha256(b"".join(Path(module.__file__).read_bytes() for module in modules)).hexdigest()[:16]
