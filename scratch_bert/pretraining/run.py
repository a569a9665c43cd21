"""A pretraining run from its options, step by step: tokenizer → data → model → trainer, for each of its phases."""

import logging
from collections.abc import Iterable
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments, set_seed

from scratch_bert_options.data import TOKENIZER_TRAINING, DataOptions
from scratch_bert_options.declare import similar
from scratch_bert_options.masking import EVAL_MLM_PROBABILITY
from scratch_bert_options.model import ModelOptions
from scratch_bert_options.outputs import check_output_dir
from scratch_bert_options.pretraining import PretrainingOptions

from ..checkpoints.open import load_config
from ..checkpoints.output_dir import output_dir_lock, write_metrics
from ..checkpoints.resume import check_same_architecture, check_same_run, check_same_weights, has_one_seed
from ..checkpoints.saved import find_checkpoint, saved_step
from ..corpus.overlap import MEMORISED
from ..corpus.tokenizer import copy_with_length, describe_vocabulary
from ..examples.dataset import evenly_spread
from ..hub.conversion import convert_config
from ..logs import logger
from ..model.configuration_scratch_bert import ARCHITECTURE_FIELDS, ScratchBertConfig
from ..text.files import TextError
from ..training.arguments import describe_hardware, global_batch_size, recorded
from ..training.clock import Clock
from ..training.console import describe_output, wrap
from ..training.tensorboard import extend_tensorboard
from .arguments import pretraining_arguments
from .build_model import build_model, choose_tokenizer, resolve_config, start_config
from .metrics import PretrainingMetrics, describe_metrics, unigram_log_probs
from .model_card import write_pretraining_card
from .snapshots import SnapshotCallback, default_count
from .sources import PretrainingData, build_collator, load_data
from .trainer import PretrainingTrainer


OVERFITTED = 1.02  # times the lowest loss


class Options(NamedTuple):
    """The options of a run, and its texts if they are in memory."""

    model: ModelOptions
    data: DataOptions
    training: PretrainingOptions
    args: TrainingArguments
    """Made from `training`."""
    texts: dict[str, Iterable | None] = {}
    """`texts` and `eval_texts` in memory, which replace the text that the options name."""


class Phase(NamedTuple):
    """The part of a run with sequences of one length, and one rate of masking."""

    max_seq_length: int | str
    mlm_probability: float
    end: float | None = None
    """The fraction of the run after which a checkpoint is saved for the next phase; None for the last phase."""


@dataclass
class PretrainingRun:
    """A run that is ready to train, in the first of its remaining `phases`."""

    options: Options
    phases: list[Phase]
    trainer: PretrainingTrainer
    data: PretrainingData
    checkpoint: str | None = None
    """The checkpoint to resume from."""

    def train(self) -> dict[str, float]:
        """Train, evaluate, and save the model with its card, tokenizer and metrics.json. Returns the metrics.

        Raises `OSError` if the model can't be saved or pushed or another run writes to the same directory, `TextError`
        for a bad file of a stream, `DivergenceError` if the loss is not finite, and `Interrupted`, after a checkpoint
        is saved, if Ctrl-C or SIGTERM ended the training.
        """
        with output_dir_lock(self.trainer.args, self.trainer.record, self.checkpoint):
            metrics = _train(self.trainer, self.checkpoint)
            for phase in self.phases[1:]:
                if self.trainer.fraction_done == 1:  # an evaluation or a checkpoint took longer than the final phase
                    logger.warning("The time ran out before the final phase: raise final_share or max_minutes.")
                    break
                earlier, metrics = metrics, self._train_next(phase)
                seconds = earlier["train_runtime"], metrics["train_runtime"]
                for name in ("train_samples_per_second", "train_steps_per_second"):
                    metrics[name] = float(np.average([earlier[name], metrics[name]], weights=seconds))
                metrics["train_runtime"] = sum(seconds)
            trainer = self.trainer
            trainer.results["train_runtime"] = metrics["train_runtime"]  # for the card
            if trainer.eval_dataset:
                evaluation = trainer.final_evaluation
                scores = evaluation.metrics if evaluation else trainer.evaluate()
                trainer.results |= {name: value for name, value in scores.items() if name.startswith("eval_")}
                metrics |= trainer.results
            trainer.save_model()
            if trainer.is_world_process_zero():
                write_metrics(trainer.args.output_dir, metrics)
        return metrics

    def _train_next(self, phase: Phase) -> dict[str, float]:
        """Train the next phase, from the checkpoint at which the one before has stopped."""
        checkpoint = str(Path(self.options.training.output_dir, f"checkpoint-{self.trainer.state.global_step}"))
        self.trainer = None  # or its model and optimizer would stay in memory
        level = logger.level
        logger.setLevel(max(logger.getEffectiveLevel(), logging.WARNING))  # the rest has been logged before
        try:
            self.trainer, self.data = build_phase(self.options, phase, checkpoint)
        except ValueError as error:  # the text has changed meanwhile
            raise TextError(f"The run cannot continue with its final phase. {error}") from error
        finally:
            logger.setLevel(level)
        length, masked = self.data.max_seq_length, 100 * phase.mlm_probability
        logger.info(f"Final phase: sequences of up to {length} tokens, {masked:g}% masked")
        return _train(self.trainer, checkpoint)

    def report(self, metrics: dict[str, float]) -> str:
        """For the terminal: predictions, then the results of `train`, and where it has written what."""
        options, data, parts = self.options.training, self.data, []
        if data.eval_dataset:
            if options.show_predictions and not is_sharded(self.trainer):
                shown = (self.trainer.model, data.eval_dataset, data.tokenizer, options.show_predictions)
                parts.append(data.objective.describe_predictions(*shown))
            text = f"{data.eval_kind} text"
            parts.append(describe_metrics({"model": metrics}, data.objective, text))
            parts.append(wrap(f"{text.capitalize()}: {data.held_out}." if MEMORISED in data.held_out else ""))
            seen = (len(self.trainer.eval_dataset), self.trainer.examples_seen, self.trainer.examples_per_minute)
            latest = self.trainer.latest_metrics() | metrics
            parts.append(wrap(data.objective.describe_plateaus(latest, *seen)))
            parts.append(wrap(describe_best(self.trainer.state.log_history, metrics.get("eval_mlm_loss"))))
        since = " since the resume" if self.checkpoint else ""
        if self.checkpoint and options.max_minutes:
            since += f", {self.trainer.minutes_used:.1f} of {options.max_minutes:g} minutes in all"
        parts.append(f"Trained for {metrics['train_runtime']:.0f} s{since}.\n{describe_output(options.output_dir)}")
        return "\n\n".join(filter(None, parts))


def describe_best(log: list[dict[str, float]], final: float | None) -> str:
    """A hint if an evaluation during the training had a clearly lower MLM loss than the `final` one."""
    evaluations = [(entry["eval_mlm_loss"], entry["step"]) for entry in log if "eval_mlm_loss" in entry]
    lowest, step = min(evaluations, default=(0.0, 0))
    if final is None or not evaluations or final < OVERFITTED * lowest:
        return ""
    return (
        f"Overfitting: the MLM loss on the evaluated text was lowest after {step:,} steps ({lowest:.3f}). Train for "
        "less time, on more text, or keep the best checkpoint: --load_best_model_at_end --save_steps 250."
    )


def _train(trainer: PretrainingTrainer, checkpoint: str | None) -> dict[str, float]:
    try:
        metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
    except TextError as error:
        reason = str(error).splitlines()[-1]  # a data loader's worker puts its traceback before it
        raise TextError(
            f"{reason}\nCheckpoints are kept: fix the text, and continue with resume_from_checkpoint=auto"
        ) from error
    trainer.raise_if_interrupted()
    return metrics


def prepare_pretraining(
    model_args: ModelOptions, data_args: DataOptions, training: PretrainingOptions, **texts: Iterable | None
) -> PretrainingRun:
    """Build a run, and find errors in options, text, checkpoint and model before any training.

    `texts` and `eval_texts` are texts in memory. Raises `ValueError` or `OSError` for input that can't be used.
    """
    args = pretraining_arguments(training)
    options = Options(model_args, data_args, training, args, texts)
    if args.should_save:
        check_output_dir("output_dir", Path(args.output_dir), data_args.train_file)
    logger.info(f"Output: {args.output_dir}")
    checkpoint = find_checkpoint(args)
    if checkpoint:
        logger.info(f"Resuming from {checkpoint}")
        if has_one_seed(checkpoint):
            options = options._replace(data=replace(data_args, split_seed=args.seed))
    args.resume_from_checkpoint = checkpoint  # the card's times begin there
    phases = plan_phases(options, checkpoint)
    return PretrainingRun(options, phases, *build_phase(options, phases[0], checkpoint), checkpoint)


def plan_phases(options: Options, checkpoint: str | None) -> list[Phase]:
    """The remaining phases of a run: one, or two with `final_max_seq_length` or `final_mlm_probability`."""
    data_args, training = options.data, options.training
    if data_args.streaming and options.args.max_steps <= 0:
        raise ValueError("streaming needs max_steps or max_minutes: the length of a stream is unknown.")
    first = Phase(data_args.max_seq_length, data_args.mlm_probability)
    if not training.has_final_phase:
        return [first]
    if training.final_max_seq_length and (data_args.streaming or data_args.prepared_data):
        raise ValueError("final_max_seq_length needs text that is neither streamed nor preprocessed: use two runs.")
    last = Phase(
        training.final_max_seq_length or first.max_seq_length, training.final_mlm_probability or first.mlm_probability
    )
    start = training.final_phase_start()
    if checkpoint and fraction_done(checkpoint, training) >= start:
        return [last]
    return [first._replace(end=start), last]


def fraction_done(checkpoint: str, training: PretrainingOptions) -> float:
    """The fraction of a run that was done when a checkpoint was saved."""
    if not training.max_minutes:
        return saved_step(checkpoint) / training.max_steps
    clock = Clock(60 * training.max_minutes)
    clock.restore(checkpoint)
    return clock.fraction_used


def build_phase(options: Options, phase: Phase, checkpoint: str | None) -> tuple[PretrainingTrainer, PretrainingData]:
    """Build a phase: text → tokenizer → token ids → examples → model → Trainer."""
    model_args, data_args, args = options.model, options.data, copy(options.args)
    start = start_config(model_args, checkpoint)
    with args.main_process_first():  # the other processes read its cache
        choice = choose_tokenizer(model_args, data_args, checkpoint)
        if phase.max_seq_length != data_args.max_seq_length:
            data_args = replace(data_args, max_seq_length=phase.max_seq_length)
        data = load_data(data_args, args.seed, choice.tokenizer, **options.texts)
    if data.objective.packs and (options.training.pack_sequences or args.n_gpu > 1):
        raise ValueError(
            f"{data.objective.name} compares the segments of a batch: leave out pack_sequences, and start a process "
            "for each GPU with torchrun."
        )
    if data.eval_dataset is None:
        if args.load_best_model_at_end:
            raise ValueError("load_best_model_at_end needs held-out text: set validation_share or validation_file.")
        logger.info("No held-out text: evaluation is disabled")
        args.eval_strategy = "no"
    if data_args.streaming:  # if there are enough files, each process reads a part of them
        args.accelerator_config = replace(args.accelerator_config, dispatch_batches=False)
    options = options._replace(args=args)
    longest = max(data.max_seq_length, options.training.final_max_seq_length or 0)
    if checkpoint and options.training.final_max_seq_length:  # the phase before may have had longer sequences
        longest = max(longest, load_config(checkpoint).max_position_embeddings)
    config = resolve_config(start, model_args, data, longest, checkpoint)
    record = describe_run(options, data, choice.named, config)
    if checkpoint:
        check_same_architecture(config, checkpoint)
        check_same_run(record, checkpoint)
    set_seed(args.seed)
    model = build_model(model_args, config, data, checkpoint)
    if checkpoint:
        check_same_weights(model, checkpoint)
    return build_trainer(options, phase, data, model, record), data


def build_trainer(
    options: Options, phase: Phase, data: PretrainingData, model: PreTrainedModel, record: dict
) -> PretrainingTrainer:
    """The Trainer of a phase, with metrics, collators, model card and predictions to show."""
    model_args, data_args, training, args = options.model, options.data, options.training, options.args
    unigrams = unigram_log_probs(data.token_counts)
    metrics = PretrainingMetrics(unigrams, data.objective, data.characters_per_token)
    best, known = (args.metric_for_best_model or "loss").removeprefix("eval_"), ["loss", *metrics.names]
    if best not in known:
        raise ValueError(
            f"There is no metric_for_best_model {best}.{similar(best, known) or ' Choose from ' + ', '.join(known)}"
        )
    logger.info(describe_hardware(args, training))
    name = model_args.model_name_or_path or ("custom" if model_args.config_overrides else model_args.preset)
    layers = model.config.num_hidden_layers
    sizes = f"{layers} layer{'s' * (layers > 1)} × {model.config.hidden_size}"
    vocabulary, parameters = f"vocabulary of {model.config.vocab_size:,}", f"{model.num_parameters():,} parameters"
    if args.resume_from_checkpoint:
        name = args.resume_from_checkpoint
    logger.info(f"Model: {name}, {sizes}, {vocabulary}, {parameters}")
    try:
        convert_config(model.config, "bert")
    except ValueError as error:
        logger.info(f"This model cannot be converted to a plain BERT: {error}")
    positions = model.config.max_position_embeddings * model.config.hidden_size
    if model.get_position_embeddings() and 2 * positions > model.num_parameters():
        share = f"{positions / model.num_parameters():.0%} of the parameters are position embeddings"
        logger.warning(f"{share}, for {model.config.max_position_embeddings:,} positions: lower max_seq_length")
    batch_size = global_batch_size(args)
    if not data_args.streaming and batch_size > (examples := len(data.train_dataset)):
        found = f"The global batch size, {batch_size:,}, exceeds an epoch's examples: {examples:,}"
        if args.dataloader_drop_last and batch_size > examples * args.gradient_accumulation_steps:
            raise ValueError(f"{found}. With dataloader_drop_last, there would be no step: leave it out.")
        logger.warning(found)
    frequencies = data.eval_token_counts / data.eval_token_counts.sum()
    text = f"the {data.eval_kind if data.eval_dataset else 'training'} text"
    logger.info(
        f"Global batch size: {batch_size:,} examples, up to {batch_size * data.max_seq_length:,} tokens. Unigram "
        f"baseline: an MLM loss of about {-unigrams.numpy() @ frequencies:.2f} on {text}"
    )
    if data.eval_dataset and phase.mlm_probability > EVAL_MLM_PROBABILITY:
        logger.info(
            f"Masked: {phase.mlm_probability:.0%} of the tokens in training, {EVAL_MLM_PROBABILITY:.0%} in evaluation, "
            "which has a lower loss for that reason"
        )
    eval_dataset = data.eval_dataset and evenly_spread(data.eval_dataset, training.max_eval_examples)
    if eval_dataset is not data.eval_dataset:
        some = f"{len(eval_dataset):,} of the {len(data.eval_dataset):,} {data.eval_kind} examples"
        logger.info(f"Evaluation: {some}, evenly spread; max_eval_examples=0 for all")
    tokenizer = copy_with_length(data.tokenizer, model.config.max_position_embeddings)
    trainer = PretrainingTrainer(
        model=model,
        args=args,
        options=training,
        data_collator=build_collator(data_args, tokenizer, mlm_probability=EVAL_MLM_PROBABILITY),
        train_collator=build_collator(
            data_args, tokenizer, data.max_seq_length if training.pack_sequences else None, phase.mlm_probability
        ),
        train_dataset=data.train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        compute_metrics=metrics,
        preprocess_logits_for_metrics=metrics.reduce,
        write_card=partial(write_pretraining_card, model_args=model_args, data_args=data_args, data=data),
        record=record,
        stop_at=phase.end,
        losses=data.objective.losses,
    )
    snapshots = default_count(model.num_parameters()) if training.snapshots is None else training.snapshots
    if snapshots and not is_sharded(trainer):
        trainer.add_callback(SnapshotCallback(snapshots, trainer, lambda: data.examples_to_try))
        trainer.snapshots = snapshots
    elif training.snapshots:
        logger.warning("No snapshots are kept under FSDP and DeepSpeed, where no process has all weights.")
    describe = None
    if data.eval_dataset and training.show_predictions and not is_sharded(trainer):
        shown = {"dataset": data.eval_dataset, "tokenizer": tokenizer, "count": training.show_predictions}
        describe = partial(data.objective.describe_predictions, **shown)
    extend_tensorboard(trainer, describe=describe, graph=training.tensorboard_graph)
    return trainer


def is_sharded(trainer: PretrainingTrainer) -> bool:
    """Whether no process has all weights."""
    return trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled


# Options that a resumed run may change: its initial weights, and the location of its text, whose checksum is recorded.
UNRECORDED = {
    "model_name_or_path", "add_tokens", "preset", "token_embedding_init", "cache_dir", "train_file", "validation_file",
    "dataset_name", "dataset_config", "prepared_data", "tokenizer_name_or_path",
}  # fmt: skip


def describe_run(
    options: Options, data: PretrainingData, named: PreTrainedTokenizerBase | None, config: ScratchBertConfig
) -> dict[str, dict]:
    """The record for `check_same_run`; `named` is the tokenizer that the options name, if it isn't trained."""
    args = options.args
    values: dict[str, Any] = asdict(options.model) | asdict(options.data) | recorded(options.training, args)
    fixed = {name: getattr(config, name) for name in ARCHITECTURE_FIELDS if name not in values}  # except options
    fixed |= {"seed": args.seed, "optim": options.training.optim, "sentence objective": data.objective.name}
    fixed |= {name: values[name] for name in TOKENIZER_TRAINING} | {"lowercase": options.data.lowercases}
    fixed["tokenizer"] = describe_vocabulary(named) if named else "trained on the text"
    fixed["training text"] = f"{data.description}, CRC-32 {data.train_checksum:08x}"
    values["max_seq_length"] = str(values["max_seq_length"])  # as in the records of earlier versions
    values["held-out text"] = "none" if data.eval_checksum is None else f"CRC-32 {data.eval_checksum:08x}"
    if args.load_best_model_at_end:
        fixed |= {name: values[name] for name in ("metric_for_best_model", "held-out text", "max_eval_examples")}
    if options.data.streaming:  # the workers divide a stream
        fixed["dataloader_num_workers"] = args.dataloader_num_workers
    values = {name: value for name, value in values.items() if name not in UNRECORDED | fixed.keys()}
    return {"fixed": fixed, "options": values}
