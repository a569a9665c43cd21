"""Fine-tune a checkpoint on a task: text classification, multi-label classification or regression, token
classification, extractive question answering, multiple choice, or a GLUE task by its name.

Data come from files or a dataset. The checkpoint with the best metric on the validation split is kept, with its
predictions and metrics."""

from scratch_bert_options.finetuning import TASKS, FinetuningOptions, TaskOptions

from ..command_line import read_options
from ..main import print_next
from ..process import script


@script
def main(argv: list[str] | None = None) -> None:
    description = f"{__doc__}\n\nTASK is one of {', '.join(TASKS)}."
    groups = (TaskOptions, FinetuningOptions)
    task, task_args, training = read_options(*groups, description=description, argv=argv, takes_task=True)

    from scratch_bert.finetuning.run import prepare_finetuning
    from scratch_bert.logs import configure_logging

    configure_logging()
    run = prepare_finetuning(task, task_args, training)
    results = run.train()
    if not run.seed_runs[0].args.should_save:
        return
    print(f"\n{run.report(results)}")
    model = str(run.model_dir)
    print_next(
        ("predict new rows", "predict", model, "--file", "ROWS.csv", "--output_file", "PREDICTIONS.csv"),
        ("show it in the browser", "demo", model),
        ("list what would be published", "push", model, "USER/NAME", "--dry_run"),
    )
