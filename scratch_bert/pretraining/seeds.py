"""Pretraining with several seeds, one after the other: the same text, tokenizer and held-out text."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from scratch_bert_options.data import DataOptions
from scratch_bert_options.model import ModelOptions
from scratch_bert_options.pretraining import PretrainingOptions

from ..checkpoints.output_dir import write_metrics
from ..logs import logger
from ..training.comparison import compare_runs, describe_comparison, read_groups
from ..training.seeds import SeedResults, check_finished, check_parent, finished_metrics, summarize
from .arguments import pretraining_arguments
from .run import prepare_pretraining


def pretrain_seeds(
    model_args: ModelOptions, data_args: DataOptions, training: PretrainingOptions, **texts: Iterable | None
) -> SeedResults:
    """Pretrain with each of `training.seeds`, in subdirectories `seed-N`. On resume, finished ones are left out.

    The errors are those of `prepare_pretraining` and `PretrainingRun.train`; and `ValueError` if a finished run had
    other options than the next one.
    """
    args, output_dir = pretraining_arguments(training), Path(training.output_dir or "")
    check_parent(args)
    directories = {seed: output_dir / f"seed-{seed}" for seed in training.seeds or ()}
    metrics = {
        seed: finished_metrics(directory, seed, bool(training.resume_from_checkpoint))
        for seed, directory in directories.items()
    }
    for seed, directory in directories.items():
        logger.info(f"Seed {seed}" + (": already finished, skipped" if metrics[seed] else ""))
        if metrics[seed]:
            continue
        options = replace(training, seed=seed, seeds=None, output_dir=str(directory))
        options.how_to_resume = training.how_to_resume  # names the directory of all seeds
        run = prepare_pretraining(model_args, data_args, options, **texts)
        for other, finished in metrics.items():
            if finished:
                check_finished(run.trainer.record, directories[other])
        metrics[seed] = run.train()
        del run  # or its memory would be kept while the next one is built
    results = summarize(metrics)
    if args.should_save:
        write_metrics(output_dir, results._asdict())
    return results


def report_seeds(output_dir: str | Path) -> str:
    """For the terminal: means and deviations. Seeds that an earlier command ran with other options have a separate
    column."""
    groups = read_groups([output_dir])
    return describe_comparison(groups, compare_runs(groups))
