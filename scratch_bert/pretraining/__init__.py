"""Parts of pretraining, each of which works alone and under the stock Trainer (docs/library.md)."""

from .data.collator import PretrainingCollator
from .data.examples import SentencePairDataset
from .data.tokenizer import train_tokenizer
from .embeddings import init_token_embeddings
from .metrics import PretrainingMetrics, unigram_log_probs
from .minimal_pairs import encode_sentences, pseudo_log_likelihoods
from .objectives import OBJECTIVES, Objective, PairClassification
from .optimizer import muon


__all__ = [
    "OBJECTIVES",
    "Objective",
    "PairClassification",
    "PretrainingCollator",
    "PretrainingMetrics",
    "SentencePairDataset",
    "encode_sentences",
    "init_token_embeddings",
    "muon",
    "pseudo_log_likelihoods",
    "train_tokenizer",
    "unigram_log_probs",
]
