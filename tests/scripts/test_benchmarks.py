"""The benchmarks count what they say; their results are for docs/performance.md."""

import json
import os
import re
import runpy
import subprocess
import sys
import time
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForPreTraining, TrainerControl, TrainerState, get_linear_schedule_with_warmup

from helpers import ROOT, SMALL, run_process, run_script
from scratch_bert import ScratchBertConfig
from scratch_bert_options.data import DataOptions


BENCHMARKS = ROOT / "benchmarks"


@pytest.mark.parametrize("max_seq_length", ["64", "auto:70"])
def test_data_benchmark_measures_each_stage(max_seq_length, text_file, tmp_path, monkeypatch, capsys):
    options = ["--train_file", text_file, "--cache_dir", tmp_path, "--vocab_size", 500, "--repeats", 1, "--json"]
    run_script(monkeypatch, BENCHMARKS / "data.py", *options, "--max_seq_length", max_seq_length)
    results = json.loads(capsys.readouterr().out)
    stages = {"encode_batch", "text_to_token_ids", "pairs_of_an_epoch", "fetch_and_collate", "ratio_to_encode_batch"}
    assert set(results) == {"tokens", *stages} and min(results.values()) > 0
    assert results["tokens"] > 10_000


@pytest.mark.slow
def test_data_benchmark_measures_memory_and_the_loader(text_file, tmp_path):
    options = ["--train_file", text_file, "--cache_dir", tmp_path, "--vocab_size", 500, "--repeats", 1]
    shown = run_process(BENCHMARKS / "data.py", *options, "--memory_megabytes", 1, "--workers", 0, 1).stdout
    assert "peak memory for 1 MB of text, MiB" in shown
    speeds = re.findall(r"data loader, (\d) workers, tokens/s +([\d,]+)\n", shown)
    assert [number for number, _ in speeds] == ["0", "1"] and all(int(speed.replace(",", "")) for _, speed in speeds)


@pytest.fixture
def benchmark(monkeypatch, capsys):
    """What benchmarks/model.py prints."""
    verbosity = transformers.logging.get_verbosity()

    def run(*options):
        command = [BENCHMARKS / "model.py", "--preset", "tiny", "--repeats", 1, "--device", "cpu", *options]
        if "--profile" in options:
            run_script(monkeypatch, *command)
            return capsys.readouterr().out
        return run_process(*command).stdout  # which measures the memory of processes that it starts from its file

    yield run
    transformers.logging.set_verbosity(verbosity)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "inference"])
def test_model_benchmark_measures_both_sides(mode, benchmark):
    result = json.loads(benchmark("--mode", mode, "--batch_size", 3, "--length", 16, "--json"))
    assert result["mean_tokens"] == 16
    for side in (result["transformers"], result["scratch_bert"]):
        seconds = side["step_ms"] / 1000
        assert side["sequences_per_second"] == pytest.approx(3 / seconds)
        assert side["tokens_per_second"] == pytest.approx(3 * 16 / seconds)
        assert 0 < side["mfu"] < 1
        assert side["peak_memory_mib"] > 10
    # Of BERT-tiny: 2 layers of 12·H² weights, sequences of 16 tokens, the pooler; twice as many operations.
    if mode == "inference":
        products = 2 * (12 * 128**2 * 48 + 2 * 128 * 3 * 16**2) + 3 * 128**2
        speed = side["mfu"] * result["matrix_peak_gflops"] * 1e9
        assert speed * seconds == pytest.approx(2 * products)


@pytest.mark.parametrize("options", [{}, {"intermediate_size": 48, "num_hidden_layers": 3}])
def test_useful_operations_are_those_that_pytorch_counts_in_transformers_bert(options):
    useful_flops = runpy.run_path(str(BENCHMARKS / "model.py"))["useful_flops"]
    model = BertForPreTraining(BertConfig(**{**SMALL, **options}, attn_implementation="eager"))
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(torch.randint(5, 100, (3, 12)))
    nsp_head = 2 * 3 * 2 * SMALL["hidden_size"]
    expected = useful_flops(ScratchBertConfig(**{**SMALL, **options}), 3 * 12, 3 * 12**2, 3, 3 * 12)
    assert counter.get_total_flops() == expected + nsp_head


@pytest.mark.slow
def test_cases_of_a_gpu_run_as_far_as_a_cpu_can():
    """Where they are not compiled, which takes a minute each."""
    module = runpy.run_path(str(BENCHMARKS / "model.py"))
    args = module["BenchmarkOptions"](preset="tiny", device="cpu", repeats=1)
    cases = [case for case in module["gpu_suite"](args, tokens=512) if case.compile == "none"]
    assert [(case.length, case.batch_size, case.dropout) for case in cases[::3]] == [(128, 4, 0.0), (512, 1, 0.0)]
    for case in cases:
        seconds = module["time_steps"](case, module["make_batches"](case))
        assert all(len(times) == 1 for times in seconds.values())


@pytest.mark.slow
def test_make_gpu_runs_as_far_as_a_cpu_can(text_file, tmp_path):
    """The same commands with tiny shapes, and with two processes. The tests are only collected: .ci/run runs them."""
    tiny = "--preset tiny --batch_size 2 --length 16 --repeats 1 --device cpu"
    run = (
        "--preset tiny --vocab_size 500 --max_seq_length 32 --per_device_train_batch_size 4 --dataloader_num_workers 1 "
        f"--train_file {text_file} --validation_share 0.1"
    )
    variables = {
        "GPUS": "2",
        "GPU_TESTS": "--collect-only -m gpu tests/model/test_gpu.py",
        "GPU_SUITE": tiny,
        "GPU_TRACE": f"{tiny} --trace {tmp_path}/trace.json",
        "GPU_RUN": f"{run} --max_minutes 0.05 --bf16 false --use_cpu true --cache_dir {tmp_path}/cache",
        "OUTPUT_DIR": f"{tmp_path}/run",
    }
    make = ["make", "-n", "--no-print-directory", "-o", ".venv/installed", "gpu"]
    make += [f"{name}={value}" for name, value in variables.items()]
    options = {"cwd": ROOT, "capture_output": True, "text": True}
    options["env"] = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "MAKE", "MFLAGS"))}
    commands = subprocess.run(make, check=True, **options).stdout.replace(".venv/bin/python", sys.executable)
    ran = subprocess.run(["bash", "-ec", commands], **options)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert re.search(r"\d+(/\d+)? tests? collected", ran.stdout)
    for mode in ("train", "trainer"):
        [row] = re.findall(rf"^\| {mode} tiny, bf16, 2 full sequences of 16 \|(.*)\|$", ran.stdout, re.MULTILINE)
        speed, _, memory, our_speed, _, our_memory, ratio = (cell.strip().replace(",", "") for cell in row.split("|"))
        assert float(ratio) == pytest.approx(float(our_speed) / float(speed), rel=0.1)
        assert mode == "trainer" or min(float(memory), float(our_memory)) > 10
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert (tmp_path / "run/model.safetensors").stat().st_size > 1e6


@pytest.mark.slow
def test_model_benchmark_profiles_the_complete_step(benchmark):
    shares = {}
    for optim in ("adamw", "muon"):
        rows = benchmark(
            "--profile", "--optim", optim, "--preset", "mini", "--batch_size", 3, "--length", 16
        ).splitlines()[2:]
        cells = [line.strip("|").split("|") for line in rows]
        shares[optim] = {kind.strip(): [int(share.strip(" %")) for share in both] for kind, *both in cells}
        assert all(98 <= sum(column) <= 102 for column in zip(*shares[optim].values(), strict=True))
    for adamw, muon in zip(shares["adamw"]["optimizer"], shares["muon"]["optimizer"], strict=True):
        assert 0 < adamw < muon  # whose matrix products count as the optimizer's: of mini's step, most of the time


def learning_benchmark(name: str):
    """A function or class of benchmarks/learning.py."""
    return runpy.run_path(str(BENCHMARKS / "learning.py"))[name]


def test_learning_benchmark_evaluates_with_berts_masking_whatever_that_of_training():
    options = DataOptions(mlm_probability=0.4, whole_word_mask=True, max_predictions_per_seq=5)
    evaluated = learning_benchmark("evaluation_options")(options, "none")
    assert (evaluated.mlm_probability, evaluated.mask_replace_prob, evaluated.random_replace_prob) == (0.15, 0.8, 0.1)
    assert not evaluated.whole_word_mask and evaluated.max_predictions_per_seq is None
    assert (evaluated.sentence_objective, options.sentence_objective) == ("none", "nsp")


def test_learning_benchmark_makes_the_examples_of_run_mlm(documents, corpus, tokenizer):
    data = SimpleNamespace(train_dataset=SimpleNamespace(corpus=corpus), tokenizer=tokenizer, max_seq_length=40)
    blocks = learning_benchmark("concatenated_blocks")(data)
    encoded = tokenizer([" ".join(document) for document in documents])
    for name in ("input_ids", "token_type_ids", "attention_mask"):  # group_texts of run_mlm.py
        expected = list(chain(*encoded[name]))
        expected = [expected[i : i + 40] for i in range(0, len(expected) // 40 * 40, 40)]
        assert blocks[name][:] == expected


def test_learning_benchmark_follows_the_clock_without_evaluations(monkeypatch):
    now = 0.0

    def evaluate(model):
        nonlocal now
        now += 100
        return {"mlm_loss": 1.0}

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=100, num_training_steps=1000)
    clock, control, state = learning_benchmark("Clock")(20, evaluate), TrainerControl(), TrainerState(max_steps=1000)
    clock.on_train_begin(None, state, control)
    rates = []
    while not control.should_training_stop:
        now += 1
        state.global_step += 1
        optimizer.step()
        scheduler.step()
        clock.on_step_end(None, state, control, lr_scheduler=scheduler)
        rates += scheduler.get_last_lr()
    assert rates == pytest.approx([0.5, *np.linspace(1, 0, 19)])
    assert [point["seconds"] for point in clock.curve] == list(range(2, 21, 2))


@pytest.mark.slow
def test_learning_benchmark_trains_both_sides_for_the_same_time(text_file, tmp_path, monkeypatch):
    shape = "num_hidden_layers=1,num_attention_heads=2,hidden_size=32,intermediate_size=64"
    command = [BENCHMARKS / "learning.py", "--config_overrides", shape, "--train_file", text_file, "--vocab_size", 500]
    command += ["--cache_dir", tmp_path / "cache", "--output_dir", tmp_path / "runs", "--max_seq_length", 40]
    command += ["--transformers_batch_size", 8, "--transformers_learning_rates", 1e-4, 1e-3]
    command += ["--max_minutes", 0.02, "--seeds", 1]
    shown = run_process(*command).stdout
    runs = json.loads((tmp_path / "runs/results.json").read_text())["runs"]
    assert [(run["side"], run["learning_rate"]) for run in runs] == [
        ("transformers", 1e-4),
        ("transformers", 1e-3),
        ("scratch_bert", 2e-3),
    ]
    rows = [line.split("|")[1:-1] for line in shown.splitlines() if line.startswith("|")][2:]
    for run, row in zip(runs, rows, strict=True):
        assert run["seconds"] >= 60 * 0.02
        assert run["curve"][-1]["step"] == run["steps"] and run["curve"][-1]["seconds"] == run["seconds"]
        assert run["mlm_loss"] == pytest.approx(run["evaluate_model"]["eval_mlm_loss"], rel=1e-5)
        assert run["mlm_accuracy"] == pytest.approx(run["evaluate_model"]["eval_mlm_accuracy"])
        assert f"{run['mlm_loss']:.3f}" in row[6]
        assert ("eval_nsp_accuracy" in run["evaluate_model"]) == (run["side"] == "scratch_bert")
    for run in runs[:2]:
        tokens = run["steps"] * 8 * 40  # fewer in the last batch of an epoch
        assert run["tokens_per_second"] * run["seconds"] == pytest.approx(tokens, rel=0.02)
    assert (tmp_path / "runs/curves.png").stat().st_size > 1000
    # Another seed is trained with the better of the learning rates; the first seed's runs are not repeated.
    run_script(monkeypatch, *command, 2)
    more = json.loads((tmp_path / "runs/results.json").read_text())["runs"]
    assert more[:3] == runs
    best = min(runs[:2], key=lambda run: run["mlm_loss"])["learning_rate"]
    assert [(run["side"], run["learning_rate"]) for run in more[3:]] == [
        ("transformers", best),
        ("scratch_bert", 2e-3),
    ]
    with pytest.raises(SystemExit, match="has other values of max_minutes: delete it, or choose another output_dir"):
        run_script(monkeypatch, *command, "--max_minutes", 0.03)


@pytest.mark.slow
def test_race_trains_on_the_books_and_says_whether_the_target_is_reached(text_file, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    race, books = BENCHMARKS / "race.py", tmp_path / "books"
    shape = "num_hidden_layers=1,num_attention_heads=2,hidden_size=32,intermediate_size=64"
    command = [race, books, "--config_overrides", shape, "--cache_dir", tmp_path / "cache", "--max_seq_length", 40]
    command += ["--output_dir", tmp_path / "runs", "--max_minutes", 0.02, "--transformers_learning_rates", 1e-3]
    books.mkdir()
    with pytest.raises(SystemExit, match=r"lacks books. To get them: cd .*for book in 11 46 84 .*; do curl"):
        run_script(monkeypatch, *command)
    text, names = text_file.read_text(encoding="utf-8"), runpy.run_path(str(race))
    for number in names["BOOKS"]:
        own = text[: len(text) // 10] if number in names["HELD_OUT"] else text
        (books / f"pg{number}.txt").write_text(own, encoding="utf-8")
    run_script(monkeypatch, *command)
    shown = run_process(*command, "--transformers_minutes", 0.03).stdout  # our runs are finished
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines() if line.startswith("|")]
    sides = ["scratch_bert", "transformers, 0.001"]
    assert [row[:2] for row in rows[2:]] == [[side, str(seed)] for side in sides for seed in (1, 2, 3)]
    ours = [float(row[-1]) for row in rows[2:5]]
    assert float(re.search(r"scratch_bert: ([\d.]+) ±", shown)[1]) == pytest.approx(sum(ours) / 3, abs=0.001)
    assert "1.65 is not reached" in shown
    better = [{"side": "scratch_bert", "evaluate_model": {"eval_mlm_bits_per_character": b}} for b in (1.75, 1.45)]
    common = {"seed": 1, "seconds": 60, "steps": 9, "tokens_per_second": 9}
    assert "1.65 is reached" in names["table"]([result | common for result in better])
