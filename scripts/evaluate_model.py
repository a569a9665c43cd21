#!/usr/bin/env python
"""Evaluate pretrained models on text: masked language modelling and next-sentence prediction, compared with baselines. Or,
with --suite blimp, on minimal pairs of English sentences.

The options of the text are those of pretrain.py, except --streaming, and those of the tokenizer, which is the models'.
Without --validation_file, text is held out as in training, with --seed; --validation_file alone is evaluated
completely. Examples and masks follow from the text, the tokenizer and the seed: models with the same tokenizer are
compared on the same masked tokens. For single segments, evaluate with --sentence_objective none."""

import json
from pathlib import Path

from scratch_bert_cli.command_line import read_options
from scratch_bert_cli.process import script
from scratch_bert_options.pretraining import EvaluationArguments, EvaluationDataArguments


@script
def main(argv: list[str] | None = None) -> None:
    groups = (EvaluationArguments, EvaluationDataArguments)
    args, data_args = read_options(*groups, description=__doc__, argv=argv).groups

    from scratch_bert.logs import configure_logging
    from scratch_bert.pretraining.blimp import add_to_card, describe_scores, evaluate_blimp
    from scratch_bert.pretraining.evaluation import evaluate, model_predictions, name_of_text
    from scratch_bert.pretraining.metrics import describe_metrics
    from scratch_bert_cli.process import one_line_errors

    configure_logging()
    with one_line_errors():
        if args.suite:
            results = {}
            try:
                for name, scores in evaluate_blimp(args):
                    results[name] = scores
                    if args.add_to_card:
                        add_to_card(Path(name), scores)
            finally:  # a failure or Ctrl-C does not lose the scores of the models before
                if results:
                    print(f"\n{describe_scores(results)}")
                    write_results(results, args.output_file)
        else:
            results, data = evaluate(data_args, args)
            for name in args.model_name_or_path if args.show_predictions else ():
                print(f"\n{name}\n{model_predictions(name, data, args)}")
            text = name_of_text(data, data_args, args.model_name_or_path)
            unigrams_of = "the same text" if data.eval_dataset is data.train_dataset else "the training text"
            print(f"\n{describe_metrics(results, data.objective, text, unigrams_of)}")
            write_results(results, args.output_file)


def write_results(results: dict, file: str | None) -> None:
    if file:
        Path(file).write_text(json.dumps(results, indent=2, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
