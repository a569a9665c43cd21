"""The configuration of a scratch_bert model, its presets and the map of its Auto classes.

The files named *_scratch_bert.py travel with every checkpoint, so they import nothing but torch, transformers and
huggingface_hub, a dependency of transformers.
"""

import re
import sys
from pathlib import Path
from typing import Any

import transformers


CODE_VERSION = "1.0.0"  # of the package, too
OLDEST = {"transformers": "5.4", "torch": "2.11"}  # the oldest that were tried: docs/checkpoints.md

REQUIREMENTS = "".join(f"{library}>={version}\n" for library, version in OLDEST.items())


def release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


# First of all: with an older version, one of the imports below would fail with an unrelated error.
if release(transformers.__version__) < release(OLDEST["transformers"]):
    raise ImportError(
        f"This model needs transformers {OLDEST['transformers']} or newer, and {transformers.__version__} is "
        f"installed: {sys.executable} -m pip install --upgrade transformers"
    )

from huggingface_hub.dataclasses import strict
from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig


# Auto classes that open a checkpoint → their classes in these files. Written into each saved config.
AUTO_MAP = {
    "AutoConfig": "configuration_scratch_bert.ScratchBertConfig",
    "AutoModel": "modeling_scratch_bert.ScratchBertModel",
    "AutoModelForPreTraining": "modeling_scratch_bert.ScratchBertForPreTraining",
    "AutoModelForMaskedLM": "modeling_scratch_bert.ScratchBertForMaskedLM",
    "AutoModelForNextSentencePrediction": "modeling_scratch_bert.ScratchBertForNextSentencePrediction",
    "AutoModelForSequenceClassification": "modeling_scratch_bert.ScratchBertForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_scratch_bert.ScratchBertForTokenClassification",
    "AutoModelForQuestionAnswering": "modeling_scratch_bert.ScratchBertForQuestionAnswering",
    "AutoModelForMultipleChoice": "modeling_scratch_bert.ScratchBertForMultipleChoice",
}

# Sizes of the published checkpoints: base and large from the BERT paper (section 3), the others from "Well-Read
# Students Learn Better" (Turc et al., 2019), table 1. Micro is tiny with heads of size 32: it learns more than tiny.
_PRESETS = {  # layers, hidden, heads, initializer_range; feed-forward is 4 × hidden
    "micro": (2, 128, 4, 0.06),
    "tiny": (2, 128, 2, 0.06),
    "mini": (4, 256, 4, 0.04),
    "small": (4, 512, 8, 0.03),
    "medium": (8, 512, 8, 0.03),
    "base": (12, 768, 12, 0.02),
    "large": (24, 1024, 16, 0.02),
}
PRESETS: dict[str, dict[str, Any]] = {
    name: {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        # With this initialisation, small models leave the unigram plateau several times earlier: docs/learning.md.
        "initializer_range": std,
        "position_embedding_init": "sinusoidal",
        "attention_init": "mimetic",
    }
    for name, (layers, hidden, heads, std) in _PRESETS.items()
}
CHOICES = {
    "position_embedding_type": ("absolute", "sinusoidal", "rotary"),
    "position_embedding_init": ("normal", "sinusoidal"),
    "attention_init": ("normal", "mimetic"),
    "classifier_pooling": ("cls", "mean", "pairs"),
}

# Lists of the fields below, which other modules read: add a new field to each list that applies.
# Fields that decide which weights a model has and what it computes: a resumed run must have the same values.
ARCHITECTURE_FIELDS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "type_vocab_size",
    "embedding_size",
    "head_dim",
    "position_embedding_type",
    "qk_norm",
    "norm_first",
)
# Options that `BertConfig` does not support, and the values at which the model is a plain BERT.
BERT_VALUES = {
    "norm_first": False,
    "qk_norm": False,
    "position_embedding_type": "absolute",
    "embedding_size": None,
    "head_dim": None,
    "classifier_pooling": "cls",
}
# Fields that change how outputs are computed, not their values: a conversion to BERT leaves them out.
COMPUTE_FIELDS = ("sparse_prediction", "unpad_inputs")
# What other models call these fields. A config keeps unknown fields, so a wrong name would have no effect in silence.
OTHER_NAMES = {
    **dict.fromkeys(("num_layers", "n_layers", "n_layer", "depth"), "num_hidden_layers"),
    **dict.fromkeys(("num_heads", "n_heads", "n_head"), "num_attention_heads"),
    **dict.fromkeys(("d_model", "n_embd", "hidden_dim", "dim"), "hidden_size"),
    **dict.fromkeys(("d_ff", "ffn_dim"), "intermediate_size"),
    **dict.fromkeys(
        ("max_len", "max_seq_len", "max_seq_length", "n_positions", "block_size"), "max_position_embeddings"
    ),
    "dropout": "hidden_dropout_prob",
}
# Fields that matter at the start of training only: a conversion to BERT leaves them out, too.
INITIALIZATION_FIELDS = ("position_embedding_init", "attention_init")


def complete_map(auto_map: dict[str, Any] | None) -> dict[str, Any]:
    """The complete `AUTO_MAP`, whichever class is saved, and the user's own entries in `auto_map`. Without the name of
    a repository, with which the Hub's client prefixes entries: a copy must not point back to that repository."""
    ours, found = {entry.partition(".")[0] for entry in AUTO_MAP.values()}, dict(AUTO_MAP)
    for name, entry in (auto_map or {}).items():
        entry = entry.rpartition("--")[2] if isinstance(entry, str) else entry
        if not isinstance(entry, str) or entry.partition(".")[0] not in ours:
            found[name] = entry
    return found


def write_requirements(directory: str | Path) -> None:
    """Write what the code needs into requirements.txt, unless that is the user's own."""
    file = Path(directory, "requirements.txt")
    if not file.is_file() or re.fullmatch(r"transformers>=[\d.]+\ntorch>=[\d.]+\n", file.read_text(encoding="utf-8")):
        file.write_text(REQUIREMENTS, encoding="utf-8")


@strict
class ScratchBertConfig(PreTrainedConfig):
    """Shape and regularisation of a scratch_bert model. Defaults are those of BERT-base (Devlin et al., 2019).

    The fields are those of transformers' `BertConfig` without the decoder's (`is_decoder`, `add_cross_attention`,
    `use_cache`), plus `position_embedding_type`, `position_embedding_init`, `attention_init`, `qk_norm`,
    `norm_first`, `embedding_size`, `head_dim`, `classifier_pooling`, `sparse_prediction` and `unpad_inputs`. Raises
    `StrictDataclassError`, which names the field and what is allowed, for a value of the wrong type or out of range,
    and for values that contradict each other.
    """

    model_type = "scratch_bert"
    # How servers divide the layers among several GPUs.
    base_model_tp_plan = {
        "encoder.layer.*.attention.self.query": "colwise",
        "encoder.layer.*.attention.self.key": "colwise",
        "encoder.layer.*.attention.self.value": "colwise",
        "encoder.layer.*.attention.output.dense": "rowwise",
        "encoder.layer.*.intermediate.dense": "colwise",
        "encoder.layer.*.output.dense": "rowwise",
    }
    # The two parts of a pretraining loss are scalars: Trainer must not collect them as predictions.
    keys_to_ignore_at_inference = ["mlm_loss", "nsp_loss"]

    vocab_size: int = 30522
    """Number of token ids; ids run from 0 to vocab_size - 1."""
    hidden_size: int = 768
    embedding_size: int | None = None
    """Width of the token embeddings, which a matrix projects to hidden_size (Lan et al., 2020, section 3.1); None
    means hidden_size, without that matrix. A conversion to BERT multiplies them out."""
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    head_dim: int | None = None
    """Size of one attention head; None means hidden_size / num_attention_heads."""
    intermediate_size: int = 3072
    """Width of the feed-forward layer."""
    hidden_act: str = "gelu"
    """Activation of the feed-forward layer and of the MLM head: any name in transformers' `ACT2FN`."""
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    classifier_dropout: float | int | None = None
    """Dropout before a task's classifier; None means hidden_dropout_prob."""
    classifier_pooling: str = "cls"
    """What a classifier of sequences reads. `cls`: the pooled [CLS], as in BERT. `mean`: the mean of the tokens'
    states. `pairs`: the means of the two segments, and a comparison of each token with its counterpart in the other
    segment."""
    max_position_embeddings: int = 512
    """Longest sequence in tokens, special tokens included."""
    position_embedding_type: str = "absolute"
    """`absolute`: learned, as in BERT. `sinusoidal`: fixed, as in "Attention Is All You Need", section 3.5. `rotary`:
    queries and keys are rotated by their positions (Su et al., 2021), and no longest length is learned."""
    type_vocab_size: int = 2
    """Number of segment ids."""
    qk_norm: bool = False
    """LayerNorm of each head's queries and keys (Henry et al., 2020)."""
    norm_first: bool = False
    """LayerNorm before each sub-layer with one more after the last layer, instead of BERT's after each sub-layer."""
    initializer_range: float | int = 0.02
    """Standard deviation of the initial weights (before truncation at two deviations)."""
    position_embedding_init: str = "normal"
    """Initial learned positions. `normal`: like all weights. `sinusoidal`: sinusoids of the same deviation."""
    attention_init: str = "normal"
    """Initial attention. `normal`: like all weights. `mimetic`: tokens attend to similar tokens, and subtract part of
    what they find (Trockman & Kolter, 2023)."""
    layer_norm_eps: float | int = 1e-12
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    tie_word_embeddings: bool = True
    """Share the word embeddings with the MLM head's output projection."""
    sparse_prediction: bool = True
    """In training with labels, compute the MLM head only at the M labelled positions: logits are then (M, V)."""
    unpad_inputs: bool = True
    """Remove padding before the encoder, unless shapes must be static; outputs keep their padded shapes."""

    def __post_init__(self, **kwargs: Any):
        from_file = getattr(self, "transformers_version", None) is not None
        kwargs |= {"auto_map": complete_map(kwargs.get("auto_map")), "code_version": CODE_VERSION}
        super().__post_init__(**kwargs)
        for name, field in OTHER_NAMES.items():
            if not from_file and kwargs.get(name, getattr(self, field)) != getattr(self, field):
                raise ValueError(f"{name}={kwargs[name]!r} is not a field of ScratchBertConfig: use {field}.")

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> "ScratchBertConfig":
        """Config of one of Google's sizes (tiny, mini, small, medium, base, large), or of micro (tiny, more heads).

        `overrides` are any config fields, and take precedence. Raises `ValueError` for an unknown name.
        """
        if name not in PRESETS:
            raise ValueError(f"There is no preset {name!r}. Choose one of: {', '.join(PRESETS)}.")
        return cls(**{**PRESETS[name], **overrides})

    def save_pretrained(self, save_directory, push_to_hub: bool = False, **kwargs) -> None:
        # Weights with both heads open as either model, and clients look for its name: SparseEncoder for the MLM's.
        if self.architectures == ["ScratchBertForPreTraining"]:
            self.architectures = ["ScratchBertForPreTraining", "ScratchBertForMaskedLM"]
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        write_requirements(save_directory)
        super().save_pretrained(save_directory, push_to_hub, **kwargs)

    def validate_architecture(self):
        """Raise `ValueError` for invalid values. `@strict` calls this at construction and before a save."""
        counts = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"]
        counts += ["max_position_embeddings", "type_vocab_size"]
        counts += [field for field in ("embedding_size", "head_dim") if getattr(self, field) is not None]
        for field in counts:
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be 1 or more, got {getattr(self, field)}.")
        for field in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            if not 0 <= (getattr(self, field) or 0) < 1:
                raise ValueError(f"{field} must be at least 0 and less than 1, got {getattr(self, field)}.")
        for field, limit in {"initializer_range": 10, "layer_norm_eps": 1}.items():
            if not 0 < getattr(self, field) <= limit:
                raise ValueError(f"{field} must be greater than 0 and at most {limit}, got {getattr(self, field)}.")
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of num_attention_heads "
                f"({self.num_attention_heads}), or head_dim must be set."
            )
        if self.position_embedding_type == "rotary" and self.attention_head_size % 2:
            raise ValueError("Rotary positions need heads of an even size: change num_attention_heads or head_dim.")
        if self.hidden_act not in ACT2FN:
            raise ValueError(f"hidden_act must be one of {', '.join(sorted(ACT2FN))}; got {self.hidden_act!r}.")
        for field, choices in CHOICES.items():
            if getattr(self, field) not in choices:
                raise ValueError(f"{field} must be one of {', '.join(choices)}; got {getattr(self, field)!r}.")
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(
                f"pad_token_id must be None or from 0 to vocab_size - 1 ({self.vocab_size - 1}), "
                f"got {self.pad_token_id}."
            )
        if getattr(self, "is_decoder", False) or getattr(self, "add_cross_attention", False):
            raise ValueError("is_decoder and add_cross_attention must be False: scratch_bert is an encoder only.")

    @property
    def attention_head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads


ScratchBertConfig.register_for_auto_class()
