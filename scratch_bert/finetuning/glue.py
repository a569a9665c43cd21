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


_PAIR, _ENTAILMENT = ("sentence1", "sentence2"), ("entailment", "not_entailment")
_ACCURACY_F1 = ("accuracy", "f1")
GLUE = {  # in the order of tables
    "cola": GlueTask(
        ("sentence",),
        ("unacceptable", "acceptable"),
        ("matthews_correlation", "accuracy"),
        header=("source", "label", "mark", "sentence"),
    ),
    "sst2": GlueTask(("sentence",), ("negative", "positive")),
    "mrpc": GlueTask(
        _PAIR,
        ("not_equivalent", "equivalent"),
        _ACCURACY_F1,
        {"sentence1": "#1 String", "sentence2": "#2 String", "label": "Quality"},
    ),
    "stsb": GlueTask(_PAIR, None, ("pearsonr", "spearmanr"), {"label": "score"}),
    "rte": GlueTask(_PAIR, _ENTAILMENT),
    "qqp": GlueTask(
        ("question1", "question2"), ("not_duplicate", "duplicate"), _ACCURACY_F1, {"label": "is_duplicate"}
    ),
    "mnli": GlueTask(
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        file_columns={"premise": "sentence1", "hypothesis": "sentence2", "label": "gold_label"},
    ),
    "qnli": GlueTask(("question", "sentence"), _ENTAILMENT),
    "wnli": GlueTask(_PAIR, ("not_entailment", "entailment")),
}
