"""The options of evaluating pretrained models."""

from dataclasses import fields
from pathlib import Path
from typing import ClassVar

from .data import ExampleOptions, MaskingOptions, SourceOptions, TextOptions
from .declare import OptionGroup, option, options, reject_non_default
from .masking import EVAL_MLM_PROBABILITY
from .outputs import check_new_file


@options
class SuiteOptions(OptionGroup, group="Evaluation"):
    suite: str | None = option(
        None,
        "Evaluate on minimal pairs instead of text. blimp: how often the grammatical sentence of a pair has the "
        "higher pseudo-log-likelihood, overall and by phenomenon. Options for text, examples and masks are then "
        "errors.",
        choices=["blimp"],
    )
    suite_data: str | None = option(
        None,
        "The suite's pairs: a file of JSON lines, a directory of such files, or a dataset on the Hub. "
        "Default: nyu-mll/blimp.",
        path=True,
        requires="suite",
    )


@options
class EvaluationDataOptions(MaskingOptions, ExampleOptions, TextOptions, SourceOptions, SuiteOptions):
    """The text to evaluate on: all of `validation_file`, if given alone. The models provide the tokenizer."""

    part_kind: ClassVar = "evaluated"
    streaming: ClassVar = False
    static_pairs: ClassVar = False
    single_segment_prob: ClassVar = 0.0
    split_seed: ClassVar = None
    """The seed is that of `EvaluationOptions`."""

    mlm_probability: float = option(EVAL_MLM_PROBABILITY, "Fraction of the tokens to predict.", within="(0, 1]")

    def __post_init__(self):
        if self.suite:
            of_text = [option.name for option in fields(self) if option.name not in SuiteOptions.__dataclass_fields__]
            reject_non_default(self, of_text, "with suite")
        if self.validation_file and not self.sources:
            reject_non_default(self, ["validation_share"], "with validation_file alone, which is evaluated in full")
            self.train_file, self.validation_file, self.validation_share = self.validation_file, None, 0.0
        self.fits_models = self.max_seq_length is None
        super().__post_init__()  # which chooses max_seq_length by the text


@options
class EvaluationOptions(SuiteOptions, group="Evaluation"):
    model_name_or_path: list[str] | None = option(
        None,
        "Models to evaluate: directories or Hub repositories, scratch_bert or BERT. On text, all must share "
        "the same tokenizer. Required.",
        path=True,
    )
    trust_remote_code: bool = option(False, "Run the code of a custom-code model.")
    per_device_eval_batch_size: int = option(
        32, "Examples per step and device. The masks depend on it.", within="[1, 1000000]", unless="suite"
    )
    bf16: bool = option(False, "bf16 autocast instead of fp32.")
    seed: int = option(
        42,
        "Random seed of the held-out text, pairs and masks. Use pretraining's split_seed, if it was given.",
        within="[0, 4294967296)",
        unless="suite",
    )
    show_predictions: int = option(
        0, "Number of masked words and of pairs to show predictions for.", within="[0, 1000000]", unless="suite"
    )
    output_file: str | None = option(None, "JSON file to write the metrics to; it must not exist yet.")

    def __post_init__(self):
        if not self.model_name_or_path:
            raise ValueError("--model_name_or_path is required: the models to evaluate.")
        super().__post_init__()
        if self.output_file:
            check_new_file("output_file", Path(self.output_file))
