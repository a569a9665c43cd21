"""The tasks of fine-tuning, a file for each kind of data."""
