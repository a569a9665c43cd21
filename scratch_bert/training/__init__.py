"""What pretraining and fine-tuning share of Trainer."""
