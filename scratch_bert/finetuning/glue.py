"""The tasks of GLUE (Wang et al., 2019, https://arxiv.org/abs/1804.07461): columns, labels and metrics of each."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class GlueTask:
    title: str
    texts: tuple[str, ...]
    """Columns of the text or the two texts in `nyu-mll/glue` on the Hub; the label's is `label`."""
    labels: tuple[str, ...] | None
    """Names in the order of their ids; None for regression."""
    metrics: tuple[str, ...] = ("accuracy",)
    score: dict[str, str] = field(default_factory=lambda: {"accuracy": "accuracy"})
    """Metrics whose mean is the task's score in GLUE → their names for readers. The mismatched examples of MNLI are the test
    split of its run."""
    file_columns: dict[str, str] = field(default_factory=dict)
    """Column in `nyu-mll/glue` → its name in GLUE's own files, where they differ."""
    header: tuple[str, ...] | None = None
    """Columns of files without a header line."""


_ENTAILMENT = ("entailment", "not_entailment")
_COLA = ("source", "label", "mark", "sentence")
_F1_ACCURACY = {"f1": "F1", "accuracy": "accuracy"}
_QUORA = {"label": "is_duplicate"}
_MRPC = {"sentence1": "#1 String", "sentence2": "#2 String", "label": "Quality"}
_MNLI = {"premise": "sentence1", "hypothesis": "sentence2", "label": "gold_label"}

GLUE = {  # in the order of tables
    "cola": GlueTask(
        "CoLA",
        ("sentence",),
        ("unacceptable", "acceptable"),
        ("matthews_correlation", "accuracy"),
        {"matthews_correlation": "Matthews correlation"},
        header=_COLA,
    ),
    "sst2": GlueTask("SST-2", ("sentence",), ("negative", "positive")),
    "mrpc": GlueTask(
        "MRPC", ("sentence1", "sentence2"), ("not_equivalent", "equivalent"), ("accuracy", "f1"), _F1_ACCURACY, _MRPC
    ),
    "stsb": GlueTask(
        "STS-B",
        ("sentence1", "sentence2"),
        None,
        ("pearsonr", "spearmanr"),
        {"pearsonr": "Pearson", "spearmanr": "Spearman"},
        {"label": "score"},
    ),
    "rte": GlueTask("RTE", ("sentence1", "sentence2"), _ENTAILMENT),
    "qqp": GlueTask(
        "QQP", ("question1", "question2"), ("not_duplicate", "duplicate"), ("accuracy", "f1"), _F1_ACCURACY, _QUORA
    ),
    "mnli": GlueTask(
        "MNLI",
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        score={"accuracy": "matched", "test_accuracy": "mismatched"},
        file_columns=_MNLI,
    ),
    "qnli": GlueTask("QNLI", ("question", "sentence"), _ENTAILMENT),
    "wnli": GlueTask("WNLI", ("sentence1", "sentence2"), ("not_entailment", "entailment")),
}
