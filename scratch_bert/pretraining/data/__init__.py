"""The path from text to batches: text → corpus → pairs → examples → collator; sources.py follows the options."""
