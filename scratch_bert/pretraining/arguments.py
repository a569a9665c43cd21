"""The options of pretraining, from `scratch_bert_cli.pretraining`, with what depends on the config and on Trainer."""

import inspect
from dataclasses import dataclass
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers.training_args import OptimizerNames
from transformers.utils import ExplicitEnum

from scratch_bert_cli.options import OTHERS, read_yaml
from scratch_bert_cli.pretraining import (
    EVAL_MLM_PROBABILITY,
    TOKENIZER_TRAINING,
    DataArguments,
    EvaluationArguments,
    EvaluationDataArguments,
    InspectionArguments,
    ModelOptions,
    PreparationArguments,
    PreparationDataArguments,
    PretrainingOptions,
    parse_max_seq_length,
)

from ..cli import option, reject_non_default, similar
from ..model.configuration_scratch_bert import ScratchBertConfig
from ..training.arguments import CommonArguments


@dataclass
class ModelArguments(ModelOptions):
    """The model to start from: a new model, or a checkpoint to continue from."""

    def __post_init__(self):
        super().__post_init__()
        parse_overrides(self.config_overrides)  # report errors before any work

    def overrides(self) -> dict[str, Any]:
        """The config fields that the options set."""
        dropout = {"hidden_dropout_prob": self.dropout, "attention_probs_dropout_prob": self.dropout}
        return dropout | parse_overrides(self.config_overrides)

    def config(self) -> ScratchBertConfig:
        """The config of a new model. Raises `ValueError` for invalid values."""
        try:
            return ScratchBertConfig.from_preset(self.preset, **self.overrides())
        except (StrictDataclassError, TypeError, LookupError, AttributeError) as error:
            # The cause of a `StrictDataclassError` states what is wrong.
            raise ValueError(f"config_overrides: {error.__cause__ or error}") from None


def parse_overrides(text: str | None) -> dict[str, Any]:
    """Parse `"head_dim=32,norm_first=true"`, or the same as JSON, to `{"head_dim": 32, "norm_first": True}`.

    Raises `ValueError` for text that can't be parsed, and for a field that the config lacks or that other options set.
    """
    fields, text = inspect.get_annotations(ScratchBertConfig), text or ""
    if text.startswith("{"):
        overrides = _read_value(text, text)
    else:
        overrides = {}
        for pair in text.split(",") if text.strip() else ():
            name, equals, value = (part.strip() for part in pair.partition("="))
            if not equals:
                raise ValueError(f"config_overrides takes comma-separated field=value pairs; {pair!r} has no '='.")
            if name in overrides:
                raise ValueError(f"config_overrides: {name} is given twice.")
            overrides[name] = _read_value(value, text)
    for name, value in overrides.items():
        if name not in fields:
            raise ValueError(f"config_overrides: the config has no field {name}.{similar(str(name), fields)}")
        if name in ("pad_token_id", "max_position_embeddings"):
            raise ValueError(f"config_overrides: {name} is set by the tokenizer or by --max_position_embeddings.")
        if isinstance(value, str) and value[:1].isdigit():
            try:
                overrides[name] = float(value)  # to YAML, 1e-5 is a string
            except ValueError:
                raise ValueError(
                    f"config_overrides: {name} must be a number, got {value!r}. Commas separate the fields."
                ) from None
    return overrides


def _read_value(value: str, text: str) -> Any:
    try:
        return read_yaml(value)
    except ValueError as error:
        raise ValueError(
            f"config_overrides: {text!r:.80} cannot be parsed ({error}); write it as field=value,field=value."
        ) from None


@dataclass
class InMemoryDataArguments(DataArguments):
    """The options of texts in memory, instead of those that an option names."""

    @property
    def sources(self) -> list[str]:
        return ["texts in memory", *super().sources]


class ExtraOptimizerNames(ExplicitEnum):
    """Values of `optim` beyond transformers' `OptimizerNames`, which cannot be extended."""

    MUON = "muon"


OPTIMIZERS = {name.value: name for names in (ExtraOptimizerNames, OptimizerNames) for name in names}


@dataclass
class PretrainingArguments(PretrainingOptions, CommonArguments, group=OTHERS):
    """Trainer's arguments, with defaults for a short run on the built-in corpus."""

    remove_unused_columns: bool = option(False, "Must stay False: the collator reads more columns than the model.")
    batch_eval_metrics: bool = option(True, "Must stay True: metrics are summed batch by batch, no logits are kept.")

    def __post_init__(self):
        if self.optim not in OPTIMIZERS:
            known = similar(self.optim, OPTIMIZERS) or f" There are {', '.join(OPTIMIZERS)}."
            raise ValueError(f"There is no optim {self.optim}.{known}")
        optim, self.optim = OPTIMIZERS[self.optim], OptimizerNames.ADAMW_TORCH  # `TrainingArguments` accepts no others
        super().__post_init__()
        self.optim = optim
        if optim == ExtraOptimizerNames.MUON:
            reject_non_default(self, ["optim_args", "optim_target_modules"], "with optim muon")
        else:
            reject_non_default(self, ["muon_learning_rate"], "without optim muon")
        if "tensorboard" not in self.report_to:
            reject_non_default(self, ["tensorboard_graph"], "without report_to tensorboard")
        self.must_stay(
            remove_unused_columns=(False, "the collator reads more columns than the model"),
            batch_eval_metrics=(True, "metrics are summed batch by batch"),
            prediction_loss_only=(False, "metrics are computed from predictions"),
            label_smoothing_factor=(0, "both losses come from the model itself"),
            dataloader_persistent_workers=(False, "persistent workers would keep the first epoch's examples"),
        )
