"""scripts/finetune.py on small sets that can be learnt: what it trains, writes, says, and how it goes on."""

import json
import os
import random
import shutil
from importlib.util import find_spec

import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from safetensors.torch import load_file
from transformers import BertConfig, BertForMaskedLM, pipeline

from helpers import SCRIPTS, SMALL, run_script, write_metric
from scratch_bert.hub.conversion import convert_checkpoint


FAST = ["--learning_rate", 3e-3, "--per_device_train_batch_size", 16, "--disable_tqdm", "true", "--bf16", "false"]


def write_rows(file, count, seed=0, label=lambda good: "good" if good else "bad"):
    """A text is good if it holds the word object: that can be learnt."""
    rng, words = random.Random(seed), ["class", "function", "module", "value", "name"]
    lines = ["text,label"]
    for number in range(count):
        row = rng.choices(words, k=6)
        if number % 2:
            row[rng.randrange(6)] = "object"
        lines.append(f"{' '.join(row)},{label(number % 2)}")
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("rows")
    return {
        "train": write_rows(directory / "train.csv", 200),
        "validation": write_rows(directory / "validation.csv", 60, seed=1),
    }


def make_bert(tokenizer, directory):
    BertForMaskedLM(BertConfig(**{**SMALL, "vocab_size": len(tokenizer)})).half().save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def finetune(monkeypatch, task, model, output_dir, *options):
    run_script(
        monkeypatch, "finetune.py", task, "--model_name_or_path", model, "--output_dir", output_dir, *FAST, *options
    )
    return json.loads((output_dir / "metrics.json").read_text())


def with_files(files):
    return ["--train_file", files["train"], "--validation_file", files["validation"]]


def test_it_learns_and_leaves_a_model_that_stock_clients_open(saved, files, tmp_path, monkeypatch, capsys):
    (tmp_path / "test.csv").write_text("text\nan object\na class\n")
    output = tmp_path / "run"
    metrics = finetune(
        monkeypatch, "sequence-classification", saved, output, *with_files(files), "--test_file", tmp_path / "test.csv",
        "--num_train_epochs", 6,
    )  # fmt: skip
    assert metrics["eval_accuracy"] > 0.95 and metrics["eval_f1"] > 0.95
    assert "accuracy" in capsys.readouterr().out
    rows = [json.loads(line) for line in (output / "validation_predictions.jsonl").read_text().splitlines()]
    assert rows[7]["row"] == f"{files['validation']}, row 8"
    share = sum(row["prediction"] == row["label"] for row in rows) / 60
    assert {row["label"] for row in rows} == {"good", "bad"} and share == pytest.approx(metrics["eval_accuracy"])
    assert len((output / "test_predictions.jsonl").read_text().splitlines()) == 2
    assert json.loads((output / "config.json").read_text())["id2label"] == {"0": "bad", "1": "good"}
    classify = pipeline("text-classification", model=str(output))
    texts = [line.split(",")[0] for line in files["validation"].read_text().splitlines()[1:]]
    assert [one["label"] for one in classify(texts)] == [row["prediction"] for row in rows]
    card = (output / "README.md").read_text()
    assert f"| accuracy | {metrics['eval_accuracy']:.4f} |" in card and "| labels | bad, good |" in card
    assert str(tmp_path) not in card and "| rows | files for sequence-classification: 200 train" in card


def test_the_best_checkpoint_is_kept_and_training_stops_early(saved, files, tmp_path, monkeypatch):
    options = [*with_files(files), "--num_train_epochs", 30, "--early_stopping_patience", 2, "--save_total_limit", 30]
    metrics = finetune(monkeypatch, "sequence-classification", saved, tmp_path / "run", *options)
    state = json.loads(
        max((tmp_path / "run").glob("checkpoint-*/trainer_state.json"), key=os.path.getmtime).read_text()
    )
    figures = [entry["eval_accuracy"] for entry in state["log_history"] if "eval_accuracy" in entry]
    assert len(figures) == figures.index(max(figures)) + 1 + 2 < 30
    assert metrics["eval_accuracy"] == max(figures) == state["best_metric"]
    # Resumed, it has still seen the evaluation before without a better figure.
    checkpoints = sorted((tmp_path / "run").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    options += ["--resume_from_checkpoint", checkpoints[-2]]
    finetune(monkeypatch, "sequence-classification", saved, tmp_path / "resumed", *options)
    assert [path.name for path in (tmp_path / "resumed").glob("checkpoint-*")] == [checkpoints[-1].name]


def test_seeds_differ_and_are_summed_up(saved, files, tmp_path, monkeypatch, capsys):
    options = [*with_files(files), "--num_train_epochs", 1, "--seeds", 1, 2, 3]
    metrics = finetune(monkeypatch, "sequence-classification", saved, tmp_path / "run", *options)
    losses = [metrics["seeds"][seed]["eval_loss"] for seed in "123"]
    assert len(set(losses)) == 3
    mean = sum(losses) / 3
    assert metrics["mean"]["eval_loss"] == pytest.approx(mean)
    assert metrics["std"]["eval_loss"] == pytest.approx((sum((loss - mean) ** 2 for loss in losses) / 2) ** 0.5)
    assert f"{mean:.4f} ± " in capsys.readouterr().out
    one = finetune(monkeypatch, "sequence-classification", saved, tmp_path / "one", *options[:-4], "--seed", 2)
    assert one["eval_loss"] == pytest.approx(losses[1], rel=1e-6)

    for directory, checkpoint, message in (
        ("run", tmp_path / "one", "pass --resume_from_checkpoint alone"),
        ("one", "last", "no runs of --seeds to resume in .*one"),
    ):
        with pytest.raises(SystemExit, match=message):
            finetune(
                monkeypatch,
                "sequence-classification",
                saved,
                tmp_path / directory,
                *options,
                "--resume_from_checkpoint",
                checkpoint,
            )

    # Resumed, only what is missing is trained.
    shutil.rmtree(tmp_path / "run/seed-3")
    (tmp_path / "run/seed-1/metrics.json").write_text(json.dumps({**metrics["seeds"]["1"], "eval_loss": 0.0}))
    again = finetune(
        monkeypatch, "sequence-classification", saved, tmp_path / "run", *options, "--resume_from_checkpoint"
    )
    assert [again["seeds"][seed]["eval_loss"] for seed in "123"] == [0.0, losses[1], pytest.approx(losses[2])]


def test_a_resumed_run_gives_what_an_unbroken_one_gives(saved, files, tmp_path, monkeypatch):
    options = [*with_files(files), "--num_train_epochs", 2, "--save_total_limit", 5]
    straight = finetune(monkeypatch, "sequence-classification", saved, tmp_path / "run", *options)
    first = min((tmp_path / "run").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    options += ["--resume_from_checkpoint", first]
    resumed = finetune(monkeypatch, "sequence-classification", saved, tmp_path / "resumed", *options)
    assert resumed["eval_loss"] == pytest.approx(straight["eval_loss"], rel=1e-5)
    with pytest.raises(SystemExit, match="resumed is not empty"):
        finetune(monkeypatch, "sequence-classification", saved, tmp_path / "resumed", *options)


def test_a_bert_and_its_conversion_give_the_same(tokenizer, files, tmp_path, monkeypatch, caplog):
    make_bert(tokenizer, tmp_path / "bert")
    convert_checkpoint(str(tmp_path / "bert"), tmp_path / "converted", "scratch_bert")
    options = [*with_files(files), "--num_train_epochs", 1]
    metrics = [
        finetune(monkeypatch, "sequence-classification", tmp_path / name, tmp_path / f"run-{name}", *options)
        for name in ("bert", "converted")
    ]
    for name in ("eval_loss", "eval_accuracy", "eval_f1"):
        assert metrics[0][name] == metrics[1][name]
    config = json.loads((tmp_path / "run-bert/config.json").read_text())
    assert config["model_type"] == "scratch_bert"


def test_a_task_of_glue_finds_its_data_set_on_the_hub(saved, tmp_path, monkeypatch):
    hub = tmp_path / "nyu-mll/glue"  # load_dataset takes a directory of that name first
    hub.mkdir(parents=True)
    splits = "".join(
        f"    - {{split: {split}, path: '{split}.parquet'}}\n" for split in ("train", "validation", "test")
    )
    (hub / "README.md").write_text(f"---\nconfigs:\n- config_name: rte\n  data_files:\n{splits}---\n")
    label = ClassLabel(names=["entailment", "not_entailment"])
    features = Features(
        {"sentence1": Value("string"), "sentence2": Value("string"), "label": label, "idx": Value("int32")}
    )
    for split in ("train", "validation", "test"):
        labels = [-1] * 8 if split == "test" else [0, 1] * 4
        rows = {
            "sentence1": ["a class"] * 8,
            "sentence2": ["an object", "a value"] * 4,
            "label": labels,
            "idx": range(8),
        }
        Dataset.from_dict(rows, features=features).to_parquet(hub / f"{split}.parquet")
    monkeypatch.chdir(tmp_path)
    metrics = finetune(monkeypatch, "rte", saved, tmp_path / "run", "--num_train_epochs", 1)
    assert 0 <= metrics["eval_accuracy"] <= 1 and "test_accuracy" not in metrics
    lines = (tmp_path / "run/test_predictions.jsonl").read_text().splitlines()
    assert len(lines) == 8 and json.loads(lines[0])["prediction"] in label.names and "label" not in lines[0]


def test_from_a_model_with_another_head(saved, files, tmp_path, monkeypatch, caplog):
    three = write_rows(tmp_path / "three.csv", 90, label=lambda good: f"{good}")
    three.write_text(three.read_text() + "a class,2\n" * 30)
    options = ["--train_file", three, "--max_steps", 1, "--eval_strategy", "no", "--save_strategy", "no"]
    options += ["--load_best_model_at_end", "false"]
    finetune(monkeypatch, "sequence-classification", saved, tmp_path / "one", *options)
    caplog.clear()
    finetune(
        monkeypatch,
        "sequence-classification",
        tmp_path / "one",
        tmp_path / "two",
        *with_files(files),
        "--max_steps",
        1,
    )
    assert "New, with random weights: classifier.bias, classifier.weight" in caplog.text


def test_no_script_hides_a_library():
    """Python looks for modules beside the script first."""
    assert not [script.name for script in SCRIPTS.glob("*.py") if find_spec(script.stem)]


def test_random_weights(saved, tokenizer, files, tmp_path, monkeypatch):
    make_bert(tokenizer, tmp_path / "bert")
    options = [*with_files(files), "--max_steps", 1, "--random_weights", "--dropout", 0.2, "--learning_rate", 0]
    for start, name in ((saved, "run"), (tmp_path / "bert", "from-bert")):
        finetune(monkeypatch, "sequence-classification", start, tmp_path / name, *options)
        (before,) = (
            tensor
            for key, tensor in load_file(start / "model.safetensors").items()
            if key.endswith("word_embeddings.weight")
        )
        after = load_file(tmp_path / name / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
        assert after.dtype == torch.float32 and after.shape == before.shape
        assert (before.float() - after)[1:].abs().mean() > 0.01 < after.std() < 0.03  # the first is padding
    assert "trained from random weights" in (tmp_path / "run/README.md").read_text()
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["hidden_dropout_prob"] == config["attention_probs_dropout_prob"] == 0.2


def test_a_foreign_metric_must_say_which_way_is_better(saved, files, tmp_path, monkeypatch):
    metric = write_metric(tmp_path / "wrong.py", "{'errors': sum(a != b for a, b in zip(predictions, references))}")
    options = [*with_files(files), "--metrics", metric, "--trust_remote_code", "--num_train_epochs", 4]
    with pytest.raises(SystemExit, match="name one with --metric_for_best_model, of loss, errors"):
        finetune(monkeypatch, "sequence-classification", saved, tmp_path / "run", *options)
    options += ["--metric_for_best_model", "errors"]
    with pytest.raises(SystemExit, match="Say with --greater_is_better true or false whether a greater errors"):
        finetune(monkeypatch, "sequence-classification", saved, tmp_path / "run", *options)
    options += ["--greater_is_better", "false"]
    metrics = finetune(monkeypatch, "sequence-classification", saved, tmp_path / "run", *options)
    state = json.loads(
        max((tmp_path / "run").glob("checkpoint-*/trainer_state.json"), key=os.path.getmtime).read_text()
    )
    counts = [entry["eval_errors"] for entry in state["log_history"] if "eval_errors" in entry]
    assert metrics["eval_errors"] == min(counts) < max(counts)


def test_words(saved, tmp_path, monkeypatch):
    sentences = "".join(f"the O\n{word} {tag}\nis O\n\n" for word, tag in (("object", "B-X"), ("class", "O"))) * 60
    (tmp_path / "train.conll").write_text(sentences)
    options = ["--train_file", tmp_path / "train.conll", "--num_train_epochs", 4]
    metrics = finetune(monkeypatch, "token-classification", saved, tmp_path / "run", *options)
    assert metrics["eval_f1"] == 1
    first = json.loads((tmp_path / "run/validation_predictions.jsonl").read_text().splitlines()[0])
    assert first["prediction"] == first["label"]
    found = pipeline("token-classification", model=str(tmp_path / "run"), aggregation_strategy="simple")(
        "the object is"
    )
    assert [(entity["entity_group"], entity["word"]) for entity in found] == [("X", "object")]


def test_answers(saved, tmp_path, monkeypatch):
    rng, paragraphs = random.Random(0), []
    for number in range(150):
        words = rng.choices(["class", "function", "module", "value", "name"], k=rng.randrange(8, 60))
        words[rng.randrange(len(words))] = "object"
        context = " ".join(words)
        answer = {"text": "object", "answer_start": context.index("object")}
        paragraphs.append(
            {"context": context, "qas": [{"id": f"q{number}", "question": "which?", "answers": [answer]}]}
        )
    (tmp_path / "train.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    options = ["--train_file", tmp_path / "train.json", "--num_train_epochs", 12]
    metrics = finetune(monkeypatch, "question-answering", saved, tmp_path / "run", *options)
    predictions = json.loads((tmp_path / "run/predictions.json").read_text())
    assert len(predictions) == 15 and metrics["eval_exact_match"] > 60
    share = 100 * sum(answer == "object" for answer in predictions.values()) / 15
    assert metrics["eval_exact_match"] == pytest.approx(share)


def test_choices(saved, tmp_path, monkeypatch):
    rng, rows = random.Random(0), []
    for _ in range(200):
        choices = rng.sample(["class", "function", "module", "value", "name"], 3)
        label = rng.randrange(3)
        choices[label] = "object"
        rows.append({"text": "what is it", "choices": choices, "label": label})
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = ["--train_file", tmp_path / "train.jsonl", "--num_train_epochs", 6]
    metrics = finetune(monkeypatch, "multiple-choice", saved, tmp_path / "run", *options)
    assert metrics["eval_accuracy"] > 0.9


def test_numbers_and_a_metric_of_ones_own_choice(saved, tmp_path, monkeypatch):
    train = write_rows(tmp_path / "train.csv", 200, label=lambda good: 1.5 if good else -0.5)
    options = [
        "--train_file",
        train,
        "--num_train_epochs",
        6,
        "--problem_type",
        "regression",
        "--metrics",
        "mse",
        "pearsonr",
    ]
    metrics = finetune(monkeypatch, "sequence-classification", saved, tmp_path / "run", *options)
    states = [json.loads(file.read_text()) for file in (tmp_path / "run").glob("checkpoint-*/trainer_state.json")]
    last = max(states, key=lambda state: state["global_step"])
    assert metrics["eval_mse"] == min(entry["eval_mse"] for entry in last["log_history"] if "eval_mse" in entry)
    assert metrics["eval_mse"] < 0.3 and metrics["eval_pearsonr"] > 0.9


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("cola", ["--train_file", "missing.tsv"], "There is no file or directory missing.tsv"),
        ("classify", [], "invalid choice: 'classify'"),
        ("sequence-classification", [], "There are no rows to train on: pass --train_file"),
        ("sequence-classification", ["--train_file", "a.csv", "--text_colum", "text"], "Did you mean text_column?"),
        ("sequence-classification", ["--train_file", "a.csv", "--text_column", "review"], "a.csv has no column 'review', but text, label"),
        ("sequence-classification", ["--train_file", "a.csv", "--validation_file", "empty.csv"], "empty.csv holds no rows"),
        ("sequence-classification", ["--train_file", "a.csv", "--validation_file", "unseen.csv"], "unseen.csv, row 2, has the label 'ugly', but the labels of the training rows are: bad, good"),
        ("question-answering", ["--train_file", "bad.json", "--validation_file", "bad.json", "--max_seq_length", "72"], "max_seq_length is 72, but the model takes 40"),
        ("multiple-choice", ["--train_file", "a.csv"], "no column 'choices'"),
        ("sequence-classification", ["--train_file", "a.csv", "--choices_column", "x"], "choices_column has no effect"),
        ("sequence-classification", ["--train_file", "a.csv", "--metrics", "acc"], "The metric acc is none of accuracy, f1"),
        ("sequence-classification", ["--train_file", "a.csv", "--metrics", "acc", "--trust_remote_code"], "There is no metric 'acc'"),
        ("sequence-classification", ["--train_file", "a.csv", "--label_column", "text"], "One column, 'text', is named for text and label"),
        ("sequence-classification", ["--train_file", "a.csv", "--doc_stride", "8"], "doc_stride has no effect with sequence-classification"),
        ("cola", ["--train_file", "a.csv", "--problem_type", "regression"], "problem_type has no effect with cola"),
        ("sequence-classification", ["--train_file", "a.csv", "--dropout", "1.5"], "dropout must be at least 0 and less than 1"),
        ("sequence-classification", ["--train_file", "a.csv", "--max_seq_length", "0"], "max_seq_length must be 8 or more"),
        ("question-answering", ["--train_file", "bad.json", "--max_answer_length", "0"], "max_answer_length must be 1 or more"),
        ("question-answering", ["--train_file", "bad.json", "--doc_stride", "-5"], "doc_stride must be 0 or more"),
        ("sequence-classification", ["--train_file", "a.csv", "--dataloader_drop_last", "true"], "dataloader_drop_last must stay False"),
        ("sequence-classification", ["--train_file", "a.csv", "--early_stopping_patience", "0"], "early_stopping_patience must be 1 or more"),
        ("sequence-classification", ["--train_file", "a.csv", "--dataset_config", "x"], "dataset_config has no effect without a dataset_name"),
        ("sequence-classification", ["--train_file", "a.csv", "--validation_file", "a.csv", "--validation_share", "0.2"], "validation_share has no effect with validation_file"),
        ("sequence-classification", ["--train_file", "a.csv", "--early_stopping_patience", "2", "--eval_strategy", "no", "--load_best_model_at_end", "false"], "early_stopping_patience counts evaluations"),
        ("sequence-classification", ["--train_file", "a.csv", "--seeds", "1", "1"], "seeds must differ"),
        ("sequence-classification", ["--train_file", "a.csv", "--seeds", "1", "2", "--push_to_hub"], "publish it with scripts/push_to_hub.py"),
        ("sequence-classification", ["--train_file", "a.csv", "--validation_share", "2"], "validation_share must be greater than 0 and less than 1"),
        ("sequence-classification", ["--train_file", "a.csv", "--dataset_name", "x"], "Give train_file or dataset_name"),
        ("sequence-classification", ["--train_file", "a.csv", "--resume_from_checkpoint"], "There is no checkpoint to resume from"),
    ],
)  # fmt: skip
def test_bad_input_ends_with_one_clear_line(task, options, message, saved, tmp_path, monkeypatch, capsys):
    write_rows(tmp_path / "a.csv", 20)
    (tmp_path / "empty.csv").write_text("text,label\n")
    (tmp_path / "unseen.csv").write_text("text,label\na,good\nb,ugly\n")
    answer = {"text": "Ada", "answer_start": 5}
    question = {"id": "q7", "question": "who?", "answers": [answer]}
    (tmp_path / "bad.json").write_text(
        json.dumps({"data": [{"paragraphs": [{"context": "One Ada ran.", "qas": [question]}]}]})
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit:
        finetune(monkeypatch, task, saved, tmp_path / "run", *options)
    assert exit.value.code not in (0, None)
    assert message in f"{exit.value.code}{capsys.readouterr().err}"
    assert not (tmp_path / "run").exists()


def test_an_answer_that_is_not_in_its_context_and_no_model(saved, tmp_path, monkeypatch, capsys):
    question = {"id": "q7", "question": "who?", "answers": [{"text": "Ada", "answer_start": 5}]}
    (tmp_path / "bad.json").write_text(
        json.dumps({"data": [{"paragraphs": [{"context": "One Ada ran.", "qas": [question] * 2}]}]})
    )
    options = ["--train_file", tmp_path / "bad.json"]
    with pytest.raises(
        SystemExit, match="the answer 'Ada' to question q7 is not at character 5 of its context, where 'da ' stands"
    ):
        finetune(monkeypatch, "question-answering", saved, tmp_path / "run", *options, "--validation_share", 0.5)
    with pytest.raises(SystemExit):
        run_script(monkeypatch, "finetune.py", "cola", "--train_file", "x")
    assert "Say with --model_name_or_path which checkpoint to start from" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="error: .*nowhere"):
        finetune(monkeypatch, "cola", tmp_path / "nowhere", tmp_path / "run", "--train_file", tmp_path / "bad.json")
