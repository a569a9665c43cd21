#!/usr/bin/env python
"""Fine-tune a checkpoint on a task: text classification, multi-label classification or regression, token
classification, extractive question answering, multiple choice, or a GLUE task by its name.

Data come from files or a dataset. The checkpoint with the best metric on the validation split is kept, with its
predictions and metrics."""

import logging

from scratch_bert_cli.command_line import read_options
from scratch_bert_cli.main import command
from scratch_bert_cli.process import script
from scratch_bert_options.finetuning import TASKS, FinetuningOptions, TaskArguments
from scratch_bert_options.training import trainer_options


@script
def main(argv: list[str] | None = None) -> None:
    groups = (TaskArguments, FinetuningOptions, trainer_options())
    options = read_options(*groups, description=__doc__, argv=argv, tasks=TASKS)

    from scratch_bert.cli import configure_logging, one_line_errors
    from scratch_bert.finetuning.run import prepare_finetuning
    from scratch_bert.training.trainer import DivergenceError
    from scratch_bert_options.finetuning import FinetuningOptions

    task_args, args = options.build(TaskArguments, FinetuningOptions)
    configure_logging(logging.INFO if args.should_log else logging.ERROR)
    with one_line_errors(stopped="Stopped before training."):
        run = prepare_finetuning(options.task, task_args, args)
    with one_line_errors((OSError, DivergenceError, ImportError)):
        results = run.train()
    if not args.should_save:
        return
    print(f"\n{run.report(results)}\n\nNext:")
    model = f"{args.output_dir}/seed-{task_args.seeds[0]}" if task_args.seeds else args.output_dir
    print(f"  {command('demo', model)}")
    print(f"  {command('push', model, 'USER/NAME', '--dry_run')}")


if __name__ == "__main__":
    main()
