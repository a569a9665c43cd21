"""Publishing, model cards, and conversion from and to transformers' BERT."""
