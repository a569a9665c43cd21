"""BERT (Devlin et al., 2019, https://arxiv.org/abs/1810.04805) from embeddings to task heads, read top to bottom.

Dimensions, in comments and docstrings:
    B  batch size               H  hidden size               V  vocabulary size
    S  sequence length          A  attention heads           L  labels of a task
    P  position embeddings      D  size of one head          C  choices of a question
    E  embedding size: H, unless the token embeddings are factorised
    T  non-padding tokens       F  feed-forward size         M  tokens to predict
    N  sequences in the batch: B, or more if they are packed

Parameter names are those of BERT's published checkpoints, so that weights convert both ways without renaming. A batch
is unpadded before the embeddings and padded again after the last layer: in between, (1, T) takes the place of (B, S).
Files beside this one: inputs completes and checks what a forward is given, padding decides which rows are computed,
kernels has faster operations, losses, pooling and initialization do what their names say, and compat guards the
private names of PyTorch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
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
from transformers.utils import ModelOutput, can_return_tuple

from .compat_scratch_bert import (
    bind_remote_code,
    can_branch,
    has_values,
    registered_class,
    warn_of_unsaved_code,
    warn_of_versions,
)
from .configuration_scratch_bert import AUTO_MAP, ScratchBertConfig
from .initialization_scratch_bert import (
    SinusoidalPositions,
    init_mimetic,
    init_projection,
    init_sinusoidal,
    init_weights,
    resized_positions,
    without_weights,
)
from .inputs_scratch_bert import EmbeddingInputs, chosen_states, complete_inputs, find_sequences, is_padding_mask
from .kernels_scratch_bert import Dropout, apply_dropout, padded_attention, project, project_with_bias
from .losses_scratch_bert import cross_entropy, fitting_labels, fraction_of_step, keep_labelled_padding, span_loss
from .padding_scratch_bert import (
    RowPlan,
    attention_mask_for,
    first_tokens,
    may_unpad,
    packed_labels,
    plan_batch,
    take_predicted,
    true_positions,
)
from .pooling_scratch_bert import POOLED_WIDTH, pool_tokens


# --------------------------------------------------------------------------------------------------- embeddings


class ScratchBertProjection(nn.Module):
    """The matrix (E, H) of factorised token embeddings (Lan et al., 2020, section 3.1)."""

    def __init__(self, config: ScratchBertConfig):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.embedding_size, config.hidden_size))

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        return embeddings @ self.weight  # (…, E) → (…, H)


class ScratchBertEmbeddings(nn.Module):
    """Token + position + segment embeddings, LayerNorm, dropout (paper, section 3, figure 2). Rotary positions come
    with attention instead: see `rotations`."""

    def __init__(self, config: ScratchBertConfig):
        super().__init__()
        self.config = config
        width = config.embedding_size or config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.projection = ScratchBertProjection(config) if config.embedding_size else nn.Identity()
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        # Learned positions start as small as the token embeddings (std 0.02). Sinusoids are larger and would dominate
        # them, so tokens and segments are scaled by √H (Vaswani et al., 2017, section 3.4).
        position_shape = config.max_position_embeddings, config.hidden_size  # (P, H)
        self.position_embeddings, self.scale = None, 1.0
        if config.position_embedding_type == "sinusoidal":
            self.position_embeddings = SinusoidalPositions(*position_shape)
            self.scale = math.sqrt(config.hidden_size)
        elif config.position_embedding_type == "absolute":
            self.position_embeddings = nn.Embedding(*position_shape)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        # Old checkpoints contain this buffer: under the same name, transformers skips it.
        self.register_buffer("position_ids", torch.arange(config.max_position_embeddings)[None], persistent=False)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,  # (B, S)
        token_type_ids: torch.Tensor | None = None,  # (B, S)
        position_ids: torch.Tensor | None = None,  # (B, S)
        inputs_embeds: torch.Tensor | None = None,  # (B, S, E)
    ) -> torch.Tensor:
        if token_type_ids is None or position_ids is None:  # called alone
            inputs = complete_inputs(self, input_ids, token_type_ids, position_ids, inputs_embeds)
            input_ids, token_type_ids, position_ids, inputs_embeds = inputs
        embeddings = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds  # (B, S, E)
        embeddings = self.projection(embeddings)  # (B, S, H)
        embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        if self.scale != 1.0:
            embeddings = embeddings * self.scale
        if self.position_embeddings is not None:
            embeddings = embeddings + self.position_embeddings(position_ids)
        return self.dropout(self.LayerNorm(embeddings))  # (B, S, H)


# -------------------------------------------------------------------------------------------- attention and layers


def rotations(position_ids: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines (B, 1, S, D) that `rotate` heads of this `size` D by their positions (B, S)."""
    frequencies = 10000.0 ** (-torch.arange(0, size, 2, device=position_ids.device) / size)  # (D/2,)
    angles = position_ids[:, None, :, None] * frequencies  # (B, 1, S, D/2)
    return torch.cat([angles.cos(), angles.cos()], -1), torch.cat([-angles.sin(), angles.sin()], -1)


def rotate(states: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary positions (Su et al., 2021, section 3.4): turn each pair of dimensions d and d + D/2 of queries or keys
    (B, A, S, D) by an angle in proportion to the position, so that their products depend on distances alone."""
    cos, sin = (part.to(states.dtype) for part in rotation)
    return torch.addcmul(states * cos, states.roll(states.shape[-1] // 2, -1), sin)


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

    def __init__(self, config: ScratchBertConfig, layer_idx: int | None = None):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx  # vLLM asks each layer for its number
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = config.attention_head_size
        self.scaling = self.attention_head_size**-0.5
        width = self.num_attention_heads * self.attention_head_size
        self.query = nn.Linear(config.hidden_size, width)
        self.key = nn.Linear(config.hidden_size, width)
        self.value = nn.Linear(config.hidden_size, width)
        # Over each head (Henry et al., 2020, section 3), so that scores are bounded whatever size the weights grow to.
        norm = (
            partial(nn.LayerNorm, self.attention_head_size, config.layer_norm_eps) if config.qk_norm else nn.Identity
        )
        self.query_norm, self.key_norm = norm(), norm()

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        plan: RowPlan | None = None,
        rotation: tuple[torch.Tensor, torch.Tensor] | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        query, key, value = (
            states.unflatten(-1, (-1, self.attention_head_size))  # (B, S, A, D)
            for states in project(hidden_states, (self.query, self.key, self.value))
        )
        # Under autocast, a GPU normalises in fp32, which flash attention does not take.
        query, key = self.query_norm(query).to(value.dtype), self.key_norm(key).to(value.dtype)
        query, key, value = (states.transpose(1, 2) for states in (query, key, value))  # (B, A, S, D)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        attention: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        if plan is not None:
            attention = partial(plan.attention, plan=plan, interface=attention)
        dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
        context, weights = attention(
            self, query, key, value, attention_mask, scaling=self.scaling, dropout=dropout, **kwargs
        )
        return context.reshape(*hidden_states.shape[:-1], -1), weights  # (B, S, A·D), (B, A, S, S) or None


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
    """The attention sub-layer: self-attention and the output projection with the residual connection."""

    def __init__(self, config: ScratchBertConfig, layer_idx: int | None = None):
        super().__init__()
        self.self = ScratchBertSelfAttention(config, layer_idx)
        self.output = ScratchBertOutput(config, in_features=self.self.query.out_features)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs
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
    """Attention and feed-forward, each with a residual connection and a LayerNorm after (or before) it.

    Appends its attention weights (B, A, S, S) to the list `attentions`, if given.
    """

    def __init__(self, config: ScratchBertConfig, layer_idx: int | None = None):
        super().__init__()
        self.attention = ScratchBertAttention(config, layer_idx)
        self.intermediate = ScratchBertIntermediate(config)
        self.output = ScratchBertOutput(config, in_features=config.intermediate_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        attentions: list | None = None,
        **kwargs,
    ) -> torch.Tensor:
        hidden_states, weights = self.attention(hidden_states, attention_mask, **kwargs)  # (B, S, H)
        if attentions is not None and weights is not None:
            attentions.append(weights)
        intermediate = self.intermediate(self.output.norm_input(hidden_states))  # (B, S, F)
        return self.output(intermediate, hidden_states)  # (B, S, H)


class ScratchBertEncoder(nn.Module):
    """The layers. `output_hidden_states` may name some of the layers + 1 states by their indices; others are None."""

    def __init__(self, config: ScratchBertConfig):
        super().__init__()
        self.layer = nn.ModuleList([ScratchBertLayer(config, index) for index in range(config.num_hidden_layers)])
        # With norm_first, the last layer's output is not normalised yet.
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.norm_first else None

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        output_hidden_states: bool | int | list[int] | None = None,
        output_attentions: bool | None = None,
        **kwargs,
    ) -> BaseModelOutput:
        wanted = chosen_states(output_hidden_states, len(self.layer) + 1)
        all_states, attentions = [], [] if output_attentions else None
        for index, layer in enumerate(self.layer):
            all_states.append(hidden_states if index in wanted else None)
            hidden_states = layer(hidden_states, attention_mask, attentions=attentions, **kwargs)
        if self.LayerNorm is not None:
            hidden_states = self.LayerNorm(hidden_states)
        all_states.append(hidden_states if len(self.layer) in wanted else None)
        return BaseModelOutput(
            last_hidden_state=hidden_states,  # (B, S, H)
            hidden_states=tuple(all_states) if output_hidden_states else None,
            attentions=None if attentions is None else tuple(attentions),
        )


class ScratchBertPooler(nn.Module):
    """Linear layer and tanh on the state of [CLS], the first token, for NSP and classifiers."""

    def __init__(self, config: ScratchBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(hidden_states[:, 0]))  # (B, S, H) → (B, H)


# --------------------------------------------------------------------------------------------- pretraining heads


class ScratchBertTransform(nn.Module):
    """The MLM head's layer before the projection to the vocabulary."""

    def __init__(self, config: ScratchBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.activation(self.dense(hidden_states)))  # (…, H)


class ScratchBertPredictions(nn.Module):
    """MLM head: a transform, then a projection to the vocabulary, which can be tied to the token embeddings. If these
    are factorised, so is the projection."""

    def __init__(self, config: ScratchBertConfig):
        super().__init__()
        self.transform = ScratchBertTransform(config)
        width = config.embedding_size or config.hidden_size
        self.projection = nn.Linear(config.hidden_size, width, bias=False) if config.embedding_size else nn.Identity()
        self.decoder = nn.Linear(width, config.vocab_size, bias=False)
        # Not in the decoder: FSDP shards it with the token embeddings, and fails on a second name for its parameters.
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return project_with_bias(self.projection(self.transform(hidden_states)), self.decoder, self.bias)  # (…, V)


class ScratchBertHeads(nn.Module):
    """BERT's `cls`: the heads for MLM, NSP or both, called with the hidden states, the pooled state or both."""

    def __init__(self, config: ScratchBertConfig, mlm: bool = True, nsp: bool = True):
        super().__init__()
        if mlm:
            self.predictions = ScratchBertPredictions(config)
        if nsp:
            self.seq_relationship = nn.Linear(config.hidden_size, 2)

    def forward(self, *states: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        # In the order of their definition above.
        logits = tuple(head(inputs) for head, inputs in zip(self.children(), states, strict=True))
        return logits if len(logits) > 1 else logits[0]  # (B, S, V), (B, 2)


# --------------------------------------------------------------------------------------------------------- models


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
    # Task models drop the pretraining heads, which need not be reported. Missing weights are still reported.
    _keys_to_ignore_on_load_unexpected = [r"^cls\.", r"^(bert\.)?pooler\."]
    # Most heads have equally many labels in each micro-batch, so Trainer's division by the accumulation steps is
    # right. Heads with labels for tokens set this to True, and use `num_items_in_batch`.
    accepts_loss_kwargs = False

    def __init__(self, config: ScratchBertConfig):
        if not hasattr(config, "norm_first"):  # not isinstance: remote code defines its own config class
            raise ValueError(f"A {type(self).__name__} needs a ScratchBertConfig, not a {type(config).__name__}.")
        config.validate_architecture()  # it may have changed, as by from_pretrained(…, hidden_act=…)
        warn_of_versions()
        super().__init__(config)

    def save_pretrained(self, save_directory, *args, **kwargs) -> None:
        """Save config, weights and code. A subclass, as of an objective or FSDP2, is saved as the class that an Auto
        class opens, unless it is registered for one itself."""
        warn_of_unsaved_code(self, __package__)
        shipped = registered_class(type(self))
        as_shipped = shipped.__new__(shipped)  # an object of that class with the same parts
        as_shipped.__dict__ = self.__dict__
        PreTrainedModel.save_pretrained(as_shipped, save_directory, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        config = self.config
        init_weights(module, config.initializer_range)
        if isinstance(module, ScratchBertProjection):
            init_projection(module.weight)
        if isinstance(module, ScratchBertEmbeddings):
            init.copy_(module.position_ids, torch.arange(module.position_ids.shape[-1])[None])
            if config.position_embedding_init == "sinusoidal" and config.position_embedding_type == "absolute":
                init_sinusoidal(module.position_embeddings, config.initializer_range)

    def initialize_weights(self) -> None:
        if not has_values(self):
            return
        fresh = without_weights(module for module in self.modules() if isinstance(module, ScratchBertAttention))
        super().initialize_weights()
        if self.config.attention_init == "mimetic":
            # Not in _init_weights, which transformers skips for modules without parameters of their own.
            for module in fresh:
                init_mimetic(module.self.query, module.self.key, module.self.value, module.output.dense)

    def get_position_embeddings(self) -> nn.Module | None:
        return self.base_model.embeddings.position_embeddings

    @torch.no_grad()
    def resize_position_embeddings(self, new_num_position_embeddings: int) -> None:
        """Change the maximum sequence length: see `resized_positions`."""
        self.config.max_position_embeddings = length = new_num_position_embeddings
        embeddings = self.base_model.embeddings
        if embeddings.position_embeddings is not None:
            embeddings.position_embeddings = resized_positions(embeddings.position_embeddings, length)
        embeddings.position_ids = torch.arange(length, device=embeddings.position_ids.device)[None]


class ScratchBertModel(ScratchBertPreTrainedModel):
    """The encoder, with or without the pooler.

    Inputs, here and in every head: `input_ids` (B, S) or `inputs_embeds` (B, S, E); `attention_mask` (B, S), 0 at
    padding, or (B, 1, S, S), True where a token may attend to another, or numbers to add to the scores;
    `token_type_ids` (B, S), the segments; `position_ids` (B, S) or (1, S). For packed sequences, `seq_idx` (B, S)
    numbers the sequences of each batch entry, ascending from 0: tokens attend only within their sequence. Also pass
    `position_ids` that restart with each sequence. In a batch of one entry, without a mask and `seq_idx`, such
    `position_ids` alone tell the sequences apart, or `cu_seq_lens_q` (N + 1,), their bounds. `sequence_lengths`, the
    lengths of all sequences in order, in a batch padded on the right, saves the host from waiting for the GPU to count
    them.

    Returns `last_hidden_state` (B, S, H) and `pooler_output` (B, H), or (N, H) of packed sequences, in their order;
    with `output_hidden_states=True` the embeddings and each layer's output, with `output_attentions=True` (eager
    attention only) each layer's weights (B, A, S, S). Outputs at padded positions are undefined, but finite.

    Padding is removed before the embeddings (`unpad_inputs`, by default the config's), unless hidden states or
    attentions are returned or for one of the reasons in `may_unpad`, and restored for attention that needs it
    (`find_attention`).

    Raises `ValueError` for sequences longer than `max_position_embeddings` and for shapes that do not fit, and, on the
    CPU, `IndexError` for ids out of range.
    """

    def __init__(self, config: ScratchBertConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = ScratchBertEmbeddings(config)
        self.encoder = ScratchBertEncoder(config)
        self.pooler = ScratchBertPooler(config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.word_embeddings = value

    @can_return_tuple
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
        output_hidden_states: bool | int | list[int] | None = None,
        output_attentions: bool | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPooling:
        config = self.config
        states_wanted = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        attentions_wanted = config.output_attentions if output_attentions is None else output_attentions
        unpad_inputs = config.unpad_inputs if unpad_inputs is None else unpad_inputs
        unpad_inputs = unpad_inputs and not (states_wanted or attentions_wanted)  # which have padded shapes

        # Complete: default segments and positions, and which tokens belong together.
        inputs = complete_inputs(self.embeddings, input_ids, token_type_ids, position_ids, inputs_embeds)
        ids, shape = input_ids if inputs_embeds is None else inputs_embeds, tuple(inputs.position_ids.shape)  # (B, S)
        attention_mask, seq_idx = find_sequences(config, shape, attention_mask, seq_idx, position_ids, cu_seq_lens_q)
        starts = None
        if seq_idx is not None and self.pooler is not None:
            # Before the encoder: on a GPU, counting waits for the work queued so far.
            starts = first_tokens(attention_mask, seq_idx, sequence_lengths)  # (N,)

        # Unpad.
        plan = None
        if unpad_inputs and may_unpad(self, ids, attention_mask, seq_idx, sequence_lengths):
            plan = plan_batch(self, shape, ids.device, attention_mask, seq_idx, sequence_lengths)
            inputs = EmbeddingInputs(*(None if tensor is None else plan.take(tensor) for tensor in inputs))

        # Embed and encode.
        states = self.embeddings(*inputs)  # (B, S, H), or (1, T, H)
        if config.position_embedding_type == "rotary":
            kwargs["rotation"] = rotations(inputs.position_ids, config.attention_head_size)
        layer_mask = None  # of attention without padding
        if plan is None or plan.attention is padded_attention:
            if plan is not None and not plan.has_padding:
                attention_mask = None
            # Where the padding is known, skip the mask check, which would sync with the GPU.
            skip_check = attention_mask is not None and (plan is not None or sequence_lengths is not None)
            like = states.new_empty((*shape, 0))
            layer_mask = attention_mask_for(config, like, attention_mask, seq_idx, keep=skip_check)
        options = {"output_hidden_states": states_wanted, "output_attentions": attentions_wanted, **kwargs}
        outputs = self.encoder(states, layer_mask, plan=plan, **options)

        # Pad and pool.
        states = outputs.last_hidden_state if plan is None else plan.put(outputs.last_hidden_state)  # (B, S, H)
        pooled = None
        if self.pooler is not None:
            rows = states if starts is None else states.flatten(0, 1).index_select(0, starts)[:, None]  # (N, 1, H)
            pooled = self.pooler(rows)  # (B, H), or (N, H)
        return BaseModelOutputWithPooling(states, pooled, outputs.hidden_states, outputs.attentions)


@dataclass
class ScratchBertForPreTrainingOutput(ModelOutput):
    """`prediction_logits` (B, S, V), or (M, V), only the labelled positions, in order: see
    `ScratchBertForPreTraining`; `seq_relationship_logits` (B, 2), or (N, 2) if packed; `loss` is `mlm_loss` +
    `nsp_loss`."""

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
        if config.embedding_size:
            self._tied_weights_keys = self._tied_weights_keys | {
                "cls.predictions.projection.weight": "bert.embeddings.projection.weight"
            }
        if config.tie_word_embeddings:
            # Saved only once in any case; listed so that Trainer does not report them as missing on resume.
            self._keys_to_ignore_on_save = list(self._tied_weights_keys)

    def save_pretrained(self, *args, **kwargs) -> None:
        if self.get_output_embeddings().weight is not self.get_input_embeddings().weight:
            self._keys_to_ignore_on_save = set()  # as of a checkpoint whose decoder differs, or after it was replaced
        super().save_pretrained(*args, **kwargs)

    def masked_positions(
        self, labels: torch.Tensor | None, count: int | None, sparse: bool | None = None
    ) -> torch.Tensor | None:
        """Indices (M,) of the positions to predict in the flattened batch; None for all positions. By default
        (`sparse`), the config decides in training, and all are predicted in evaluation.

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
        count = None
        if positions is not None:
            hidden_states, labels = take_predicted(hidden_states, labels, positions)  # (≥ M, H), (≥ M,)
            count = len(positions)
        logits = self.cls.predictions(hidden_states)
        loss = None if labels is None else cross_entropy(logits, labels, num_items_in_batch, self.training)
        return logits[:count], loss

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
    given alone; `loss` is the sum of the losses that have labels. `num_masked`, the number of labels other than -100
    or an upper bound, saves the host from waiting for the GPU to count them. With labels and `sparse_prediction`, by
    default in training if the config's is set, MLM logits are (M, V) instead of (B, S, V): only the labelled
    positions, in order, then rows without meaning up to the bound.
    """

    def __init__(self, config: ScratchBertConfig):
        super().__init__(config)
        self.bert = ScratchBertModel(config)
        self.cls = ScratchBertHeads(config)
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
        kwargs |= keep_labelled_padding(labels, attention_mask, sequence_lengths)
        if next_sentence_label is not None and next_sentence_label.dim() == 2:  # (B, K) → (N,)
            next_sentence_label = packed_labels(next_sentence_label, attention_mask, seq_idx, sequence_lengths)
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, seq_idx)
        outputs = self.bert(*inputs, sequence_lengths=sequence_lengths, return_dict=True, **kwargs)
        logits, mlm_loss = self.mlm_logits_and_loss(outputs.last_hidden_state, labels, positions, num_items_in_batch)
        seq_relationship_logits = self.cls.seq_relationship(outputs.pooler_output)  # (N, 2)

        nsp_loss, loss = None, mlm_loss
        if next_sentence_label is not None:
            nsp_loss = cross_entropy(
                seq_relationship_logits, next_sentence_label, training=self.training, name="next_sentence_label"
            )
            if labels is not None and num_items_in_batch is not None:
                nsp_loss = nsp_loss * fraction_of_step(labels, num_items_in_batch)
            loss = nsp_loss if loss is None else loss + nsp_loss
        states = outputs.hidden_states, outputs.attentions
        return ScratchBertForPreTrainingOutput(loss, logits, seq_relationship_logits, mlm_loss, nsp_loss, *states)


class ScratchBertForMaskedLM(ScratchBertWithMLMHead):
    """Masked language modelling alone. `labels` (B, S), -100 where nothing was masked; `logits` (B, S, V), or (M, V):
    `num_masked` and `sparse_prediction` are those of `ScratchBertForPreTraining`."""

    def __init__(self, config: ScratchBertConfig):
        super().__init__(config)
        self.bert = ScratchBertModel(config, add_pooling_layer=False)
        self.cls = ScratchBertHeads(config, nsp=False)
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
        kwargs |= keep_labelled_padding(labels, attention_mask, kwargs.get("sequence_lengths"))
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, seq_idx)
        outputs = self.bert(*inputs, return_dict=True, **kwargs)
        logits, loss = self.mlm_logits_and_loss(outputs.last_hidden_state, labels, positions, num_items_in_batch)
        return MaskedLMOutput(loss, logits, outputs.hidden_states, outputs.attentions)


# ---------------------------------------------------------------------------------------------------- task models


# sentence-transformers reads from the annotation of a forward which outputs there are.
TaskOutput = SequenceClassifierOutput | TokenClassifierOutput | MultipleChoiceModelOutput | NextSentencePredictorOutput


class ScratchBertTaskModel(ScratchBertPreTrainedModel):
    """Base class of the models with one kind of `labels`: its forward calls `encode`, `compute_logits` and
    `compute_loss`, and returns an `output_type`."""

    output_type: type[ModelOutput]

    def encode(self, *inputs: torch.Tensor | None, **kwargs) -> BaseModelOutputWithPooling:
        return self.bert(*inputs, return_dict=True, **kwargs)

    def compute_logits(self, outputs: BaseModelOutputWithPooling) -> torch.Tensor:
        raise NotImplementedError

    def compute_loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch) -> torch.Tensor:
        return cross_entropy(logits, labels, num_items_in_batch, self.training)

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
    ) -> TaskOutput:
        kwargs |= keep_labelled_padding(labels, attention_mask, kwargs.get("sequence_lengths"))
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, seq_idx)
        outputs = self.encode(*inputs, **kwargs)
        logits = self.compute_logits(outputs)
        loss = None if labels is None else self.compute_loss(logits, labels, num_items_in_batch)
        return self.output_type(loss, logits, outputs.hidden_states, outputs.attentions)


class ScratchBertForNextSentencePrediction(ScratchBertTaskModel):
    """Next-sentence prediction alone; `logits` (B, 2). `labels` (B,), 0 = segment B follows A, 1 = from elsewhere."""

    output_type = NextSentencePredictorOutput

    def __init__(self, config: ScratchBertConfig):
        super().__init__(config)
        self.bert = ScratchBertModel(config)
        self.cls = ScratchBertHeads(config, mlm=False)
        self.post_init()

    def compute_logits(self, outputs: BaseModelOutputWithPooling) -> torch.Tensor:
        return self.cls(outputs.pooler_output)  # (B, 2)


def classifier_dropout(config: ScratchBertConfig) -> Dropout:
    return Dropout(config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout)


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
        width = config.hidden_size * POOLED_WIDTH[config.classifier_pooling]
        self.classifier = nn.Linear(width, config.num_labels)
        self.loss_type = "ForSequenceClassification"  # which transformers reads from a class's name, if not set
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self.classifier and self.config.classifier_pooling == "pairs":
            init.zeros_(module.weight)  # of so many inputs, random weights make random logits, to be unlearned first

    def encode(self, *inputs: torch.Tensor | None, **kwargs) -> BaseModelOutputWithPooling:
        outputs, pooling = super().encode(*inputs, **kwargs), self.config.classifier_pooling
        if pooling == "cls":
            return outputs
        input_ids, attention_mask, token_type_ids, position_ids, embeddings, seq_idx = inputs
        shape = tuple(outputs.last_hidden_state.shape[:2])
        packing = seq_idx, position_ids, kwargs.get("cu_seq_lens_q")
        attention_mask, seq_idx = find_sequences(self.config, shape, attention_mask, *packing)
        if embeddings is None:
            embeddings = self.bert.get_input_embeddings()(input_ids)
        states = outputs.last_hidden_state, self.bert.embeddings.projection(embeddings)
        outputs.pooler_output = pool_tokens(*states, attention_mask, token_type_ids, seq_idx, pooling)
        return outputs

    def compute_logits(self, outputs: BaseModelOutputWithPooling) -> torch.Tensor:
        return self.classifier(self.dropout(outputs.pooler_output))  # (B, L)

    def compute_loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch) -> torch.Tensor:
        labels = fitting_labels(labels, logits, self.config.problem_type)
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
            loss = span_loss(start_logits, end_logits, start_positions, end_positions, self.training)
        states = outputs.hidden_states, outputs.attentions
        return QuestionAnsweringModelOutput(loss, start_logits, end_logits, *states)


# Auto class → model of AUTO_MAP. Models are registered, so that `save_pretrained` copies this file, and the files that
# it imports from, beside their weights.
AUTO_MODELS = {name: globals()[entry.split(".")[1]] for name, entry in AUTO_MAP.items() if name != "AutoConfig"}
for _auto_class, _model_class in AUTO_MODELS.items():
    _model_class.register_for_auto_class(_auto_class)
bind_remote_code(__name__.rpartition(".")[0], [each for each in vars().values() if isinstance(each, type)])
