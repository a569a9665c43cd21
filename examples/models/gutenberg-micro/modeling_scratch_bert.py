"""BERT (Devlin et al., 2019, https://arxiv.org/abs/1810.04805) from embeddings to task heads, read top to bottom.

Dimensions, in comments and docstrings:
    B  batch size               H  hidden size               V  vocabulary size
    S  sequence length          A  attention heads           L  labels of a task
    P  position embeddings      D  size of one head          C  choices of a question
    T  non-padding tokens       F  feed-forward size         M  tokens to predict
    N  sequences in the batch: B, or more if they are packed

Parameter names are those of BERT's published checkpoints, so that weights convert both ways without renaming. A batch
is unpadded before the embeddings and padded again after the last layer: in between, (1, T) takes the place of (B, S).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from inspect import signature
from typing import NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.dynamic_module_utils import init_hf_modules
from transformers.masking_utils import create_bidirectional_mask, packed_sequence_mask_function
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    NextSentencePredictorOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from .configuration_scratch_bert import AUTO_MAP, ScratchBertConfig
from .operations_scratch_bert import (
    Dropout,
    Sequences,
    apply_dropout,
    can_branch,
    cross_entropy_sum,
    find_attention,
    grouped_attention,
    is_eager,
    is_observed,
    is_plain_linear,
    padded_attention,
    project,
    surplus_rows,
    true_positions,
)


# ------------------------------------------------------------------------------------------------- input checks


def check_range(name: str, ids: torch.Tensor, size: int, size_name: str) -> None:
    """Raise `IndexError` if an id in `ids` (any shape) is not in [0, size).

    On the CPU only: on an accelerator, reading the extremes would make the host wait for the device.
    """
    if ids.device.type != "cpu" or not is_eager(ids) or ids.numel() == 0:
        return
    low, high = (int(extreme) for extreme in ids.aminmax())
    if low < 0 or high >= size:
        raise IndexError(
            f"{name} must lie between 0 and {size - 1} ({size_name} is {size}), but they run from {low} to {high}."
        )


def check_shape(name: str, tensor: torch.Tensor, *allowed: tuple[int, ...]) -> None:
    """Raise `ValueError` if the shape of `tensor` is none of `allowed`."""
    if tuple(tensor.shape) not in allowed:
        expected = " or ".join(map(str, allowed))
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}, but these inputs need {expected}.")


# --------------------------------------------------------------------------------------------------- embeddings


def sinusoids(length: int, width: int) -> torch.Tensor:
    """Sinusoids (length, width): sines in even columns, cosines in odd columns (Vaswani et al., 2017, section 3.5)."""
    wavelengths = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))  # (⌈H/2⌉,)
    angles = torch.arange(length)[:, None] * wavelengths  # (P, ⌈H/2⌉)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]  # (P, H)


class ScratchBertSinusoidalPositions(nn.Module):
    """Fixed position embeddings."""

    def __init__(self, config: ScratchBertConfig):
        super().__init__()
        self.table_shape = (config.max_position_embeddings, config.hidden_size)
        self.register_buffer("weight", self.table(), persistent=False)  # (P, H)

    def table(self) -> torch.Tensor:
        return sinusoids(*self.table_shape)

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(position_ids, self.weight)


class EmbeddingInputs(NamedTuple):
    """Inputs of the embeddings: either `input_ids` or `inputs_embeds` is None."""

    input_ids: torch.Tensor | None  # (B, S)
    token_type_ids: torch.Tensor  # (B, S)
    position_ids: torch.Tensor  # (B, S)
    inputs_embeds: torch.Tensor | None  # (B, S, H)


class ScratchBertEmbeddings(nn.Module):
    """Token + position + segment embeddings, LayerNorm, dropout (paper, section 3, figure 2)."""

    def __init__(self, config: ScratchBertConfig):
        super().__init__()
        self.config = config
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        # Learned positions start as small as the token embeddings (std 0.02). Sinusoids are larger and would dominate
        # them, so tokens and segments are scaled by √H (Vaswani et al., 2017, section 3.4).
        if config.position_embedding_type == "sinusoidal":
            self.position_embeddings = ScratchBertSinusoidalPositions(config)
            self.scale = math.sqrt(config.hidden_size)
        else:
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
            self.scale = 1.0
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        # Old checkpoints contain this buffer: under the same name, transformers skips it.
        self.register_buffer("position_ids", torch.arange(config.max_position_embeddings)[None], persistent=False)

    def complete(
        self,
        input_ids: torch.Tensor | None,  # (B, S)
        token_type_ids: torch.Tensor | None,  # (B, S)
        position_ids: torch.Tensor | None,  # (B, S) or (1, S)
        inputs_embeds: torch.Tensor | None,  # (B, S, H)
    ) -> EmbeddingInputs:
        """Check the inputs, and add default segments and positions. Raises `ValueError` or `IndexError`."""
        config = self.config
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Pass either input_ids or inputs_embeds, and not both.")
        given, width = (input_ids, ()) if inputs_embeds is None else (inputs_embeds, (config.hidden_size,))
        if given.dim() != 2 + len(width):
            wanted = "input_ids of shape (B, S) or inputs_embeds of shape (B, S, H)"
            raise ValueError(f"The model takes {wanted}, got the shape {tuple(given.shape)}.")
        shape, length = tuple(given.shape[:2]), given.shape[1]

        if position_ids is None:
            if length > config.max_position_embeddings:
                raise ValueError(
                    f"The sequences are {length} tokens long, but the model has max_position_embeddings="
                    f"{config.max_position_embeddings} positions. Truncate the text to that length."
                )
            position_ids = self.position_ids[:, :length]  # (1, S)
        else:
            check_shape("position_ids", position_ids, shape, (1, length))
            check_range("position_ids", position_ids, config.max_position_embeddings, "max_position_embeddings")
        position_ids = position_ids.expand(shape)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(position_ids)
        else:
            check_shape("token_type_ids", token_type_ids, shape)
            check_range("token_type_ids", token_type_ids, config.type_vocab_size, "type_vocab_size")
        if inputs_embeds is None:
            check_range("input_ids", input_ids, self.word_embeddings.num_embeddings, "vocab_size")
        check_shape("inputs_embeds", given, (*shape, *width))
        return EmbeddingInputs(input_ids, token_type_ids, position_ids, inputs_embeds)

    def forward(
        self,
        input_ids: torch.Tensor | None,  # (B, S)
        token_type_ids: torch.Tensor,  # (B, S)
        position_ids: torch.Tensor,  # (B, S)
        inputs_embeds: torch.Tensor | None,  # (B, S, H)
    ) -> torch.Tensor:
        embeddings = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds  # (B, S, H)
        embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        if self.scale != 1.0:
            embeddings = embeddings * self.scale
        embeddings = embeddings + self.position_embeddings(position_ids)
        return self.dropout(self.LayerNorm(embeddings))  # (B, S, H)


# -------------------------------------------------------------------------------------------- attention and layers


def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Scaled dot-product attention that returns its weights (Vaswani et al., 2017, section 3.2.1).

    `query`, `key` and `value` (B, A, S, D); `attention_mask` (B, 1, S, S), True where a token may attend to another,
    or numbers to add to the scores, or None.
    """
    scores = query @ key.transpose(-1, -2) * scaling  # (B, A, S, S)
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = apply_dropout(scores.softmax(dim=-1), dropout, module.training)
    return (weights @ value).transpose(1, 2), weights  # (B, S, A, D), (B, A, S, S)


class ScratchBertSelfAttention(nn.Module):
    """Bidirectional multi-head self-attention, up to the output projection."""

    is_causal = False

    def __init__(self, config: ScratchBertConfig):
        super().__init__()
        self.config = config
        self.head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
        self.scaling = self.head_dim**-0.5
        width = config.num_attention_heads * self.head_dim
        self.query = nn.Linear(config.hidden_size, width)
        self.key = nn.Linear(config.hidden_size, width)
        self.value = nn.Linear(config.hidden_size, width)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        sequences: Sequences | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        query, key, value = (
            states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (B, A, S, D)
            for states in project(hidden_states, (self.query, self.key, self.value))
        )
        attention: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        if sequences is not None:
            attention = partial(sequences.attention, sequences=sequences, interface=attention)
        dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
        context, weights = attention(
            self, query, key, value, attention_mask, scaling=self.scaling, dropout=dropout, **kwargs
        )
        return context.flatten(2), weights  # (B, S, A·D), (B, A, S, S) or None


class ScratchBertOutput(nn.Module):
    """End of a sub-layer: a projection back to H, dropout, the residual connection, and LayerNorm.

    With `norm_first`, the sub-layer applies the LayerNorm to its input instead.
    """

    def __init__(self, config: ScratchBertConfig, in_features: int):
        super().__init__()
        self.norm_first = config.norm_first
        self.dense = nn.Linear(in_features, config.hidden_size)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def norm_input(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """What the sub-layer starts from: its input, with norm_first normalised."""
        return self.LayerNorm(hidden_states) if self.norm_first else hidden_states

    def forward(self, states: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        states = residual + self.dropout(self.dense(states))
        return states if self.norm_first else self.LayerNorm(states)  # (B, S, H)


class ScratchBertAttention(nn.Module):
    def __init__(self, config: ScratchBertConfig):
        super().__init__()
        self.self = ScratchBertSelfAttention(config)
        self.output = ScratchBertOutput(config, in_features=self.self.query.out_features)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        context, weights = self.self(self.output.norm_input(hidden_states), attention_mask, **kwargs)  # (B, S, A·D)
        return self.output(context, hidden_states), weights  # (B, S, H), (B, A, S, S) or None


class ScratchBertIntermediate(nn.Module):
    """First half of the feed-forward sub-layer: expansion to F and activation."""

    def __init__(self, config: ScratchBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.activation(self.dense(hidden_states))  # (B, S, F)


class ScratchBertLayer(GradientCheckpointingLayer):
    """Attention and feed-forward, each with a residual connection and a LayerNorm after (or before) it."""

    def __init__(self, config: ScratchBertConfig):
        super().__init__()
        self.attention = ScratchBertAttention(config)
        self.intermediate = ScratchBertIntermediate(config)
        self.output = ScratchBertOutput(config, in_features=config.intermediate_size)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, **kwargs) -> torch.Tensor:
        hidden_states, _ = self.attention(hidden_states, attention_mask, **kwargs)  # (B, S, H)
        intermediate = self.intermediate(self.output.norm_input(hidden_states))  # (B, S, F)
        return self.output(intermediate, hidden_states)  # (B, S, H)


class ScratchBertEncoder(nn.Module):
    def __init__(self, config: ScratchBertConfig):
        super().__init__()
        self.layer = nn.ModuleList([ScratchBertLayer(config) for _ in range(config.num_hidden_layers)])
        # With norm_first, the last layer's output is not normalised yet.
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.norm_first else None

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, **kwargs) -> BaseModelOutput:
        for layer in self.layer:
            hidden_states = layer(hidden_states, attention_mask, **kwargs)
        if self.LayerNorm is not None:
            hidden_states = self.LayerNorm(hidden_states)
        return BaseModelOutput(last_hidden_state=hidden_states)  # (B, S, H)


class ScratchBertPooler(nn.Module):
    """Linear layer and tanh on the [CLS] token's state, for NSP and classifiers."""

    def __init__(self, config: ScratchBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, first_states: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(first_states))  # (N, H)


# --------------------------------------------------------------------------------------------- pretraining heads


class ScratchBertTransform(nn.Module):
    def __init__(self, config: ScratchBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.activation(self.dense(hidden_states)))  # (…, H)


class ScratchBertPredictions(nn.Module):
    """MLM head: a transform, then a projection to the vocabulary, which can be tied to the token embeddings."""

    def __init__(self, config: ScratchBertConfig):
        super().__init__()
        self.transform = ScratchBertTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        # Not in the decoder: FSDP shards it with the token embeddings, and fails on a second name for its parameters.
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        states = self.transform(hidden_states)
        if is_eager(states) and is_plain_linear(self.decoder) and self.decoder.bias is None:
            # Within the product: adding the bias afterwards takes another pass over all logits.
            return F.linear(states, self.decoder.weight, self.bias.to(self.decoder.weight.dtype))  # (…, V)
        logits = self.decoder(states)
        return logits + self.bias.to(logits.dtype)


def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    name: str = "labels",
) -> torch.Tensor:
    """Mean cross entropy in fp32 over the labels other than -100; 0 if there are none.

    `logits` (…, L), `labels` (…). When Trainer accumulates gradients, the sum is divided by `num_items_in_batch`
    instead, the number of labels in all micro-batches of a step: their losses add up to the mean over the batch.
    Raises `ValueError` for labels of another shape and `IndexError` for a label that is neither -100 nor in [0, L);
    both messages call the labels `name`.
    """
    check_shape(name, labels, tuple(logits.shape[:-1]))
    check_range(
        f"{name} other than -100", labels.masked_fill(labels == -100, 0), logits.shape[-1], "number of classes"
    )
    total = cross_entropy_sum(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    count = labels.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch
    return total / torch.as_tensor(count, device=total.device).clamp(min=1)


# --------------------------------------------------------------------------------------------------------- models


class RemoteCode:
    """Pickles as a call that makes transformers' cache of remote code importable."""

    def __reduce__(self):
        return init_hf_modules, ()


class ScratchBertPreTrainedModel(PreTrainedModel):
    """Base class of all models: their initial weights, and what transformers may do with them."""

    config: ScratchBertConfig
    base_model_prefix = "bert"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _no_split_modules = ["ScratchBertEmbeddings", "ScratchBertLayer"]
    _can_record_outputs = {"hidden_states": ScratchBertLayer, "attentions": ScratchBertSelfAttention}
    # Task models drop the pretraining heads, which need not be reported. Missing weights are still reported.
    _keys_to_ignore_on_load_unexpected = [r"^cls\.", r"^(bert\.)?pooler\."]
    # Most heads have equally many labels in each micro-batch, so Trainer's division by the accumulation steps is
    # right. Heads with labels for tokens set this to True, and use `num_items_in_batch`.
    accepts_loss_kwargs = False

    def __init__(self, config: ScratchBertConfig):
        if not hasattr(config, "norm_first"):  # not isinstance: a copy of these files has a class of its own
            raise ValueError(f"A {type(self).__name__} needs a ScratchBertConfig, not a {type(config).__name__}.")
        config.validate()  # it may have changed since its construction, as by from_pretrained(…, hidden_act=…)
        super().__init__(config)

    def __reduce_ex__(self, protocol):
        if not type(self).__module__.startswith("transformers_modules."):
            return super().__reduce_ex__(protocol)
        # For torch.load of a whole model: a new process finds its classes in the cache of remote code.
        new = partial(object.__new__)
        new.remote_code = RemoteCode()
        return new, (type(self),), *super().__reduce_ex__(protocol)[2:]

    def save_pretrained(self, *args, **kwargs) -> None:
        # As the class that an Auto class opens, which an objective or FSDP2 may have subclassed.
        trained = self.__class__
        self.__class__ = next((parent for parent in trained.__mro__ if vars(parent).get("_auto_class")), trained)
        try:
            super().save_pretrained(*args, **kwargs)
        finally:
            self.__class__ = trained

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw weights from a normal of std `initializer_range`, truncated at two deviations; biases 0, LayerNorms 1.

        The paper does not state the initialisation; this is its published code's (tf.truncated_normal). Truncation
        prevents outsized embeddings of a few tokens, and leaves a true deviation of 0.88 × std.
        """
        std = self.config.initializer_range
        if isinstance(module, (nn.Linear, nn.Embedding)):
            init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
        elif isinstance(module, ScratchBertEmbeddings):
            init.copy_(module.position_ids, torch.arange(module.position_ids.shape[-1])[None])
            positions = module.position_embeddings
            if self.config.position_embedding_init == "sinusoidal" and isinstance(positions, nn.Embedding):
                table = sinusoids(*positions.weight.shape)
                init.copy_(positions.weight, table * (std / table.std()))
        elif isinstance(module, ScratchBertSinusoidalPositions):
            init.copy_(module.weight, module.table())
        if getattr(module, "bias", None) is not None:
            init.zeros_(module.bias)
        # A slice lacks the mark that transformers puts on loaded weights, so it is checked here.
        loaded = getattr(getattr(module, "weight", None), "_is_hf_initialized", False)
        if getattr(module, "padding_idx", None) is not None and not loaded:
            init.zeros_(module.weight[module.padding_idx])

    @torch.no_grad()
    def initialize_weights(self) -> None:
        if any(isinstance(parameter, FakeTensor) for parameter in self.parameters()):
            return  # they have no values, which trunc_normal_ would read
        # transformers marks loaded weights, and modules that the base model within this model has initialised.
        attention = [module for module in self.modules() if isinstance(module, ScratchBertAttention)]
        attention = [
            module
            for module in attention
            if not any(getattr(part, "_is_hf_initialized", False) for part in (module, module.self.query.weight))
        ]
        super().initialize_weights()
        if self.config.attention_init == "mimetic":
            # Not in _init_weights, which transformers skips for modules without parameters of their own.
            for module in attention:
                self._init_mimetic(module.self, module.output.dense)

    def get_position_embeddings(self) -> nn.Module:
        return self.base_model.embeddings.position_embeddings

    @torch.no_grad()
    def resize_position_embeddings(self, new_num_position_embeddings: int) -> None:
        """Change the maximum sequence length. Learned positions are repeated from the first on, as in Longformer
        (Beltagy et al., 2020, section 5), so that attention to nearby tokens is as before."""
        self.config.max_position_embeddings = new_num_position_embeddings
        embeddings, old = self.base_model.embeddings, self.get_position_embeddings()
        device = old.weight.device
        if isinstance(old, ScratchBertSinusoidalPositions):
            embeddings.position_embeddings = ScratchBertSinusoidalPositions(self.config).to(device)
        else:
            numbers = torch.arange(new_num_position_embeddings, device=device) % old.num_embeddings
            embeddings.position_embeddings = nn.Embedding.from_pretrained(old.weight[numbers], freeze=False)
        embeddings.position_ids = torch.arange(new_num_position_embeddings, device=device)[None]

    @staticmethod
    def _init_mimetic(attention: ScratchBertSelfAttention, output: nn.Linear) -> None:
        """Correlate each head's keys with its queries, so that tokens attend to similar tokens, and the output
        projection with the negative of the value projection, so that they subtract part of what they find.

        "Mimetic Initialization of Self-Attention Layers" (Trockman & Kolter, 2023) finds this in trained models. The
        paper sets the products query·keyᵀ and value·output and factorises them; here, the factors are set.
        """
        shape = attention.query.weight.shape  # (A·D, H)
        query, value = torch.randn(shape), 0.7 * torch.randn(shape)
        key, back = ((x + x.std() * torch.randn(shape)) / 2**0.5 for x in (query, value))
        targets = (attention.query, query), (attention.key, key), (attention.value, value), (output, -back.T)
        for linear, weight in targets:
            init.copy_(linear.weight, weight / shape[1] ** 0.5)


def is_padding_mask(attention_mask: object) -> bool:
    """Whether the mask marks padding (B, S), rather than who attends to whom: (B, 1, S, S), or flex attention's."""
    return torch.is_tensor(attention_mask) and attention_mask.dim() == 2


def flattened_seq_idx(
    position_ids: torch.Tensor | None, cu_seq_lens: torch.Tensor | None, shape: tuple[int, int]
) -> torch.Tensor | None:
    """`seq_idx` (1, S) of sequences that a collator has joined to one batch entry, or None if there is one alone.

    They are known from `cu_seq_lens` (N + 1,), the starts of the sequences and the end of the last, or from
    `position_ids` (1, S) that count up, and from the first position again with each sequence. Raises `ValueError` for
    `cu_seq_lens` of another batch.
    """
    if cu_seq_lens is not None:
        on_cpu = cu_seq_lens.device.type == "cpu" and is_eager(cu_seq_lens)
        if shape[0] != 1 or (on_cpu and cu_seq_lens[[0, -1]].tolist() != [0, shape[1]]):
            raise ValueError(
                f"cu_seq_lens_q must run from 0 to the number of tokens in a batch of shape (1, T), but the batch has "
                f"the shape {shape}."
            )
        return torch.bucketize(torch.arange(shape[1], device=cu_seq_lens.device), cu_seq_lens[1:-1], right=True)[None]
    if position_ids is None or shape[0] != 1 or shape[1] == 0 or not can_branch(position_ids):
        return None
    before, after = position_ids[:, :-1], position_ids[:, 1:]  # (1, S - 1)
    starts = position_ids == position_ids[:, :1]  # (1, S)
    counted = (starts[:, 1:] | (after == before + 1)).all()
    restarted = (after < before).any()
    return starts.cumsum(1) - 1 if counted & restarted else None


def check_packing(seq_idx: torch.Tensor, attention_mask: object, shape: tuple[int, int]) -> None:
    """Raise `ValueError` or `IndexError` if the numbers `seq_idx` do not delimit packed sequences."""
    check_shape("seq_idx", seq_idx, shape)
    check_range("seq_idx", seq_idx, shape[1], "length of a batch entry")
    if not is_padding_mask(attention_mask):
        raise ValueError(
            "seq_idx needs an attention_mask of shape (B, S), or none: a 4-D mask already defines who attends to whom."
        )
    if seq_idx.device.type == "cpu" and is_eager(seq_idx):
        numbers = seq_idx.masked_fill(attention_mask == 0, 0)
        if ((numbers.cummax(1).values > seq_idx) & (attention_mask != 0)).any():
            raise ValueError("seq_idx must not decrease: number the sequences 0, 1, 2, … from left to right.")


def first_tokens(attention_mask: torch.Tensor, seq_idx: torch.Tensor, count: int | None = None) -> torch.Tensor:
    """Indices (N,) of the packed sequences' first tokens in the flattened batch; `count` is N, if it is known."""
    highest = seq_idx.masked_fill(attention_mask == 0, -1).cummax(1).values  # (B, S): the highest number so far
    return true_positions(highest > F.pad(highest[:, :-1], (1, 0), value=-1), count)


def packed_labels(
    labels: torch.Tensor,
    attention_mask: torch.Tensor | None,
    seq_idx: torch.Tensor | None,
    count: int | None = None,
) -> torch.Tensor:
    """Labels (B, K) of packed sequences → (N,), without padding. A label may be -100, like padding; `count` is N."""
    if seq_idx is None:
        return labels[labels != -100]
    mask = torch.ones_like(seq_idx) if attention_mask is None else attention_mask
    entries = first_tokens(mask, seq_idx, count) // seq_idx.shape[1]  # (N,)
    counts = torch.zeros_like(labels[:, 0]).index_add_(0, entries, torch.ones_like(entries))  # (B,)
    present = torch.arange(labels.shape[1], device=labels.device) < counts[:, None]  # (B, K)
    return labels.flatten()[true_positions(present, count)]


class ScratchBertModel(ScratchBertPreTrainedModel):
    """The encoder, with or without the pooler.

    Inputs, here and in every head: `input_ids` (B, S) or `inputs_embeds` (B, S, H); `attention_mask` (B, S), 0 at
    padding, or (B, 1, S, S), True where a token may attend to another, or numbers to add to the scores;
    `token_type_ids` (B, S), the segments; `position_ids` (B, S) or (1, S). For packed sequences, `seq_idx` (B, S)
    numbers the sequences of each batch entry, ascending from 0: tokens attend only within their sequence. Also pass
    `position_ids` that restart with each sequence. In a batch of one entry, without a mask and `seq_idx`, such
    `position_ids` alone tell the sequences apart, or `cu_seq_lens_q` (N + 1,), their bounds. `sequence_lengths`, the lengths of all sequences in order, in a
    batch padded on the right, saves the host from waiting for the GPU to count them.

    Returns `last_hidden_state` (B, S, H) and `pooler_output` (B, H), or (N, H) of packed sequences, in their order;
    with `output_hidden_states=True` the embeddings and each layer's output, with `output_attentions=True` (eager
    attention only) each layer's weights (B, A, S, S). Outputs at padded positions are undefined, but finite.

    Padding is removed before the embeddings (`unpad_inputs`, by default the config's), and restored only for attention
    that needs it: eager; sdpa on a GPU with dropout or in fp32, and on a CPU with sequences of more than 1024 tokens
    (256 with gradients and without dropout). Padding is kept if hidden states or attentions are returned, or a hook
    looks into the model; under torch.compile, torch.export, torch.func and FakeTensorMode, whose shapes must be static;
    with an `attention_mask` of four dimensions; and, for the pooler, if a batch entry begins with padding.

    Raises `ValueError` for sequences longer than `max_position_embeddings` and for shapes that do not fit, and, on the
    CPU, `IndexError` for ids out of range.
    """

    def __init__(self, config: ScratchBertConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = ScratchBertEmbeddings(config)
        self.encoder = ScratchBertEncoder(config)
        self.pooler = ScratchBertPooler(config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embeddings.word_embeddings = value

    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        seq_idx: torch.Tensor | None = None,
        unpad_inputs: bool | None = None,
        sequence_lengths: list[int] | None = None,
        cu_seq_lens_q: torch.Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPooling:
        inputs = self.embeddings.complete(input_ids, token_type_ids, position_ids, inputs_embeds)
        shape, first = tuple(inputs.token_type_ids.shape), None  # (B, S)
        if torch.is_tensor(attention_mask) and attention_mask.dim() != 4:
            check_shape("attention_mask", attention_mask, shape)
        if seq_idx is None and (attention_mask is None or cu_seq_lens_q is not None):
            seq_idx = flattened_seq_idx(position_ids, cu_seq_lens_q, shape)
        if seq_idx is not None:
            attention_mask = torch.ones_like(seq_idx) if attention_mask is None else attention_mask
            check_packing(seq_idx, attention_mask, shape)
            if self.pooler is not None:  # before the encoder: on a GPU, counting waits for the work queued so far
                count = None if sequence_lengths is None else len(sequence_lengths)
                first = first_tokens(attention_mask, seq_idx, count)  # (N,)

        options = {"unpad_inputs": unpad_inputs, "sequence_lengths": sequence_lengths}
        sequences = self.find_sequences(inputs, attention_mask, seq_idx, **options, **kwargs)
        if sequences is not None:
            inputs = EmbeddingInputs(*(None if tensor is None else sequences.unpad(tensor) for tensor in inputs))
        states, mask = self.embeddings(*inputs), None  # (B, S, H), or (1, T, H)
        if sequences is None or sequences.attention is padded_attention:
            if sequences is not None and not sequences.padded:
                attention_mask = None
            # What is known of the padding saves the host from waiting for the device to look at the mask.
            known = attention_mask is not None and (sequences is not None or sequence_lengths is not None)
            mask = self.make_mask(states.new_empty((*shape, 0)), attention_mask, seq_idx, keep=known)
        states = self.encoder(states, mask, sequences=sequences, **kwargs).last_hidden_state
        if sequences is not None:
            states = sequences.pad(states)  # (1, T, H) → (B, S, H)
        pooled = None
        if self.pooler is not None:
            first_states = states[:, 0] if first is None else states.flatten(0, 1).index_select(0, first)
            pooled = self.pooler(first_states)  # (N, H)
        return BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=pooled)

    def find_sequences(
        self,
        inputs: EmbeddingInputs,
        attention_mask,
        seq_idx,
        unpad_inputs: bool | None,
        sequence_lengths: list[int] | None,
        **kwargs,
    ) -> Sequences | None:
        """The sequences to unpad the batch to, or None to keep the padding."""
        shape, device = tuple(inputs.token_type_ids.shape), inputs.token_type_ids.device
        if not (self.config.unpad_inputs if unpad_inputs is None else unpad_inputs):
            return None
        if not is_eager(inputs.input_ids if inputs.inputs_embeds is None else inputs.inputs_embeds):
            return None
        # Whoever looks into the model expects (B, S, H) there.
        if is_observed(self.embeddings) or is_observed(self.encoder):
            return None
        # Captured from the layers, and returned in padded shapes.
        captured = ("output_hidden_states", "output_attentions")
        if any(kwargs.get(option, getattr(self.config, option, False)) for option in captured):
            return None
        if attention_mask is None:
            sequences = Sequences(shape, [shape[1]] * shape[0])
        elif is_padding_mask(attention_mask):
            sequences = Sequences.from_mask(attention_mask, seq_idx, sequence_lengths)
        else:
            return None
        # Like BERT's, the pooler reads the first token, even if that is padding.
        if not sequences.lengths or (sequences.padded_left and self.pooler is not None and seq_idx is None):
            return None
        sequences.attention = find_attention(self.config, self.training, device, self.dtype, max(sequences.lengths))
        if sequences.attention is grouped_attention:
            sequences.group(self.config.num_attention_heads, self.config.hidden_size)
        sequences.extend(surplus_rows(sequences.rows, inputs.token_type_ids, self.dtype))
        return sequences

    def make_mask(
        self,
        embeddings: torch.Tensor,
        attention_mask: torch.Tensor | None,
        seq_idx: torch.Tensor | None,
        keep: bool = False,
    ):
        """The mask in the form that the attention implementation takes, or None if every token attends to all; with
        `keep`, never None for an `attention_mask`."""
        implementation = self.config._attn_implementation
        if seq_idx is not None and implementation not in ("eager", "sdpa", "flex_attention"):
            raise ValueError(
                f"{implementation} cannot keep packed sequences (seq_idx) apart where padding is kept: with "
                "unpad_inputs=False, under torch.compile, or if hidden states or attentions are asked for. Take the "
                "attention implementation sdpa."
            )
        return create_bidirectional_mask(
            config=self.config,
            inputs_embeds=embeddings,
            attention_mask=attention_mask,
            and_mask_function=None if seq_idx is None else packed_sequence_mask_function(seq_idx),
            allow_is_bidirectional_skip=not keep,
        )


@dataclass
class ScratchBertForPreTrainingOutput(ModelOutput):
    """`prediction_logits` (B, S, V), or (M, V), only the labelled positions, in order: see `ScratchBertForPreTraining`;
    `seq_relationship_logits` (B, 2), or (N, 2) if packed; `loss` is `mlm_loss` + `nsp_loss`."""

    loss: torch.Tensor | None = None
    prediction_logits: torch.Tensor | None = None
    seq_relationship_logits: torch.Tensor | None = None
    mlm_loss: torch.Tensor | None = None
    nsp_loss: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


class ScratchBertWithMLMHead(ScratchBertPreTrainedModel):
    """Base class of the two models with an MLM head: tied output embeddings, and a loss over the masked tokens."""

    accepts_loss_kwargs = True
    _tied_weights_keys = {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight"}

    def __init__(self, config: ScratchBertConfig):
        super().__init__(config)
        if config.tie_word_embeddings:
            # Saved only once in any case; listed so that Trainer does not report them as missing on resume.
            self._keys_to_ignore_on_save = list(self._tied_weights_keys)

    def masked_positions(
        self, labels: torch.Tensor | None, count: int | None, sparse: bool | None = None
    ) -> torch.Tensor | None:
        """Indices (M,) of the positions to predict in the flattened batch; None for all positions. By default (`sparse`),
        the config decides in training, and all are predicted in evaluation.

        Call it before the encoder: on a GPU, counting waits for the work queued so far.
        """
        sparse = self.training and self.config.sparse_prediction if sparse is None else sparse
        if labels is None or not sparse or not can_branch(labels):
            return None
        return true_positions(labels != -100, count)

    def mlm_logits_and_loss(
        self,
        hidden_states: torch.Tensor,  # (B, S, H)
        labels: torch.Tensor | None,  # (B, S)
        positions: torch.Tensor | None,  # (M,)
        num_items_in_batch: torch.Tensor | int | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits (B, S, V), or (M, V) at the masked positions only, and the loss."""
        surplus = 0
        if positions is not None:
            check_shape("labels", labels, tuple(hidden_states.shape[:2]))
            found = positions.clamp(min=0)  # -1 where there are fewer labels than positions
            # Not [found], whose gradient sorts the positions on a GPU.
            hidden_states = hidden_states.flatten(0, 1).index_select(0, found)  # (M, H)
            labels = labels.flatten().index_select(0, found).where(positions >= 0, -100)  # (M,)
            surplus = surplus_rows(len(positions), hidden_states, self.dtype)
        if surplus:
            # Copies of a token: of zeros, LayerNorm's gradient is infinite in fp16.
            hidden_states = torch.cat([hidden_states, hidden_states[-1:].expand(surplus, -1)])
            labels = F.pad(labels, (0, surplus), value=-100)
        logits = self.cls.predictions(hidden_states)
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch)
        return logits[:-surplus] if surplus else logits, loss

    def get_output_embeddings(self) -> nn.Linear:
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the output projection. New tokens, as from `resize_token_embeddings`, get the mean bias."""
        predictions, size = self.cls.predictions, len(new_embeddings.weight)
        predictions.decoder, old = new_embeddings, predictions.bias
        if size != len(old):
            bias = torch.cat([old, old.mean().repeat(max(size - len(old), 0))])[:size]
            predictions.bias = nn.Parameter(bias.detach(), requires_grad=old.requires_grad)


class ScratchBertForPreTraining(ScratchBertWithMLMHead):
    """Both of BERT's objectives (paper, section 3.1): masked language modelling and next-sentence prediction.

    `labels` (B, S), -100 where nothing was masked; `next_sentence_label` (B,), 0 = segment B follows A, 1 = it comes
    from elsewhere, or (B, K) if batch entries pack up to K sequences, then -100 where there is none. Either may be
    given alone; `loss` is the sum of the losses that have labels. `num_masked`, the number of labels other than -100 or
    an upper bound, saves the host from waiting for the GPU to count them. With labels and `sparse_prediction`, by default
    in training if the config's is set, MLM logits are (M, V) instead of (B, S, V): only the labelled positions, in order,
    then rows without meaning up to the bound.
    """

    def __init__(self, config: ScratchBertConfig):
        super().__init__(config)
        self.bert = ScratchBertModel(config)
        self.cls = nn.ModuleDict(
            {"predictions": ScratchBertPredictions(config), "seq_relationship": nn.Linear(config.hidden_size, 2)}
        )
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        next_sentence_label: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        seq_idx: torch.Tensor | None = None,
        sequence_lengths: list[int] | None = None,
        num_masked: int | None = None,
        sparse_prediction: bool | None = None,
        **kwargs,
    ) -> ScratchBertForPreTrainingOutput:
        positions = self.masked_positions(labels, num_masked, sparse_prediction)
        if next_sentence_label is not None and next_sentence_label.dim() == 2:  # (B, K) → (N,)
            count = None if sequence_lengths is None else len(sequence_lengths)
            next_sentence_label = packed_labels(next_sentence_label, attention_mask, seq_idx, count)
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, seq_idx)
        outputs = self.bert(*inputs, sequence_lengths=sequence_lengths, return_dict=True, **kwargs)
        prediction_logits, mlm_loss = self.mlm_logits_and_loss(
            outputs.last_hidden_state, labels, positions, num_items_in_batch
        )
        seq_relationship_logits = self.cls.seq_relationship(outputs.pooler_output)  # (N, 2)

        nsp_loss, loss = None, mlm_loss
        if next_sentence_label is not None:
            nsp_loss = cross_entropy(seq_relationship_logits, next_sentence_label, name="next_sentence_label")
            if labels is not None and num_items_in_batch is not None:
                # Trainer passes the step's number of masked tokens, not of sequences: the micro-batch's fraction of
                # the tokens stands in for its fraction of the sequences.
                fraction = labels.ne(-100).sum() / torch.as_tensor(num_items_in_batch, device=labels.device)
                nsp_loss = nsp_loss * fraction.nan_to_num(nan=1.0)  # 0 / 0: nothing was masked
            loss = nsp_loss if loss is None else loss + nsp_loss
        return ScratchBertForPreTrainingOutput(
            loss=loss,
            prediction_logits=prediction_logits,
            seq_relationship_logits=seq_relationship_logits,
            mlm_loss=mlm_loss,
            nsp_loss=nsp_loss,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ScratchBertForMaskedLM(ScratchBertWithMLMHead):
    """Masked language modelling alone. `labels` (B, S), -100 where nothing was masked; `logits` (B, S, V), or (M, V):
    `num_masked` and `sparse_prediction` are those of `ScratchBertForPreTraining`."""

    def __init__(self, config: ScratchBertConfig):
        super().__init__(config)
        self.bert = ScratchBertModel(config, add_pooling_layer=False)
        self.cls = nn.ModuleDict({"predictions": ScratchBertPredictions(config)})
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        seq_idx: torch.Tensor | None = None,
        num_masked: int | None = None,
        sparse_prediction: bool | None = None,
        **kwargs,
    ) -> MaskedLMOutput:
        positions = self.masked_positions(labels, num_masked, sparse_prediction)
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, seq_idx)
        outputs = self.bert(*inputs, return_dict=True, **kwargs)
        logits, loss = self.mlm_logits_and_loss(outputs.last_hidden_state, labels, positions, num_items_in_batch)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


# ---------------------------------------------------------------------------------------------------- task models


class ScratchBertTaskModel(ScratchBertPreTrainedModel):
    """Base class of the models with one kind of `labels`: its forward calls `encode`, `compute_logits` and
    `compute_loss`, and returns an `output_type`."""

    output_type: type[ModelOutput]

    def __init_subclass__(cls, **kwargs) -> None:
        super().__init_subclass__(**kwargs)
        if "output_type" in vars(cls):
            # sentence-transformers reads from the annotation which outputs there are.
            @wraps(cls.forward)
            def forward(self, *args, **kwargs):
                return super(cls, self).forward(*args, **kwargs)

            forward.__annotations__ = {**forward.__annotations__, "return": cls.output_type}
            forward.__signature__ = signature(cls.forward).replace(return_annotation=cls.output_type)
            cls.forward = forward

    def encode(self, *inputs: torch.Tensor | None, **kwargs) -> BaseModelOutputWithPooling:
        return self.bert(*inputs, return_dict=True, **kwargs)

    def compute_logits(self, outputs: BaseModelOutputWithPooling) -> torch.Tensor:
        raise NotImplementedError

    def compute_loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch) -> torch.Tensor:
        return cross_entropy(logits, labels, num_items_in_batch)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        seq_idx: torch.Tensor | None = None,
        **kwargs,
    ) -> ModelOutput:
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, seq_idx)
        outputs = self.encode(*inputs, **kwargs)
        logits = self.compute_logits(outputs)
        return self.output_type(
            loss=None if labels is None else self.compute_loss(logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ScratchBertForNextSentencePrediction(ScratchBertTaskModel):
    """Next-sentence prediction alone; `logits` (B, 2). `labels` (B,), 0 = segment B follows A, 1 = from elsewhere."""

    output_type = NextSentencePredictorOutput

    def __init__(self, config: ScratchBertConfig):
        super().__init__(config)
        self.bert = ScratchBertModel(config)
        self.cls = nn.ModuleDict({"seq_relationship": nn.Linear(config.hidden_size, 2)})
        self.post_init()

    def compute_logits(self, outputs: BaseModelOutputWithPooling) -> torch.Tensor:
        return self.cls.seq_relationship(outputs.pooler_output)  # (B, 2)


def classifier_dropout(config: ScratchBertConfig) -> Dropout:
    return Dropout(config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout)


def masked_mean(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean (B, H) of the states (B, S, H) where the mask (B, S) is True; 0 where it is True nowhere."""
    weights = mask / mask.sum(1, keepdim=True).clamp(min=1)  # (B, S)
    return (weights.to(states.dtype)[:, None] @ states).squeeze(1)


def compare_aligned(states: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Compare each token with its counterpart in the other segment (Parikh et al., 2016, section 3): (B, 4·H).

    `states` (B, S, H); `first` and `second` (B, S) mark the tokens of the segments. A counterpart is the mean of the other
    segment's states, weighted by a softmax of their cosines with the token over 0.1. The features are the means, over each
    segment, of |a - b| and a · b for a token a and its counterpart b; 0 without a second segment.
    """
    directions = F.normalize(states, dim=-1)
    scores = directions @ directions.mT / 0.1  # (B, S, S)
    features = []
    for own, other in ((first, second), (second, first)):
        weights = scores.masked_fill(~other[:, None], torch.finfo(scores.dtype).min).softmax(-1)
        counterparts = weights.to(states.dtype) @ states  # (B, S, H)
        features += [masked_mean((states - counterparts).abs(), own), masked_mean(states * counterparts, own)]
    return torch.cat(features, dim=-1) * (first.any(1) & second.any(1))[:, None]


def pool_tokens(
    states: torch.Tensor,  # (B, S, H)
    embeddings: torch.Tensor,  # (B, S, H)
    attention_mask: torch.Tensor | None,  # (B, S)
    token_type_ids: torch.Tensor | None,  # (B, S)
    pooling: str,
) -> torch.Tensor:
    """What a classifier reads of the tokens' last states and embeddings: with the `pooling` mean, the mean of the states
    (B, H); with segments, the mean of each segment's states, and both segments' states and embeddings compared (B, 10·H).

    The first segment is that of the first token; the mean of the second is 0 if there is none.
    """
    tokens = torch.ones(states.shape[:2], device=states.device) if attention_mask is None else attention_mask
    tokens = tokens.bool()  # (B, S)
    if pooling == "mean":
        return masked_mean(states, tokens)
    first = tokens
    if token_type_ids is not None:
        first = tokens & (token_type_ids == token_type_ids.gather(1, tokens.int().argmax(1, keepdim=True)))
    second = tokens & ~first
    means = [masked_mean(states, segment) for segment in (first, second)]
    return torch.cat([*means, *(compare_aligned(layer, first, second) for layer in (embeddings, states))], dim=-1)


class ScratchBertForSequenceClassification(ScratchBertTaskModel):
    """Classification or regression of sequences from the pooled [CLS] (paper, section 4.1), or from the tokens
    (`config.classifier_pooling`); `logits` (B, L).

    `config.problem_type` chooses the loss: `regression` (mean squared error, float `labels` (B,) or (B, L)),
    `single_label_classification` (cross entropy, integer `labels` (B,)) or `multi_label_classification` (binary cross
    entropy, `labels` (B, L) of 0 and 1). If unset, it is inferred from the number and the type of the first labels.
    """

    output_type = SequenceClassifierOutput

    def __init__(self, config: ScratchBertConfig):
        super().__init__(config)
        self.bert = ScratchBertModel(config, add_pooling_layer=config.classifier_pooling == "cls")
        self.dropout = classifier_dropout(config)
        width = config.hidden_size * (10 if config.classifier_pooling == "segments" else 1)
        self.classifier = nn.Linear(width, config.num_labels)
        self.post_init()

    def encode(self, *inputs: torch.Tensor | None, **kwargs) -> BaseModelOutputWithPooling:
        outputs, pooling = super().encode(*inputs, **kwargs), self.config.classifier_pooling
        if pooling == "cls":
            return outputs
        input_ids, attention_mask, token_type_ids, position_ids, embeddings, seq_idx = inputs
        states = outputs.last_hidden_state
        if seq_idx is None and attention_mask is None:
            seq_idx = flattened_seq_idx(position_ids, kwargs.get("cu_seq_lens_q"), tuple(states.shape[:2]))
        if seq_idx is not None or not (attention_mask is None or is_padding_mask(attention_mask)):
            raise ValueError(
                f"classifier_pooling={pooling} takes one sequence in each batch entry, and an attention_mask (B, S)."
            )
        if embeddings is None:
            embeddings = self.bert.get_input_embeddings()(input_ids)
        outputs.pooler_output = pool_tokens(states, embeddings, attention_mask, token_type_ids, pooling)
        return outputs

    def compute_logits(self, outputs: BaseModelOutputWithPooling) -> torch.Tensor:
        return self.classifier(self.dropout(outputs.pooler_output))  # (B, L)

    def compute_loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch) -> torch.Tensor:
        batch_size, classes = logits.shape
        if self.config.problem_type == "multi_label_classification" and not labels.is_floating_point():
            labels = labels.float()  # 0 and 1
        allowed = [(batch_size,)] if classes == 1 or not labels.is_floating_point() else []
        check_shape("labels", labels, *allowed, (batch_size, classes))
        return self.loss_function(labels=labels, pooled_logits=logits, config=self.config)


class ScratchBertForTokenClassification(ScratchBertTaskModel):
    """Classification of tokens (paper, section 5.3). `labels` (B, S), -100 where there is none; `logits` (B, S, L)."""

    output_type = TokenClassifierOutput
    accepts_loss_kwargs = True

    def __init__(self, config: ScratchBertConfig):
        super().__init__(config)
        self.bert = ScratchBertModel(config, add_pooling_layer=False)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def compute_logits(self, outputs: BaseModelOutputWithPooling) -> torch.Tensor:
        return self.classifier(self.dropout(outputs.last_hidden_state))  # (B, S, L)


class ScratchBertForMultipleChoice(ScratchBertTaskModel):
    """Choice of one of C candidates (paper, section 4.4): inputs have the shape (B, C, S), `labels` (B,), `logits`
    (B, C)."""

    output_type = MultipleChoiceModelOutput

    def __init__(self, config: ScratchBertConfig):
        super().__init__(config)
        self.bert = ScratchBertModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

    def encode(self, *inputs: torch.Tensor | None, **kwargs) -> BaseModelOutputWithPooling:
        ids, *_, embeddings, _ = inputs
        if (ids is None or ids.dim() != 3) and (embeddings is None or embeddings.dim() != 4):
            raise ValueError("The model takes input_ids of shape (B, C, S) or inputs_embeds of shape (B, C, S, H).")
        shape = (ids if ids is not None else embeddings).shape[:2]  # (B, C)
        flat = (None if tensor is None else tensor.flatten(0, 1) for tensor in inputs)
        outputs = self.bert(*flat, return_dict=True, **kwargs)
        outputs.pooler_output = outputs.pooler_output.unflatten(0, shape)  # (B·C, H) → (B, C, H)
        return outputs

    def compute_logits(self, outputs: BaseModelOutputWithPooling) -> torch.Tensor:
        return self.classifier(self.dropout(outputs.pooler_output)).squeeze(-1)  # (B, C)


class ScratchBertForQuestionAnswering(ScratchBertPreTrainedModel):
    """Answers as spans of the sequence (paper, section 4.2); `start_logits` and `end_logits` (B, S).

    `start_positions` and `end_positions` (B,) are token indices; from S on (a truncated answer), they are ignored. The
    loss is the mean of the two cross entropies. Without it, logits at padding are the lowest finite number.
    """

    def __init__(self, config: ScratchBertConfig):
        super().__init__(config)
        self.bert = ScratchBertModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        **kwargs,
    ) -> QuestionAnsweringModelOutput:
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        # BERT's loss is over all positions, including padding, which is therefore kept.
        with_loss = start_positions is not None and end_positions is not None
        if with_loss:
            kwargs["unpad_inputs"] = False
        outputs = self.bert(*inputs, return_dict=True, **kwargs)
        logits = self.qa_outputs(outputs.last_hidden_state)  # (B, S, 2)
        if not with_loss and is_padding_mask(attention_mask):
            logits = logits.masked_fill(attention_mask[..., None] == 0, torch.finfo(logits.dtype).min)
        start_logits, end_logits = (side.contiguous() for side in logits.unbind(-1))  # (B, S) each
        loss = None
        if with_loss:
            start_positions, end_positions = (
                positions.clamp(min=0).masked_fill(positions >= logits.shape[1], -100)
                for positions in (start_positions, end_positions)
            )
            loss = cross_entropy(start_logits, start_positions, name="start_positions")
            loss = (loss + cross_entropy(end_logits, end_positions, name="end_positions")) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


# Auto class → model of AUTO_MAP. Models are registered, so that `save_pretrained` copies this file, and the files that
# it imports from, beside their weights.
AUTO_MODELS = {
    auto_class: globals()[reference.split(".")[1]]
    for auto_class, reference in AUTO_MAP.items()
    if auto_class != "AutoConfig"
}
for _auto_class, _model_class in AUTO_MODELS.items():
    _model_class.register_for_auto_class(_auto_class)
