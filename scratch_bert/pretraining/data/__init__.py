"""The path from text to batches: text → corpus → pairs → examples → collator. sources.py opens the data that options
name."""
