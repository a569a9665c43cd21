"""A pretraining run from its options: what scripts/pretrain.py does, for Python."""

import logging
from collections.abc import Callable
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from zlib import crc32

from transformers import PreTrainedTokenizerBase, set_seed

from ..cli import similar
from ..files import TextError
from ..tokenizer import load_tokenizer
from ..training.callbacks import extend_tensorboard
from ..training.checkpoint import find_checkpoint, saved_step
from ..training.output_dir import output_dir_lock, write_metrics
from ..training.resume import check_same_architecture, check_same_run
from .arguments import (
    EVAL_MLM_PROBABILITY,
    TOKENIZER_TRAINING,
    DataArguments,
    ModelArguments,
    PretrainingArguments,
)
from .load import PretrainingData, build_collator, load_data
from .metrics import PretrainingMetrics, unigram_log_probs
from .model import build_model, fit_config, named_tokenizer, start_config
from .model_card import write_pretraining_card
from .pairs import OBJECTIVES
from .predictions import describe_predictions
from .trainer import PretrainingTrainer


logger = logging.getLogger("scratch_bert")


@dataclass
class Run:
    """A run that is ready to train."""

    trainer: PretrainingTrainer
    data: PretrainingData
    checkpoint: str | None = None
    """The one to resume from."""
    final_phase: Callable[[], "Run"] | None = None
    """Prepares the rest of the run, with sequences of another length, when this one has saved the checkpoint for it."""

    def train(self) -> dict[str, float]:
        """Train, evaluate, and save the model with its card, tokenizer and metrics.json. Returns the metrics.

        Raises `OSError` if the model can't be saved or pushed or another run writes to the same directory, `TextError` for a
        bad file of a stream, `DivergenceError` if the loss is not finite, and `Interrupted`, after a checkpoint is
        saved, if Ctrl-C or SIGTERM ended the training.
        """
        with output_dir_lock(self.trainer.args, self.trainer.record, self.checkpoint):
            metrics = self._train()
            if self.final_phase:
                seconds = metrics["train_runtime"]
                self.trainer = None  # or its model and optimizer would stay in memory
                try:
                    final = self.final_phase()
                except ValueError as error:  # the text has changed meanwhile
                    raise TextError(f"The run cannot go on with longer sequences. {error}") from error
                self.trainer, self.data = final.trainer, final.data
                metrics = final._train()
                metrics["train_runtime"] += seconds
            trainer = self.trainer
            if trainer.eval_dataset:
                metrics |= trainer.evaluate()
            trainer.save_model()
            if trainer.is_world_process_zero():
                write_metrics(trainer.args.output_dir, metrics)
        return metrics

    def _train(self) -> dict[str, float]:
        try:
            metrics = self.trainer.train(resume_from_checkpoint=self.checkpoint).metrics
        except TextError as error:
            reason = str(error).splitlines()[-1]  # a data loader's worker puts its traceback before it
            raise TextError(
                f"{reason}\nCheckpoints are kept: fix the text, and continue with --resume_from_checkpoint auto"
            ) from error
        self.trainer.raise_if_interrupted()
        return metrics


def pretrain(model_args: ModelArguments, data_args: DataArguments, args: PretrainingArguments) -> dict[str, float]:
    """Prepare a run and train: see `prepare` and `Run.train`."""
    return prepare(model_args, data_args, args).train()


def prepare(model_args: ModelArguments, data_args: DataArguments, args: PretrainingArguments) -> Run:
    """Text → tokenizer → token ids → examples → model → Trainer.

    Raises `ValueError` or `OSError` for options, text or a checkpoint that can't be used.
    """
    checkpoint = find_checkpoint(args)
    if data_args.streaming:
        if args.max_steps <= 0:
            raise ValueError("--streaming needs --max_steps: the length of a stream is unknown.")
        args.accelerator_config.dispatch_batches = False  # each process reads its own share, if there are enough files
    examples_args, is_final = data_args, False
    if args.final_max_seq_length:
        if data_args.streaming or data_args.prepared_data:
            raise ValueError("final_max_seq_length needs text that is neither streamed nor prepared: run it in two.")
        is_final = checkpoint is not None and saved_step(checkpoint) >= args.final_phase_start()
        if is_final:
            examples_args = replace(data_args, max_seq_length=args.final_max_seq_length)
    config = start_config(model_args, checkpoint)
    with args.main_process_first():  # the others find its files
        resumed = load_tokenizer(checkpoint) if checkpoint else None
        tokenizer = named_tokenizer(model_args, data_args, resumed)
        data = load_data(examples_args, args.seed, resumed or tokenizer)
    if data.eval_dataset is None:
        logger.info("No held-out text: evaluation is disabled")
        args.eval_strategy = "no"
    record = _record(model_args, data_args, args, data, tokenizer)
    fit_config(config, model_args, data, max(data.max_seq_length, args.final_max_seq_length or 0), checkpoint)
    if checkpoint:
        check_same_architecture(config, checkpoint)
        check_same_run(record, checkpoint)

    set_seed(args.seed)
    with_pairs = OBJECTIVES[data.sentence_objective].has_pairs
    model = build_model(model_args, config, data, checkpoint)
    if args.bf16_by_default:
        logger.info("Precision: bf16 autocast, as this CPU multiplies bf16 natively; --bf16 false for fp32")
    name = model_args.model_name_or_path or model_args.preset
    logger.info(f"Model: {name}, vocabulary of {config.vocab_size:,}, {model.num_parameters():,} parameters")
    unigrams = unigram_log_probs(data.token_counts)
    examples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    logger.info(
        f"A step: {examples:,} examples, up to {examples * data.max_seq_length:,} tokens. Unigram baseline: an MLM loss of about "
        f"{-(unigrams.exp() * unigrams).sum():.2f}"
    )
    metrics = PretrainingMetrics(unigrams, with_pairs)
    best, known = (args.metric_for_best_model or "loss").removeprefix("eval_"), ["loss", *metrics.names]
    if best not in known:
        raise ValueError(
            f"There is no metric_for_best_model {best}.{similar(best, known) or ' There are ' + ', '.join(known)}"
        )
    pack_to = data.max_seq_length if args.pack_sequences else None
    trainer = PretrainingTrainer(
        model=model,
        args=args,
        data_collator=build_collator(data_args, data.tokenizer, mlm_probability=EVAL_MLM_PROBABILITY),
        train_collator=build_collator(data_args, data.tokenizer, pack_to),
        train_dataset=data.train_dataset,
        eval_dataset=data.eval_dataset,
        processing_class=data.tokenizer,
        compute_metrics=metrics,
        preprocess_logits_for_metrics=metrics.reduce,
        write_card=partial(write_pretraining_card, model_args=model_args, data_args=data_args, data=data),
        record=record,
        stop_after=args.final_phase_start() if args.final_max_seq_length and not is_final else None,
    )
    describe = None
    if (
        data.eval_dataset and args.show_predictions and not trainer.is_fsdp_enabled
    ):  # there, one process has no whole model
        describe = partial(
            describe_predictions,
            dataset=data.eval_dataset,
            tokenizer=data.tokenizer,
            sentence_objective=data.sentence_objective,
            count=args.show_predictions,
        )
    extend_tensorboard(trainer, describe=describe, graph=args.tensorboard_graph)
    run = Run(trainer, data, checkpoint)
    if trainer.stop_after:
        final_args = copy(args)
        final_args.resume_from_checkpoint = str(Path(args.output_dir, f"checkpoint-{trainer.stop_after}"))
        run.final_phase = partial(prepare, model_args, data_args, final_args)
    return run


# Not recorded: with which weights the run started, and where the text is, whose checksums are recorded.
UNRECORDED = [
    "model_name_or_path",
    "add_tokens",
    "preset",
    "token_embedding_init",
    "cache_dir",
    "train_file",
    "validation_file",
    "dataset_name",
    "dataset_config",
    "prepared_data",
    "tokenizer_name_or_path",
]


def _record(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: PretrainingArguments,
    data: PretrainingData,
    tokenizer: PreTrainedTokenizerBase | None,
) -> dict[str, dict]:
    """What `check_same_run` compares; `tokenizer` is the one that the options name, if it isn't trained."""
    options = asdict(model_args) | asdict(data_args) | args.recorded()
    fixed = {"seed": args.seed, "optim": str(args.optim.value), "sentence objective": data.sentence_objective}
    fixed |= {name: options[name] for name in TOKENIZER_TRAINING}
    fixed["tokenizer"] = "trained on the text"
    if tokenizer:
        vocabulary = repr(sorted(tokenizer.get_vocab().items())).encode()
        fixed["tokenizer"] = f"{len(tokenizer)} entries, CRC-32 {crc32(vocabulary):08x}"
    fixed["training text"] = f"{data.description}, CRC-32 {data.train_checksum:08x}"
    options["held-out text"] = "none" if data.eval_checksum is None else f"CRC-32 {data.eval_checksum:08x}"
    if args.load_best_model_at_end:
        fixed |= {name: options[name] for name in ("metric_for_best_model", "held-out text")}
    if data_args.streaming:  # which its workers divide
        fixed["dataloader_num_workers"] = args.dataloader_num_workers
    options = {name: value for name, value in options.items() if name not in {*UNRECORDED, *fixed}}
    return {"fixed": fixed, "options": options}
