"""Pretrain a BERT from scratch by masked language modelling (MLM) and next-sentence prediction (NSP), under Hugging
Face's Trainer.

Without options: a tiny model on the built-in corpus, in a few minutes on two CPU cores."""

from scratch_bert_options.data import DataOptions
from scratch_bert_options.model import ModelOptions
from scratch_bert_options.pretraining import PretrainingOptions, check_nodes

from ..command_line import in_first_process, read_options
from ..main import print_next
from ..process import script


@script
def main(argv: list[str] | None = None) -> None:
    groups = (ModelOptions, DataOptions, PretrainingOptions)
    model_args, data_args, training = read_options(*groups, description=__doc__, argv=argv)
    check_nodes(model_args, data_args, training)

    from scratch_bert.logs import configure_logging
    from scratch_bert.pretraining.run import prepare_pretraining
    from scratch_bert.pretraining.seeds import pretrain_seeds, report_seeds

    configure_logging()
    if training.seeds:
        pretrain_seeds(model_args, data_args, training)
        if in_first_process():
            print(f"\n{report_seeds(training.output_dir)}")
            print_next(("compare it with the seeds of another run", "compare", training.output_dir, "OTHER"))
        return
    run = prepare_pretraining(model_args, data_args, training)
    metrics = run.train()
    if not run.trainer.is_world_process_zero():
        return
    print(f"\n{run.report(metrics)}")
    model, task = training.output_dir, ("sequence-classification", "--train_file", "YOUR.csv")
    print_next(
        ("show it in the browser", "demo", model),
        ("fine-tune it on a table with the columns text and label", "finetune", *task, "--model_name_or_path", model),
        ("find unusual lines of a text", "score", model, "--file", "YOUR.txt", "--output_file", "SCORES.jsonl"),
        ("list what would be published", "push", model, "USER/NAME", "--dry_run"),
    )
