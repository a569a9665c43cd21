"""The options of all runs, as dataclasses. Nothing here imports PyTorch, so a command checks its options at once."""
