"""scripts/benchmark.py counts what it says: the figures themselves are for docs/performance.md."""

import json
import subprocess
import sys

import pytest

from helpers import SCRIPTS


def benchmark(*options: str) -> str:
    command = [
        sys.executable,
        SCRIPTS / "benchmark.py",
        "--preset",
        "tiny",
        "--repeats",
        "1",
        "--device",
        "cpu",
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "trainer", "inference"])
def test_both_sides_are_measured(mode):
    result = json.loads(benchmark("--mode", mode, "--batch_size", "3", "--length", "16", "--json"))
    assert result["mean_row_tokens"] == 16
    for side in (result["transformers"], result["scratch_bert"]):
        seconds = side["step_ms"] / 1000
        assert side["rows_per_second"] == pytest.approx(3 / seconds)
        assert side["tokens_per_second"] == pytest.approx(3 * 16 / seconds)
        assert 0 < side["mfu"] < 1
        assert mode == "trainer" or side["peak_memory_mib"] > 10
    # Of BERT-tiny: 2 layers of 12·H² weights, rows of 16 tokens, the pooler; twice as many operations.
    if mode == "inference":
        products = 2 * (12 * 128**2 * 48 + 2 * 128 * 3 * 16**2) + 3 * 128**2
        speed = side["mfu"] * result["matrix_peak_gflops"] * 1e9
        assert speed * seconds == pytest.approx(2 * products)


@pytest.mark.slow
def test_a_profile_shares_out_the_whole_step():
    lines = benchmark("--profile", "--batch_size", "3", "--length", "16").splitlines()
    shares = [[int(cell.strip(" %")) for cell in line.split("|")[2:4]] for line in lines[2:]]
    assert all(98 <= sum(column) <= 102 for column in zip(*shares, strict=True))
