"""Runs on all tasks of GLUE, from their files or from the Hub: the files that are found, what is trained, resumed, refused."""

import gzip
import json
import re
import shutil

import pytest
from datasets import ClassLabel, Dataset, Features, Value
from scipy import stats
from sklearn import metrics

from helpers import run_script
from scratch_bert.finetuning.glue_suite import find_glue
from scratch_bert.finetuning.run import FinetuningRun
from scratch_bert.training.trainer import DivergenceError


MRPC = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + "".join(
    f"{number % 2}\t1\t2\ta class\t{('a class', 'an object')[number % 2]}\n" for number in range(12)
)
STSB = "index\tsentence1\tsentence2\tscore\n" + "".join(
    f"{number}\ta class\tan object {'class ' * number}\t{number / 4}\n" for number in range(12)
)
SHORT = ["--max_steps", 2, "--per_device_train_batch_size", 4, "--disable_tqdm", "true", "--bf16", "false"]


def write_tasks(directory, **tasks):
    for folder, content in tasks.items():
        place = directory / folder.replace("_", "-")
        place.mkdir(parents=True)
        for split in ("train", "dev"):
            (place / f"{split}.tsv").write_text(content, encoding="utf-8")
    return directory


@pytest.fixture
def glue(monkeypatch, saved, tmp_path):
    """Run the script in a directory with the folders MRPC and sts-b in `data`."""
    monkeypatch.chdir(tmp_path)
    write_tasks(tmp_path / "data", MRPC=MRPC, sts_b=STSB)
    (tmp_path / "data/sts-b/dev.tsv.gz").write_bytes(gzip.compress((tmp_path / "data/sts-b/dev.tsv").read_bytes()))
    (tmp_path / "data/sts-b/dev.tsv").unlink()

    def glue(*options, data="data"):
        run_script(monkeypatch, "glue.py", saved, "--data", data, "--output_dir", "run", *SHORT, *options)

    return glue


def predictions(directory):
    lines = (directory / "validation_predictions.jsonl").read_text().splitlines()
    examples = [json.loads(line) for line in lines]
    return [[example[name] for example in examples] for name in ("label", "prediction")]


def test_scores_of_two_tasks_and_seeds_and_their_resume(glue, tmp_path, capsys):
    glue("--seeds", 1, 2)
    content = json.loads((tmp_path / "run/glue.json").read_text())
    assert list(content["tasks"]) == ["mrpc", "stsb"]
    for seed in ("1", "2"):
        gold, predicted = predictions(tmp_path / f"run/mrpc/seed-{seed}")
        accuracy = metrics.accuracy_score(gold, predicted)
        f1 = metrics.f1_score(gold, predicted, pos_label="equivalent", zero_division=0)
        assert content["tasks"]["mrpc"]["seeds"][seed] == pytest.approx(50 * (f1 + accuracy))
        gold, predicted = predictions(tmp_path / f"run/stsb/seed-{seed}")
        correlations = stats.pearsonr(gold, predicted).statistic, stats.spearmanr(gold, predicted).statistic
        assert content["tasks"]["stsb"]["seeds"][seed] == pytest.approx(50 * sum(correlations))
    values = content["tasks"]["stsb"]["seeds"].values()
    assert content["tasks"]["stsb"]["mean"] == pytest.approx(sum(values) / 2) and len(set(values)) == 2
    table = (tmp_path / "run/glue.md").read_text()
    assert "| saved0 " in table and table in capsys.readouterr().out
    assert not list((tmp_path / "run").rglob("*.safetensors"))

    # Resumed, only what is missing is trained.
    shutil.rmtree(tmp_path / "run/stsb/seed-2")
    finished = tmp_path / "run/mrpc/seed-1/metrics.json"
    finished.write_text(json.dumps(json.loads(finished.read_text()) | {"eval_accuracy": 1, "eval_f1": 1}))
    glue("--seeds", 1, 2, "--resume_from_checkpoint")
    again = json.loads((tmp_path / "run/glue.json").read_text())
    assert again["tasks"]["mrpc"]["seeds"]["1"] == 100 and again["tasks"]["stsb"] == content["tasks"]["stsb"]

    refused = {
        "The output directory run is not empty": [],
        "mrpc/seed-1 has another learning_rate": ["--resume_from_checkpoint", "--learning_rate", 1e-3],
    }
    for message, options in refused.items():
        with pytest.raises(SystemExit, match=message):
            glue("--seeds", 1, 2, *options)


def test_models_are_kept_on_request(glue, tmp_path):
    glue("--seeds", 3, "--tasks", "mrpc", "--keep_models", "--max_seq_length", 16)
    assert (tmp_path / "run/mrpc/seed-3/model.safetensors").is_file() and not (tmp_path / "run/stsb").exists()
    (tmp_path / "run/mrpc/seed-3/config.json").unlink()  # as if it had not been kept
    with pytest.raises(SystemExit, match="mrpc/seed-3 has results but no model: delete it to train it again"):
        glue("--seeds", 3, "--tasks", "mrpc", "--keep_models", "--max_seq_length", 16, "--resume_from_checkpoint")


def test_tasks_before_one_that_fails_are_reported(glue, monkeypatch, tmp_path, capsys):
    train = FinetuningRun.train

    def fail(run):
        if run.task.name == "stsb":
            raise DivergenceError("The loss is nan")
        return train(run)

    monkeypatch.setattr(FinetuningRun, "train", fail)
    with pytest.raises(SystemExit, match="The loss is nan"):
        glue("--seeds", 3)
    assert " MRPC |" in capsys.readouterr().out
    assert list(json.loads((tmp_path / "run/glue.json").read_text())["tasks"]) == ["mrpc"]


def test_stop_says_how_to_continue(glue, monkeypatch, capsys):
    def interrupted(run):
        raise KeyboardInterrupt

    monkeypatch.setattr("scratch_bert.finetuning.run.FinetuningRun.prepare", interrupted)
    with pytest.raises(SystemExit, match="^130$"):
        glue()
    assert capsys.readouterr().err.endswith("the same command with --resume_from_checkpoint auto\n")


# Each is found before any training.
BAD = {
    "no directory": (lambda data: None, ["--data", "nowhere"], "There is no directory nowhere"),
    "no task": (lambda data: None, ["--data", "."], "has none of GLUE's folders: CoLA, SST-2"),
    "task that is not there": (lambda data: None, ["--tasks", "mrpc", "rte"], "data has no folder RTE, but data/MRPC, data/sts-b"),
    "unknown task": (lambda data: None, ["--tasks", "rtee"], "tasks must be one of cola, .* Did you mean rte"),
    "task twice": (lambda data: None, ["--tasks", "rte", "rte"], "tasks must differ, got rte rte"),
    "no file": (lambda data: (data / "sts-b/train.tsv").unlink(), [], "data/sts-b has neither train.tsv nor train.tsv.gz"),
    "two folders": (lambda data: shutil.copytree(data / "MRPC", data / "mrpc"), [], "data/MRPC and data/mrpc are the same task"),
    "column": (lambda data: (data / "sts-b/train.tsv").write_text("a\tb\nc\td\n"), [], "train.tsv has no column 'sentence1', but a, b. Is this GLUE's own file of STS-B"),
    "label": (lambda data: (data / "sts-b/train.tsv").write_text(STSB + "12\ta\tb\tmuch\n"), [], "example 13, has the label 'much'"),
    "seeds": (lambda data: None, ["--seeds", 1, 1], "seeds must differ"),
    "push": (lambda data: None, ["--push_to_hub"], "trains several models"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "options", "message"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_one_line_before_any_training(damage, options, message, glue, tmp_path, capsys):
    damage(tmp_path / "data")
    with pytest.raises(SystemExit) as exit:
        glue(*options)
    assert exit.value.code not in (0, None)
    assert re.search(message, f"{exit.value.code}{capsys.readouterr().err}")
    assert not (tmp_path / "run").exists()


def test_names_of_folders_and_files(tmp_path):
    write_tasks(tmp_path, CoLA="", SST_2="", rte="", QNLI="", diagnostic="")
    mnli = tmp_path / "MNLI"
    mnli.mkdir()
    for name in ("train.tsv", "dev_matched.tsv.gz"):
        (mnli / name).touch()
    found = find_glue(str(tmp_path))
    assert list(found) == ["cola", "sst2", "rte", "mnli", "qnli"]
    assert found["sst2"] == {
        split: [tmp_path / f"SST-2/{name}.tsv"] for split, name in (("train", "train"), ("validation", "dev"))
    }
    assert found["mnli"] == {"train": [mnli / "train.tsv"], "validation": [mnli / "dev_matched.tsv.gz"]}
    (mnli / "dev_mismatched.tsv").touch()
    assert find_glue(str(tmp_path), ["mnli"])["mnli"]["test"] == [mnli / "dev_mismatched.tsv"]


def test_dataset_on_the_hub_with_both_sets_of_mnli(glue, tmp_path):
    hub = tmp_path / "nyu-mll/glue"  # load_dataset takes a directory of that name first
    hub.mkdir(parents=True)
    splits = ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched")
    files = "".join(f"    - {{split: {split}, path: '{split}.parquet'}}\n" for split in splits)
    (hub / "README.md").write_text(f"---\nconfigs:\n- config_name: mnli\n  data_files:\n{files}---\n")
    label = ClassLabel(names=["entailment", "neutral", "contradiction"])
    features = Features({"premise": Value("string"), "hypothesis": Value("string"), "label": label})
    for split in splits:
        labels = (
            [-1] * 6 if split.startswith("test") else [0, 1, 2] * 2 if split != "validation_mismatched" else [0] * 6
        )
        columns = {"premise": ["a class"] * 6, "hypothesis": ["an object", "a value", "a"] * 2, "label": labels}
        Dataset.from_dict(columns, features=features).to_parquet(hub / f"{split}.parquet")
    glue("--tasks", "mnli", "--seeds", 1, data="hub")
    content = json.loads((tmp_path / "run/glue.json").read_text())["tasks"]["mnli"]
    assert list(content["parts"]) == ["accuracy", "test_accuracy"]
    assert content["baselines"]["majority class"] == pytest.approx(50 * (1 / 3 + 1))
    assert content["mean"] == pytest.approx(sum(content["parts"].values()) / 2)
