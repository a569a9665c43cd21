"""The options of the model to pretrain."""

from .declare import OptionGroup, option, options


@options
class ContinuationOptions(OptionGroup, group="Model"):
    model_name_or_path: str | None = option(
        None,
        "Directory or Hub repository of the scratch_bert or BERT to continue from. New heads start at random.",
        path=True,
    )
    add_tokens: str | None = option(
        None,
        "File of words or ##continuations to add to the vocabulary, one per line; each embedding starts as the "
        "mean of those of its pieces.",
        path=True,
        requires="model_name_or_path",
    )


@options
class ArchitectureOptions(OptionGroup, group="Model"):
    preset: str = option(
        "micro",
        "Size of the model, as published for BERT: tiny, mini, small, medium, base or large; micro is tiny with four "
        "heads.",
        unless="model_name_or_path",
    )
    config_overrides: str | None = option(
        None, "Config fields to change, such as norm_first=true,head_dim=32.", unless="model_name_or_path"
    )
    max_position_embeddings: int | None = option(
        None,
        "Maximum sequence length of the model; beyond a pretrained model's, position embeddings are repeated. "
        "Default: max_seq_length.",
        within="[1, 1000000]",
    )
    token_embedding_init: str = option(
        "lsa",
        "Initial token embeddings: latent semantic analysis of the text, or random as in BERT.",
        choices=["lsa", "normal"],
        unless="model_name_or_path",
    )
    dropout: float = option(
        0.0, "Dropout for hidden states and attention. BERT uses 0.1, for many passes over the text.", within="[0, 1)"
    )


@options
class ModelOptions(ContinuationOptions, ArchitectureOptions):
    """The model to start from."""
