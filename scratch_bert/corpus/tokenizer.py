"""Tokenizers: loaded, checked and described."""

import copy
import json
import re
import tempfile
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..logs import logger
from ..repository import find_file, one_line, read_json
from ..text import MAX_WORD


VOCABULARIES = ["tokenizer.json", "vocab.txt", "vocab.json"]  # and those of other models
VOCABULARIES += ["spiece.model", "sentencepiece.bpe.model", "tokenizer.model"]
REBUILT = {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}  # by transformers, for BertTokenizer
UNKNOWN_WORDS = "ꙮ 𐍈"  # of Old Slavonic and Gothic


def has_tokenizer(name: str, revision: str | None = None) -> bool:
    """Whether the directory or Hub repository `name` has a file with the vocabulary of a tokenizer."""
    return any(find_file(name, file, revision) for file in VOCABULARIES)


def _infer_options(name: str, revision: str | None) -> dict[str, bool | str]:
    """What transformers must be told of a vocab.txt, as BERT's of 2018: the `tokenizer_type`, if no config is beside
    it; and not to lowercase the text for a cased vocabulary, if `do_lower_case` is not set. Of an uncased vocabulary,
    only special tokens have upper case, such as [UNK] and <S>."""
    names = ("vocab.txt", "tokenizer_config.json", "config.json")
    file, config, model_config = (find_file(name, part, revision) for part in names)
    if file is None or config and "do_lower_case" in read_json(config):
        return {}
    options: dict[str, bool | str] = {} if config or model_config else {"tokenizer_type": "bert"}
    cased = re.search(r"^(?![\[<]).*[A-Z]", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    logger.info(f"{file}: do_lower_case is not set, and the vocabulary is {'' if cased else 'un'}cased")
    return options | ({"do_lower_case": False} if cased else {})


def load_tokenizer(
    name_or_path: str,
    trust_remote_code: bool = False,
    revision: str | None = None,
    vocab_size: int | None = None,
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a local directory or a Hub repository, for a model of this `vocab_size`, if it is given.

    Raises `OSError` if it does not exist, and `ValueError` if it can't be read, has no vocabulary, lacks a special
    token that BERT's input needs, can't encode unknown words, is not a fast tokenizer, or as `check_vocabulary`.
    """
    if Path(name_or_path).is_dir() and not has_tokenizer(name_or_path):
        raise FileNotFoundError(f"{name_or_path} has no tokenizer, that is, no {' or '.join(VOCABULARIES[:2])}.")
    has_file = find_file(name_or_path, "tokenizer.json", revision)
    options = {} if has_file else _infer_options(name_or_path, revision)
    try:
        # A cast, as transformers declares that it may be None.
        tokenizer = cast(
            PreTrainedTokenizerFast,
            AutoTokenizer.from_pretrained(
                name_or_path, revision=revision, trust_remote_code=trust_remote_code, **options
            ),
        )
        if has_file and is_rebuilt_differently(tokenizer, has_file):
            names = tokenizer.model_input_names
            tokenizer = PreTrainedTokenizerFast.from_pretrained(
                name_or_path, revision=revision or "main", model_input_names=names
            )
        if tokenizer.is_fast:
            tokenizer.backend_tokenizer.encode("a", UNKNOWN_WORDS)
    except Exception as error:  # the tokenizers library raises plain exceptions
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(f"The tokenizer {name_or_path} cannot be read: {one_line(error)}") from error
    check_tokenizer(tokenizer, f"The tokenizer {name_or_path}")
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # a default of transformers
        raise ValueError(f"The tokenizer {name_or_path} has no vocabulary: its tokenizer.json is missing or empty.")
    for name in ("is_local", "local_files_only"):  # of this loading, which would be saved
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.backend_tokenizer.no_padding()  # a tokenizer.json may pad and truncate to a length of its own
    tokenizer.backend_tokenizer.no_truncation()
    if vocab_size is not None:
        check_vocabulary(tokenizer, vocab_size, name_or_path)
    return tokenizer


def is_rebuilt_differently(tokenizer: PreTrainedTokenizerBase, file: Path) -> bool:
    """Whether a `BertTokenizer` lacks the normalizer or the pre-tokenizer of its tokenizer.json, such as one that a
    user has added: transformers builds BERT's own instead, and says nothing."""
    if type(tokenizer).__name__ != "BertTokenizer":
        return False
    saved = read_json(file)
    return any((saved.get(part) or {}).get("type") != kind for part, kind in REBUILT.items())


def check_tokenizer(tokenizer: Any, what: str = "The tokenizer", fast: bool = True) -> None:
    """Raise `ValueError`, which begins with `what`, for anything but a tokenizer with the special tokens that BERT's
    input needs; a `fast` one, if its backend is needed."""
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ValueError(f"{what} must be loaded, as with AutoTokenizer.from_pretrained, not {tokenizer!r:.80}.")
    ids = {f"[{name.upper()}]": getattr(tokenizer, f"{name}_token_id") for name in ("cls", "sep", "mask", "pad")}
    if missing := [token for token, number in ids.items() if number is None]:
        raise ValueError(
            f"{what} has no {', '.join(missing)} token, which BERT's input needs: name it in tokenizer_config.json."
        )
    ids["[UNK]"] = tokenizer.unk_token_id
    if len(set(ids.values())) < len(ids):
        raise ValueError(f"{what} has one id for two special tokens: {ids}.")
    if fast and not tokenizer.is_fast:
        raise ValueError(f"{what} has no tokenizer.json, so there is no fast tokenizer.")


def copy_with_length(tokenizer: PreTrainedTokenizerBase, model_max_length: int) -> PreTrainedTokenizerBase:
    """A copy of the tokenizer, for texts of up to `model_max_length` tokens."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_max_length = model_max_length
    return tokenizer


def add_tokens(tokenizer: PreTrainedTokenizerBase, lines: Iterable[str]) -> PreTrainedTokenizerBase:
    """A copy of a WordPiece or word-level tokenizer with one more vocabulary entry per line: a word, or `##` and a
    continuation. Like all entries, they are matched longest first. Entries that exist already are skipped: without
    new ones, it is the tokenizer itself.

    Raises `ValueError` for a line that the tokenizer splits into words.
    """
    backend = tokenizer.backend_tokenizer
    content = json.loads(backend.to_str())
    vocab = content["model"].get("vocab")
    if content["model"]["type"] not in ("WordPiece", "WordLevel"):
        raise ValueError(f"add_tokens needs a WordPiece or word-level tokenizer, not {content['model']['type']}.")
    prefix, size, added = content["model"].get("continuing_subword_prefix"), vocabulary_size(tokenizer), {}
    for number, line in enumerate(map(str.strip, lines), 1):
        start = prefix if prefix and line.startswith(prefix) else ""
        text = line.removeprefix(start)
        text = backend.normalizer.normalize_str(text) if backend.normalizer else text
        words = backend.pre_tokenizer.pre_tokenize_str(text)
        if len(words) > 1:
            raise ValueError(f"Line {number}: this tokenizer splits {line!r} into {len(words)} words: one per line.")
        if words and start + text not in vocab | added:
            added[start + text] = size + len(added)
    if not added:
        return tokenizer
    vocab.update(added)
    with tempfile.TemporaryDirectory() as directory:
        tokenizer.save_pretrained(directory)
        Path(directory, "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        return load_tokenizer(directory)


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
            f"The tokenizer of {name} has {entries:,} entries, but the model's vocab_size is {vocab_size:,}: make sure "
            "that they belong together"
        )


def check_unknown(share: float, texts: Iterable[str] = ()) -> None:
    """Warn if many of a text's tokens are unknown. Raises `ValueError`, which names the cause, if most are."""
    if share <= 0.1:
        return
    words = [word for text in islice(texts, 1000) for word in text.split()]
    in_long_words = sum(len(word) for word in words if len(word) > MAX_WORD) > sum(map(len, words)) / 2
    cause = (
        f"most of the text is in words of more than {MAX_WORD} characters, which the tokenizer does not split. Use "
        "tokenizer_type=character or 6-mer, as for proteins or DNA"
        if in_long_words
        else "the tokenizer is for other text, such as text in another script. Train one on this text"
    )
    message = f"{share:.0%} of the tokens are unknown: {cause}"
    if share > 0.5 or in_long_words:
        raise ValueError(f"{message}.")
    logger.warning(f"{message}. A model learns little from them, and predictions of them say little about it")


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
