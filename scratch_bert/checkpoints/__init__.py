"""Saved models and runs: what is intact, what a checkpoint has, and whether a run can resume from it."""
