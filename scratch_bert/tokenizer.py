"""Train or load a tokenizer."""

import copy
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel, WordPiece
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordPieceTrainer
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast


UNKNOWN = "[UNK]"  # in a text: a word that the corpus itself replaced, as WikiText-2 does with <unk>
TOKENIZER_TYPES = ("wordpiece", "wordlevel")


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    tokenizer_type: str = "wordpiece",
    lowercase: bool = True,
    min_frequency: int = 2,
    model_max_length: int = 512,
    first_segment_id: int = 0,
) -> PreTrainedTokenizerFast:
    """A tokenizer for BERT's input, with a vocabulary of at most `vocab_size` entries learned from `texts`.

    `wordpiece` is BERT's; `wordlevel` has whole words only. Words and word pieces with fewer than `min_frequency`
    occurrences are left out. `first_segment_id` is the segment id of text A; B's is one more, and padding's always 0.
    `texts` is read twice, and may be larger than memory. The same texts give the same vocabulary. Raises `ValueError` if
    there is no text, or if `vocab_size` is too small for the characters alone.
    """
    blank = BertTokenizer(do_lower_case=lowercase)
    special_tokens = [blank.pad_token, blank.unk_token, blank.cls_token, blank.sep_token, blank.mask_token]

    def words() -> Iterator[str]:
        return (text.replace(UNKNOWN, " ") for text in texts)

    train = {"wordpiece": _wordpiece_vocab, "wordlevel": _wordlevel_vocab}[tokenizer_type]
    vocab = train(words, vocab_size, min_frequency, blank.backend_tokenizer, special_tokens)
    if len(vocab) == len(special_tokens):
        raise ValueError(
            f"The text is empty, or no word occurs {min_frequency} times: there is no vocabulary to learn."
        )
    if tokenizer_type == "wordpiece":
        bert = BertTokenizer(vocab=vocab, do_lower_case=lowercase, model_max_length=model_max_length)
        if first_segment_id == 0:
            return bert
        tokenizer = bert.backend_tokenizer  # not to be opened as a BertTokenizer, which gives BERT's segment ids
    else:
        tokenizer = Tokenizer(WordLevel(vocab, unk_token=blank.unk_token))
        tokenizer.normalizer = blank.backend_tokenizer.normalizer
        tokenizer.pre_tokenizer = blank.backend_tokenizer.pre_tokenizer
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
    # between merges by number: two runs differ. A first training finds these characters, the second gets them in order.
    characters = train(1, special_tokens)
    if len(characters) > vocab_size:
        raise ValueError(
            f"vocab_size is {vocab_size}, but the text alone has {len(characters)} special tokens and characters. "
            "Choose a larger vocab_size."
        )
    continuations = sorted(token for token in characters if token.startswith("##"))
    return train(vocab_size, special_tokens + continuations)


def _wordlevel_vocab(words, vocab_size, min_frequency, blank: Tokenizer, special_tokens: list[str]) -> dict[str, int]:
    # The library's own trainer orders words of the same count randomly.
    counts: Counter[str] = Counter()
    for text in words():
        counts.update(word for word, _ in blank.pre_tokenizer.pre_tokenize_str(blank.normalizer.normalize_str(text)))
    frequent = sorted((-count, word) for word, count in counts.items() if count >= min_frequency)
    kept = [word for _, word in frequent[: max(vocab_size - len(special_tokens), 0)]]
    return {token: number for number, token in enumerate([*special_tokens, *kept])}


def load_tokenizer(
    name_or_path: str, model_max_length: int | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of a local directory or a Hub repository; `model_max_length` replaces its own.

    Raises `ValueError` if it can't be read, has no vocabulary, lacks a special token that BERT's input needs, or is not one
    of the `tokenizers` library.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=trust_remote_code)
    except OSError:  # which says what is missing
        raise
    except Exception as error:  # the tokenizers library raises plain exceptions
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"The tokenizer {name_or_path} needs custom code, which is not run without trust_remote_code."
            ) from None
        raise ValueError(f"The tokenizer {name_or_path} cannot be read ({type(error).__name__}: {error}).") from error
    missing = [name for name in ("cls", "sep", "mask", "pad") if getattr(tokenizer, f"{name}_token_id") is None]
    if missing:
        tokens = ", ".join(f"[{name.upper()}]" for name in missing)
        raise ValueError(f"The tokenizer {name_or_path} has no {tokens} token, which BERT's input needs.")
    if not tokenizer.is_fast:
        raise ValueError(f"The tokenizer {name_or_path} has no tokenizer.json, so there is no fast tokenizer.")
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # transformers has made it up
        raise ValueError(f"The tokenizer {name_or_path} has no vocabulary: its tokenizer.json is missing or empty.")
    if model_max_length is not None:
        tokenizer.model_max_length = model_max_length
    return tokenizer


def copy_with_length(tokenizer: PreTrainedTokenizerBase, model_max_length: int) -> PreTrainedTokenizerBase:
    """A copy of the tokenizer, for texts of up to `model_max_length` tokens."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_max_length = model_max_length
    return tokenizer


def add_tokens(tokenizer: PreTrainedTokenizerBase, lines: Iterable[str]) -> PreTrainedTokenizerBase:
    """A copy of a WordPiece or word-level tokenizer whose vocabulary has the entry of each line, too: a word, or `##` and a
    continuation. They are matched as all others: the longest first. Those that it has already are skipped.

    Raises `ValueError` for a line that this tokenizer would split, and if there is nothing new.
    """
    backend = tokenizer.backend_tokenizer
    content = json.loads(backend.to_str())
    vocab = content["model"].get("vocab")
    if content["model"]["type"] not in ("WordPiece", "WordLevel"):
        raise ValueError(f"add_tokens needs a WordPiece or word-level tokenizer, not {content['model']['type']}.")
    prefix, number, before = content["model"].get("continuing_subword_prefix"), vocabulary_size(tokenizer), len(vocab)
    for line_number, line in enumerate(lines, 1):
        continuation = bool(prefix) and line.startswith(prefix)
        text = line.strip().removeprefix(prefix) if continuation else line.strip()
        text = backend.normalizer.normalize_str(text) if backend.normalizer else text
        words = backend.pre_tokenizer.pre_tokenize_str(text)
        if len(words) > 1:
            raise ValueError(
                f"Line {line_number}: to this tokenizer, {line.strip()!r} is {len(words)} words: one a line."
            )
        token = prefix + text if continuation else text
        if words and token not in vocab:
            vocab[token] = number
            number += 1
    if len(vocab) == before:
        raise ValueError("There is no token that is not in the vocabulary already.")
    with tempfile.TemporaryDirectory() as directory:
        tokenizer.save_pretrained(directory)
        Path(directory, "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        return AutoTokenizer.from_pretrained(directory)


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """The size of the word embeddings: the highest id plus one. `len(tokenizer)` is less if ids have gaps."""
    return max(tokenizer.get_vocab().values()) + 1


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, vocab_size: int, of: str = "") -> None:
    """Raise `ValueError` if the tokenizer, ` of` some model, has ids that a model with this `vocab_size` has not."""
    entries = vocabulary_size(tokenizer)
    if entries > vocab_size:
        raise ValueError(f"The tokenizer{of} has {entries} entries, but the model's vocab_size is {vocab_size}.")


def segment_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """The segment ids (`token_type_ids`) of texts A and B: BERT's 0 and 1, unless the tokenizer has others."""
    pair = tokenizer.backend_tokenizer.encode("a", "b")
    ids = dict(zip(pair.sequence_ids, pair.type_ids, strict=True))
    return (ids[0], ids[1]) if ids[0] != ids[1] else (0, 1)  # the same where models have no segments, as RoBERTa


def gives_same_input(tokenizer: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """Whether models of one tokenizer take input made with the other: the same vocabulary and segment ids."""
    return tokenizer.get_vocab() == other.get_vocab() and segment_ids(tokenizer) == segment_ids(other)


def continues_word(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """For each token id, whether it continues the word of the token before: (vocabulary size,) bool.

    Raises `ValueError` for a tokenizer that is neither WordPiece nor word-level.
    """
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    if model["type"] not in ("WordPiece", "WordLevel"):
        raise ValueError(f"Whole-word masking needs a WordPiece or word-level tokenizer, not {model['type']}.")
    prefix = model.get("continuing_subword_prefix")
    continues = np.zeros(vocabulary_size(tokenizer), dtype=bool)
    if prefix:
        continues[[number for token, number in tokenizer.get_vocab().items() if token.startswith(prefix)]] = True
    return continues


def text_encoder(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """The tokenizer for plain text: no truncation or padding, and a "[SEP]" in the text is text. Only the unknown token is
    still recognized, as a corpus may contain it."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content |= {"truncation": None, "padding": None, "post_processor": None}
    for token in content["added_tokens"]:
        token["special"] = token["special"] and token["content"] != tokenizer.unk_token
    encoder = Tokenizer.from_str(json.dumps(content))
    encoder.encode_special_tokens = True
    return encoder
