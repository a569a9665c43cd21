"""A model and its answers for texts, as plain data: predictions for masked words, next sentences, attention,
embeddings, and the outputs of fine-tuned heads."""

import re
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from tokenizers import Encoding
from torch.nn import functional as F

from scratch_bert.checkpoints.open import load_config, open_pretrained
from scratch_bert.corpus.tokenizer import load_tokenizer
from scratch_bert.finetuning.tasks.spans import merge_tags
from scratch_bert.text import is_word


MASK = "[MASK]"  # what users type, whatever a model's own mask token is
MAX_CHARACTERS = 200_000  # of a text: longer texts take seconds to tokenize
MAX_ATTENTION = 48  # tokens: the drawing has a cell for each pair of them
MAX_TEXTS = 16  # to compare, or to choose from
MAX_ANSWER_LENGTH = 30  # tokens, as in fine-tuning
REFERENCE_TEXTS, REFERENCE_WORDS = 64, 12  # random texts, whose mean embedding is the origin


@dataclass(frozen=True)
class Answer:
    value: Any
    texts: tuple[str, ...]  # the part of each text that the model has read: all of it, or the beginning
    left_out: int  # the number of truncated tokens


class Model:
    """A checkpoint with its tokenizer, opened once; safe to use from several threads.

    `heads` are those that the checkpoint has, by the suffix of their Auto class, such as MaskedLM; attention and
    embeddings need none.
    Texts that are too long for the model are truncated. All methods raise `ValueError`, which says what to change, for
    texts that are empty or have more than `MAX_CHARACTERS`, and unless 2 to `MAX_TEXTS` texts are compared.

    Raises `ValueError` or `OSError` if the checkpoint is unreadable, or needs custom code without `trust_remote_code`.
    """

    def __init__(self, name: str, trust_remote_code: bool = False):
        self.name = self.title = name
        config = load_config(name, trust_remote_code=trust_remote_code)
        tokenizer = load_tokenizer(name, trust_remote_code, vocab_size=config.vocab_size)
        options = {"trust_remote_code": trust_remote_code, "attn_implementation": "eager"}  # which returns weights
        self.model, self.heads = open_pretrained(name, config, **options)
        self.model.requires_grad_(False)
        self.config = self.model.config
        self.max_length = min(config.max_position_embeddings, tokenizer.model_max_length)
        self.mask_token, self.mask_token_id = tokenizer.mask_token, tokenizer.mask_token_id
        self.unk_token_id, self.input_names = tokenizer.unk_token_id, tokenizer.model_input_names
        # Not the tokenizer itself: its calls set truncation, which all threads share.
        self.tokenizer = tokenizer.backend_tokenizer

    def at(self, moment: object) -> "Model":
        """This model, at any moment; see `RunModel`."""
        return self

    # ------------------------------------------------------------------------------------------------ pretrained heads

    def fill_mask(self, text: str, k: int = 5) -> Answer:
        """The top-k tokens and their probabilities for each mask, the model's own or `MASK`:
        [[(token, probability), …], …]."""
        encoding, texts, left_out = self._encode(re.sub(re.escape(MASK), lambda _: self.mask_token, text, flags=re.I))
        masks = [position for position, token in enumerate(encoding.ids) if token == self.mask_token_id]
        if not masks:
            where = " in the part of this long text that the model can read" if left_out else ""
            raise ValueError(f"There is no mask{where}: write {MASK} in place of a word.")
        logits = self.model(**self._inputs(encoding))[0][0, masks]  # (M, V)
        top = logits.softmax(-1).topk(min(k, logits.shape[-1]))
        predictions = [
            [(self._token(token), probability) for token, probability in zip(*row, strict=True)]
            for row in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]
        return Answer(predictions, texts, left_out)

    def score_words(self, text: str) -> Answer:
        """The log-probability of each word, and the best guess, if it alone is masked: [(start, end, log-probability,
        guess), …] (Salazar et al., 2020). The tokens of a word are masked together; its log-probability is their sum.
        Words that the vocabulary cannot spell are left out. At most `MAX_ATTENTION` tokens are read."""
        encoding, texts, left_out = self._encode(text, at_most=MAX_ATTENTION)
        words = [word for word in words_of(encoding) if self.unk_token_id not in [encoding.ids[n] for n in word[0]]]
        if not words:
            raise ValueError("The model's vocabulary has no word of this text.")
        inputs = {name: ids.repeat(len(words), 1) for name, ids in self._inputs(encoding).items()}
        for row, (tokens, _, _) in enumerate(words):
            inputs["input_ids"][row, tokens] = self.mask_token_id
        log_probs = self.model(**inputs)[0].log_softmax(-1)  # (words, S, V)
        scored = []
        for row, (tokens, start, end) in enumerate(words):
            own = log_probs[row, tokens, [encoding.ids[token] for token in tokens]]
            guess = [self._token(number) for number in log_probs[row, tokens].argmax(-1).tolist()]
            scored.append((start, end, own.sum().item(), " ".join(guess).replace(" ##", "")))
        return Answer(scored, texts, left_out)

    def next_sentence(self, a: str, b: str) -> Answer:
        """The probability that B follows A, and that A follows B."""
        encoding, texts, left_out = self._encode(a, b)
        reverse, _, _ = self._encode(b, a)
        logits = [self.model(**self._inputs(pair))[-1] for pair in (encoding, reverse)]  # of two heads, the second
        return Answer(tuple(pair.softmax(-1)[0, 0].item() for pair in logits), texts, left_out)

    # ----------------------------------------------------------------------------------------------------- the encoder

    def attention(self, text: str) -> Answer:
        """The first `MAX_ATTENTION` tokens, and their attention weights (layers, heads, S, S)."""
        encoding, texts, left_out = self._encode(text, at_most=MAX_ATTENTION)
        outputs = self.model.base_model(**self._inputs(encoding), output_attentions=True)
        if not outputs.attentions:
            raise ValueError(f"The code of {self.name} does not return its attention.")
        return Answer((encoding.tokens, torch.cat(outputs.attentions)), texts, left_out)

    def embeddings(self, texts: list[str]) -> Answer:
        """The cosine similarities (N, N) of the texts' embeddings, and their first two principal components (N, 2).

        An embedding is the mean of the last hidden states, minus that of random texts: the part that all texts share
        would make them all similar (Ethayarajh, 2019).
        """
        encodings, texts, left_out = self._encode_each(texts)
        vectors = torch.stack([self._mean_state(encoding) for encoding in encodings]) - self._origin  # (N, H)
        similarities = F.normalize(vectors) @ F.normalize(vectors).T
        u, s, _ = torch.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
        return Answer((similarities, (u * s)[:, :2]), texts, left_out)

    def _mean_state(self, encoding: Encoding) -> torch.Tensor:
        return self.model.base_model(**self._inputs(encoding)).last_hidden_state[0].mean(0)  # (H,)

    @cached_property
    def _origin(self) -> torch.Tensor:
        """The mean embedding of texts of random words."""
        words = [token for token in sorted(self.tokenizer.get_vocab()) if is_word(token)] or ["a"]
        seeded = torch.Generator().manual_seed(0)
        drawn = torch.randint(len(words), (REFERENCE_TEXTS, REFERENCE_WORDS), generator=seeded)
        texts = (" ".join(words[number] for number in row) for row in drawn.tolist())
        return torch.stack([self._mean_state(self._encode(text)[0]) for text in texts]).mean(0)

    def nearest_tokens(self, word: str) -> Answer:
        """The ten tokens with the embeddings most similar to the word's, the mean of its tokens': [(token, cosine), …].
        The mean of all tokens is subtracted first."""
        encoding, texts, left_out = self._encode(word)
        own = torch.tensor(encoding.ids)[torch.tensor(encoding.special_tokens_mask) == 0]
        table = self.model.get_input_embeddings().weight  # (V, E)
        vectors = F.normalize(table - table.mean(0))
        cosines = vectors @ F.normalize(vectors[own].mean(0), dim=0)  # (V,)
        special = [number for number, token in self.tokenizer.get_added_tokens_decoder().items() if token.special]
        cosines[own] = -torch.inf
        cosines[[number for number in special if number < len(cosines)]] = -torch.inf
        top = cosines.topk(min(10, len(cosines)))
        found = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        return Answer([(self._token(token), cosine) for token, cosine in found if cosine > -1], texts, left_out)

    # ------------------------------------------------------------------------------------------------ fine-tuned heads

    @property
    def problem_type(self) -> str:
        """The problem type of a sequence classifier, by the number of labels if the config has none."""
        inferred = "regression" if self.config.num_labels == 1 else "single_label_classification"
        return self.config.problem_type or inferred

    def classify(self, text: str, pair: str = "") -> Answer:
        """The probability of each label, or its value in a regression: [(label, value), …]."""
        encoding, texts, left_out = self._encode(text, *([pair] if pair.strip() else []))
        logits = self.model(**self._inputs(encoding)).logits[0]  # (L,)
        if self.problem_type == "multi_label_classification":
            logits = logits.sigmoid()
        elif self.problem_type == "single_label_classification":
            logits = logits.softmax(-1)
        labels = [self.config.id2label[number] for number in range(len(logits))]
        return Answer(list(zip(labels, logits.tolist(), strict=True)), texts, left_out)

    def tag(self, text: str) -> Answer:
        """The labelled spans of the text that was read: [(start, end, label, probability), …]; see `merge_tags`."""
        encoding, texts, left_out = self._encode(text)
        best = self.model(**self._inputs(encoding)).logits[0].softmax(-1).max(-1)  # (S,)
        labels = [self.config.id2label[number] for number in best.indices.tolist()]
        # The label of a word is that of its first token, as in fine-tuning.
        words = [
            (start, end, labels[first], best.values[first].item()) for (first, *_), start, end in words_of(encoding)
        ]
        return Answer(merge_tags(words), texts, left_out)

    def answer(self, question: str, context: str) -> Answer:
        """The best answer in the context, and the probability that there is none: (start, end, probability, that of no
        answer)."""
        encoding, texts, left_out = self._encode(question, context)
        outputs = self.model(**self._inputs(encoding))
        start, end = outputs.start_logits[0].log_softmax(-1), outputs.end_logits[0].log_softmax(-1)  # (S,)
        in_context = torch.tensor([segment == 1 for segment in encoding.sequence_ids])
        spans = torch.ones(len(start), len(start), dtype=torch.bool).triu().tril(MAX_ANSWER_LENGTH - 1)
        spans &= in_context[:, None] & in_context
        scores = (start[:, None] + end).masked_fill(~spans, -torch.inf)  # (S, S)
        first, last = divmod(scores.argmax().item(), len(start))
        characters = encoding.offsets[first][0], encoding.offsets[last][1]
        no_answer = start[0] + end[0]  # at [CLS]
        return Answer((*characters, scores[first, last].exp().item(), no_answer.exp().item()), texts, left_out)

    def choose(self, text: str, choices: list[str]) -> Answer:
        """The probability of each choice."""
        encodings, texts, left_out = self._encode_each(choices, after=(text,))
        scores = []
        for encoding in encodings:
            inputs = {name: ids[None] for name, ids in self._inputs(encoding).items()}  # (1, 1, S)
            scores.append(self.model(**inputs).logits[0, 0])
        return Answer(torch.stack(scores).softmax(0).tolist(), texts, left_out)

    # ------------------------------------------------------------------------------------------------------ tokenizing

    def _encode(self, *texts: str, at_most: int = sys.maxsize) -> tuple[Encoding, tuple[str, ...], int]:
        """The encoding of a text or a pair, the part of each text in it, and the number of truncated tokens."""
        max_length = min(self.max_length, at_most)
        for text in texts:
            if len(text) > MAX_CHARACTERS:
                raise ValueError(f"This text has {len(text):,} characters: shorten it to {MAX_CHARACTERS:,} at most.")
        texts = tuple(clean(text) for text in texts)
        # Each text separately: for a long pair, tokenizers builds all pairs of overflowing parts, in gigabytes.
        offsets = [self.tokenizer.encode(text, add_special_tokens=False).offsets for text in texts]
        if not all(offsets):
            raise ValueError("A text is empty: write some words.")
        counts = [len(tokens) for tokens in offsets]
        kept = truncated_lengths(max_length - self.tokenizer.num_special_tokens_to_add(len(texts) == 2), counts)
        texts = tuple(
            text if count == total else text[: tokens[count - 1][1]]
            for text, tokens, count, total in zip(texts, offsets, kept, counts, strict=True)
        )
        encoding = self.tokenizer.encode(*texts)
        encoding.truncate(max_length)  # some tokenizers split a truncated text into more tokens
        return encoding, texts, sum(counts) - sum(kept)

    def _encode_each(
        self, texts: list[str], after: tuple[str, ...] = ()
    ) -> tuple[list[Encoding], tuple[str, ...], int]:
        """`_encode` for each of several texts, the second of a pair if there is one to come `after`."""
        if not 2 <= len(texts) <= MAX_TEXTS:
            raise ValueError(f"Write from 2 to {MAX_TEXTS} texts, one per line: there are {len(texts)}.")
        encodings, read, left_out = zip(*(self._encode(*after, text) for text in texts), strict=True)
        return list(encodings), tuple(parts[-1] for parts in read), sum(left_out)

    def _inputs(self, encoding: Encoding) -> dict[str, torch.Tensor]:
        """The inputs that the model takes, (1, S) each."""
        ids, segments, mask = encoding.ids, encoding.type_ids, encoding.attention_mask
        inputs = {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}
        return {name: torch.tensor([values]) for name, values in inputs.items() if name in self.input_names}

    def split_word(self, word: str) -> list[str]:
        """The word's tokens."""
        return self.tokenizer.encode(word, add_special_tokens=False).tokens

    def _token(self, number: int) -> str:
        return self.tokenizer.id_to_token(number) or f"id {number}"  # a vocab_size may exceed the vocabulary


def clean(text: str) -> str:
    """`text` without lone surrogates, which browsers may send but UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def words_of(encoding: Encoding) -> list[tuple[list[int], int, int]]:
    """The positions of each word's tokens, and where it starts and ends in the text."""
    words: dict[int, list[int]] = {}
    for position, word in enumerate(encoding.word_ids):
        if word is not None:  # not special
            words.setdefault(word, []).append(position)
    return [(tokens, encoding.offsets[tokens[0]][0], encoding.offsets[tokens[-1]][1]) for tokens in words.values()]


def truncated_lengths(room: int, counts: list[int]) -> list[int]:
    """The number of tokens to keep of each text, longest first: with room for 10, 3 and 20 give 3 and 7."""
    kept = [0] * len(counts)
    for done, index in enumerate(sorted(range(len(counts)), key=counts.__getitem__)):
        kept[index] = min(counts[index], room // (len(counts) - done))
        room -= kept[index]
    return kept
