"""The share of the tokens that is masked in evaluation, and how curves say it."""

EVAL_MLM_PROBABILITY = 0.15  # BERT's (paper, section 3.1), whatever the value in training


def describe_masking(share: float, final: float | None) -> str:
    """A caption: which share of the tokens is masked in training, then in its `final` phase, and in validation."""
    then = f", then {final:.0%}" if final not in (None, share) else ""
    return f"masked: {share:.0%}{then}; validation: {EVAL_MLM_PROBABILITY:.0%}"
