#!/usr/bin/env python
"""Measure the speed and memory of scratch_bert and transformers' BERT: same weights, same batches, alternating steps.

A training step is forward, backward and --optim for both pretraining objectives, with the presets' dropout and 15% of
the tokens to predict. Speeds are medians of --repeats steps and count non-padding tokens. MFU is the fraction of the
peak FLOP/s, the fastest matrix product of this machine in that precision, and counts the matrix products that the
objectives need, three times in training (one forward, two backward). Memory is the peak of a separate process, less
what it used before the model was built; on a GPU, the peak of its allocator."""

import json
import multiprocessing
import platform
import re
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
import transformers
from accelerate.utils import send_to_device
from transformers import (
    BertConfig,
    BertForPreTraining,
    BertModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining, ScratchBertModel
from scratch_bert.model.configuration_scratch_bert import PRESETS
from scratch_bert.pretraining.optimizer import muon
from scratch_bert.training.counting import CountingCollator, sequence_lengths
from scratch_bert_cli.command_line import read_options
from scratch_bert_cli.process import script
from scratch_bert_options.declare import OptionGroup, option, options


MASK_ID, FIRST_WORD_ID = 103, 1000  # in BERT's vocabulary, from which random sequences draw their ids
SIDES = ("transformers", "scratch_bert")
WARM_UP = 2
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
SHAPES = [(1024, 1024, 1024), (2048, 2048, 2048), (4096, 768, 3072), (4096, 3072, 768)]  # the last two are BERT-base's


@options
class BenchmarkOptions(OptionGroup, group="Options"):
    preset: str = option("tiny", "Size of the model.", choices=list(PRESETS))
    mode: str = option(
        "train",
        "train: training steps. trainer: the same under transformers' Trainer, without what pretrain.py adds on a GPU: "
        "counting tokens in the collator, copying batches ahead. inference: the encoder alone, without gradients.",
        choices=["train", "trainer", "inference"],
    )
    length: int = option(128, "Longest sequence in tokens.")
    fill: float = option(
        1.0,
        "Mean length of the sequences as a fraction of the longest. Below 1, lengths are uniform around this mean, in "
        "the widest range; 0 draws them from a log-normal of median 48, cut at 8 and at --length.",
        within="[0, 1]",
    )
    batch_size: int = option(32, "Sequences in a batch.")
    optim: str = option(
        "adamw", "adamw: PyTorch's fused AdamW. muon: as pretrain.py --optim muon.", choices=["adamw", "muon"]
    )
    precision: str = option("bf16", "bf16: autocast. fp32: no autocast.", choices=["bf16", "fp32"])
    attention: str = option("sdpa", "Attention implementation of both sides.")
    dropout: float = option(0.1, "Dropout probability, also of attention weights.", within="[0, 1)")
    compile: str = option(
        "none", "Which models to compile with torch.compile.", choices=["none", "transformers", "both"]
    )
    device: str = option("auto", "auto: a GPU if there is one.", choices=["auto", "cpu", "cuda"])
    repeats: int = option(8, "Steps to time on each side, after a warm-up.")
    suite: bool = option(
        False,
        "Run the cases of the table in docs/performance.md: those of --mode trainer, or all others. On a GPU: training "
        "base with sequences of 128 and 512 tokens, with and without dropout, and against a compiled BERT.",
    )
    profile: bool = option(False, "Instead, show how a step's time is spent, on the CPU.")
    trace: str | None = option(
        None, "Instead, write a trace of three scratch_bert steps to this file, for ui.perfetto.dev."
    )
    json: bool = option(False, "Print the results as JSON, and nothing else.")

    def __post_init__(self):
        if self.device == "auto":
            self.device = "cuda" if torch.cuda.is_available() else "cpu"
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("There is no CUDA GPU, or PyTorch was installed without CUDA: use --device cpu.")
        if self.mode == "trainer" and self.device == "cuda" and torch.cuda.device_count() > 1:
            raise ValueError("Trainer would use all GPUs: choose one with CUDA_VISIBLE_DEVICES.")


def suite(args: BenchmarkOptions) -> list[BenchmarkOptions]:
    """The cases of docs/performance.md: those of the mode `trainer`, or all others."""
    if args.device == "cuda":
        return gpu_suite(replace(args, preset="base"), tokens=256 * 128)
    batch_sizes = {"tiny": 64, "mini": 64, "base": 32}
    models = [("bf16", "tiny"), ("bf16", "mini"), ("bf16", "base"), ("fp32", "mini")]
    if args.mode == "trainer":
        models = [("bf16", "mini"), ("bf16", "base")]
    else:
        args = replace(args, mode="train")
    cases = [
        replace(args, precision=precision, preset=preset, fill=fill, batch_size=batch_sizes[preset])
        for precision, preset in models
        for fill in (1.0, 0.5)
    ]
    if args.mode == "train":
        inference = replace(args, preset="base", mode="inference", length=512, fill=0.0, batch_size=32)
        cases += [replace(inference, precision=precision) for precision in ("bf16", "fp32")]
    return cases


def gpu_suite(args: BenchmarkOptions, tokens: int) -> list[BenchmarkOptions]:
    """Training with batches of up to this many tokens."""
    base = replace(args, precision="bf16", length=128, batch_size=tokens // 128)
    long = replace(base, length=512, batch_size=tokens // 512)
    cases = [
        replace(case, dropout=dropout, fill=fill)
        for case in (base, long)
        for dropout, fill in ((0.0, 1.0), (0.1, 1.0), (0.0, 0.5))
    ]
    if args.mode == "trainer":
        return cases[:1]
    return cases + [
        replace(case, dropout=0.0, compile=which) for case in (base, long) for which in ("transformers", "both")
    ]


# ------------------------------------------------------------------------------------------------------ the batches


def draw_lengths(args: BenchmarkOptions, rng: np.random.Generator) -> np.ndarray:
    """Tokens of each sequence of a batch: (B,) int64."""
    if args.fill == 0:
        lengths = rng.lognormal(np.log(48), 1.0, args.batch_size)
        return np.clip(lengths, 8, args.length).astype(np.int64)
    spread = min(args.fill, 1 - args.fill) * args.length
    low, high = round(args.fill * args.length - spread), round(args.fill * args.length + spread)
    return rng.integers(max(low, 4), high, args.batch_size, endpoint=True)


def random_batch(args: BenchmarkOptions, seed: int) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    lengths = draw_lengths(args, rng)
    shape = (args.batch_size, int(lengths.max()))  # (B, S)
    attention_mask = np.arange(shape[1]) < lengths[:, None]
    ids = rng.integers(FIRST_WORD_ID, ScratchBertConfig.vocab_size, shape) * attention_mask
    batch = {
        "input_ids": ids,
        "attention_mask": attention_mask.astype(np.int64),
        "token_type_ids": ((np.arange(shape[1]) >= lengths[:, None] // 2) & attention_mask).astype(np.int64),
    }
    if args.mode != "inference":
        masked = (rng.random(shape) < 0.15) & attention_mask
        batch["labels"] = np.where(masked, ids, -100)
        ids[masked] = MASK_ID
        batch["next_sentence_label"] = rng.integers(0, 2, args.batch_size)
    return {name: torch.from_numpy(values) for name, values in batch.items()}


def make_batches(args: BenchmarkOptions) -> list[dict[str, torch.Tensor]]:
    """A batch for each step, on the CPU, the warm-up's first."""
    return [random_batch(args, seed) for seed in range(WARM_UP + args.repeats)]


# ------------------------------------------------------------------------------------------------------ the sides


def build_model(side: str, args: BenchmarkOptions) -> torch.nn.Module:
    """Our model, or transformers' with the same weights, which are the same in each call."""
    torch.manual_seed(0)
    config = ScratchBertConfig.from_preset(args.preset, attn_implementation=args.attention)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = args.dropout
    config.max_position_embeddings = max(args.length, config.max_position_embeddings)
    inference = args.mode == "inference"
    model = (ScratchBertModel if inference else ScratchBertForPreTraining)(config)
    if side == "transformers":
        fields = {name: value for name, value in config.to_dict().items() if name in BertConfig().to_dict()}
        bert_config = BertConfig(**fields | {"model_type": "bert"}, attn_implementation=args.attention)
        weights = model.state_dict()
        model = (BertModel if inference else BertForPreTraining)(bert_config)
        model.load_state_dict(weights, strict=False)  # the decoder's bias has a second name
    return model.train(not inference)


def build_optimizer(model: torch.nn.Module, args: BenchmarkOptions) -> torch.optim.Optimizer:
    if args.optim == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    return muon(model, lr=1e-4, weight_decay=0.01, dtype=dtype)


class Side:
    """A model with its optimizer, ready to take a step."""

    def __init__(self, name: str, args: BenchmarkOptions):
        self.name, self.args, self.device = name, args, torch.device(args.device)
        self.model = build_model(name, args).to(self.device)
        self.optimizer = build_optimizer(self.model, args)
        self.run = torch.compile(self.model) if args.compile in (name, "both") else self.model

    def step(self, batch: dict[str, torch.Tensor]) -> float:
        """Seconds of a step, from a batch in the CPU's memory to new weights or to embeddings."""
        if self.device.type == "cuda":  # as from the data loader of a training
            batch = {name: values.pin_memory() for name, values in batch.items()}
            if self.name == "scratch_bert" and "labels" in batch:
                batch = CountingCollator(lambda batch: batch, compiled=self.run is not self.model)(batch)
        start = time.perf_counter()
        batch = send_to_device(batch, self.device, non_blocking=True)
        bf16 = torch.autocast(self.device.type, torch.bfloat16) if self.args.precision == "bf16" else nullcontext()
        with torch.set_grad_enabled(self.args.mode != "inference"), bf16:
            outputs = self.run(**batch)
        if self.args.mode != "inference":
            outputs.loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start


def time_steps(args: BenchmarkOptions, batches: list[dict[str, torch.Tensor]]) -> dict[str, list[float]]:
    """Seconds of each step after the warm-up, with alternating sides."""
    sides = {name: Side(name, args) for name in SIDES}
    seconds = {name: [] for name in SIDES}
    for number, batch in enumerate(batches):
        for name in SIDES if number % 2 else reversed(SIDES):
            elapsed = sides[name].step(batch)
            if number >= WARM_UP:
                seconds[name].append(elapsed)
    return seconds


class StepTimes(TrainerCallback):
    def __init__(self):
        self.ends = []

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.perf_counter())


def time_trainer(args: BenchmarkOptions, batches: list[dict[str, torch.Tensor]]) -> dict[str, list[float]]:
    """Seconds of each step after the warm-up, under Trainer, one side after the other."""
    seconds = {}
    for name in SIDES:
        times = StepTimes()
        with tempfile.TemporaryDirectory() as directory:
            arguments = TrainingArguments(
                directory,
                per_device_train_batch_size=1,  # each example is a batch
                max_steps=len(batches),
                bf16=args.precision == "bf16",
                use_cpu=args.device == "cpu",
                torch_compile=args.compile in (name, "both"),
                save_strategy="no",
                logging_strategy="no",
                train_sampling_strategy="sequential",
                dataloader_pin_memory=args.device != "cpu",
                disable_tqdm=True,
            )
            model = build_model(name, args)
            trainer = Trainer(
                model,
                arguments,
                lambda batches: batches[0],
                train_dataset=batches,
                callbacks=[times],
                optimizers=(build_optimizer(model, args), None),
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        seconds[name] = np.diff(times.ends[WARM_UP - 1 :]).tolist()
    return seconds


# -------------------------------------------------------------------------------------------- what the time goes to


KINDS = {
    "matrix products": r"mm$|scaled_dot_product|linear",
    "random numbers, dropout": r"bernoulli|random_|dropout|::ge$",
    "softmax, cross entropy": r"softmax|nll|exp_?$|log|(?i:cross_?entropy)",
    "norms, activations": r"layer_norm|gelu|tanh",
    "sums, products of elements": r"::(mul|add|sub|div|neg|sum)_?$",
    "copies, conversions, memory": r"copy|fill|zero|empty|index|gather|scatter|embedding|cat$|clone|masked",
    "optimizer": r"^Optimizer\.",
}
OTHER = "views, autograd, Python"


def time_fractions(name: str, args: BenchmarkOptions) -> dict[str, float]:
    """Fractions of a step's time that kinds of operations take."""
    side, batches = Side(name, args), make_batches(args)
    for batch in batches[:WARM_UP]:
        side.step(batch)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        seconds = sum(side.step(batch) for batch in batches[WARM_UP:])
    fractions = dict.fromkeys(KINDS, 0.0)
    for event in profile.events():
        outermost = event
        while outermost.cpu_parent is not None:
            outermost = outermost.cpu_parent
        # Operations that the optimizer calls count as the optimizer.
        name = outermost.name if outermost.name.startswith("Optimizer.") else event.name
        kind = next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), None)
        if kind is not None:
            fractions[kind] += event.self_cpu_time_total / 1e6 / seconds
    return fractions | {OTHER: 1 - sum(fractions.values())}


def profile_table(args: BenchmarkOptions) -> str:
    fractions = {name: time_fractions(name, args) for name in SIDES}
    lines = [f"| {args.preset}, {args.precision} | " + " | ".join(SIDES) + " |", "| --- | ---: | ---: |"]
    lines += [
        f"| {kind} | " + " | ".join(f"{fractions[name][kind]:.0%}" for name in SIDES) + " |"
        for kind in fractions[SIDES[0]]
    ]
    return "\n".join(lines)


def write_trace(args: BenchmarkOptions) -> None:
    side, (*warm_up, last) = Side("scratch_bert", args), make_batches(replace(args, repeats=1))
    for batch in warm_up:
        side.step(batch)
    with torch.profiler.profile() as profile:
        for _ in range(3):
            side.step(last)
    Path(args.trace).parent.mkdir(parents=True, exist_ok=True)
    profile.export_chrome_trace(args.trace)


# ----------------------------------------------------------------------- useful FLOPs, their peak, and peak memory


def useful_flops(config: ScratchBertConfig, tokens: int, squared_lengths: int, sequences: int, predicted: int) -> int:
    """Floating-point operations of a forward pass's matrix products: over non-padding `tokens`, in `sequences` whose squared
    lengths have this sum, with MLM logits at the `predicted` positions."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    attention = heads * (getattr(config, "head_dim", None) or hidden // heads)
    layer = (4 * hidden * attention + 2 * hidden * config.intermediate_size) * tokens + 2 * attention * squared_lengths
    width = getattr(config, "embedding_size", None)  # of factorised embeddings
    embedding = hidden * width if width else 0
    pooler, mlm_head = hidden**2, hidden**2 + embedding + (width or hidden) * config.vocab_size
    return 2 * (config.num_hidden_layers * layer + tokens * embedding + sequences * pooler + predicted * mlm_head)


def step_flops(args: BenchmarkOptions, batch: dict[str, torch.Tensor]) -> float:
    """Floating-point operations of the matrix products that a batch needs: non-padding tokens, labelled positions."""
    config, lengths = ScratchBertConfig.from_preset(args.preset), sequence_lengths(batch)
    training = args.mode != "inference"
    predicted = int(batch["labels"].ne(-100).sum()) if training else 0
    counts = int(lengths.sum()), int((lengths**2).sum()), len(lengths), predicted
    return useful_flops(config, *counts) * (3 if training else 1)


def matrix_peak(device: str, dtype: torch.dtype, seconds: float = 1.0) -> float:
    """FLOP/s of the fastest matrix product among `SHAPES`. Each runs for this many seconds, and at least twice."""
    synchronize = (lambda: None) if device == "cpu" else torch.accelerator.synchronize
    best = 0.0
    for rows, inner, columns in SHAPES + [(8192, 8192, 8192)] * (device == "cuda"):
        left = torch.randn(rows, inner, dtype=dtype, device=device)
        right = torch.randn(columns, inner, dtype=dtype, device=device)
        begin, runs = time.perf_counter(), 0
        while runs < 2 or time.perf_counter() - begin < seconds:
            synchronize()
            start = time.perf_counter()
            torch.nn.functional.linear(left, right)
            synchronize()
            best = max(best, 2 * rows * inner * columns / (time.perf_counter() - start))
            runs += 1
    return best


def resident_peak() -> int:
    """Peak memory of this process, in bytes. Linux only."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def peak_memory(name: str, args: BenchmarkOptions) -> int:
    """Peak memory of building a model and three steps, in bytes. Call it in a separate process."""
    batches = make_batches(replace(args, repeats=1))
    before = resident_peak()
    side = Side(name, args)
    for batch in batches:
        side.step(batch)
    return resident_peak() - before if args.device == "cpu" else torch.cuda.max_memory_allocated()


# ---------------------------------------------------------------------------------------------------- the results


def measure(args: BenchmarkOptions, peak: float) -> dict:
    batches = make_batches(args)
    seconds = (time_trainer if args.mode == "trainer" else time_steps)(args, batches)
    timed = batches[WARM_UP:]
    tokens = [int(batch["attention_mask"].sum()) for batch in timed]
    flops = [step_flops(args, batch) for batch in timed]
    result = asdict(args) | {
        "mean_tokens": statistics.mean(tokens) / args.batch_size,
        "matrix_peak_gflops": peak / 1e9,
    }
    for name in SIDES:
        result[name] = {
            "step_ms": 1000 * statistics.median(seconds[name]),
            "sequences_per_second": args.batch_size / statistics.median(seconds[name]),
            "tokens_per_second": statistics.median(np.divide(tokens, seconds[name])),
            "mfu": statistics.median(np.divide(flops, seconds[name])) / peak,
        }
        if args.mode != "trainer":
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                result[name]["peak_memory_mib"] = pool.submit(peak_memory, name, args).result() / 2**20
    result["ratio"] = result["scratch_bert"]["tokens_per_second"] / result["transformers"]["tokens_per_second"]
    return result


HEADER = "| case | transformers: tokens/s | MFU | MiB | scratch_bert: tokens/s | MFU | MiB | ratio |"


def table_row(result: dict) -> str:
    fill = {0.0: "mixed", 1.0: "full"}.get(result["fill"], f"{result['fill']:.0%} full")
    case = f"{result['mode']} {result['preset']}, {result['precision']}, {result['batch_size']} {fill} sequences"
    case += f" of {result['length']}" + ", no dropout" * (result["dropout"] == 0)
    case += ", Muon" * (result["optim"] == "muon")
    cells = [case + f", compiled: {result['compile']}" * (result["compile"] != "none")]
    for name in SIDES:
        side = result[name]
        memory = f"{side['peak_memory_mib']:,.0f}" if "peak_memory_mib" in side else ""
        cells += [f"{side['tokens_per_second']:,.0f}", f"{side['mfu']:.2f}", memory]
    return " | ".join(["", *cells, f"{result['ratio']:.2f}", ""]).strip()


@script
def main() -> None:
    (args,) = read_options(BenchmarkOptions, description=__doc__)
    transformers.utils.logging.set_verbosity_error()
    if args.profile:
        print(profile_table(args))
        return
    if args.trace:
        write_trace(args)
        return
    cases = suite(args) if args.suite else [args]
    device = torch.cuda.get_device_name() if args.device == "cuda" else f"{platform.machine()} CPU"
    peaks = {case.precision: matrix_peak(args.device, DTYPES[case.precision]) for case in cases}
    if not args.json:
        print(
            f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}, transformers {transformers.__version__}"
        )
        for precision, peak in peaks.items():
            print(f"Peak in {precision}: {peak / 1e9:,.0f} GFLOP/s")
        print(HEADER, "| --- " + "| ---: " * 7 + "|", sep="\n")
    results = []
    for case in cases:
        results.append(measure(case, peaks[case.precision]))
        if not args.json:
            print(table_row(results[-1]), flush=True)
    if args.json:
        print(json.dumps(results if args.suite else results[0], indent=2))


if __name__ == "__main__":
    main()
