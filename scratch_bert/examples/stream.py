"""Examples of a text that is read during training, without a copy."""

import zlib
from collections.abc import Iterator
from dataclasses import replace

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from ..corpus.corpus import TokenizedCorpus
from ..corpus.encoder import mask_seed
from ..objectives import Objective, find_objective
from ..text.formats import TextSource


def stream_examples(
    source: TextSource,
    buffer: int,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    short_seq_prob: float,
    seed: int,
    objective: str | Objective = "nsp",
    single_segment_prob: float = 0.0,
    passes: int | None = None,
) -> datasets.IterableDataset:
    """Examples of a source that is read during training, like those of `SentencePairDataset`, but built from `buffer`
    documents at a time, which are shuffled in a buffer of that size. Each pass over the source has new examples.

    Without `passes`, the stream is endless: for Trainer, it is one epoch, in which a run can be resumed. The source's
    shards are divided among workers and machines.
    """
    arguments = {"shards": source.shards, "source": source}
    documents = datasets.IterableDataset.from_generator(_documents, gen_kwargs=arguments).repeat(passes)
    objective = find_objective(objective)
    encode = objective.encoder(tokenizer)

    def examples_of(batch: dict[str, list]) -> dict[str, list]:
        start = zlib.crc32(repr([document[0] for document in batch["sentences"]]).encode())
        rng = np.random.default_rng((seed, start))
        # A short stream repeats within a batch: sorting puts copies of a document next to each other.
        corpus = TokenizedCorpus.from_documents(sorted(batch["sentences"]), tokenizer)
        pairs = objective.build_pairs(corpus, max_seq_length, short_seq_prob, rng, single_segment_prob)
        pairs = rng.permutation(pairs)
        encoded = [encode(corpus.tokens, pair) for pair in pairs]
        columns = {name: [example[name] for example in encoded] for name in (encoded[0] if encoded else ())}
        return columns | {"mask_seed": [mask_seed(seed, start, number) for number in range(len(pairs))]}

    # Reading several shards at a time would take as many documents from a small one as from a large one.
    shuffled = documents.shuffle(seed=seed, buffer_size=buffer, max_buffer_input_shards=1)
    return shuffled.map(examples_of, batched=True, batch_size=buffer, remove_columns="sentences")


def _documents(shards: list, source: TextSource) -> Iterator[dict[str, list[str]]]:
    return ({"sentences": document} for document in replace(source, shards=shards).documents())
