"""benchmarks/glue.py: GLUE's files and its dataset, the scores by GLUE's conventions, their means and the table."""

import gzip
import json
import re
import runpy
import shutil
from types import SimpleNamespace

import pandas
import pytest
from scipy import stats
from sklearn import metrics

from helpers import ROOT, run_script, write_glue
from scratch_bert.finetuning.arguments import finetuning_arguments
from scratch_bert.finetuning.glue import GLUE
from scratch_bert.finetuning.run import FinetuningRun, summarize
from scratch_bert.training.trainer import DivergenceError


SCRIPT = ROOT / "benchmarks/glue.py"
BENCHMARK = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
MRPC = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + "".join(
    f"{number % 2}\t1\t2\ta class\t{('a class', 'an object')[number % 2]}\n" for number in range(12)
)
STSB = "index\tsentence1\tsentence2\tscore\n" + "".join(
    f"{number}\ta class\tan object {'class ' * number}\t{number / 4}\n" for number in range(12)
)
SHORT = ["--max_steps", 2, "--per_device_train_batch_size", 4, "--disable_tqdm", "true", "--bf16", "false"]


@pytest.fixture
def glue(monkeypatch, saved, tmp_path):
    """Run the script in a directory with the folders MRPC and sts-b in `data`."""
    monkeypatch.chdir(tmp_path)
    for folder, content in {"MRPC": MRPC, "sts-b": STSB}.items():
        (tmp_path / "data" / folder).mkdir(parents=True)
        (tmp_path / "data" / folder / "train.tsv").write_text(content, encoding="utf-8")
        (tmp_path / "data" / folder / "dev.tsv.gz").write_bytes(gzip.compress(content.encode()))

    def glue(*options, data="data"):
        run_script(monkeypatch, SCRIPT, saved, "--data", data, "--output_dir", "run", *SHORT, *options)

    return glue


def predictions(directory):
    lines = (directory / "validation_predictions.jsonl").read_text().splitlines()
    return [[json.loads(line)[name] for line in lines] for name in ("label", "prediction")]


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
    assert content["settings"]["eval_strategy"] == "no" and not {"seed", "output_dir"} & content["settings"].keys()
    assert (tmp_path / "run/glue.md").read_text().strip() in capsys.readouterr().out
    assert not (tmp_path / "run/mrpc/seed-1/model.safetensors").exists()

    # Resumed, only what is missing is trained.
    shutil.rmtree(tmp_path / "run/stsb/seed-2")
    finished = tmp_path / "run/mrpc/seed-1/metrics.json"
    finished.write_text(json.dumps(json.loads(finished.read_text()) | {"eval_accuracy": 1, "eval_f1": 1}))
    glue("--seeds", 1, 2, "--resume_from_checkpoint")
    again = json.loads((tmp_path / "run/glue.json").read_text())
    assert again["tasks"]["mrpc"]["seeds"]["1"] == 100 and again["tasks"]["stsb"] == content["tasks"]["stsb"]
    with pytest.raises(SystemExit, match="The output directory run is not empty"):
        glue("--seeds", 1, 2)


def test_options_given_in_any_form_replace_the_defaults(tmp_path):
    def read(*others):
        return BENCHMARK.read_arguments(["org/name", "--output_dir", "x", *others])[1:]

    task_args, training = read()
    assert list(task_args.seeds) == [1, 2, 3] and training.num_train_epochs == 5 and training.save_strategy == "no"
    (file := tmp_path / "options.yaml").write_text("num_train_epochs: 2\nseeds: [4]\neval_strategy: epoch\n")
    for others in (["--num_train_epochs=2", "--seeds=4"], ["--num-train-epochs", "2", "--seeds", "4"], [str(file)]):
        task_args, training = read(*others)
        assert task_args.seeds == [4] and training.num_train_epochs == 2
    assert training.eval_strategy == "epoch"
    assert read("--max_minutes", "3")[1].max_minutes == 3


def test_weights_of_other_runs_stay(glue, tmp_path):
    (other := tmp_path / "run/pretrain-1/checkpoint-5/model.safetensors").parent.mkdir(parents=True)
    other.touch()
    glue("--tasks", "mrpc", "--seeds", 1, "--resume_from_checkpoint")
    assert other.exists() and not [*(tmp_path / "run/mrpc").rglob("*.safetensors")]


def test_a_search_in_the_training_examples_comes_first(glue, tmp_path):
    glue("--tasks", "mrpc", "--seeds", 1, 2, "--search", 2)
    content = json.loads((tmp_path / "run/glue.json").read_text())
    settings, content = content["settings"], content["tasks"]["mrpc"]
    trials = pandas.read_csv(tmp_path / "run/search-mrpc/search.csv")
    best = trials.loc[trials["value"].idxmax()]
    assert content["options"]["learning_rate"] == pytest.approx(best["params_learning_rate"])
    assert content["options"]["dropout"] == best["params_dropout"] and list(content["seeds"]) == ["1", "2"]
    places = f"search-mrpc/{best['user_attrs_directory']}", "mrpc/seed-1"
    records = [json.loads((tmp_path / "run" / place / "run.json").read_text()) for place in places]
    assert [record["fixed"]["train split"].split()[0] for record in records] == ["10", "12"]
    assert not {"learning_rate", "global batch size"} & settings.keys()
    assert not [*(tmp_path / "run").rglob("*.safetensors")]
    assert "the best of 2 settings on a tenth of its training examples" in (tmp_path / "run/glue.md").read_text()


def test_tasks_before_one_that_fails_are_reported_and_models_are_kept_on_request(glue, monkeypatch, tmp_path, capsys):
    train = FinetuningRun.train

    def fail(run):
        if run.task.name == "stsb":
            raise DivergenceError("The loss is nan")
        return train(run)

    monkeypatch.setattr(FinetuningRun, "train", fail)
    with pytest.raises(SystemExit, match="The loss is nan"):
        glue("--seeds", 3, "--keep_models")
    assert " MRPC |" in capsys.readouterr().out
    assert list(json.loads((tmp_path / "run/glue.json").read_text())["tasks"]) == ["mrpc"]
    assert (tmp_path / "run/mrpc/seed-3/model.safetensors").is_file()


def test_what_is_wrong_is_one_line_before_any_training(glue, tmp_path):
    with pytest.raises(SystemExit, match="has no folder CoLA, SST-2"):
        glue("--data", ".")
    with pytest.raises(SystemExit, match="data has no folder RTE"):
        glue("--tasks", "mrpc", "rte")
    (tmp_path / "data/sts-b/train.tsv").write_text(STSB + "12\ta\tb\tmuch\n")  # of the last task
    with pytest.raises(SystemExit, match="example 13: label: "):
        glue()
    (tmp_path / "data/sts-b/train.tsv").unlink()
    with pytest.raises(SystemExit, match="no file or directory data/sts-b/train.tsv"):
        glue()
    assert not (tmp_path / "run").exists()


def test_names_of_folders_and_files(tmp_path):
    for folder in ("CoLA", "SST-2", "rte", "QNLI", "diagnostic", "MNLI"):
        (tmp_path / folder).mkdir()
        for name in ("train.tsv", "dev_matched.tsv.gz" if folder == "MNLI" else "dev.tsv"):
            (tmp_path / folder / name).touch()
    found, mnli = BENCHMARK.find_glue(str(tmp_path)), tmp_path / "MNLI"
    assert list(found) == ["cola", "sst2", "rte", "mnli", "qnli"]
    assert found["sst2"] == {"train": [tmp_path / "SST-2/train.tsv"], "validation": [tmp_path / "SST-2/dev.tsv"]}
    assert found["mnli"] == {"train": [mnli / "train.tsv"], "validation": [mnli / "dev_matched.tsv.gz"]}
    (mnli / "dev_mismatched.tsv").touch()
    assert BENCHMARK.find_glue(str(tmp_path), ["mnli"])["mnli"]["test"] == [mnli / "dev_mismatched.tsv"]


def test_dataset_on_the_hub_with_both_sets_of_mnli(glue, tmp_path):
    labels = {"train": [0, 1, 2] * 2, "validation_matched": [0, 1, 2] * 2, "validation_mismatched": [0] * 6}
    labels |= dict.fromkeys(("test_matched", "test_mismatched"), [-1] * 6)
    texts = {"premise": ["a class"] * 6, "hypothesis": ["an object", "a value", "a"] * 2}
    write_glue("mnli", ["entailment", "neutral", "contradiction"], texts, labels)
    glue("--tasks", "mnli", "--seeds", 1, data="hub")
    content = json.loads((tmp_path / "run/glue.json").read_text())["tasks"]["mnli"]
    assert list(content["parts"]) == ["accuracy", "test_accuracy"]
    assert content["baselines"]["majority class"] == pytest.approx(50 * (1 / 3 + 1))
    assert content["mean"] == pytest.approx(sum(content["parts"].values()) / 2)


# ---------------------------------------------------------------------------------------------------------- the report


def report(tasks, seeds=(1,), mismatched=True, **options):
    """Of runs whose metrics are 0.1, 0.2, … in their order, and the seed in the third digit."""
    results = {}
    for task in tasks:
        names = [name for name in BENCHMARK.SCORES[task] if mismatched or name != "test_accuracy"]
        kind = "mean" if task == "stsb" else "majority"
        scores = {name if name.startswith("test_") else f"eval_{name}": 0.1 * (1 + i) for i, name in enumerate(names)}
        baselines = {f"baseline_{baseline}_{name}": 0.5 for baseline in (kind, "bag_of_words") for name in names}
        by_seed = {seed: {name: value + seed / 100 for name, value in scores.items()} | baselines for seed in seeds}
        results[task] = summarize(by_seed)
    argv = ["org/name", "--output_dir", "x", "--use_cpu", "true", "--learning_rate", "1e-4"]
    argv += ["--seeds", *map(str, seeds), *(f"--{name}={value}" for name, value in options.items())]
    _, task_args, training = BENCHMARK.read_arguments(argv)
    return BENCHMARK.GlueReport(results, task_args, training, finetuning_arguments(training))


def cells(text, title):
    """Column → value in the row of this title, in both tables."""
    found = {}
    for table in text.split("\n\n")[:-1]:
        lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
        found |= dict(zip(lines[0][1:], next(line[1:] for line in lines if line[0] == title), strict=True))
    return found


def test_tables_name_all_tasks():
    for scores in BENCHMARK.GOOGLE.values():
        assert {t: len(parts) for t, parts in scores.items()} == {t: len(BENCHMARK.SCORES[t]) for t in GLUE}
    assert BENCHMARK.TITLES.keys() == GLUE.keys()
    for name, task in GLUE.items():
        assert BENCHMARK.SCORES[name].keys() - {"test_accuracy"} <= set(task.metrics)


def test_scores_and_means_over_tasks_and_seeds():
    found = report([*BENCHMARK.SMALL, "mnli", "wnli"], seeds=(1, 3), dropout=0.1)
    text = found.as_markdown()
    row = cells(text, "org/name")  # one part: 11 and 13; two parts: the mean of 10 and 20, and of the seeds 1 and 3
    assert row["CoLA"] == row["WNLI"] == "12.0 ± 1.4" and row["MRPC"] == row["MNLI"] == "17.0 ± 1.4"
    assert row["MRPC: F1, accuracy"] == row["MNLI: matched, mismatched"] == "12.0, 22.0"
    assert row["mean"] == f"{(3 * 12 + 3 * 17) / 6:.1f} ± 1.4" and row["five tasks"] == "14.0 ± 1.4"
    assert row["without CoLA"] == "14.5 ± 1.4"
    assert cells(text, "bag of words")["STS-B"] == cells(text, "majority class")["STS-B"] == "50.0"
    assert "seeds 1, 3, the last step. All tasks with learning rate" in text and "*test* sets" in text
    assert "5 epochs; classifier_pooling of the checkpoint, dropout 0.1." in text
    assert found.summary("rte") == "RTE: 12.0 ± 1.4 (majority class 50.0, bag of words 50.0)"

    content = found.as_dict()
    assert content["model"] == "org/name" and content["settings"]["dropout"] == 0.1
    task = content["tasks"]["mrpc"]
    assert task["mean"] == pytest.approx(17) and task["seeds"] == {1: pytest.approx(16), 3: pytest.approx(18)}
    assert task["parts"] == {"f1": pytest.approx(12), "accuracy": pytest.approx(22)}
    assert content["means"]["mean"]["std"] == pytest.approx(2**0.5)


def test_means_of_google():
    text = report([*BENCHMARK.SMALL, "wnli"]).as_markdown()
    rows = [cells(text, name) for name in BENCHMARK.GOOGLE]
    assert [row["mean"] for row in rows[:3]] == ["58.1", "58.9", "67.4"]
    assert [row["without CoLA"] for row in rows[:3]] == ["72.6", "73.7", "77.3"]
    assert "five tasks" not in rows[0] and rows[3]["MRPC: F1, accuracy"] == "86.6, 81.6"
    text = report(["mnli"], mismatched=False).as_markdown()  # compared with matched scores
    assert cells(text, "BERT-tiny")["MNLI"] == "70.2" and "mean" not in cells(text, "BERT-tiny")
    assert re.fullmatch(r"[| \-:]+", text.splitlines()[1])
