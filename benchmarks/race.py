#!/usr/bin/env python
"""The race: in how few minutes does a new model learn English books to a number of bits per character?

    python benchmarks/race.py BOOKS recipes/race.yaml --output_dir runs/race

BOOKS is a directory with 24 books of Project Gutenberg, named by their numbers, such as pg1342.txt; the error for a
missing one says how to get it. Three of them are held out. A record is a recipe, or a change of the code, whose mean
over the seeds 1, 2 and 3 reaches the target in fewer minutes of training on two cores than the record so far: see
docs/race.md. --transformers_minutes 20 also trains transformers' BERT, as benchmarks/learning.py does, that long."""

import argparse
import logging
import re
import statistics
from copy import copy
from pathlib import Path

import transformers
from learning import Benchmark, LearningOptions, describe, machine, measure_all

from scratch_bert.atomic import write_json
from scratch_bert.logs import configure_logging
from scratch_bert.pretraining.arguments import pretraining_arguments
from scratch_bert_cli.command_line import read_options
from scratch_bert_cli.process import script
from scratch_bert_options.data import DataOptions
from scratch_bert_options.declare import option, options
from scratch_bert_options.model import ModelOptions


HELD_OUT = [46, 84, 2641]
BOOKS = [11, 98, 145, 174, 345, 394, 1259, 1342, 2160, 2542, 2591, 2701, 4085, 5197, 6761, 16389, 19068, 25344, 37106]
BOOKS += [64317, 67979, *HELD_OUT]
TARGET = 1.65  # bits per character
TEXT = ["--text_format", "gutenberg", "--vocab_size", "16384"]  # single tokens of a smaller one are easier to predict

logger = logging.getLogger("learning")


@options
class RaceOptions(LearningOptions):
    output_dir: str | None = option("runs/race", "Directory for results, and the models of all runs.")
    max_minutes: float | None = option(5.0, "Time to train scratch_bert.", within="(0, 1e6]")


def find_books(directory: Path) -> dict[int, str]:
    """The files of the race's books by their numbers. Raises `ValueError` if one is missing."""
    files = {int(re.findall(r"\d+", file.name)[0]): str(file) for file in sorted(directory.glob("*[0-9]*.txt*"))}
    if missing := sorted(set(BOOKS) - files.keys()):
        numbers = " ".join(map(str, missing))
        raise ValueError(
            f"{directory} lacks books. To get them: cd {directory}; for book in {numbers}; do curl -O "
            "https://www.gutenberg.org/cache/epub/$book/pg$book.txt; sleep 2; done"
        )
    return {number: files[number] for number in BOOKS}


def table(results: list[dict]) -> str:
    """The runs in Markdown, and whether our mean has reached the target."""
    lines = ["| side | seed | minutes | steps | tokens/s | bits per character |", "| --- |" + " ---: |" * 5]
    for result in results:
        side = f"transformers, {result['learning_rate']:g}" if result["side"] == "transformers" else result["side"]
        cells = side, str(result["seed"]), f"{result['seconds'] / 60:.1f}", f"{result['steps']:,}"
        lines.append(f"| {' | '.join(cells)} | {result['tokens_per_second']:,.0f} | {bits(result):.3f} |")
    ours = [bits(result) for result in results if result["side"] == "scratch_bert"]
    spread = f" ± {statistics.stdev(ours):.3f}" if len(ours) > 1 else ""
    verdict = "reached" if statistics.mean(ours) <= TARGET else "not reached"
    return "\n".join([*lines, "", f"scratch_bert: {statistics.mean(ours):.3f}{spread}; {TARGET:g} is {verdict}."])


def bits(result: dict) -> float:
    return result["evaluate_model"]["eval_mlm_bits_per_character"]


@script
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("books", metavar="BOOKS", type=Path, help="directory with the books")
    parser.add_argument(
        "--transformers_minutes", type=float, help="time to train transformers' BERT; default: not at all"
    )
    own, others = parser.parse_known_args()
    books = find_books(own.books)
    held_out = [books.pop(number) for number in HELD_OUT]
    others += [*TEXT, "--train_file", *books.values(), "--validation_file", *held_out]
    if "--seeds" not in others:
        others += ["--seeds", "1", "2", "3"]
    groups = (ModelOptions, DataOptions, RaceOptions)
    model_args, data_args, args = read_options(*groups, description=__doc__, argv=others)
    configure_logging(logging.WARNING)
    logger.setLevel(logging.INFO)
    transformers.utils.logging.disable_progress_bar()
    results = [Benchmark(model_args, data_args, args, seed).run_scratch_bert() for seed in args.seeds]
    if own.transformers_minutes:
        of_transformers = copy(args)
        of_transformers.max_minutes = own.transformers_minutes
        results += measure_all(model_args, data_args, of_transformers, our_side=False)
    where = machine(pretraining_arguments(args))
    write_json(Path(args.output_dir, "results.json"), {"machine": where, "runs": results})
    print(f"{describe(where)}\n\n{table(results)}")


if __name__ == "__main__":
    main()
