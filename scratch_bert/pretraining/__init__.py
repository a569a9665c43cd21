"""Pretraining, in the order that the data goes: text → corpus → pairs → dataset → collator → trainer."""
