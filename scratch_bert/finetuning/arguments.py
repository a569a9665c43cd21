"""Trainer's arguments from the options of fine-tuning, and learning rates that fit the model."""

from copy import copy

from transformers import PreTrainedConfig, TrainingArguments

from scratch_bert_options.finetuning import FinetuningOptions

from ..training.arguments import Fixed, make_training_arguments


BASE_LEARNING_RATE, BASE_WIDTH = 5e-5, 768  # one of BERT-base's three (paper, appendix A.3), and its hidden size
HEAD_FACTOR = 10  # docs/finetuning.md
FIXED: Fixed = {
    "prediction_loss_only": (False, "metrics are computed from predictions"),
    "dataloader_drop_last": (False, "it would drop examples to predict, too"),
    "eval_do_concat_batches": (True, "predictions are made of all batches together"),
    "do_eval": (True, "the trained model is evaluated; eval_strategy says how often in training"),
    "train_sampling_strategy": ("random", "another would change the order of predictions"),
}


def finetuning_arguments(options: FinetuningOptions) -> TrainingArguments:
    """Trainer's arguments, for options whose learning rate may still be None."""
    args = make_training_arguments(options, FIXED, learning_rate=options.learning_rate or 0.0)
    # Trainer's own choice would be the loss; the task knows better.
    args.metric_for_best_model, args.greater_is_better = options.metric_for_best_model, options.greater_is_better
    return args


def fit_learning_rates(options: FinetuningOptions, config: PreTrainedConfig, random_init: bool) -> FinetuningOptions:
    """The options with rates for a model of this config, where they are None; one rate if all weights are new."""
    rate, head_rate = options.learning_rate, options.head_learning_rate
    if rate is None:
        rate = float(f"{BASE_LEARNING_RATE * BASE_WIDTH / getattr(config, 'hidden_size', BASE_WIDTH):.2g}")
    if head_rate is None:
        head_rate = float(f"{HEAD_FACTOR * rate:.6g}")
    fitted = copy(options)
    fitted.learning_rate, fitted.head_learning_rate = rate, None if random_init else head_rate
    return fitted
