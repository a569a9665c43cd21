"""scratch_bert: a BERT from scratch for Hugging Face's Trainer, Auto classes and Hub.

Importing the package registers the config and all models with their Auto classes. `pretrain` and `finetune` do a
complete run; their parts are in `scratch_bert.pretraining` and `scratch_bert.finetuning`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import transformers

from .model.configuration_scratch_bert import CODE_VERSION, ScratchBertConfig
from .model.modeling_scratch_bert import (
    AUTO_MODELS,
    ScratchBertForMaskedLM,
    ScratchBertForMultipleChoice,
    ScratchBertForNextSentencePrediction,
    ScratchBertForPreTraining,
    ScratchBertForQuestionAnswering,
    ScratchBertForSequenceClassification,
    ScratchBertForTokenClassification,
    ScratchBertModel,
)


if TYPE_CHECKING:
    from .finetuning.api import finetune
    from .pretraining.api import pretrain

__version__ = CODE_VERSION
__all__ = [
    "ScratchBertConfig",
    "ScratchBertForMaskedLM",
    "ScratchBertForMultipleChoice",
    "ScratchBertForNextSentencePrediction",
    "ScratchBertForPreTraining",
    "ScratchBertForQuestionAnswering",
    "ScratchBertForSequenceClassification",
    "ScratchBertForTokenClassification",
    "ScratchBertModel",
    "finetune",
    "pretrain",
]


def __getattr__(name: str) -> Any:
    # Imported on first use: models need neither datasets nor tokenizers.
    module = {"pretrain": ".pretraining.api", "finetune": ".finetuning.api"}.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module, __name__), name)


def _register() -> None:
    transformers.AutoConfig.register(ScratchBertConfig.model_type, ScratchBertConfig)
    # Checkpoints name their tokenizer class; this is for directories with a vocabulary only.
    transformers.AutoTokenizer.register(ScratchBertConfig, fast_tokenizer_class=transformers.BertTokenizer)
    for auto_class, model_class in AUTO_MODELS.items():
        getattr(transformers, auto_class).register(ScratchBertConfig, model_class)


_register()
