"""Examples of an objective: datasets, streams, prepared files, and the collator that masks them."""
