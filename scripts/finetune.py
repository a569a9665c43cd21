#!/usr/bin/env python
"""Fine-tune a checkpoint on a task: text classification, multi-label classification or regression, token
classification, extractive question answering, multiple choice, or a GLUE task by its name.

Data come from files or a dataset. The checkpoint with the best metric on the validation split is kept, with its
predictions and metrics."""

import logging

from scratch_bert_cli.finetuning import TASKS, FinetuningOptions, TaskArguments
from scratch_bert_cli.options import read_options
from scratch_bert_cli.process import script
from scratch_bert_cli.training import trainer_options


@script
def main(argv: list[str] | None = None) -> None:
    groups = (TaskArguments, FinetuningOptions, trainer_options())
    options = read_options(*groups, description=__doc__, argv=argv, tasks=TASKS)

    from scratch_bert.cli import configure_logging, one_line_errors
    from scratch_bert.finetuning.arguments import FinetuningArguments
    from scratch_bert.finetuning.baselines import scores_by_baseline
    from scratch_bert.finetuning.run import prepare_finetuning
    from scratch_bert.training.checkpoint import METRICS_FILE
    from scratch_bert.training.console import TIMINGS
    from scratch_bert.training.trainer import DivergenceError

    task_args, args = options.build(TaskArguments, FinetuningArguments)
    configure_logging(logging.INFO if args.should_log else logging.ERROR)
    with one_line_errors(stopped="Stopped before training."):
        run = prepare_finetuning(options.task, task_args, args)
    with one_line_errors((OSError, DivergenceError, ImportError)):
        results = run.train()
    if not args.should_save:
        return
    baselines = scores_by_baseline(results.mean)
    print()
    if baselines:
        print(f"{'':<28}{'this model':>18}" + "".join(f"{title:>18}" for title in baselines))
    for name, mean in results.mean.items():
        if name.startswith(("eval_", "test_")) and not name.endswith(TIMINGS):
            value = f"{mean:.4f} ± {results.std[name]:.4f}" if task_args.seeds else f"{mean:.4f}"
            metric = name.removeprefix("eval_")
            columns = "".join(f"{scores[metric]:>18.4f}" for scores in baselines.values() if metric in scores)
            print(f"{metric.replace('_', ' '):<28}{value:>18}{columns}")
    print(f"\nModel, predictions and {METRICS_FILE} are in {args.output_dir}{'/seed-*' if task_args.seeds else ''}")


if __name__ == "__main__":
    main()
