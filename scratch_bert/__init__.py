"""scratch_bert: a BERT from scratch that Hugging Face's Trainer, Auto classes and Hub can drive.

Importing the package registers the config and every model with their Auto classes.
"""

import transformers

from . import modeling_scratch_bert
from .configuration_scratch_bert import AUTO_MAP, ScratchBertConfig
from .modeling_scratch_bert import (
    ScratchBertForMaskedLM,
    ScratchBertForMultipleChoice,
    ScratchBertForNextSentencePrediction,
    ScratchBertForPreTraining,
    ScratchBertForQuestionAnswering,
    ScratchBertForSequenceClassification,
    ScratchBertForTokenClassification,
    ScratchBertModel,
)


__version__ = "0.1.0"
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
]


def _register() -> None:
    transformers.AutoConfig.register(ScratchBertConfig.model_type, ScratchBertConfig)
    # Checkpoints name their own tokenizer class; this is for directories that hold a vocabulary alone.
    transformers.AutoTokenizer.register(ScratchBertConfig, fast_tokenizer_class=transformers.BertTokenizer)
    for auto_class, reference in AUTO_MAP.items():
        if auto_class != "AutoConfig":
            model_class = getattr(modeling_scratch_bert, reference.split(".")[1])
            getattr(transformers, auto_class).register(ScratchBertConfig, model_class)


_register()
