#!/usr/bin/env python
"""Fine-tune a checkpoint on all tasks of GLUE that are found, with the same options for all, and print a table of the scores
on the development sets, beside baselines and Google's small BERTs.

By default, each task is trained for 5 epochs with the seeds 1, 2 and 3, and scored after the last step. Results are in
glue.json and glue.md; metrics and predictions of each run in OUTPUT_DIR/TASK/seed-N. --resume_from_checkpoint continues
where a run was stopped."""

import logging

from scratch_bert_cli.glue import GlueArguments, GlueOptions
from scratch_bert_cli.options import read_options
from scratch_bert_cli.process import script
from scratch_bert_cli.training import trainer_options


logger = logging.getLogger("scratch_bert")
STOPPED = "Stopped. To continue: the same command with --resume_from_checkpoint auto"


@script
def main(argv: list[str] | None = None) -> None:
    groups = (GlueArguments, GlueOptions, trainer_options())
    options = read_options(*groups, description=__doc__, argv=argv, first="model_name_or_path")

    from scratch_bert.cli import configure_logging, one_line_errors
    from scratch_bert.finetuning.arguments import GlueTrainingArguments
    from scratch_bert.finetuning.glue import GLUE
    from scratch_bert.finetuning.glue_report import GlueReport
    from scratch_bert.finetuning.glue_suite import open_glue_runs
    from scratch_bert.training.trainer import DivergenceError

    glue_args, args = options.build(GlueArguments, GlueTrainingArguments)
    configure_logging(logging.INFO if args.should_log else logging.ERROR)
    with one_line_errors(stopped="Stopped before training."):
        runs = open_glue_runs(glue_args, args)
    results = {}
    try:
        for task in list(runs):
            logger.info(f"\n{GLUE[task].title}")
            with one_line_errors(stopped=STOPPED):
                run = runs.pop(task).prepare()  # nothing of a task is kept while the next ones train
            with one_line_errors((OSError, DivergenceError, ImportError), STOPPED):
                results[task] = run.train()
            logger.info(GlueReport({task: results[task]}, glue_args, args).summary(task))
    finally:  # if a task fails, those before it are reported
        if results and args.should_save:
            report = GlueReport(results, glue_args, args)
            print(f"\n{report.as_markdown()}")
            with one_line_errors():
                report.write()
            print(f"\nglue.json, glue.md and the runs are in {args.output_dir}")


if __name__ == "__main__":
    main()
