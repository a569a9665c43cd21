"""Scripts as processes: what happens when nobody reads their output, when something of the machine is lacking, and when
results can't be written where they are to go."""

import errno
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
from safetensors import SafetensorError

from helpers import SCRIPTS, failure_of, run_process, run_script
from scratch_bert.training.trainer import Interrupted
from scratch_bert_cli.process import script
from scratch_bert_options.errors import LimitError, plain_errors
from scratch_bert_options.outputs import check_new_dir, check_new_file, check_output_dir


TALKATIVE = """
import sys
from pathlib import Path
from scratch_bert_cli.process import script

@script
def main():
    for number in range(10_000):
        print("a line with more than ASCII →", number, flush=number % 1000 == 0)
        print("and one on stderr", file=sys.stderr)
    Path(sys.argv[1]).write_text("finished")

main()
"""


def run_with_streams(command, *, stdout=None, stderr=None, **environment) -> int:
    """The exit code of Python with this command. A stream is captured and left unread, or closed from the start."""
    reading, writing = os.pipe()
    os.close(reading)  # a pipe whose reader has ended
    closed = [number for number, how in ((1, stdout), (2, stderr)) if how == "closed"]
    try:
        return subprocess.run(
            [sys.executable, *map(str, command)],
            stdout=writing if stdout == "broken" else None,
            stderr=writing if stderr == "broken" else None,
            preexec_fn=lambda: [os.close(number) for number in closed],
            env={**os.environ, **environment},
        ).returncode
    finally:
        os.close(writing)


@pytest.mark.skipif(os.name != "posix", reason="closes descriptors of a child")
@pytest.mark.parametrize("environment", [{}, {"PYTHONUNBUFFERED": "1"}, {"PYTHONIOENCODING": "ascii"}], ids=str)
@pytest.mark.parametrize(
    ("stdout", "stderr"), [("broken", None), ("broken", "broken"), ("closed", None), ("closed", "closed")]
)
def test_script_continues_when_nobody_reads_its_output(stdout, stderr, environment, tmp_path):
    command = ["-c", TALKATIVE, tmp_path / "result"]
    assert run_with_streams(command, stdout=stdout, stderr=stderr or "broken", **environment) == 0
    assert (tmp_path / "result").read_text() == "finished"


@pytest.mark.skipif(os.name != "posix", reason="closes descriptors of a child")
@pytest.mark.parametrize("name", sorted(file.name for file in SCRIPTS.glob("[a-z]*.py")))
def test_help_ends_quietly_when_nobody_reads_it(name, tmp_path):
    assert run_with_streams([SCRIPTS / name, "--help"], stdout="broken") == 0


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="closes descriptors of a child")
def test_training_continues_to_its_end_when_nobody_reads_its_output(text_file, tmp_path):
    options = ["--train_file", text_file, "--output_dir", tmp_path / "run", "--vocab_size", 500, "--max_steps", 4]
    options += ["--logging_steps", 1, "--max_seq_length", 32, "--use_cpu", "--cache_dir", tmp_path / "cache"]
    command = [SCRIPTS / "pretrain.py", *options]
    assert run_with_streams(command, stdout="broken", stderr="broken") == 0
    assert {"checkpoint-4", "model.safetensors", "metrics.json"} <= {p.name for p in (tmp_path / "run").iterdir()}


# -------------------------------------------------------------------------------------------------------------- limits


def raising(error):
    """A command that raises `error`."""

    @script
    def main():
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "a.txt"), r"No more files .*ulimit -n.*Errno 24"),
        (RuntimeError("Too many open files. Communication with the"), r"\(RuntimeError: Too many open files\)\.$"),
        (RuntimeError("received 0 items of ancdata"), "No more files"),
        (MemoryError(), r"not enough memory.*\(MemoryError:\)\.$"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "not enough memory"),
        (RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory"), "not enough memory"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "not enough memory"),
        (RuntimeError("can't start new thread"), "No more threads or processes.*ulimit -u"),
        (OSError("Cannot fork"), "No more threads or processes"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), "A process that loads data has died"),
        (RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), "A process that loads data has died"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is"), "--shm-size"),
        (RuntimeError("Caught RuntimeError in DataLoader worker process.\nOriginal Traceback (most recent call last):\n"
                      "RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"),
         r"The shared memory is full.*\(RuntimeError: unable to allocate"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_limit_is_one_line_with_the_remedy(error, message):
    main = raising(error)
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        main()
    with pytest.raises(OSError, match=message), plain_errors():
        raise error


class ConnectError(Exception):
    """As of a package of the network, which are several."""

    __module__ = "httpx2._exceptions"


class ArrowError(Exception):
    __module__ = "pyarrow.lib"


def with_cause(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no text"), "no text"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.txt"), r"\[Errno 2\] No such file: 'a.txt'"),
        (ImportError("no module"), "no module"),
        (PackageNotFoundError("Tracking needs 'x', which is missing."), "Tracking needs 'x', which is missing.$"),
        (ConnectError("reset by peer"), r"The network failed \(ConnectError: reset by peer\): check the connection"),
        (ArrowError("bad page"), "bad page"),
        (with_cause(ArrowError("while generating"), KeyError("text")), "while generating: 'text'"),
        (LimitError("There is not enough memory, as was explained."), "There is not enough memory, as was"),
        (with_cause(LimitError("Out of memory. Then continue: …"), MemoryError()), "Out of memory. Then continue: …$"),
        (with_cause(OSError("Full: continue by …"), OSError(errno.ENOSPC, "No space")), "Full: continue by …$"),
        (OSError(errno.ENOSPC, "No space left on device"), ".*No space left on device. Free some space"),
        (SafetensorError("I/O error: File too large (os error 27)"), "I/O error: File too large .*ulimit -f"),
        (with_cause(ArrowError("while generating"), OSError(errno.ENOSPC, "No space")), ".*No space. Free some space"),
    ],
    ids=repr,
)
def test_expected_error_ends_a_command_with_one_line(error, message):
    main = raising(error)
    with pytest.raises(SystemExit, match=f"^error: {message}"):
        main()
    with pytest.raises((OSError, ValueError, ImportError)), plain_errors():
        raise error


def test_environment_variable_with_a_wrong_value_is_named(monkeypatch):
    monkeypatch.setenv("SOME_TIMEOUT", "abc")
    with pytest.raises(ValueError, match=r"'abc' \(from the environment variable SOME_TIMEOUT\)"), plain_errors():
        int(os.environ["SOME_TIMEOUT"])


def test_environment_variable_that_fails_an_import_is_named():
    options = ["--model_name_or_path", "me/model"]
    result = run_process(SCRIPTS / "evaluate_model.py", *options, check=False, HF_HUB_DOWNLOAD_TIMEOUT="abc")
    message = "error: invalid literal .* \\(from the environment variable HF_HUB_DOWNLOAD_TIMEOUT\\)\n"
    assert re.fullmatch(message, result.stderr)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyError("a bug"), SystemExit(3)], ids=repr)
def test_other_errors_stay_as_they_are(error):
    main = raising(error)
    with pytest.raises(type(error)) as raised:
        main()
    assert raised.value is error


def test_any_error_has_a_traceback_on_request(monkeypatch):
    monkeypatch.setenv("SCRATCH_BERT_TRACEBACK", "1")
    with pytest.raises(ValueError, match="invalid literal"):
        script(int)("no text")


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (KeyboardInterrupt(), "Stopped.", 130),
        (Interrupted("Stopped at step 3.", signal.SIGTERM), "Stopped at step 3.", 143),
    ],
    ids=repr,
)
def test_signal_ends_a_command_with_a_message_and_its_exit_code(error, message, code, capsys):
    main = raising(error)
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == code and capsys.readouterr().err == f"{message}\n"


def test_directory_that_is_gone_is_named(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SystemExit, match="current directory no longer exists"):
        script(print)()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a child")
def test_lack_of_memory_for_the_imports_is_one_line():
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (300_000_000, 300_000_000)); "
    code += "sys.argv = sys.argv[1:]; from scratch_bert_cli.commands.convert_checkpoint import main; main()"
    result = run_process("-c", code, "convert", "from", "to", check=False, OMP_NUM_THREADS="1")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: There is not enough memory")


# ------------------------------------------------------------------------------------------------------------- outputs

PLACES = {"file": "a file", "below a file": "file/below", "not UTF-8": "a\udcff", "a link to itself": "loop"}
PLACES |= {"no file system for it": "/proc/here", "not ours": "closed/below"}


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a file").touch()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "closed").mkdir(mode=0o500)
    return PLACES


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("check", [check_output_dir, check_new_dir, check_new_file], ids=lambda check: check.__name__)
def test_place_for_results_is_refused_with_the_name_of_its_option(check, place, places, tmp_path):
    if place == "not ours" and os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        ValueError, match=r"(?s)output.*choose another|directory of output.*create it first|output.*exists"
    ):
        check("output", tmp_path / places[place])
    assert sorted(tmp_path.rglob("*")) == before


def test_url_is_no_place_for_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="error: Cannot write to destination s3:/bucket/bert .it is a URL.: choose"):
        run_script(monkeypatch, "convert_checkpoint.py", "nowhere", "s3://bucket/bert")
    assert not list(tmp_path.iterdir())


def test_checks_of_outputs_leave_nothing_behind(tmp_path):
    check_output_dir("output_dir", tmp_path / "a" / "b" / "c")
    check_new_dir("output_dir", tmp_path / "a" / "b" / "c")
    check_new_file("output_file", tmp_path / "file")
    assert not list(tmp_path.iterdir())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    check_output_dir("output_dir", tmp_path / "full")
    with pytest.raises(ValueError, match="output_dir .*full is not empty: choose another"):
        check_new_dir("output_dir", tmp_path / "full")
    with pytest.raises(ValueError, match="output_file .*file exists: choose another name"):
        check_new_file("output_file", tmp_path / "full" / "file")
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "file"]


@pytest.mark.parametrize(
    ("name", "option", "arguments"),
    [
        ("pretrain.py", "output_dir", "--train_file nowhere.txt --output_dir file/below"),
        ("finetune.py", "output_dir", "cola --model_name_or_path nowhere --output_dir file/below"),
        ("evaluate_model.py", "output_file", "--model_name_or_path nowhere --output_file file/below"),
        ("inspect_data.py", "output_dir", "--train_file nowhere.txt --output_dir file/below"),
        ("convert_checkpoint.py", "destination", "nowhere file/below"),
        ("prepare_data.py", "output_dir", "--input_dir nowhere --tokenizer_name_or_path x --output_dir file/below"),
    ],
)
def test_place_for_results_is_checked_before_the_input(name, option, arguments, places, monkeypatch, capsys):
    shown = failure_of(capsys, run_script, monkeypatch, name, *arguments.split())
    assert re.search(rf"error: Cannot write to {option} file/below \(Not a directory\): choose another place", shown)
