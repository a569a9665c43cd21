"""Evaluate pretrained models on text: masked language modelling and next-sentence prediction, compared with baselines.
Or, with --suite blimp, on minimal pairs of English sentences.

The text options are those of pretrain.py, without streaming and the tokenizer options: the tokenizer is the models'.
Without --validation_file, text is held out as in training, with --seed; --validation_file, if given alone, is
evaluated in full. Examples and masks follow from text, tokenizer and seed: models with the same tokenizer are
compared on the same masked tokens. For single segments, evaluate with --sentence_objective none."""

from pathlib import Path

from scratch_bert_options.evaluation import EvaluationDataOptions, EvaluationOptions

from ..command_line import read_options
from ..process import script


@script
def main(argv: list[str] | None = None) -> None:
    groups = (EvaluationOptions, EvaluationDataOptions)
    args, data_args = read_options(*groups, description=__doc__, argv=argv)

    from scratch_bert.atomic import write_json
    from scratch_bert.logs import configure_logging
    from scratch_bert.pretraining import blimp, evaluation
    from scratch_bert.pretraining.metrics import describe_metrics

    configure_logging()
    results: dict[str, dict] = {}
    data = None if args.suite else evaluation.load_examples(data_args, args)
    try:
        if args.suite:
            for name, scores in blimp.evaluate_blimp(args):
                results[name] = scores
        else:
            for name in args.model_name_or_path:
                results[name], predictions = evaluation.evaluate_model(name, data, data_args, args)
                if predictions:
                    print(f"\n{name}\n{predictions}")
    finally:  # a failure or Ctrl-C does not lose the results of the models before
        if results and args.suite:
            print(f"\n{blimp.describe_scores(results)}")
        elif results:
            text = evaluation.name_of_text(data, data_args, results)
            unigrams_of = "the same text" if data.eval_dataset is data.train_dataset else "the training text"
            print(f"\n{describe_metrics(results, data.objective, text, unigrams_of)}")
        if results and args.output_file:
            write_json(Path(args.output_file), results)
