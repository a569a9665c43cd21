"""Processes that are killed and started again, by the same command, end with the weights of a run that nothing
interrupted."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import SCRIPTS, SIZES, assert_same_weights, run_process
from scratch_bert.checkpoints.saved import find_damage


pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


@pytest.fixture(scope="module")
def start(text_file, tmp_path_factory):
    """Starts or resumes the run in a directory: its process."""
    root = tmp_path_factory.mktemp("runs")

    def start(name, *options, launcher=(), tokenizer=("--vocab_size", 500)):
        command = [sys.executable, *launcher, SCRIPTS / "pretrain.py", "--train_file", text_file, "--cache_dir", root]
        command += [*tokenizer, "--max_seq_length", 32]
        command += ["--use_cpu", "--bf16", "false", "--disable_tqdm", "true"]
        command += ["--config_overrides", json.dumps(SIZES), "--dropout", 0.1]
        command += ["--max_steps", 24, "--save_steps", 3, "--eval_strategy", "no", "--show_predictions", 0]
        command += ["--output_dir", root / name, "--resume_from_checkpoint", "auto", *options]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with (root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                list(map(str, command)), stdout=log, stderr=log, env=environment, start_new_session=True
            )
        process.log = root / f"{name}.log"
        return process

    start.root = root
    return start


def wait_for(path, process):
    while not path.exists() and process.poll() is None:
        time.sleep(0.001)


def children_of(process):
    return [int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def kill(process):
    """Kill a launcher and its processes, each of which is in a group of its own."""
    for number in (*children_of(process), process.pid):
        os.kill(number, signal.SIGKILL)


def exit_code(process):
    """The exit code of a process; one that hangs is killed, and fails the test with its log."""
    try:
        return process.wait(timeout=240)
    except subprocess.TimeoutExpired:
        kill(process)
        pytest.fail(f"does not end:\n{process.log.read_text()}")


@pytest.fixture(scope="module")
def unbroken(start):
    """The name of a run of two processes, without workers, that nothing stops."""
    process = start("unbroken", launcher=TORCHRUN)
    assert exit_code(process) == 0, process.log.read_text()
    return "unbroken"


def kill_while_it_saves(name, options, launcher, start):
    """Four times, each time started again."""
    generator, output_dir, kills = random.Random(0), start.root / name, 0
    while True:
        process = start(name, *options, launcher=launcher)
        if kills < 4:
            wait_for(output_dir / ".saving", process)
            time.sleep(generator.random() / 4)  # about the time of a save
        if process.poll() is not None or kills == 4:
            break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert exit_code(process) == 0, process.log.read_text()
    assert kills == 4 and not list(output_dir.glob("damaged-*"))


def test_process_killed_while_it_saves(start):
    options = ["--gradient_accumulation_steps", 2]
    assert exit_code(start("one-unbroken", *options)) == 0
    kill_while_it_saves("one", options, [], start)
    assert_same_weights(start.root / "one", start.root / "one-unbroken")


def test_processes_with_workers_killed_while_they_save(start, unbroken):
    kill_while_it_saves("two", ["--dataloader_num_workers", 1], TORCHRUN, start)
    assert_same_weights(start.root / "two", start.root / unbroken)


def test_processes_preempted_by_torchrun_save_a_checkpoint(start):
    """All processes of its groups get SIGTERM, also data loaders' workers."""
    options = ["--dataloader_num_workers", 1, "--max_steps", 2000]
    process = start("preempted", *options, launcher=TORCHRUN)
    wait_for(start.root / "preempted" / "checkpoint-3", process)
    process.send_signal(signal.SIGTERM)
    assert exit_code(process) != 0
    log = process.log.read_text()
    (step,) = set(re.findall(r"Stopped at step (\d+)", log))
    assert find_damage(start.root / "preempted" / f"checkpoint-{step}") is None
    assert "Traceback" not in log.partition("Stopped at step")[0]


@pytest.mark.parametrize("rendezvous", [["--standalone"], []], ids=["c10d", "static"])
def test_torchrun_restarts_its_processes(rendezvous, start, unbroken):
    name = f"elastic-{len(rendezvous)}"
    launcher = ["-m", "torch.distributed.run", *rendezvous, "--nproc_per_node", 2, "--max-restarts", 2]
    process = start(name, launcher=launcher)
    for step in (6, 15):
        wait_for(start.root / name / f"checkpoint-{step}", process)
        os.kill(children_of(process)[-1], signal.SIGKILL)
    assert exit_code(process) == 0, process.log.read_text()
    assert_same_weights(start.root / name, start.root / unbroken)


def test_machines_with_caches_of_their_own_resume_after_one_has_died(start, unbroken, text_file):
    """Two groups of processes, which share the tokenizer and the output directory."""
    tokenizer = ["--tokenizer_name_or_path", start.root / "tokenizer"]
    options = ["--train_file", text_file, "--vocab_size", 500, "--output_dir", start.root / "tokenizer"]
    run_process(SCRIPTS / "tokenizer.py", *options)

    def start_machines(number):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{free.getsockname()[1]}"
        launcher = [*TORCHRUN[:2], "--nnodes", 2, "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint]
        launcher += ["--rdzv_id", number, "--local-addr", "127.0.0.1"]
        caches = [["--cache_dir", start.root / f"cache-{machine}"] for machine in (1, 2)]
        return [start("machines", *cache, launcher=launcher, tokenizer=tokenizer) for cache in caches]

    first, second = start_machines(1)
    wait_for(start.root / "machines" / "checkpoint-6", first)
    kill(second)
    assert exit_code(first) != 0 and second.wait() != 0
    assert [exit_code(machine) for machine in start_machines(2)] == [0, 0]
    assert_same_weights(start.root / "machines", start.root / unbroken)
    assert "Resuming from" in first.log.read_text()
    for machine in (1, 2):
        kinds = {path.name.split("-")[0] for path in (start.root / f"cache-{machine}").iterdir()}
        assert "corpus" in kinds and "tokenizer" not in kinds
