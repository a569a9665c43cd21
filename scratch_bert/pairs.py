"""Documents in, rows for both of BERT's objectives out: [CLS] A [SEP] B [SEP], where B follows A or does not."""

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from .tokenizer import TokenizedCorpus


NUM_SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]


def build_pairs(
    corpus: TokenizedCorpus, max_seq_length: int, short_seq_prob: float, rng: np.random.Generator
) -> np.ndarray:
    """One pass over the corpus as sentence pairs (paper, appendix A.2): (rows, 5) int64.

    A row is `a_start, a_end, b_start, b_end, label`: the two segments as ranges of `corpus.tokens`, and 0 if B is
    what follows A, 1 if it is from another document. As in BERT's published code, sentences are gathered until the
    row is full, A is a random number of them, and B is the rest, or sentences from elsewhere that fill the row; then
    the sentences gathered for B go back. Here

    - two sentences are gathered where there are two, however long the first, so that B can be its continuation;
    - a row is shortened with probability `short_seq_prob` each (there: all rows of a document at once);
    - a random B starts at a sentence drawn evenly from all other documents (there: at a document drawn evenly, so
      that short documents come up too often, and now and then it was A's own);
    - the labels stay in balance: a coin decides while both kinds are equally many, otherwise the rarer kind is next.
      A lone last sentence can only be an A with a random B, and this makes up for it.
    """
    limit = max_seq_length - NUM_SPECIAL_TOKENS
    offsets = corpus.sentence_offsets
    rows = []
    surplus = 0  # continuations minus random pairs so far
    for document in range(corpus.num_documents):
        first, last = (int(sentence) for sentence in corpus.document_offsets[document : document + 2])
        start = first
        while start < last:
            target = int(rng.integers(2, limit + 1)) if rng.random() < short_seq_prob else limit
            # Sentences start..end hold the target's tokens, or run to the end of the document; two if there are two.
            end = min(int(np.searchsorted(offsets, offsets[start] + target)), last)
            end = max(end, min(start + 2, last))
            split = int(rng.integers(start + 1, end)) if end - start > 1 else end  # A is start..split
            a = int(offsets[start]), int(offsets[split])
            if split < end and (surplus < 0 or (surplus == 0 and rng.random() < 0.5)):
                b, label, surplus, start = (int(offsets[split]), int(offsets[end])), 0, surplus + 1, end
            else:
                b = _random_segment(corpus, first, last, target - (a[1] - a[0]), rng)
                label, surplus, start = 1, surplus - 1, split
            rows.append((*_truncate(a, b, limit, rng), label))
    return np.array(rows, dtype=np.int64)


def _random_segment(
    corpus: TokenizedCorpus, first: int, last: int, target: int, rng: np.random.Generator
) -> tuple[int, int]:
    """Whole sentences of `target` tokens or more, or up to their document's end, outside sentences first..last."""
    sentence = int(rng.integers(corpus.num_sentences - (last - first)))
    if sentence >= first:
        sentence += last - first
    document_end = corpus.document_offsets[np.searchsorted(corpus.document_offsets, sentence, side="right")]
    begin = corpus.sentence_offsets[sentence]
    end = max(int(np.searchsorted(corpus.sentence_offsets, begin + target)), sentence + 1)
    return int(begin), int(corpus.sentence_offsets[min(end, document_end)])


def _truncate(
    a: tuple[int, int], b: tuple[int, int], limit: int, rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Drop tokens from the longer segment, each from its front or its back by a coin, until both fit in `limit`."""
    lengths = [a[1] - a[0], b[1] - b[0]]
    excess = sum(lengths) - limit
    if excess <= 0:
        return *a, *b
    longer = 0 if lengths[0] > lengths[1] else 1
    drops = [0, 0]
    drops[longer] = min(excess, abs(lengths[0] - lengths[1]))  # down to the shorter's length, then in turns
    rest = excess - drops[longer]
    drops = [drops[0] + rest // 2, drops[1] + rest - rest // 2]
    fronts = rng.binomial(drops, 0.5)
    return (
        a[0] + int(fronts[0]),
        a[1] - drops[0] + int(fronts[0]),
        b[0] + int(fronts[1]),
        b[1] - drops[1] + int(fronts[1]),
    )


class SentencePairDataset(Dataset):
    """Rows for `ScratchBertForPreTraining`, new ones each epoch, found by index and built when asked for.

    A row holds `input_ids`, `token_type_ids`, `special_tokens_mask` (1 at special tokens, [UNK] among them, which are
    never masked), `next_sentence_label` (0: B follows A, 1: it does not) and `mask_seed`, from which the collator
    masks a batch. Everything follows from (seed, epoch, index): rows are the same in any process and after a resume.
    Every epoch has as many rows as the first, so that Trainer's count of steps holds.

    Raises `ValueError` for a corpus of fewer than two documents, or a `max_seq_length` without room for two segments.
    """

    def __init__(
        self,
        corpus: TokenizedCorpus,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int = 128,
        short_seq_prob: float = 0.1,
        seed: int = 0,
    ):
        if corpus.num_documents < 2:
            raise ValueError(
                "Sentence pairs need at least two documents, because a random second segment comes from another one; "
                "this text has one. If it is several documents in one file, part them by blank lines."
            )
        if max_seq_length < NUM_SPECIAL_TOKENS + 2:
            raise ValueError(f"max_seq_length must be {NUM_SPECIAL_TOKENS + 2} or more, got {max_seq_length}.")
        if not 0 <= short_seq_prob <= 1:
            raise ValueError(f"short_seq_prob must be between 0 and 1, got {short_seq_prob}.")
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.short_seq_prob = short_seq_prob
        self.seed = seed
        self.is_special = np.zeros(len(tokenizer), dtype=np.int64)
        self.is_special[tokenizer.all_special_ids] = 1
        self.num_rows = self.epoch = None
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Build the rows of an epoch: shuffled, then cut or repeated to the first epoch's number."""
        if epoch == self.epoch:
            return
        rng = np.random.default_rng((self.seed, epoch))
        pairs = rng.permutation(build_pairs(self.corpus, self.max_seq_length, self.short_seq_prob, rng))
        self.num_rows = self.num_rows or len(pairs)
        self.pairs = np.resize(pairs, (self.num_rows, pairs.shape[1]))  # (rows, 5), as build_pairs says
        self.epoch = epoch

    def summary(self) -> str:
        """The rows' number, and the share of true continuations: far from half if documents have one sentence."""
        share = (self.pairs[:, 4] == 0).mean()
        return f"{len(self):,} rows of up to {self.max_seq_length} tokens, {share:.0%} true continuations"

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, index: int) -> dict[str, list[int] | int]:
        a_start, a_end, b_start, b_end, label = self.pairs[index].tolist()
        tokens, cls, sep = self.corpus.tokens, [self.tokenizer.cls_token_id], [self.tokenizer.sep_token_id]
        input_ids = np.concatenate([cls, tokens[a_start:a_end], sep, tokens[b_start:b_end], sep])
        return {
            "input_ids": input_ids.tolist(),
            "token_type_ids": [0] * (a_end - a_start + 2) + [1] * (b_end - b_start + 1),
            "special_tokens_mask": self.is_special[input_ids].tolist(),
            "next_sentence_label": label,
            "mask_seed": hash((self.seed, self.epoch, int(index))) & 0x7FFFFFFF,
        }
