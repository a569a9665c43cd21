#!/usr/bin/env python
"""Measure how much a model learns in a given time: transformers' BertForMaskedLM and scratch_bert, of the same shape,
on the same documents and machine, both evaluated on the same masked tokens of held-out text.

scratch_bert is trained like scripts/pretrain.py with these options, such as a recipe's; transformers' BERT by the
stock Trainer, on examples like those of its script run_mlm.py, with the best of several learning rates, which are
compared with the first seed. A seed determines the held-out documents (without --validation_file), the initial weights
and the order of the examples. Only training counts as time. The learning rate follows the clock: it decays to 0 when
the time is over, after any number of steps. The held-out examples are contiguous text with 15% of its tokens masked.

The output directory gets results.json, curves.png (with matplotlib), and the model and result of each run. The same
command resumes after an interruption, and trains only new --seeds. Results of transformers' BERT stay valid if
scratch_bert is trained in another way: delete the directories of scratch_bert's runs to repeat only these."""

import copy
import json
import logging
import platform
import re
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import datasets
import numpy as np
import torch
import transformers
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from scratch_bert import ScratchBertConfig
from scratch_bert.corpus.tokenizer import segment_ids, vocabulary_size
from scratch_bert.logs import configure_logging
from scratch_bert.objectives import OBJECTIVES
from scratch_bert.pretraining.arguments import parse_overrides, pretraining_arguments
from scratch_bert.pretraining.build_model import choose_tokenizer
from scratch_bert.pretraining.evaluation import evaluate
from scratch_bert.pretraining.run import prepare_pretraining
from scratch_bert.pretraining.sources import PretrainingData, build_collator, load_data
from scratch_bert.training.console import PlainLines
from scratch_bert_cli.command_line import read_options
from scratch_bert_cli.process import script
from scratch_bert_options.data import DataOptions
from scratch_bert_options.declare import option, options, reject_non_default
from scratch_bert_options.evaluation import EvaluationDataOptions, EvaluationOptions
from scratch_bert_options.model import ModelOptions
from scratch_bert_options.pretraining import PretrainingOptions


SHAPE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
MASKING = ("mlm_probability", "mask_replace_prob", "random_replace_prob", "whole_word_mask", "max_predictions_per_seq")
EVAL_BATCH_SIZE = 32
EVALUATIONS, BATCHES_IN_AN_EVALUATION = 10, 32  # for the curve; the final evaluation takes all batches
SCHEDULE_STEPS = 1_000_000  # length of the learning rate's schedule, which follows the clock: more than a run's steps
RESULT = "result.json"  # in the directory of a finished run

logger = logging.getLogger("learning")


@options
class LearningOptions(PretrainingOptions):
    output_dir: str | None = option("runs/learning", "Directory for results, curves, and the models of all runs.")
    max_minutes: float | None = option(20.0, "Time to train each model.", within="(0, 1e6]")
    seeds: list[int] | None = option(None, "Train both sides with each of these seeds. Default: --seed.")
    transformers_batch_size: int = option(32, "Examples in a batch of transformers' BERT.")
    transformers_learning_rates: list[float] | None = option(
        None, "Peak learning rates to try for transformers' BERT. Default: 5e-4 1e-3."
    )

    def __post_init__(self):
        # The benchmark itself evaluates, saves and stops, by a clock that stands still meanwhile, in the first phase: of a
        # recipe's steps, only the fraction of warm-up counts.
        minutes, self.max_minutes = self.max_minutes, None
        self.final_max_seq_length = self.final_mlm_probability = None
        self.final_share = type(self).final_share
        if self.warmup_steps >= 1:
            if self.max_steps < self.warmup_steps:
                raise ValueError("warmup_steps must be a fraction below 1, or a number of steps up to max_steps.")
            self.warmup_steps /= self.max_steps
        self.max_steps = SCHEDULE_STEPS
        self.eval_strategy = self.save_strategy = "no"
        self.trainer |= {"include_num_input_tokens_seen": "non_padding", "disable_tqdm": True}
        super().__post_init__()
        self.max_minutes = minutes
        self.seeds = self.seeds or [self.seed]
        self.transformers_learning_rates = self.transformers_learning_rates or [5e-4, 1e-3]


# ------------------------------------------------------------------------------------------- evaluation of any model


def evaluation_options(data_args: DataOptions, sentence_objective: str) -> DataOptions:
    """The options for the same documents as examples of this objective, with BERT's masking."""
    options = copy.copy(data_args)
    options.sentence_objective = sentence_objective
    for name in MASKING:
        setattr(options, name, getattr(EvaluationDataOptions, name))
    return options


def held_out_batches(data_args: DataOptions, data: PretrainingData) -> list[dict[str, torch.Tensor]]:
    """All held-out examples, in the batches and with the masks of scripts/evaluate_model.py."""
    collator, examples = build_collator(data_args, data.tokenizer), data.eval_dataset
    starts = range(0, len(examples), EVAL_BATCH_SIZE)
    return [collator([examples[i] for i in range(s, min(s + EVAL_BATCH_SIZE, len(examples)))]) for s in starts]


@torch.no_grad()
def masked_lm(model: PreTrainedModel, batches: list[dict[str, torch.Tensor]]) -> dict[str, float]:
    """Loss in nats and accuracy over the masked tokens of all batches, in fp32, of any model with an MLM head."""
    was_training = model.training
    model.eval()
    loss = correct = count = 0
    for batch in batches:
        batch = {name: values.to(model.device) for name, values in batch.items()}
        masked = batch["labels"] != -100
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
        outputs = type(model).forward(model, **inputs)  # during training, the instance's forward is in bf16 autocast
        logits = outputs["prediction_logits" if "prediction_logits" in outputs else "logits"][masked]  # (M, V)
        labels = batch["labels"][masked]  # (M,)
        loss += F.cross_entropy(logits, labels, reduction="sum").item()
        correct += (logits.argmax(-1) == labels).sum().item()
        count += len(labels)
    model.train(was_training)
    return {"mlm_loss": loss / count, "mlm_accuracy": correct / count}


# ------------------------------------------------------------------------------------------------- training by time


class Clock(TrainerCallback):
    """Stops training when its time is over, evaluates on the way, which does not count as time, and advances the
    learning rate's schedule over `state.max_steps` by time instead of steps."""

    def __init__(self, seconds: float, evaluate: Callable[[PreTrainedModel], dict[str, float]]):
        self.seconds, self.evaluate = seconds, evaluate
        self.curve: list[dict[str, float]] = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.start = time.perf_counter()

    def on_step_end(self, args, state, control, model=None, lr_scheduler=None, **kwargs):
        elapsed = time.perf_counter() - self.start
        progress = min(elapsed / self.seconds, 1)
        lr_scheduler.last_epoch = int(progress * state.max_steps) - 1
        lr_scheduler.step()
        control.should_training_stop |= progress == 1  # Ctrl-C may have set it
        if progress >= (len(self.curve) + 1) / EVALUATIONS:
            self.curve.append({"seconds": elapsed, "step": state.global_step} | self.evaluate(model))
            logger.info(f"{elapsed:,.0f} s, step {state.global_step:,}: MLM loss {self.curve[-1]['mlm_loss']:.3f}")
            self.start = time.perf_counter() - elapsed


# ----------------------------------------------------------------------------------------------------- the two sides


def concatenated_blocks(data: PretrainingData) -> datasets.Dataset:
    """The training documents as examples of run_mlm.py: with [CLS] and [SEP] around each, concatenated, and cut into
    blocks of `max_seq_length`; without its special_tokens_mask, which Trainer removes."""
    corpus, tokenizer, length = data.train_dataset.corpus, data.tokenizer, data.max_seq_length
    documents = [corpus.tokens[start:end] for start, end in corpus.document_tokens.tolist()]
    cls, sep = [tokenizer.cls_token_id], [tokenizer.sep_token_id]
    ids = np.concatenate([part for document in documents for part in (cls, document, sep)])
    ids = ids[: len(ids) // length * length].reshape(-1, length).astype(np.int32)
    token_type_ids = np.full_like(ids, segment_ids(tokenizer)[0])
    columns = {"input_ids": ids, "token_type_ids": token_type_ids, "attention_mask": np.ones_like(ids)}
    return datasets.Dataset.from_dict(columns)


class Benchmark:
    """Both sides with one seed."""

    def __init__(self, model_args: ModelOptions, data_args: DataOptions, args: LearningOptions, seed: int):
        self.model_args, self.data_args, self.args, self.seed = model_args, data_args, args, seed
        config = ScratchBertConfig.from_preset(model_args.preset, **parse_overrides(model_args.config_overrides))
        self.shape = {name: getattr(config, name) for name in SHAPE}
        self.evaluation = evaluation_options(data_args, "none")
        self.data = load_data(self.evaluation, seed, choose_tokenizer(model_args, data_args).tokenizer)
        if self.data.eval_dataset is None:
            raise ValueError("There is no held-out text: pass --validation_file or a validation_share above 0.")
        self.batches = held_out_batches(self.evaluation, self.data)

    def build_scratch_bert(self, output_dir: str) -> Trainer:
        args = replace(self.args, seed=self.seed, seeds=None, output_dir=output_dir, max_minutes=None)
        return prepare_pretraining(self.model_args, self.data_args, args).trainer

    def build_transformers(self, learning_rate: float, output_dir: str) -> Trainer:
        args, tokenizer = pretraining_arguments(self.args), self.data.tokenizer
        set_seed(self.seed)
        config = BertConfig(
            **self.shape,
            vocab_size=vocabulary_size(tokenizer),
            type_vocab_size=segment_ids(tokenizer)[1] + 1,
            pad_token_id=tokenizer.pad_token_id,
            max_position_embeddings=self.model_args.max_position_embeddings or self.data.max_seq_length,
        )
        arguments = TrainingArguments(
            output_dir,
            learning_rate=learning_rate,
            per_device_train_batch_size=self.args.transformers_batch_size,
            max_steps=SCHEDULE_STEPS,
            warmup_steps=0.1,
            bf16=args.bf16,
            use_cpu=args.use_cpu,
            seed=self.seed,
            save_strategy="no",
            include_num_input_tokens_seen="non_padding",
            dataloader_pin_memory=args.dataloader_pin_memory,
            disable_tqdm=True,
        )
        return Trainer(
            BertForMaskedLM(config),
            arguments,
            DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
            train_dataset=concatenated_blocks(self.data),
            processing_class=tokenizer,
        )

    def run_scratch_bert(self) -> dict:
        return self.measure("scratch_bert", self.args.learning_rate, self.build_scratch_bert)

    def run_transformers(self, learning_rate: float) -> dict:
        return self.measure("transformers", learning_rate, partial(self.build_transformers, learning_rate))

    def measure(self, side: str, learning_rate: float, build: Callable[..., Trainer]) -> dict:
        """Train for the given time, evaluate and save; finished runs are not repeated."""
        name = f"{side}-{learning_rate:g}-seed-{self.seed}"
        directory = Path(self.args.output_dir, name)
        options = self.options(side)
        if (directory / RESULT).exists():
            result = json.loads((directory / RESULT).read_text())
            changed = [option for option in options if options[option] != result["options"].get(option)]
            if changed:
                raise ValueError(
                    f"{directory} has other values of {', '.join(changed)}: delete it, or choose another output_dir."
                )
            logger.info(f"{name}: already finished, skipped")
            return result
        shutil.rmtree(directory, ignore_errors=True)  # left by an interrupted run
        logger.info(name)
        part = self.batches[:: -(-len(self.batches) // BATCHES_IN_AN_EVALUATION)]
        clock = Clock(60 * self.args.max_minutes, partial(masked_lm, batches=part))
        trainer = build(output_dir=str(directory))
        for console in (PrinterCallback, PlainLines):
            trainer.remove_callback(console)
        trainer.add_callback(clock)
        trainer.train()
        if getattr(trainer, "interrupted", False):
            raise KeyboardInterrupt("Stopped. The same command continues with the unfinished runs.")
        trainer.save_model()
        trainer.save_state()
        steps, seconds = trainer.state.global_step, clock.curve[-1]["seconds"]
        result = {
            "side": side,
            "learning_rate": learning_rate,
            "seed": self.seed,
            "steps": steps,
            "seconds": seconds,
            "tokens_per_second": trainer.state.num_input_tokens_seen / seconds,
            **masked_lm(trainer.model, self.batches),
            "curve": clock.curve,
            "evaluate_model": self.evaluate_saved(str(directory), side),
            "options": options,
        }
        (directory / RESULT).write_text(json.dumps(result, indent=2) + "\n")
        return result

    def options(self, side: str) -> dict:
        """The options that a finished run depends on, except those in its name."""
        args = pretraining_arguments(self.args).to_sanitized_dict() | asdict(self.args)
        if side == "transformers":  # stays valid when scratch_bert is trained in another way
            names = ("max_minutes", "transformers_batch_size", "bf16", "use_cpu")
            return self.shape | asdict(self.evaluation) | {name: args[name] for name in names}
        in_name = ("output_dir", "seed", "seeds", "learning_rate", "transformers_learning_rates")
        options = asdict(self.model_args) | asdict(self.data_args) | args
        return {name: value for name, value in options.items() if name not in in_name}

    def evaluate_saved(self, directory: str, side: str) -> dict[str, float]:
        """The metrics of scripts/evaluate_model.py: on the same masked tokens, and on pairs, for a model with NSP."""
        args = EvaluationOptions(
            model_name_or_path=[directory], per_device_eval_batch_size=EVAL_BATCH_SIZE, seed=self.seed
        )
        metrics = evaluate(self.evaluation, args)[0][directory]
        objective = self.data_args.sentence_objective
        if side == "scratch_bert" and OBJECTIVES[objective].has_pairs:
            on_pairs = evaluate(evaluation_options(self.data_args, objective), args)[0][directory]
            metrics |= {key: value for key, value in on_pairs.items() if key.startswith("eval_nsp")}
        return metrics


def measure_all(
    model_args: ModelOptions, data_args: DataOptions, args: LearningOptions, our_side: bool = True
) -> list[dict]:
    """The results of all runs, seed by seed, scratch_bert's last."""
    results, learning_rates = [], args.transformers_learning_rates
    for seed in args.seeds:
        benchmark = Benchmark(model_args, data_args, args, seed)
        baselines = [benchmark.run_transformers(learning_rate) for learning_rate in learning_rates]
        results += [*baselines, benchmark.run_scratch_bert()] if our_side else baselines
        learning_rates = [baselines[np.nanargmin([result["mlm_loss"] for result in baselines])]["learning_rate"]]
    return results


# ------------------------------------------------------------------------------------------------------- the results


def machine(args: TrainingArguments) -> dict:
    return {
        "device": torch.cuda.get_device_name() if args.device.type == "cuda" else cpu_name(),
        "threads": torch.get_num_threads(),
        "flags": sorted(name for name, value in torch.cpu.get_capabilities().items() if value is True),
        "precision": "bf16" if args.bf16 else "fp32",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    name = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return name[1] if name else platform.machine()


def describe(machine: dict) -> str:
    flags = [name for name in machine["flags"] if name in ("avx2", "avx512_f") or "bf16" in name]
    return (
        f"{machine['device']} ({', '.join(flags)}), {machine['threads']} threads, {machine['precision']}, "
        f"torch {machine['torch']}, transformers {machine['transformers']}"
    )


HEADER = "| side | learning rate | seed | steps | seconds | tokens/s | MLM loss | difference | MLM accuracy | NSP accuracy |"


def table(results: list[dict]) -> str:
    """A row for each run, in Markdown."""
    our_losses = {result["seed"]: result["mlm_loss"] for result in results if result["side"] == "scratch_bert"}
    lines = [HEADER, "| --- " + "| ---: " * 9 + "|"]
    for result in results:
        nsp_accuracy = result["evaluate_model"].get("eval_nsp_accuracy")
        cells = [
            result["side"],
            f"{result['learning_rate']:g}",
            str(result["seed"]),
            f"{result['steps']:,}",
            f"{result['seconds']:,.0f}",
            f"{result['tokens_per_second']:,.0f}",
            f"{result['mlm_loss']:.3f}",
            "" if result["side"] == "scratch_bert" else f"{result['mlm_loss'] - our_losses[result['seed']]:+.3f}",
            f"{result['mlm_accuracy']:.1%}",
            "" if nsp_accuracy is None else f"{nsp_accuracy:.1%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    unigram = statistics.mean(result["evaluate_model"]["eval_mlm_unigram_loss"] for result in results)
    difference = max(abs(result["mlm_loss"] - result["evaluate_model"]["eval_mlm_loss"]) for result in results)
    lines += [
        "",
        "Difference: from the loss of scratch_bert with the same seed. "
        f"MLM loss of the training text's unigrams: {unigram:.3f}. "
        f"scripts/evaluate_model.py gives the same losses within {difference:.0e}.",
    ]
    return "\n".join(lines)


def draw_curves(results: list[dict], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    labels = [f"{result['side']}, learning rate {result['learning_rate']:g}" for result in results]
    colours = {label: f"C{number}" for number, label in enumerate(dict.fromkeys(labels))}
    for result, label in zip(results, labels, strict=True):
        points = [(point["seconds"], point["mlm_loss"]) for point in result["curve"]]
        first = label not in axes.get_legend_handles_labels()[1]
        axes.plot(*zip(*points, strict=True), ".-", color=colours[label], label=label if first else None)
    axes.axhline(results[0]["evaluate_model"]["eval_mlm_unigram_loss"], color="grey", linestyle=":", label="unigrams")
    axes.set(title="MLM loss on held-out text (nats)", xlabel="seconds of training")
    axes.legend()
    figure.savefig(file)


@script
def main() -> None:
    groups = (ModelOptions, DataOptions, LearningOptions)
    model_args, data_args, args = read_options(*groups, description=__doc__)
    configure_logging(logging.WARNING)
    logger.setLevel(logging.INFO)
    transformers.utils.logging.disable_progress_bar()
    reject_non_default(data_args, ["streaming", "prepared_data"], "in this benchmark, which needs the documents")
    results = measure_all(model_args, data_args, args)
    report = {"machine": machine(pretraining_arguments(args)), "runs": results}
    Path(args.output_dir, "results.json").write_text(json.dumps(report, indent=2) + "\n")
    if find_spec("matplotlib"):
        draw_curves(results, Path(args.output_dir, "curves.png"))
    print(f"{describe(report['machine'])}\n\n{table(results)}")


if __name__ == "__main__":
    main()
