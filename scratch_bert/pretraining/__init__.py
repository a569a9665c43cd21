"""Parts of pretraining, each of which works alone and under the stock Trainer (docs/library.md)."""

from ..corpus.tokenizer_training import train_tokenizer
from ..examples.collator import PretrainingCollator
from ..examples.dataset import SentencePairDataset
from ..objectives import OBJECTIVES, Objective, PairClassification
from .embeddings import init_token_embeddings
from .metrics import PretrainingMetrics, unigram_log_probs
from .minimal_pairs import encode_sentences, pseudo_log_likelihoods
from .optimizer import muon
from .scoring import score_texts
from .text_vectors import encode_texts


__all__ = [
    "OBJECTIVES",
    "Objective",
    "PairClassification",
    "PretrainingCollator",
    "PretrainingMetrics",
    "SentencePairDataset",
    "encode_sentences",
    "encode_texts",
    "init_token_embeddings",
    "muon",
    "pseudo_log_likelihoods",
    "score_texts",
    "train_tokenizer",
    "unigram_log_probs",
]
