"""What the options of pretraining give: Trainer's arguments, and the config of a new model."""

import inspect
from typing import Any

import yaml
from transformers import TrainingArguments

from scratch_bert_options.declare import similar
from scratch_bert_options.model import ModelOptions
from scratch_bert_options.pretraining import PretrainingOptions

from ..model.configuration_scratch_bert import ScratchBertConfig
from ..training.arguments import Fixed, make_training_arguments


FIXED: Fixed = {
    "remove_unused_columns": (False, "the collator reads more columns than the model"),
    "batch_eval_metrics": (True, "metrics are summed batch by batch, and no logits are kept"),
    "prediction_loss_only": (False, "metrics are computed from predictions"),
    "label_smoothing_factor": (0.0, "both losses come from the model itself"),
    "dataloader_persistent_workers": (False, "persistent workers would keep the first epoch's examples"),
}


def pretraining_arguments(options: PretrainingOptions) -> TrainingArguments:
    """Trainer's arguments. With muon, which Trainer lacks, they name AdamW."""
    if options.trainer.get("train_sampling_strategy") == "group_by_length":  # of the first epoch's examples
        raise ValueError("train_sampling_strategy cannot be group_by_length: lengths change with each epoch's pairs.")
    if options.optim != "muon":
        return make_training_arguments(options, FIXED)
    for name in {"optim_args", "optim_target_modules"} & options.trainer.keys():
        raise ValueError(f"{name} has no effect with optim {options.optim}: leave it out.")
    return make_training_arguments(options, FIXED, optim="adamw_torch")


def overrides(options: ModelOptions) -> dict[str, Any]:
    """The config fields that the options set: those of the same name as an option, dropout, and `config_overrides`."""
    fields = inspect.get_annotations(ScratchBertConfig).keys() - {"max_position_embeddings"}  # see `resolve_config`
    named = {name: value for name, value in vars(options).items() if name in fields and value is not None}
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), options.dropout)
    return dropout | named | parse_overrides(options.config_overrides)


def parse_overrides(text: str | None) -> dict[str, Any]:
    """Parse `"head_dim=32,norm_first=true"`, or the same as JSON, to `{"head_dim": 32, "norm_first": True}`.

    Raises `ValueError` for text that can't be parsed, and for a field that the config lacks or that other options set.
    """
    text = (text or "").strip()
    if not text.startswith("{"):
        if any("=" not in pair for pair in filter(None, text.split(","))):
            raise ValueError(f"config_overrides takes comma-separated field=value pairs, got {text}.")
        text = "{" + ", ".join(pair.replace("=", ": ", 1) for pair in filter(None, text.split(","))) + "}"
    try:
        overrides = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"config_overrides: {' '.join(str(error).split())}") from None
    fields = inspect.get_annotations(ScratchBertConfig)
    for name, value in overrides.items():
        if name not in fields:
            raise ValueError(f"config_overrides: the config has no field {name}.{similar(str(name), fields)}")
        if name in ("pad_token_id", "max_position_embeddings"):
            raise ValueError(f"config_overrides: {name} is set by the tokenizer or by --max_position_embeddings.")
        if isinstance(value, str) and value[:1].isdigit():
            overrides[name] = float(value)  # to YAML, 1e-5 is a string
    return overrides
