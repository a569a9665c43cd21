"""Train or load a tokenizer."""

import copy
import json
import logging
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel, WordPiece
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordPieceTrainer
from tqdm.auto import tqdm
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..repository import find_file, one_line, read_json
from ..text import MAX_PIECE, MAX_WORD, UNK_TOKEN


logger = logging.getLogger("scratch_bert")

VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
MAX_ENTRIES = 10_000_000  # the largest vocabularies have a few hundred thousand
UNKNOWN_WORDS = "ꙮ 𐍈"  # of Old Slavonic and Gothic
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
    """Train a tokenizer for BERT's input, with a vocabulary of at most `vocab_size` entries, on `texts`.

    `wordpiece` is BERT's; `wordlevel` has complete words only. Words and word pieces with fewer than `min_frequency`
    occurrences are left out. `first_segment_id` is the segment id of text A; B's is one more, and padding's always 0.
    `texts` is read twice, and may be larger than memory. The same texts give the same vocabulary. Time grows with the
    text, whatever its words: see `_TrainingText`. Raises `ValueError` for options out of range, if there is no text,
    or if `vocab_size` is too small for the characters alone.
    """
    if not 1 <= vocab_size <= MAX_ENTRIES:
        raise ValueError(f"vocab_size must be at least 1 and at most {MAX_ENTRIES:,}, got {vocab_size}.")
    if first_segment_id not in (0, 1):
        raise ValueError(f"first_segment_id must be 0 or 1, got {first_segment_id}.")
    if not model_max_length >= 1:
        raise ValueError(f"model_max_length must be at least 1, got {model_max_length}.")
    if tokenizer_type not in TOKENIZER_TYPES:
        raise ValueError(f"tokenizer_type must be one of {', '.join(TOKENIZER_TYPES)}; got {tokenizer_type!r}.")
    blank = BertTokenizer(do_lower_case=lowercase)
    special_tokens = [blank.pad_token, blank.unk_token, blank.cls_token, blank.sep_token, blank.mask_token]

    def words() -> Iterator[str]:
        training_text = _TrainingText(blank.backend_tokenizer)
        with tqdm(
            desc="Training a tokenizer", unit=" characters", unit_scale=True, leave=False, disable=None
        ) as progress:
            for text in texts:
                for piece in training_text.pieces(text.replace(UNK_TOKEN, " ")):
                    yield piece
                    progress.update(len(piece))

    train = {"wordpiece": _wordpiece_vocab, "wordlevel": _wordlevel_vocab}[tokenizer_type]
    vocab = train(words, vocab_size, min_frequency, blank.backend_tokenizer, special_tokens)
    if len(vocab) == len(special_tokens):
        raise ValueError(
            f"The text is empty, or no word of up to {MAX_WORD} characters occurs {min_frequency} times, so there is no "
            "vocabulary to learn. Words end at spaces and punctuation marks."
        )
    if tokenizer_type == "wordpiece":
        bert = BertTokenizer(vocab=vocab, do_lower_case=lowercase, model_max_length=model_max_length)
        if first_segment_id == 0:
            return bert
        tokenizer = bert.backend_tokenizer  # a BertTokenizer always gives BERT's segment ids
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


class _TrainingText:
    """The text that a tokenizer is trained on, in pieces of bounded length and cost.

    What a trainer does with a word grows faster than its length, and with the number of distinct words. So words
    beyond `MAX_WORD`, as of Thai, are cut into pieces of that length, and of distinct long words without end, as in
    encoded data or text that has lost its spaces, only as many are kept as make up a small part of the text.
    """

    LONG = re.compile(r"[0-9A-Za-z\u00c0-\u024f\u0370-\u03ff\u0400-\u04ff]{21,}")  # rare in text with spaces
    UNBROKEN = re.compile(rf"[^\s!-/:-@\[-`{{-~\u3001-\u301f\u4e00-\u9fff]{{{MAX_WORD + 1},}}")  # perhaps one word
    ALLOWANCE, SHARE = 500_000, 0.05  # characters of distinct long words: so many, and this part of the text

    def __init__(self, blank: Tokenizer):
        self.normalize, self.split = blank.normalizer.normalize_str, blank.pre_tokenizer.pre_tokenize_str
        self.long_words: set[int] = set()  # hashes
        self.spare = float(self.ALLOWANCE)

    def pieces(self, text: str) -> Iterator[str]:
        self.spare += self.SHARE * len(text)
        text = self.UNBROKEN.sub(self._cut, self.LONG.sub(self._keep_or_drop, text))
        start = 0
        while len(text) - start > MAX_PIECE:
            space = max(text.rfind(space, start + 1, start + MAX_PIECE) for space in " \n")
            end = space + 1 or start + MAX_PIECE
            yield text[start:end]
            start = end
        yield text[start:]

    def _keep_or_drop(self, match: re.Match) -> str:
        word = match[0]
        if hash(word) not in self.long_words:
            if len(word) > self.spare:
                return " "
            self.spare -= len(word)
            self.long_words.add(hash(word))
        return word

    def _cut(self, match: re.Match) -> str:
        words = [
            word for start in range(0, len(match[0]), MAX_PIECE) for word in self._words(match[0][start:][:MAX_PIECE])
        ]
        if max(map(len, words), default=0) <= MAX_WORD:
            return match[0]
        return " ".join(word[start : start + MAX_WORD] for word in words for start in range(0, len(word), MAX_WORD))

    def _words(self, text: str) -> list[str]:
        return [word for word, _ in self.split(self.normalize(text))]


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


def has_tokenizer(name: str, revision: str | None = None) -> bool:
    """Whether the directory or Hub repository `name` has a file with the vocabulary of a tokenizer."""
    return any(find_file(name, file, revision) for file in VOCABULARIES)


def _check_ids(content: dict, file: Path) -> None:
    """Raise `ValueError` for a tokenizer.json that would make the tokenizers library abort: with ids that no
    vocabulary has."""
    model = content.get("model")
    if not isinstance(model, dict):
        raise ValueError(f"{file} has no model, so there is no vocabulary: save the tokenizer again.")
    vocabulary = model.get("vocab")
    entries = list(vocabulary.items()) if isinstance(vocabulary, dict) else []
    added = content.get("added_tokens") or []
    if not (isinstance(added, list) and all(isinstance(token, dict) for token in added)):
        raise ValueError(f"{file}: added_tokens is not a list of tokens. Save the tokenizer again.")
    for token, number in entries + [(token.get("content"), token.get("id")) for token in added]:
        if type(number) is not int or not 0 <= number < MAX_ENTRIES:
            raise ValueError(
                f"{file}: the token {token!r} has the id {number!r}. Ids are integers from 0 to {MAX_ENTRIES - 1:,}."
            )


def _infer_case(name: str, revision: str | None) -> dict[str, bool]:
    """The option of a tokenizer that is a vocab.txt and no word on its case, as BERT's in 2018: transformers would
    lowercase the text for a cased vocabulary, too. An uncased one has upper case in special tokens alone, such as
    [UNK] and <S>."""
    file, config = (find_file(name, part, revision) for part in ("vocab.txt", "tokenizer_config.json"))
    if file is None or config and "do_lower_case" in read_json(config):
        return {}
    cased = re.search(r"^(?![\[<]).*[A-Z]", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    logger.info(f"{file}: no do_lower_case says whether it is cased; its entries are {'' if cased else 'un'}cased")
    return {"do_lower_case": False} if cased else {}


def load_tokenizer(
    name_or_path: str,
    model_max_length: int | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a local directory or a Hub repository; `model_max_length` replaces the saved value.

    Raises `OSError` if it does not exist, and `ValueError` if it can't be read, needs custom code without
    `trust_remote_code`, has no vocabulary, lacks a special token that BERT's input needs, can't encode unknown words,
    or is not a fast tokenizer.
    """
    file = find_file(name_or_path, "tokenizer.json", revision)
    if file:
        _check_ids(read_json(file), file)
    options = {} if file else _infer_case(name_or_path, revision)
    try:
        # A cast, as transformers declares that it may be None.
        tokenizer = cast(
            PreTrainedTokenizerFast,
            AutoTokenizer.from_pretrained(
                name_or_path, revision=revision, trust_remote_code=trust_remote_code, **options
            ),
        )
    except Exception as error:  # the tokenizers library raises plain exceptions
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"The tokenizer {name_or_path} needs custom code, which is not run without trust_remote_code."
            ) from None
        if Path(name_or_path).is_dir() and not has_tokenizer(name_or_path):
            names = " or ".join(VOCABULARIES[:2])
            raise FileNotFoundError(
                f"{name_or_path} has no tokenizer, that is, no {names}: save it there as well."
            ) from error
        kind = OSError if isinstance(error, OSError) else ValueError
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise kind(f"The tokenizer {name_or_path} cannot be read ({reason}). Save it again.") from error
    check_tokenizer(tokenizer, f"The tokenizer {name_or_path}")
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # a default of transformers
        raise ValueError(f"The tokenizer {name_or_path} has no vocabulary: its tokenizer.json is missing or empty.")
    tokenizer.backend_tokenizer.no_padding()  # a tokenizer.json may pad and truncate to a length of its own
    tokenizer.backend_tokenizer.no_truncation()
    _check_encoding(tokenizer, name_or_path)
    if model_max_length is not None:
        tokenizer.model_max_length = model_max_length
    return tokenizer


def check_tokenizer(tokenizer: Any, what: str = "The tokenizer", fast: bool = True) -> None:
    """Raise `ValueError`, which begins with `what`, for anything but a tokenizer with the special tokens that BERT's
    input needs; a `fast` one, if its backend is needed."""
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ValueError(f"{what} must be loaded, as with AutoTokenizer.from_pretrained, not {tokenizer!r:.80}.")
    ids = {f"[{name.upper()}]": getattr(tokenizer, f"{name}_token_id") for name in ("cls", "sep", "mask", "pad")}
    missing = [token for token, number in ids.items() if number is None]
    if missing:
        raise ValueError(
            f"{what} has no {', '.join(missing)} token, which BERT's input needs: its tokenizer_config.json must have a "
            "fitting tokenizer_class, and name these tokens."
        )
    for token, number in ids.items():
        same = [other for other in ids if ids[other] == number and other != token]
        if same or number == tokenizer.unk_token_id:
            others = ", ".join(same or ["[UNK]"])
            raise ValueError(f"{what} has one token for {token} and {others}: they must differ.")
    if fast and not tokenizer.is_fast:
        raise ValueError(f"{what} has no tokenizer.json, so there is no fast tokenizer.")


def _check_encoding(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Raise `ValueError` if the tokenizer cannot encode a pair of texts with unknown words, within its ids and length."""
    try:
        encoding = tokenizer.backend_tokenizer.encode("a", UNKNOWN_WORDS)
    except Exception as error:  # a plain exception of the tokenizers library
        raise ValueError(f"The tokenizer {name} cannot encode unknown words: {one_line(error)}.") from error
    entries = vocabulary_size(tokenizer)
    if max(encoding.ids) >= entries:
        raise ValueError(f"The tokenizer {name} gives the id {max(encoding.ids)}, but has {entries} entries.")
    length = tokenizer.model_max_length
    if not isinstance(length, (int, float)) or not length >= len(encoding.ids):
        raise ValueError(f"The tokenizer {name} has the model_max_length {length!r}, which leaves no room for a text.")


def copy_with_length(tokenizer: PreTrainedTokenizerBase, model_max_length: int) -> PreTrainedTokenizerBase:
    """A copy of the tokenizer, for texts of up to `model_max_length` tokens."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_max_length = model_max_length
    return tokenizer


def add_tokens(tokenizer: PreTrainedTokenizerBase, lines: Iterable[str]) -> PreTrainedTokenizerBase:
    """A copy of a WordPiece or word-level tokenizer with one more vocabulary entry per line: a word, or `##` and a
    continuation. Like all entries, they are matched longest first. Entries that exist already are skipped.

    Raises `ValueError` for a line that the tokenizer splits into words, and if no entry is new.
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
                f"Line {line_number}: this tokenizer splits {line.strip()!r} into {len(words)} words: one per line."
            )
        token = prefix + text if continuation else text
        if words and token not in vocab:
            vocab[token] = number
            number += 1
    if len(vocab) == before:
        raise ValueError("There is no new token: the vocabulary has all of them.")
    with tempfile.TemporaryDirectory() as directory:
        tokenizer.save_pretrained(directory)
        Path(directory, "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        return cast(PreTrainedTokenizerFast, AutoTokenizer.from_pretrained(directory))


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """Size of the word embeddings: the highest id plus one. `len(tokenizer)` is smaller if ids have gaps."""
    return max(tokenizer.get_vocab().values()) + 1


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, vocab_size: int, name: str = "") -> None:
    """Raise `ValueError` if the tokenizer has ids beyond the `vocab_size` of the model of this `name`, and warn if it
    has far fewer, which is seldom the model's own."""
    entries, owner = vocabulary_size(tokenizer), f" of {name}" if name else ""
    if entries > vocab_size:
        raise ValueError(f"The tokenizer{owner} has {entries} entries, but the model's vocab_size is {vocab_size}.")
    if name and entries < 0.9 * vocab_size:
        logger.warning(
            f"The tokenizer of {name} has {entries:,} entries, but the model's vocab_size is {vocab_size:,}: make sure that "
            "it is the model's"
        )


def segment_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """Segment ids (`token_type_ids`) of texts A and B: BERT's 0 and 1, unless the tokenizer has others."""
    pair = tokenizer.backend_tokenizer.encode("a", "b")
    ids = dict(zip(pair.sequence_ids, pair.type_ids, strict=True))
    return (ids[0], ids[1]) if ids[0] != ids[1] else (0, 1)  # equal for models without segments, such as RoBERTa


def describe_vocabulary(tokenizer: PreTrainedTokenizerBase) -> str:
    """The size of a vocabulary, and a checksum of its tokens and their ids."""
    vocabulary = repr(sorted(tokenizer.get_vocab().items())).encode()
    return f"{len(tokenizer)} entries, CRC-32 {crc32(vocabulary):08x}"


def gives_same_input(tokenizer: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """Whether both tokenizers have the same vocabulary and segment ids, so that a model takes the input of either."""
    return tokenizer.get_vocab() == other.get_vocab() and segment_ids(tokenizer) == segment_ids(other)


def continues_word(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Whether each token id continues the word of the token before it: (vocabulary size,) bool.

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
    """The tokenizer for plain text, without truncation or padding. A "[SEP]" in the text is plain text; only the
    unknown token is recognized, as a corpus may contain it."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content |= {"truncation": None, "padding": None, "post_processor": None}
    for token in content["added_tokens"]:
        token["special"] = token["special"] and token["content"] != tokenizer.unk_token
    encoder = Tokenizer.from_str(json.dumps(content))
    encoder.encode_special_tokens = True
    return encoder
