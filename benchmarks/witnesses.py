#!/usr/bin/env python
"""What a refactoring must not change: examples, weights, metrics, predictions, cards, lists of files and answers.

`python benchmarks/witnesses.py record old.json` runs the scripts of this checkout, on tiny data and for a few steps, and
records what they produce; with `--root DIR`, those of another checkout. `compare old.json new.json` prints each difference,
and fails if there is one. Record both on one machine, with the same libraries: weights are compared bit for bit, floats
within a millionth. `--only NAME ...` takes only these witnesses, and runs what they need, such as the first training.

Nothing of the package is imported, and its command line alone is used, so modules and functions may be renamed. Times and
speeds are left out. All runs are in a temporary directory, on one thread of the CPU, in fp32 and without the network."""

import argparse
import difflib
import hashlib
import json
import math
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pyarrow.parquet
from safetensors import safe_open


ONES = ["OMP_NUM_THREADS", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"]
ENVIRONMENT = {**dict.fromkeys(ONES, "1"), "HF_HOME": "cache", "CUDA_VISIBLE_DEVICES": "", "NO_PROXY": "127.0.0.1"}
TIMES = re.compile(r"runtime|_per_second|preparation_time|^speed/")  # names in metrics and logs
NAMES = ["nsp", "sop", "none"]
TEXT = "--train_file train.txt --vocab_size 400 --max_seq_length 64 --seed 1"
CPU = "--bf16 false --use_cpu --seed 1"
STEPS = f"{CPU} --preset micro --max_steps 12 --save_steps 6 --eval_steps 6 --logging_steps 3"
EPOCH = f"{CPU} --num_train_epochs 1 --per_device_train_batch_size 8 --logging_steps 3"
TABLES = "--train_file train.jsonl --validation_file validation.jsonl --test_file test.jsonl"
OBJECTIVES = {f"{name}-{n}": f"--sentence_objective {name} --max_seq_length {n}" for name in NAMES for n in (64, 128)}
EXAMPLES = {"builtin": "--seed 1", **{name: f"{TEXT} {more}" for name, more in OBJECTIVES.items()}}
PRETRAINING = {
    "default": f"{TEXT} {STEPS}",
    "sop": f"{TEXT} {STEPS} --sentence_objective sop --tokenizer_type wordlevel --pack_sequences",
    "none": f"{TEXT} {STEPS} --sentence_objective=none --whole_word_mask --lowercase false",
    "static": f"{TEXT} {STEPS} --static_pairs",
    "adamw": f"{TEXT} {STEPS} --optim adamw_torch --dropout 0.1 --gradient_accumulation_steps 2 "
    "--token_embedding_init normal --config_overrides norm_first=true,head_dim=16",
    "final": f"options.yaml {STEPS} --final_max_seq_length 128 --final_mlm_probability 0.15",
    "streaming": f"{TEXT} {STEPS} --streaming --stream_buffer 50 --validation_file valid.txt",
    "continued": f"--model_name_or_path default --train_file valid.txt {STEPS} --add_tokens words.txt",
    "resumed": f"{TEXT} {STEPS} --resume_from_checkpoint resumed/checkpoint-6",
}
FINETUNING = {
    "classification": "sequence-classification --label_column animal --dropout 0.1",
    "regression": "sequence-classification --label_column shared --text_pair_column pair --classifier_pooling pairs",
    "multi-label": "sequence-classification --label_column animals --classifier_pooling mean",
    "tokens": "token-classification --label_column tags",
    "answers": "question-answering --doc_stride 16 --max_answer_length 10",
    "choice": "multiple-choice --label_column place --text_pair_column begin",
}


def write_inputs() -> None:
    """Text from Python's help, an option file, words to add, and tables with examples of all tasks and minimal pairs."""
    names, draw = sorted(topics), random.Random(0)
    Path("train.txt").write_text("\n\n\n".join(topics[name] for name in names[:12]))
    Path("valid.txt").write_text("\n\n\n".join(topics[name] for name in names[12:18]))
    Path("options.yaml").write_text("train_file: train.txt\nvocab_size: 400\nmax_seq_length: 64\nfinal_share: 0.5\n")
    Path("words.txt").write_text("interpreter\ndictionaries\n##ization\n")
    animals, rows = ["cat", "dog", "bird", "fox"], []
    for number in range(80):
        texts = [f"the {draw.choice(animals)} sees the {draw.choice(animals)}" for _ in range(4)]
        words, context = texts[0].split(), ". ".join(texts[number % 4 :] + texts)
        start = context.index(". ".join(texts)) + texts[0].rindex(words[4])
        row = {"text": texts[0], "pair": texts[1], "shared": len({*words} & {*texts[1].split()}) + 0.5}
        row |= {"animal": words[1], "animals": words[1::3], "tokens": words, "tags": ["O", "B-A", "O", "O", "B-A"]}
        row |= {"id": str(number), "context": context, "question": f"what does the {words[1]} see?"}
        row |= {"answers": {"text": [words[4]], "answer_start": [start]}}
        row |= {"begin": "then the", "choices": draw.sample(animals, 3), "place": number % 3}
        row |= {"sentence_good": texts[0], "sentence_bad": " ".join(draw.sample(words, 5))}
        rows.append(json.dumps({**row, "UID": f"a{number % 3}", "linguistics_term": "binding"}) + "\n")
    for split, part in (("train", rows[:60]), ("validation", rows[60:]), ("test", rows[50:65])):
        Path(f"{split}.jsonl").write_text("".join(part))


def command(script: str, options: str) -> list[str]:
    return [os.environ["PYTHON"], f"{os.environ['PYTHONPATH']}/scripts/{script}.py", *options.split()]


def run(script: str, options: str) -> str:
    done = subprocess.run(command(script, options), capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{script}.py {options} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


@cache
def trained(name: str) -> Path:
    """The directory of a run, which is made when a witness first needs it."""
    if name in FINETUNING:
        run(
            "finetune",
            f"{FINETUNING[name]} --model_name_or_path {trained('default')} {TABLES} {EPOCH} --output_dir {name}",
        )
        return Path(name)
    if name in ("continued", "resumed"):
        shutil.copytree(trained("default") / "checkpoint-6", "resumed/checkpoint-6", dirs_exist_ok=True)
    run("pretrain", f"{PRETRAINING[name]} --output_dir {name}")
    return Path(name)


def digest(value: Any) -> str:
    return hashlib.sha256(value if isinstance(value, bytes) else json.dumps(value).encode()).hexdigest()


def parse(file: Path) -> Any:
    """JSON, or lines of JSON, without times and speeds."""
    text = file.read_text() if file.suffix == ".json" else f"[{','.join(file.read_text().splitlines())}]"
    return json.loads(text, object_pairs_hook=lambda pairs: {key: v for key, v in pairs if not TIMES.search(key)})


def vocabulary(directory: Path) -> str:
    return digest(sorted(parse(directory / "tokenizer.json")["model"]["vocab"].items()))


# ------------------------------------------------------------------------------------------------------- the witnesses


def examples(options: str) -> dict:
    """The columns' values in their order, whatever the layout of the files."""
    directory = Path(digest(options)[:8])
    run("inspect_data", f"{options} --output_dir {directory}")
    found: dict[str, Any] = {"vocabulary": vocabulary(directory)}
    for file in sorted(directory.rglob("*.parquet")):
        table = pyarrow.parquet.read_table(file)
        found[file.parent.name] = {f"{c.name}: {c.type}": digest(table[c.name].to_pylist()) for c in table.schema}
    return found


def training(name: str) -> dict:
    directory = trained(name)
    with safe_open(directory / "model.safetensors", "np") as file:
        tensors = {key: file.get_tensor(key) for key in sorted(file.keys())}
    last = max(directory.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    return {
        "weights": digest([(key, str(a.dtype), a.shape, digest(a.tobytes())) for key, a in tensors.items()]),
        "vocabulary": vocabulary(directory),
        "log": parse(last / "trainer_state.json")["log_history"],
        **{name: parse(directory / f"{name}.json") for name in ("metrics", "config", "run")},
        "predictions": {file.name: parse(file) for file in directory.glob("*_predictions.*")},
        "directories": sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_dir()),
    }


def resume() -> dict:
    found, whole = training("resumed"), training("default")
    return {**found, "has the weights of the uninterrupted run": found["weights"] == whole["weights"]}


def card(name: str) -> str:
    return re.sub(r"(?m)^\| time \| .*$", "| time | … |", (trained(name) / "README.md").read_text())


def push() -> str:
    printed = run("push_to_hub", f"{trained('default')} user/name --dry_run")
    return re.sub(r" +[\d,]+ bytes  (README.md|metrics.json|.*log.*)", r"… bytes  \1", printed)


def evaluation(options: str) -> dict:
    model, file = trained("default"), Path(f"{digest(options)[:8]}.json")
    models = f"--model_name_or_path {model} {model}/checkpoint-6 --output_file {file}"
    return {"printed": run("evaluate_model", f"{options} {models}"), "file": parse(file)}


def page() -> dict:
    """The answers of the page, by its API: what its parts show, but not how."""
    from gradio_client import Client

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    demo = command("demo", f"{trained('default')} {trained('classification')} --port {port} --no_browser")
    with subprocess.Popen(demo, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            process.stdout.readline()  # once it is served
            client = Client(f"http://127.0.0.1:{port}", verbose=False, analytics_enabled=False)
            named = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
            mask, pair = "The value of a [MASK] is an object.", ["The loop ends.", "The value is an object."]
            calls = {"/fill_mask": [mask, 5], "/next_sentence": pair, "/classify": ["the cat sees the dog", ""]}
            calls |= {"/nearest_tokens": ["value"], "/predictions_at": [mask, 6, ""]}
            found = {name: client.predict(*inputs, api_name=name) for name, inputs in calls.items()}
        finally:
            process.terminate()
    found = {k: v if isinstance(v, dict) else [part.get("value") for part in v] for k, v in found.items()}
    return {"inputs": {name: [p["parameter_name"] for p in api["parameters"]] for name, api in named.items()}, **found}


def options() -> dict[str, dict]:
    """The names of the options that each script's help mentions."""
    found = {}
    for file in sorted(Path(os.environ["PYTHONPATH"], "scripts").glob("[!_]*.py")):
        names = {*re.findall(r"(?<![\w-])--([a-z]\w*)(?![\w-])", run(file.stem, "--help"))} - {"help"}
        found[file.stem] = dict.fromkeys(sorted(names), "mentioned")  # so that each is compared by itself
    return found


WITNESSES: dict[str, Callable[[], Any]] = {
    **{f"examples-{name}": partial(examples, options) for name, options in EXAMPLES.items()},
    **{f"pretrain-{name}": partial(training, name) for name in PRETRAINING if name != "resumed"},
    "resume": resume,
    **{f"finetune-{name}": partial(training, name) for name in FINETUNING},
    **{f"card-{name}": partial(card, name) for name in ("default", "classification")},
    "push": push,
    "evaluate-text": partial(evaluation, "--validation_file valid.txt --show_predictions 3"),
    "evaluate-blimp": partial(evaluation, "--suite blimp --suite_data train.jsonl"),
    "page": page,
    "options": options,
}


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    if isinstance(old, list) and isinstance(new, list):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            if key in old and key in new:
                yield from differences(old[key], new[key], f"{path}/{key}")
            else:
                yield f"{path}/{key}: only in the {'old' if key in old else 'new'} record"
    elif isinstance(old, str) and isinstance(new, str) and old != new and "\n" in old:
        yield "\n    ".join([f"{path}:", *difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)])
    elif type(old) is not type(new) or not (
        math.isclose(old, new, rel_tol=1e-6) if type(old) is float else old == new
    ):
        yield f"{path}: {json.dumps(old)} → {json.dumps(new)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["record", "compare"])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="one to record, two to compare")
    parser.add_argument("--only", nargs="+", choices=WITNESSES, metavar="NAME", help=", ".join(WITNESSES))
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the checkout of the scripts")
    parser.add_argument("--python", default=sys.executable, help="the Python to run them with")
    args = parser.parse_args()
    names, files = args.only or list(WITNESSES), [file.resolve() for file in args.files]
    if len(files) != (1 if args.command == "record" else 2):
        parser.error("record takes one file, compare takes two")
    if args.command == "compare":
        records = [json.loads(file.read_text()) for file in files]
        lines = list(differences(*({name: r[name] for name in names if name in r} for r in records)))
        print("\n".join(lines) or "No differences")
        sys.exit(bool(lines))
    found: dict[str, Any] = {}
    os.environ |= {**ENVIRONMENT, "PYTHONPATH": str(args.root.resolve()), "PYTHON": args.python}
    with tempfile.TemporaryDirectory(prefix="witnesses-") as place:
        os.chdir(place)
        write_inputs()
        for name in names:
            start = time.perf_counter()
            try:
                found[name] = WITNESSES[name]()
            except Exception as error:  # the others are recorded
                found[name] = f"failed: {error}"
                print(found[name], file=sys.stderr)
            print(f"{name:<28}{time.perf_counter() - start:6.1f} s", file=sys.stderr)
        os.chdir("/")
    files[0].write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    sys.exit(any(str(value).startswith("failed: ") for value in found.values()))


if __name__ == "__main__":
    main()
