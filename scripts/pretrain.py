#!/usr/bin/env python
"""Pretrain a BERT from scratch by masked language modelling (MLM) and next-sentence prediction (NSP), under Hugging
Face's Trainer.

Without options: a tiny model on the built-in corpus, in a few minutes on two CPU cores."""

import logging

from scratch_bert_cli.options import read_options
from scratch_bert_cli.pretraining import DataArguments, ModelOptions, PretrainingOptions
from scratch_bert_cli.process import script
from scratch_bert_cli.training import trainer_options


@script
def main(argv: list[str] | None = None) -> None:
    groups = (ModelOptions, DataArguments, PretrainingOptions, trainer_options())
    options = read_options(*groups, description=__doc__, argv=argv)

    from scratch_bert.cli import configure_logging, one_line_errors
    from scratch_bert.files import TextError
    from scratch_bert.pretraining.arguments import ModelArguments, PretrainingArguments
    from scratch_bert.pretraining.metrics import describe_metrics
    from scratch_bert.pretraining.run import prepare_pretraining
    from scratch_bert.training.trainer import DivergenceError

    model_args, data_args, args = options.build(ModelArguments, DataArguments, PretrainingArguments)
    configure_logging(logging.INFO if args.should_log else logging.ERROR)
    with one_line_errors(stopped="Stopped before training."):
        run = prepare_pretraining(model_args, data_args, args)
    with one_line_errors((OSError, TextError, DivergenceError, ImportError)):
        metrics = run.train()
    trainer, data = run.trainer, run.data
    if not trainer.is_world_process_zero():
        return
    if data.eval_dataset:
        if args.show_predictions:
            shown = (trainer.model, data.eval_dataset, data.tokenizer, args.show_predictions)
            print(f"\n{data.objective.describe_predictions(*shown)}")
        print(f"\n{describe_metrics({'model': metrics}, data.objective, f'{data.eval_kind} text')}")
        if plateaus := data.objective.describe_plateaus(metrics, len(trainer.eval_dataset)):
            print(f"\n{plateaus}")
    since = " since the resume" if run.checkpoint else ""
    if run.checkpoint and args.max_minutes:
        since += f", {trainer.minutes_used:.1f} of {args.max_minutes:g} minutes in all"
    print(f"\nTrained for {metrics['train_runtime']:.0f} s{since}. The model is in {args.output_dir}")


if __name__ == "__main__":
    main()
