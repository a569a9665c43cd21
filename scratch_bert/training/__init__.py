"""The parts of Trainer that pretraining and fine-tuning share."""
