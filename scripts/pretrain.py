#!/usr/bin/env python
"""Pretrain a BERT from scratch by masked language modelling (MLM) and next-sentence prediction (NSP), under Hugging
Face's Trainer.

Without options: a tiny model on the built-in corpus, in a few minutes on two CPU cores."""

from scratch_bert_cli.command_line import read_options
from scratch_bert_cli.main import command
from scratch_bert_cli.process import script
from scratch_bert_options.pretraining import DataArguments, ModelOptions, PretrainingOptions


@script
def main(argv: list[str] | None = None) -> None:
    groups = (ModelOptions, DataArguments, PretrainingOptions)
    model_args, data_args, training = read_options(*groups, description=__doc__, argv=argv).groups

    from scratch_bert.logs import configure_logging
    from scratch_bert.pretraining.run import prepare_pretraining
    from scratch_bert.text.tables import TextError
    from scratch_bert.training.trainer import DivergenceError
    from scratch_bert_cli.process import one_line_errors

    configure_logging()
    with one_line_errors(stopped="Stopped before training."):
        run = prepare_pretraining(model_args, data_args, training)
    with one_line_errors((OSError, TextError, DivergenceError, ImportError)):
        metrics = run.train()
    if not run.trainer.is_world_process_zero():
        return
    print(f"\n{run.report(metrics)}\n\nNext:")
    print(f"  {command('demo', training.output_dir)}")
    print(f"  {command('finetune', 'sst2', '--model_name_or_path', training.output_dir)}")
    print(f"  {command('push', training.output_dir, 'USER/NAME', '--dry_run')}")


if __name__ == "__main__":
    main()
