"""Fine-tuning: labelled files → dataset → task → trainer."""
