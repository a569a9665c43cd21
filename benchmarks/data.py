#!/usr/bin/env python
"""Measure the speed and memory of the path from text to training batches. The text options are those of pretrain.py.

Speeds are medians. Encoding is timed alternately with the bare tokenizers library. Memory is the growth of a process
since its start, without the pages of mapped files, which the system can drop at any time."""

import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, RandomSampler
from transformers import AutoTokenizer

from scratch_bert.corpus.corpus import TokenizedCorpus
from scratch_bert.examples.collator import PretrainingCollator
from scratch_bert.examples.dataset import SentencePairDataset
from scratch_bert.objectives import OBJECTIVES
from scratch_bert.pretraining.sources import find_texts, sequence_length, trained_tokenizer
from scratch_bert.text.formats import TextSource
from scratch_bert.training.counting import CountingCollator
from scratch_bert_cli.command_line import read_options
from scratch_bert_cli.process import script
from scratch_bert_options.data import DataOptions
from scratch_bert_options.declare import OptionGroup, option, options


BATCH_SIZE, BATCH_SIZE_ON_GPUS = 32, 256


@options
class BenchmarkOptions(OptionGroup, group="Options"):
    repeats: int = option(5, "Number of measurements of each speed.")
    memory_megabytes: list[int] | None = option(
        None, "Sizes of text to measure the memory for, such as 20 500; the text is repeated to reach them."
    )
    workers: list[int] | None = option(
        None, f"Numbers of workers to measure the data loader with, in batches of {BATCH_SIZE_ON_GPUS} as for a GPU."
    )
    json: bool = option(False, "Print the results as JSON, and nothing else.")


def timed(function, *arguments) -> tuple[float, Any]:
    """Seconds that a call takes, and its result."""
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def encode(tokenizer, sentences: list[str]) -> None:
    tokenizer.backend_tokenizer.encode_batch(sentences, add_special_tokens=False)


def build_epoch(corpus: TokenizedCorpus, max_seq_length: int) -> None:
    for block in corpus.blocks():
        OBJECTIVES["nsp"].build_pairs(block, max_seq_length, 0.1, np.random.default_rng(0))


def fetch_epoch(dataset: SentencePairDataset, collator: PretrainingCollator) -> None:
    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    for start in range(0, len(order), BATCH_SIZE):
        collator([dataset[index] for index in order[start : start + BATCH_SIZE]])


def loader_speed(dataset: SentencePairDataset, collator: PretrainingCollator, workers: int) -> float:
    """Tokens per second of 100 batches from a data loader, after its first."""
    sampler = RandomSampler(dataset, num_samples=101 * BATCH_SIZE_ON_GPUS)
    options = {"num_workers": workers, "collate_fn": CountingCollator(collator)}
    loader = DataLoader(dataset, BATCH_SIZE_ON_GPUS, sampler=sampler, **options)
    batches = iter(loader)
    next(batches)
    start = time.perf_counter()
    tokens = sum(sum(batch["sequence_lengths"]) for batch in batches)
    return tokens / (time.perf_counter() - start)


def measure_speeds(
    source: TextSource, tokenizer, max_seq_length: int, repeats: int, workers: list[int]
) -> dict[str, float]:
    """Tokens per second of each step from text to batches."""
    sentences = [sentence for document in source.documents() for sentence in document]
    collator, threads = PretrainingCollator(tokenizer), torch.get_num_threads()
    encoding, corpus_building, pair_building, batches = [], [], [], []
    loading: dict[int, list[float]] = {number: [] for number in workers}
    for _ in range(repeats):
        encoding.append(timed(encode, tokenizer, sentences)[0])
        with tempfile.TemporaryDirectory() as directory:
            seconds, corpus = timed(TokenizedCorpus.from_source, source, tokenizer, directory)
            corpus_building.append(seconds)
            pair_building.append(timed(build_epoch, corpus, max_seq_length)[0])
            dataset = SentencePairDataset(corpus, tokenizer, max_seq_length)
            torch.set_num_threads(1)  # as in a worker
            batches.append(dataset.lengths().sum() / timed(fetch_epoch, dataset, collator)[0])
            for number in workers:
                loading[number].append(loader_speed(dataset, collator, number))
            torch.set_num_threads(threads)
    tokens = corpus.num_tokens
    return {
        "tokens": tokens,
        "encode_batch": tokens / statistics.median(encoding),
        "text_to_token_ids": tokens / statistics.median(corpus_building),
        "ratio_to_encode_batch": statistics.median(np.divide(encoding, corpus_building).tolist()),
        "pairs_of_an_epoch": tokens / statistics.median(pair_building),
        "fetch_and_collate": statistics.median(batches),
        **{f"loader_with_{number}_workers": statistics.median(speeds) for number, speeds in loading.items()},
    }


def peak_memory(source: TextSource, tokenizer_directory: str, max_seq_length: int) -> float:
    """Peak MiB above the start of this process, from text to an epoch's pairs and 1,000 batches."""
    peak = start = anonymous_memory()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, anonymous_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_directory)
    with tempfile.TemporaryDirectory() as directory:
        corpus = TokenizedCorpus.from_source(source, tokenizer, directory)
        dataset = SentencePairDataset(corpus, tokenizer, max_seq_length)
        collator = PretrainingCollator(tokenizer)
        rng = np.random.default_rng(0)
        for _ in range(1000):
            collator([dataset[index] for index in rng.integers(len(dataset), size=BATCH_SIZE).tolist()])
    done.set()
    watcher.join()
    return (peak - start) / 1024


def anonymous_memory() -> int:
    """KiB of this process's memory, without mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))


def measure_memory(source: TextSource, tokenizer, max_seq_length: int, megabytes: int) -> float:
    """`peak_memory` in a fresh process, for the source's shards, repeated until they reach the size."""
    shards, size = [], 0
    sizes = [sum(len(text.encode()) for text in replace(source, shards=[shard])) for shard in source.shards]
    for shard, bytes_in_shard in cycle(zip(source.shards, sizes, strict=True)):
        shards.append(shard)
        size += bytes_in_shard
        if size >= megabytes * 1e6:
            break
    with tempfile.TemporaryDirectory() as directory:
        tokenizer.save_pretrained(directory)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return pool.submit(peak_memory, replace(source, shards=shards), directory, max_seq_length).result()


@script
def main() -> None:
    data_args, args = read_options(DataOptions, BenchmarkOptions, description=__doc__)
    source, _ = find_texts(data_args)
    tokenizer = trained_tokenizer(data_args, source)
    tokens = sequence_length(data_args, TokenizedCorpus.from_source(source, tokenizer, data_args.cache_dir))
    results = measure_speeds(source, tokenizer, tokens, args.repeats, args.workers or [])
    for megabytes in args.memory_megabytes or []:
        results[f"mib_for_{megabytes}_mb"] = measure_memory(source, tokenizer, tokens, megabytes)
    if args.json:
        print(json.dumps(results, indent=2))
        return
    names = {
        "tokens": "tokens of the text",
        "encode_batch": "tokenizers' encode_batch, tokens/s",
        "text_to_token_ids": "text to token ids on disk, tokens/s",
        "ratio_to_encode_batch": "  ratio of the two",
        "pairs_of_an_epoch": "pairs of an epoch, tokens/s",
        "fetch_and_collate": "fetch and collate, tokens/s",
    }
    names |= {
        f"loader_with_{number}_workers": f"data loader, {number} workers, tokens/s" for number in args.workers or []
    }
    for key, value in results.items():
        name = names.get(key) or f"peak memory for {key.split('_')[2]} MB of text, MiB"
        print(f"{name:<44}{value:>14,.2f}" if value < 100 else f"{name:<44}{value:>14,.0f}")


if __name__ == "__main__":
    main()
