"""Training speed: non-padding tokens per second, and model FLOPs utilization (MFU), the fraction of the peak FLOP/s."""

import json
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil
import torch
from huggingface_hub.constants import HF_HOME
from transformers import TrainerCallback

from ..model.configuration_scratch_bert import ScratchBertConfig


# Dense bf16 FLOP/s as published by the makers, by prefixes of PyTorch's device names.
PUBLISHED_PEAKS = {
    "NVIDIA A100": 312e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA GeForce RTX 3090": 71e12,
    "NVIDIA GeForce RTX 4090": 165e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40": 181e12,
    "NVIDIA L40S": 362e12,
}
SHAPES = [(1024, 1024, 1024), (2048, 2048, 2048), (4096, 768, 3072), (4096, 3072, 768)]  # the last two are BERT-base's


def useful_flops(config: ScratchBertConfig, tokens: int, squared_lengths: int, sequences: int, predicted: int) -> int:
    """Return the floating-point operations of a forward pass's matrix products: over non-padding `tokens`, in `sequences` whose
    squared lengths have this sum, with MLM logits at the `predicted` positions."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    attention = heads * (getattr(config, "head_dim", None) or hidden // heads)
    layer = (4 * hidden * attention + 2 * hidden * config.intermediate_size) * tokens + 2 * attention * squared_lengths
    pooler, mlm_head = hidden**2, hidden**2 + hidden * config.vocab_size
    return 2 * (config.num_hidden_layers * layer + sequences * pooler + predicted * mlm_head)


def sequence_lengths(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the number of tokens in each sequence of a batch, padded or packed; 0 where there is no sequence."""
    mask = batch.get("attention_mask")  # (B, S), or (B, C, S) in multiple choice
    mask = torch.ones_like(batch["input_ids"]) if mask is None else mask.long()
    if "seq_idx" not in batch:
        return mask.sum(-1).flatten()
    return torch.zeros_like(mask).scatter_add_(1, batch["seq_idx"], mask).flatten()


@cache
def matrix_peak(device: str, dtype: torch.dtype, seconds: float = 0.25) -> float:
    """Return the FLOP/s of the fastest matrix product among `SHAPES`. Each runs for this many seconds, and at least twice."""
    synchronize = (lambda: None) if device == "cpu" else torch.accelerator.synchronize
    generator = torch.Generator(device).manual_seed(0)  # the training's generator must not advance
    best = 0.0
    for rows, inner, columns in SHAPES + [(8192, 8192, 8192)] * (device == "cuda"):
        left = torch.randn(rows, inner, dtype=dtype, device=device, generator=generator)
        right = torch.randn(columns, inner, dtype=dtype, device=device, generator=generator)
        begin, runs = time.perf_counter(), 0
        while runs < 2 or time.perf_counter() - begin < seconds:
            synchronize()
            start = time.perf_counter()
            torch.nn.functional.linear(left, right)
            synchronize()
            best = max(best, 2 * rows * inner * columns / (time.perf_counter() - start))
            runs += 1
    return best


def known_matrix_peak(device: str, dtype: torch.dtype) -> float:
    """Return the peak FLOP/s: the published value for a known GPU in half precision; otherwise a measurement, which is cached in
    Hugging Face's cache directory (scratch_bert/matrix_peak.json) until it is deleted there."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"{_cpu_name()}, {torch.get_num_threads()} threads"
    if device == "cuda" and dtype != torch.float32:
        published = [beginning for beginning in PUBLISHED_PEAKS if name.startswith(beginning)]
        if published:
            return PUBLISHED_PEAKS[max(published, key=len)]
    file = Path(HF_HOME, "scratch_bert", "matrix_peak.json")
    tf32 = ", TF32" * (device == "cuda" and torch.backends.cuda.matmul.allow_tf32)
    key = f"{device}: {name}, {dtype}{tf32}, torch {torch.__version__}"
    try:
        peaks = dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # none yet, or damaged
        peaks = {}
    if not isinstance(peaks.get(key), float):
        peaks[key] = matrix_peak(device, dtype)
        with suppress(OSError):  # measured again next time
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(peaks, indent=2), encoding="utf-8")
    return peaks[key]


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


class SpeedMeter(TrainerCallback):
    """Counts the operations and the time of training steps in one process, between two entries of the log. As a callback, it stops
    the clock after each step."""

    def __init__(self, config: ScratchBertConfig, device: torch.device, peak: float = 1.0):
        self.config, self.device = config, device
        self.new_tokens = torch.zeros((), dtype=torch.long, device=device)  # since `take_tokens`
        self.start(peak)

    def start(self, peak: float) -> None:
        """Start again, on a machine with this peak FLOP/s per process."""
        self.peak = peak
        self.counts = torch.zeros(4, dtype=torch.long, device=self.device)  # the last arguments of `useful_flops`
        self.seconds = self.data_seconds = 0.0
        self.since: float | None = None

    def resume(self) -> None:
        """Start the clock of a step, which begins by waiting for its examples."""
        self.since = self.since or time.perf_counter()
        self.data_since = time.perf_counter()

    def got_examples(self) -> None:
        """Stop the clock of the data."""
        self.data_seconds += time.perf_counter() - self.data_since

    def pause(self) -> None:
        """Stop the clock: evaluations and saves are not part of a step."""
        if self.since is not None:
            self.seconds += time.perf_counter() - self.since
            self.since = None

    def on_step_end(self, args, state, control, **kwargs):
        if not control.should_log:  # otherwise `report` pauses, after the wait for the device
            self.pause()

    def count(self, batch: dict[str, torch.Tensor], predicted: torch.Tensor | int) -> None:
        """Add a micro-batch with MLM logits at `predicted` positions. The host does not wait for the device."""
        lengths = batch.get("sequence_lengths")  # the collator has counted
        lengths = sequence_lengths(batch) if lengths is None else torch.tensor(lengths)
        counts = [lengths.sum(), (lengths * lengths).sum(), (lengths > 0).sum(), torch.as_tensor(predicted)]
        self.counts += torch.stack([count.to(lengths.device, non_blocking=True) for count in counts]).to(
            self.device, non_blocking=True
        )
        self.new_tokens += lengths.sum().to(self.device, non_blocking=True)

    def take_tokens(self, reduce: Callable[[torch.Tensor], torch.Tensor]) -> int:
        """Return the number of non-padding tokens of all processes since the last call: `reduce` sums over processes."""
        tokens = int(reduce(self.new_tokens))
        self.new_tokens = torch.zeros_like(self.new_tokens)
        return tokens

    def report(self, reduce: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, float]:
        """Return entries for the log about all processes since the last report: `reduce` sums a tensor over processes. The memory,
        in MiB, is this process's: the maximum allocated on the GPU, or the resident set on the CPU."""
        self.pause()
        if not self.seconds:
            return {}
        measured = torch.tensor([self.data_seconds, self.seconds, self.peak], device=self.device)
        *counts, data_seconds, seconds, peak = reduce(torch.cat([self.counts.float(), measured])).tolist()
        on_gpu = self.device.type == "cuda"
        memory = torch.cuda.max_memory_allocated() if on_gpu else psutil.Process().memory_info().rss
        self.start(self.peak)
        processes = peak / self.peak
        flops = 3 * useful_flops(self.config, *counts)  # the backward pass takes twice as many as the forward pass
        return {
            "speed/tokens_per_second": counts[0] * processes / seconds,
            "speed/mfu": flops * processes / seconds / peak,
            "speed/data_share": data_seconds / seconds,
            "speed/memory_mib": memory / 2**20,
        }
