"""The tasks of GLUE (Wang et al., 2019, https://arxiv.org/abs/1804.07461): columns, labels and metrics of each."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class GlueTask:
    texts: tuple[str, ...]
    """Columns of the text or the two texts in `nyu-mll/glue` on the Hub; the label's is `label`."""
    labels: tuple[str, ...] | None
    """Names in the order of their ids; None for regression."""
    metrics: tuple[str, ...] = ("accuracy",)
    file_columns: dict[str, str] = field(default_factory=dict)
    """Column in `nyu-mll/glue` → its name in GLUE's own files, where they differ."""
    header: tuple[str, ...] | None = None
    """Columns of files without a header line."""


_ENTAILMENT = ("entailment", "not_entailment")
_COLA = ("source", "label", "mark", "sentence")
_QUORA = {"label": "is_duplicate"}
_MRPC = {"sentence1": "#1 String", "sentence2": "#2 String", "label": "Quality"}
_MNLI = {"premise": "sentence1", "hypothesis": "sentence2", "label": "gold_label"}

GLUE = {
    "cola": GlueTask(
        ("sentence",), ("unacceptable", "acceptable"), ("matthews_correlation", "accuracy"), header=_COLA
    ),
    "sst2": GlueTask(("sentence",), ("negative", "positive")),
    "mrpc": GlueTask(("sentence1", "sentence2"), ("not_equivalent", "equivalent"), ("accuracy", "f1"), _MRPC),
    "qqp": GlueTask(("question1", "question2"), ("not_duplicate", "duplicate"), ("accuracy", "f1"), _QUORA),
    "stsb": GlueTask(("sentence1", "sentence2"), None, ("pearsonr", "spearmanr"), {"label": "score"}),
    "mnli": GlueTask(("premise", "hypothesis"), ("entailment", "neutral", "contradiction"), file_columns=_MNLI),
    "qnli": GlueTask(("question", "sentence"), _ENTAILMENT),
    "rte": GlueTask(("sentence1", "sentence2"), _ENTAILMENT),
    "wnli": GlueTask(("sentence1", "sentence2"), ("not_entailment", "entailment")),
}
