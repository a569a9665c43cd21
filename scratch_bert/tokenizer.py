"""Train or load a tokenizer, and turn documents into token ids with it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer
from tqdm.auto import tqdm
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase

from .corpus import Document


def train_wordpiece(
    texts: Sequence[str], vocab_size: int, lowercase: bool = True, min_frequency: int = 2, model_max_length: int = 512
) -> BertTokenizer:
    """A BERT tokenizer with a WordPiece vocabulary of at most `vocab_size` entries, learnt from `texts`.

    `texts` is gone through twice. Word pieces that are built from fewer than `min_frequency` occurrences are left
    out. The same texts give the same vocabulary. Raises `ValueError` if `vocab_size` cannot even hold the characters.
    """
    blank = BertTokenizer(do_lower_case=lowercase)

    def train(size: int, first_tokens: list[str]) -> dict[str, int]:
        tokenizer = Tokenizer(WordPiece(unk_token=blank.unk_token))
        tokenizer.normalizer = blank.backend_tokenizer.normalizer
        tokenizer.pre_tokenizer = blank.backend_tokenizer.pre_tokenizer
        trainer = WordPieceTrainer(
            vocab_size=size, min_frequency=min_frequency, special_tokens=first_tokens, show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer)
        return tokenizer.get_vocab()

    special_tokens = [blank.pad_token, blank.unk_token, blank.cls_token, blank.sep_token, blank.mask_token]
    # The trainer numbers the characters that continue a word ("##e") in the order of a hash table, and breaks ties
    # between merges by number: two runs differ. A first training finds these characters, the second gets them in order.
    characters = train(1, special_tokens)
    if len(characters) > vocab_size:
        raise ValueError(
            f"vocab_size is {vocab_size}, but the text alone has {len(characters)} special tokens and characters. "
            "Choose a larger vocab_size."
        )
    continuations = sorted(token for token in characters if token.startswith("##"))
    vocab = train(vocab_size, special_tokens + continuations)
    return BertTokenizer(vocab=vocab, do_lower_case=lowercase, model_max_length=model_max_length)


def load_tokenizer(name_or_path: str, model_max_length: int | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a local directory or a Hub repository; `model_max_length` replaces its own.

    Raises `ValueError` if it lacks a special token that BERT's rows need.
    """
    tokenizer = AutoTokenizer.from_pretrained(name_or_path)
    missing = [name for name in ("cls", "sep", "mask", "pad") if getattr(tokenizer, f"{name}_token_id") is None]
    if missing:
        tokens = ", ".join(f"[{name.upper()}]" for name in missing)
        raise ValueError(f"The tokenizer {name_or_path} has no {tokens} token, which BERT's rows are made with.")
    if model_max_length is not None:
        tokenizer.model_max_length = model_max_length
    return tokenizer


@dataclass(frozen=True)
class TokenizedCorpus:
    """Token ids of a corpus in one flat array. Sentence s of the corpus is tokens[sentence_offsets[s] :
    sentence_offsets[s + 1]], and document d is the sentences document_offsets[d] up to document_offsets[d + 1]."""

    tokens: np.ndarray  # (tokens,) int32
    sentence_offsets: np.ndarray  # (sentences + 1,) int64
    document_offsets: np.ndarray  # (documents + 1,) int64

    @property
    def num_documents(self) -> int:
        return len(self.document_offsets) - 1

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_offsets) - 1

    def summary(self) -> str:
        return f"{self.num_documents:,} documents, {self.num_sentences:,} sentences, {len(self.tokens):,} tokens"

    @classmethod
    def from_documents(cls, documents: Sequence[Document], tokenizer: PreTrainedTokenizerBase) -> "TokenizedCorpus":
        """Encode without special tokens. Sentences without a token, and documents without a sentence, are left out."""
        tokens, sentence_lengths, document_lengths = [], [], []
        for document in tqdm(documents, desc="Tokenizing", unit=" documents", leave=False):
            # verbose=False: documents are cut to rows later, so their length needs no warning here.
            encoded = tokenizer(
                document,
                add_special_tokens=False,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )["input_ids"]
            encoded = [sentence for sentence in encoded if sentence]
            if encoded:
                tokens.append(np.concatenate(encoded).astype(np.int32))
                sentence_lengths += map(len, encoded)
                document_lengths.append(len(encoded))
        if not tokens:
            raise ValueError("The corpus holds no text: no document gave a token.")
        offsets = [np.cumsum([0, *lengths], dtype=np.int64) for lengths in (sentence_lengths, document_lengths)]
        return cls(np.concatenate(tokens), *offsets)
