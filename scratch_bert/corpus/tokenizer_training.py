"""Training of a tokenizer on texts of any kind."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordLevel, WordPiece
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordPieceTrainer
from transformers import BertTokenizer, PreTrainedTokenizerFast

from scratch_bert_options.data import TOKENIZER_TYPES
from scratch_bert_options.schema import check

from ..logs import progress_bar
from ..text import MAX_PIECE, MAX_WORD, UNK_TOKEN, pieces
from ..text.formats import TextSource
from .normalization import RARE, count_characters, find_changes


SPACE = "▁"  # among characters


def train_tokenizer(
    texts: Iterable,
    vocab_size: int = 30528,
    tokenizer_type: str = "wordpiece",
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    min_frequency: int = 2,
    model_max_length: int = 512,
    first_segment_id: int = 0,
    *,
    text_column: str | None = None,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer for BERT's input. The same texts give the same vocabulary.

    Texts are read twice, and may be larger than memory; an iterator is read into memory. Time grows with the text,
    whatever its words: see `_TrainingText`.

    Args:
        texts: A `TextSource`, or what `SentencePairDataset.from_texts` accepts, with its `text_column`.
        vocab_size: The maximum number of entries.
        tokenizer_type: One of `TOKENIZER_TYPES`, such as `wordpiece`, which is BERT's.
        lowercase: Lowercase the text. Default: for wordpiece and wordlevel.
        strip_accents: Remove accents, like uncased BERT. Default: for lowercased text in which they are as rare as in
            English. Elsewhere they are part of the spelling, as are the umlauts of German and the vowels of Thai.
        min_frequency: Words and word pieces with fewer occurrences are left out.
        model_max_length: The length in tokens to which texts are truncated by default.
        first_segment_id: The segment id of text A; B's is one more, and padding's always 0.

    Raises:
        ValueError: For options out of range, for what is not text, for no text at all, and for a `vocab_size` that is
            too small for the characters alone.
    """
    check(Annotated[int, Field(ge=1, le=10_000_000)], vocab_size, "vocab_size")
    if tokenizer_type not in TOKENIZER_TYPES:
        raise ValueError(f"tokenizer_type must be one of {', '.join(TOKENIZER_TYPES)}, got {tokenizer_type!r}.")
    check(Literal[0, 1], first_segment_id, "first_segment_id")
    if not isinstance(texts, TextSource):
        texts = TextSource.from_texts(list(texts) if isinstance(texts, Iterator) else texts, text_column)
    has_words = tokenizer_type in ("wordpiece", "wordlevel")
    lowercase = has_words if lowercase is None else lowercase
    if strip_accents is None:  # by a sample: are accents so rare that they hardly distinguish words?
        kept, stripped = (
            normalizers.BertNormalizer(strip_accents=strips, lowercase=True).normalize_str for strips in (False, True)
        )
        strip_accents = lowercase and find_changes(count_characters(texts), stripped, before=kept).share <= RARE
    bert: dict[str, Any] = {
        "do_lower_case": lowercase,
        "strip_accents": None if strip_accents == lowercase else strip_accents,
    }
    blank = BertTokenizer(**bert)
    backend = blank.backend_tokenizer if has_words else _unit_tokenizer(tokenizer_type, lowercase, strip_accents)
    special_tokens = [blank.pad_token, blank.unk_token, blank.cls_token, blank.sep_token, blank.mask_token]

    def words() -> Iterator[str]:
        training_text = _TrainingText(backend, has_words)
        with progress_bar("Training a tokenizer", "characters") as advance:
            for text in texts:
                for piece in training_text.pieces(text.replace(UNK_TOKEN, " ")):
                    yield piece
                    advance(len(piece))

    train_vocab = _wordpiece_vocab if tokenizer_type == "wordpiece" else _wordlevel_vocab
    vocab = train_vocab(words, vocab_size, min_frequency, backend, special_tokens)
    if len(vocab) == len(special_tokens):
        units = f"word of up to {MAX_WORD} characters" if has_words else tokenizer_type
        raise ValueError(
            f"The text is empty, or no {units} occurs {min_frequency} times, so there is no vocabulary to learn."
        )
    if tokenizer_type == "wordpiece":
        tokenizer = BertTokenizer(vocab=vocab, **bert, model_max_length=model_max_length)
        if first_segment_id == 0:
            return tokenizer
        tokenizer = tokenizer.backend_tokenizer  # a BertTokenizer always gives BERT's segment ids
    else:
        tokenizer = Tokenizer(WordLevel(vocab, unk_token=blank.unk_token))
        tokenizer.normalizer, tokenizer.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        if tokenizer_type == "character":
            tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse()])
    a, b = first_segment_id, first_segment_id + 1
    tokenizer.post_processor = TemplateProcessing(
        single=f"[CLS]:{a} $A:{a} [SEP]:{a}",
        pair=f"[CLS]:{a} $A:{a} [SEP]:{a} $B:{b} [SEP]:{b}",
        special_tokens=[(token, vocab[token]) for token in ("[CLS]", "[SEP]")],
    )
    names = {f"{name}_token": getattr(blank, f"{name}_token") for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=model_max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    )


def _unit_tokenizer(tokenizer_type: str, lowercase: bool, strip_accents: bool) -> Tokenizer:
    """The normalizer and pre-tokenizer of characters, of which a space is one, or of k-mers, the runs of k characters
    of a word, which do not overlap: the last one may be shorter."""
    tokenizer = Tokenizer(WordLevel())
    normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=False, strip_accents=strip_accents, lowercase=lowercase
    )
    if tokenizer_type == "character":
        tokenizer.normalizer = normalizers.Sequence([normalizer, normalizers.Replace(Regex(r"\s+"), SPACE)])
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    else:
        k_mer = pre_tokenizers.Split(Regex(f".{{1,{int(tokenizer_type[0])}}}"), "isolated")
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), k_mer])
    return tokenizer


class _TrainingText:
    """The text that a tokenizer is trained on, in pieces of bounded length and cost.

    What a trainer does with a word grows faster than its length, and with the number of distinct words. So words
    beyond `MAX_WORD`, as of Thai, are cut into pieces of that length, and of distinct long words without end, as in
    encoded data or text that has lost its spaces, only as many are kept as make up a small part of the text.
    """

    LONG = re.compile(r"[0-9A-Za-z\u00c0-\u024f\u0370-\u03ff\u0400-\u04ff]{21,}")  # rare in text with spaces
    UNBROKEN = re.compile(rf"[^\s!-/:-@\[-`{{-~\u3001-\u301f\u4e00-\u9fff]{{{MAX_WORD + 1},}}")  # perhaps one word
    ALLOWANCE, SHARE = 500_000, 0.05  # characters of distinct long words: so many, and this part of the text

    def __init__(self, blank: Tokenizer, has_words: bool):
        self.normalize, self.split = blank.normalizer.normalize_str, blank.pre_tokenizer.pre_tokenize_str
        self.has_words = has_words
        self.long_words: set[int] = set()  # hashes
        self.spare = float(self.ALLOWANCE)

    def pieces(self, text: str) -> Iterator[str]:
        if self.has_words:
            self.spare += self.SHARE * len(text)
            text = self.UNBROKEN.sub(self._cut, self.LONG.sub(self._keep_or_drop, text))
        return pieces(text, MAX_PIECE)

    def _keep_or_drop(self, match: re.Match) -> str:
        word = match[0]
        if hash(word) not in self.long_words:
            if len(word) > self.spare:
                return " "
            self.spare -= len(word)
            self.long_words.add(hash(word))
        return word

    def _cut(self, match: re.Match) -> str:
        parts = (match[0][start:][:MAX_PIECE] for start in range(0, len(match[0]), MAX_PIECE))
        words = [word for part in parts for word, _ in self.split(self.normalize(part))]
        if max(map(len, words), default=0) <= MAX_WORD:
            return match[0]
        return " ".join(word[start : start + MAX_WORD] for word in words for start in range(0, len(word), MAX_WORD))


def _wordpiece_vocab(words, vocab_size, min_frequency, blank: Tokenizer, special_tokens: list[str]) -> dict[str, int]:
    def train(size: int, first_tokens: list[str]) -> dict[str, int]:
        tokenizer = Tokenizer(WordPiece(unk_token=special_tokens[1]))
        tokenizer.normalizer, tokenizer.pre_tokenizer = blank.normalizer, blank.pre_tokenizer
        trainer = WordPieceTrainer(
            vocab_size=size, min_frequency=min_frequency, special_tokens=first_tokens, show_progress=False
        )
        tokenizer.train_from_iterator(words(), trainer)
        return tokenizer.get_vocab()

    # The trainer numbers the characters that continue a word ("##e") in the order of a hash table, and breaks ties
    # between merges by number, so runs differ. A first training finds these characters, the second gets them sorted.
    characters = train(1, special_tokens)
    if len(characters) > vocab_size:
        raise ValueError(
            f"vocab_size is {vocab_size}, but the text alone has {len(characters)} special tokens and characters: "
            "choose a larger vocab_size."
        )
    continuations = sorted(token for token in characters if token.startswith("##"))
    return train(vocab_size, special_tokens + continuations)


def _wordlevel_vocab(words, vocab_size, min_frequency, blank: Tokenizer, special_tokens: list[str]) -> dict[str, int]:
    # The library's trainer orders words of the same count randomly.
    counts: Counter[str] = Counter()
    for text in words():
        counts.update(word for word, _ in blank.pre_tokenizer.pre_tokenize_str(blank.normalizer.normalize_str(text)))
    frequent = sorted((-count, word) for word, count in counts.items() if count >= min_frequency)
    kept = [word for _, word in frequent[: max(vocab_size - len(special_tokens), 0)]]
    return {token: number for number, token in enumerate([*special_tokens, *kept])}
