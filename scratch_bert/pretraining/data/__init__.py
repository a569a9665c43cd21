"""Text to batches, in the order of the data: text → corpus → pairs → examples → collator; sources.py opens what the options name."""
