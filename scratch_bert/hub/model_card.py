"""Model cards: the parts that all of them share, and the card of a converted model. No card names a path, user or host."""

import hashlib
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import cached_file
from yaml import YAMLError

from .. import __version__
from ..model import configuration_scratch_bert, modeling_scratch_bert, operations_scratch_bert
from ..model.configuration_scratch_bert import BERT_VALUES
from ..model.modeling_scratch_bert import AUTO_MODELS


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
