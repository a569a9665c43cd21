"""`prepare_finetuning` on small datasets that a model can learn: what it trains, writes and returns, and how
several seeds and early stopping resume. Resumes of any run: tests/training/test_resume_runs.py."""

import gc
import json
import random
import re
import shutil
import weakref
from itertools import accumulate

import pytest
import torch
from matplotlib.image import imread
from safetensors.torch import load_file, save_file
from seqeval.metrics.sequence_labeling import get_entities
from transformers import pipeline

from helpers import make_bert, read_jsonl, write_glue, write_metric
from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining, ScratchBertForSequenceClassification
from scratch_bert.finetuning.metrics import GREATER_IS_BETTER
from scratch_bert.finetuning.run import prepare_finetuning
from scratch_bert.finetuning.trainer import FinetuningTrainer
from scratch_bert.hub.conversion import convert_checkpoint
from scratch_bert_options.declare import from_keywords
from scratch_bert_options.finetuning import FinetuningOptions, TaskOptions


WORDS = ["class", "function", "module", "value", "name"]
FAST = {"learning_rate": 3e-3, "head_learning_rate": 3e-3, "per_device_train_batch_size": 16, "disable_tqdm": True}
FAST |= {"bf16": False, "logging_strategy": "no"}  # and so no curves to draw
WITHOUT_CHECKPOINTS = {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}


def write_examples(file, count, seed=0, label=lambda good: "good" if good else "bad"):
    """A text is good if it contains the word object."""
    rng, lines = random.Random(seed), ["text,label"]
    for number in range(count):
        words = rng.choices(WORDS, k=6)
        if number % 2:
            words[rng.randrange(6)] = "object"
        lines.append(f"{' '.join(words)},{label(number % 2)}")
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("examples")
    validation = write_examples(directory / "validation.csv", 60, seed=1)
    return {"train_file": write_examples(directory / "train.csv", 160), "validation_file": validation}


@pytest.fixture
def prepare(saved, tmp_path):
    """A run in `tmp_path`/`name`, ready to train."""

    def prepare(name="run", task="sequence-classification", model=saved, **options):
        options = FAST | options | {"model_name_or_path": model, "output_dir": tmp_path / name}
        return prepare_finetuning(task, *from_keywords(TaskOptions, FinetuningOptions, **options))

    return prepare


@pytest.fixture
def run(prepare):
    """Fine-tune, and return the metrics."""
    return lambda *args, **options: prepare(*args, **options).train().mean


def checkpoints(directory):
    return sorted(directory.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))


def evaluations(directory, name):
    """This metric in each evaluation of the training."""
    state = json.loads((checkpoints(directory)[-1] / "trainer_state.json").read_text())
    return [entry[f"eval_{name}"] for entry in state["log_history"] if f"eval_{name}" in entry]


# ------------------------------------------------------------------------------------------------- kinds of tasks


def test_text_classification_and_its_model(prepare, files, tmp_path, curves):
    (tmp_path / "test.csv").write_text("text\nan object\na class\n")
    output = tmp_path / "run"
    options = {"test_file": tmp_path / "test.csv", "num_train_epochs": 5, "logging_strategy": "steps"}
    results = prepare(**files, **options).train()
    metrics = results.mean
    assert results.seeds == {42: metrics} and set(results.std.values()) == {0.0}
    assert metrics == json.loads((output / "metrics.json").read_text())
    assert metrics["eval_accuracy"] > 0.95 and metrics["eval_f1"] > 0.95

    examples = read_jsonl(output / "validation_predictions.jsonl")
    assert examples[7]["origin"] == f"{files['validation_file']}, example 8"
    share = sum(example["prediction"] == example["label"] for example in examples) / 60
    assert {example["label"] for example in examples} == {"good", "bad"}
    assert share == pytest.approx(metrics["eval_accuracy"])
    assert len((output / "test_predictions.jsonl").read_text().splitlines()) == 2

    assert json.loads((output / "config.json").read_text())["id2label"] == {"0": "bad", "1": "good"}
    classify = pipeline("text-classification", model=str(output))
    texts = [line.split(",")[0] for line in files["validation_file"].read_text().splitlines()[1:]]
    assert [one["label"] for one in classify(texts)] == [example["prediction"] for example in examples]

    card = (output / "README.md").read_text()
    assert f"| accuracy | {metrics['eval_accuracy']:.4f} |" in card and "| labels | bad, good |" in card
    assert "files for sequence-classification: 160 train" in card and str(tmp_path) not in card
    baselines = [metrics[f"baseline_{kind}_accuracy"] for kind in ("majority", "bag_of_words")]
    assert f"| {metrics['eval_accuracy']:.4f} | {baselines[0]:.4f} | {baselines[1]:.4f} |\n" in card
    assert baselines == [0.5, 1]
    assert imread(output / "curves.png").shape[1] == 3 * 400  # loss, accuracy, learning rate


@pytest.mark.parametrize("labels", [["bad", "good"], ["good", "bad"], ["no", "yes"], ["LABEL_0", "LABEL_1"]])
def test_head_for_other_labels_starts_anew(labels, prepare, files, saved, tokenizer, tmp_path, caplog):
    model = ScratchBertForSequenceClassification.from_pretrained(saved, id2label=dict(enumerate(labels)))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    trained = prepare(model=tmp_path / "model", **files).first_trainer.model
    fits = labels in (["bad", "good"], ["LABEL_0", "LABEL_1"])
    assert torch.equal(trained.classifier.weight, model.classifier.weight) == fits
    assert torch.equal(trained.bert.pooler.dense.weight, model.bert.pooler.dense.weight)
    assert (f"a head for other labels ({', '.join(labels)}): it starts anew" in caplog.text) != fits


def test_regression_with_other_metrics(run, tmp_path):
    train = write_examples(tmp_path / "train.csv", 160, label=lambda good: 1.5 if good else -0.5)
    options = {"problem_type": "regression", "metrics": ["mse", "pearsonr"], "num_train_epochs": 6}
    metrics = run(train_file=train, **options)
    assert metrics["eval_mse"] == min(evaluations(tmp_path / "run", "mse"))
    assert metrics["eval_mse"] < 0.3 and metrics["eval_pearsonr"] > 0.9


def test_one_label_or_none(run, tmp_path):
    rows = [{"text": WORDS[number % 5], "label": ["a"] * (number % 2)} for number in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run(train_file=tmp_path / "a.jsonl", max_steps=1, **WITHOUT_CHECKPOINTS)
    report = json.loads((tmp_path / "run/class_report.json").read_text())["validation"]["classes"]
    lines = read_jsonl(tmp_path / "run/validation_predictions.jsonl")
    found, right = (sum(bool(x["prediction"]) for x in part) for part in (lines, [x for x in lines if x["label"]]))
    assert [*report] == ["a"] and report["a"]["examples"] == sum(bool(line["label"]) for line in lines)
    assert report["a"]["precision"] == pytest.approx(right / max(found, 1))


def test_pipeline_finds_the_entities_that_the_evaluation_counts(run, tmp_path):
    """With the strategy that card and docs name, in words of several tokens, from tags of BIOES."""
    tags = {"unbelievably": "B-X", "modules": "E-X", "objectively": "S-X", "the": "O", "understandable": "O"}
    rng, phrases = random.Random(0), ["unbelievably modules", "objectively", "the", "understandable"]
    sentences = [" ".join(rng.choices(phrases, k=5)).split() for _ in range(150)]
    (tmp_path / "train.conll").write_text("\n\n".join("\n".join(f"{w} {tags[w]}" for w in one) for one in sentences))
    options = {"train_file": tmp_path / "train.conll", "num_train_epochs": 2, **WITHOUT_CHECKPOINTS}
    metrics = run(task="token-classification", **options)
    tag = pipeline("token-classification", model=str(tmp_path / "run"), aggregation_strategy="first")
    found, gold = set(), set()
    lines = read_jsonl(tmp_path / "run/validation_predictions.jsonl")
    for number, line in enumerate(lines):
        words = sentences[int(line["origin"].split()[-1]) - 1]
        ends = [*accumulate(len(word) + 1 for word in words)]
        for _, first, last in get_entities(line["label"]):
            gold.add((number, ends[first] - len(words[first]) - 1, ends[last] - 1))
        found |= {(number, entity["start"], entity["end"]) for entity in tag(" ".join(words))}
    f1 = 2 * len(found & gold) / (len(found) + len(gold))
    assert f1 == pytest.approx(metrics["eval_f1"]) and f1 > 0.95
    assert {*json.loads((tmp_path / "run/config.json").read_text())["label2id"]} == {"B-X", "I-X", "O"}


def test_question_answering_of_squad(run, tmp_path):
    rng, paragraphs = random.Random(0), []
    for number in range(150):
        words = rng.choices(WORDS, k=rng.randrange(8, 60))
        words[rng.randrange(len(words))] = "object"
        context = " ".join(words)
        answer = {"text": "object", "answer_start": context.index("object")}
        question = {"id": f"q{number}", "question": "which?", "answers": [answer]}
        paragraphs.append({"context": context, "qas": [question]})
    (tmp_path / "train.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    options = {"train_file": tmp_path / "train.json", "num_train_epochs": 6, **WITHOUT_CHECKPOINTS}
    metrics = run(task="question-answering", learning_rate=1e-2, **options)
    predictions = json.loads((tmp_path / "run/predictions.json").read_text())
    assert len(predictions) == 15 and metrics["eval_exact_match"] > 60
    share = 100 * sum(answer == "object" for answer in predictions.values()) / 15
    assert metrics["eval_exact_match"] == pytest.approx(share)


def test_multiple_choice(run, tmp_path):
    rng, examples = random.Random(0), []
    for _ in range(120):
        choices = rng.sample(WORDS, 3)
        label = rng.randrange(3)
        choices[label] = "object"
        examples.append({"text": "what is it", "choices": choices, "label": label})
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, examples)))
    options = {"train_file": tmp_path / "train.jsonl", "num_train_epochs": 6, **WITHOUT_CHECKPOINTS}
    metrics = run(task="multiple-choice", learning_rate=5e-3, **options)
    assert metrics["eval_accuracy"] > 0.9
    card = (tmp_path / "run/README.md").read_text()
    assert f"| {metrics['eval_accuracy']:.4f} | {metrics['baseline_majority_accuracy']:.4f} |\n" in card
    assert "bag of words" not in card


def test_glue_task_finds_its_dataset_on_the_hub(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["entailment", "not_entailment"]
    texts = {"sentence1": ["a class"] * 8, "sentence2": ["an object", "a value"] * 4, "idx": range(8)}
    write_glue("rte", names, texts, {"train": [0, 1] * 4, "validation": [0, 1] * 4, "test": [-1] * 8})
    metrics = run(task="rte", num_train_epochs=1)
    assert 0 <= metrics["eval_accuracy"] <= 1 and "test_accuracy" not in metrics
    lines = (tmp_path / "run/test_predictions.jsonl").read_text().splitlines()
    assert len(lines) == 8 and json.loads(lines[0])["prediction"] in names and "label" not in lines[0]
    assert '{"text": "A first text.", "text_pair": "Another one."}' in (tmp_path / "run/README.md").read_text()


# ------------------------------------------------------------------------------------------------- initial weights


def test_bert_and_its_conversion_give_the_same(tokenizer, files, tmp_path, run):
    make_bert("ForMaskedLM", tmp_path / "bert", tokenizer).half().save_pretrained(tmp_path / "bert")
    convert_checkpoint(str(tmp_path / "bert"), tmp_path / "converted", "scratch_bert")
    metrics = [run(f"run-{n}", model=tmp_path / n, num_train_epochs=1, **files) for n in ("bert", "converted")]
    for name in ("eval_loss", "eval_accuracy", "eval_f1"):
        assert metrics[0][name] == metrics[1][name]
    assert json.loads((tmp_path / "run-bert/config.json").read_text())["model_type"] == "scratch_bert"


@pytest.mark.parametrize("model_type", ["scratch_bert", "bert"])
def test_random_init_with_dropout(model_type, saved, tokenizer, run, files, tmp_path):
    if model_type == "bert":
        saved = tmp_path / "bert"
        make_bert("ForMaskedLM", saved, tokenizer).half().save_pretrained(saved)
    run(model=saved, random_init=True, head_learning_rate=None, dropout=0.2, max_steps=1, learning_rate=0, **files)
    name = "bert.embeddings.word_embeddings.weight"
    before, after = (load_file(path / "model.safetensors")[name] for path in (saved, tmp_path / "run"))
    assert after.dtype == torch.float32 and after.shape == before.shape
    assert (before.float() - after)[1:].abs().mean() > 0.01 < after.std() < 0.03  # the first is padding
    assert "trained from scratch (random initialisation)" in (tmp_path / "run/README.md").read_text()
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["hidden_dropout_prob"] == config["attention_probs_dropout_prob"] == 0.2


def test_classifier_pooling_is_that_of_the_option_or_the_checkpoint(tokenizer, run, files, tmp_path):
    saved = tmp_path / "bert"
    make_bert("ForMaskedLM", saved, tokenizer)
    run("chosen", model=saved, classifier_pooling="pairs", max_steps=1, **files)
    run("kept", model=tmp_path / "chosen", max_steps=1, **files)
    run("replaced", model=tmp_path / "kept", classifier_pooling="cls", max_steps=1, **files)
    width = json.loads((saved / "config.json").read_text())["hidden_size"]
    for name, pooling, inputs in (("chosen", "pairs", 10), ("kept", "pairs", 10), ("replaced", "cls", 1)):
        assert json.loads((tmp_path / name / "config.json").read_text())["classifier_pooling"] == pooling
        assert load_file(tmp_path / name / "model.safetensors")["classifier.weight"].shape == (2, inputs * width)
    cards = {name: (tmp_path / name / "README.md").read_text() for name in ("chosen", "kept")}
    assert "classifier_pooling" in cards["kept"]  # among what BERT lacks
    assert "of new weights 0.003" in cards["chosen"] and "of new weights" not in cards["kept"]


def test_new_weights_learn_at_their_own_rate_and_narrow_models_at_a_higher_one(prepare, files):
    options = {**files, "use_cpu": True, "head_learning_rate": None}
    trainer = prepare(**options, learning_rate=None).first_trainer
    rate = 5e-5 * 768 / trainer.model.config.hidden_size
    names = {parameter: name for name, parameter in trainer.model.named_parameters()}
    groups = {names[p]: group for group in trainer.create_optimizer().param_groups for p in group["params"]}
    assert groups.keys() == set(names.values())
    for name, group in groups.items():
        assert group["lr"] == pytest.approx(10 * rate if name.startswith("classifier.") else rate), name
    decays = [groups[name]["weight_decay"] for name in ("classifier.weight", "classifier.bias")]
    assert decays == [0.01, 0]

    trainer = prepare(**options, random_init=True).first_trainer  # all weights are new
    assert {group["lr"] for group in trainer.create_optimizer().param_groups} == {3e-3}
    assert trainer.options.head_learning_rate is None  # which the card would state


# ------------------------------------------------------------------------------------- best checkpoint, seeds, resume


def test_early_stopping_keeps_the_best_checkpoint_and_resumes_its_count(run, files, tmp_path):
    options = {**files, "num_train_epochs": 30, "early_stopping_patience": 2, "save_total_limit": 30}
    metrics = run(**options)
    accuracies = evaluations(tmp_path / "run", "accuracy")
    assert len(accuracies) == accuracies.index(max(accuracies)) + 1 + 2 < 30
    assert metrics["eval_accuracy"] == max(accuracies)
    # The last evaluation but one was the first without a new best: resumed from there, one more is left.
    *_, previous, last = checkpoints(tmp_path / "run")
    resumed = run("resumed", resume_from_checkpoint=str(previous), **options)
    assert [path.name for path in checkpoints(tmp_path / "resumed")] == [last.name]
    assert resumed["eval_loss"] == metrics["eval_loss"]
    # Resumed from its end, the run trains no further.
    again = run("again", resume_from_checkpoint=str(last), **options)
    assert not checkpoints(tmp_path / "again") and again["eval_loss"] == metrics["eval_loss"]


def test_best_checkpoint_is_evaluated_once(run, files, tmp_path, monkeypatch):
    """Predictions and scores are those of its evaluation in the training."""
    passes, loop = [], FinetuningTrainer.evaluation_loop
    monkeypatch.setattr(FinetuningTrainer, "evaluation_loop", lambda *a, **k: passes.append(1) or loop(*a, **k))
    monkeypatch.setitem(GREATER_IS_BETTER, "loss", True)  # so that the worst one is kept
    metrics = run(**files, metric_for_best_model="loss", test_file=files["validation_file"])
    assert len(passes) == 3 + 1  # three epochs, and the test split, whose examples are the same
    losses = evaluations(tmp_path / "run", "loss")
    assert metrics["eval_loss"] == max(losses) > losses[-1]
    assert metrics["eval_accuracy"] == metrics["test_accuracy"] and metrics["epoch"] == 3
    validation, test = (
        [row["prediction"] for row in read_jsonl(tmp_path / f"run/{split}_predictions.jsonl")]
        for split in ("validation", "test")
    )
    assert validation == test


@pytest.mark.parametrize(("before", "after"), [(None, 1), (3, 1)], ids=["added", "changed"])
def test_early_stopping_patience_is_that_of_the_resumed_run(before, after, run, files, tmp_path):
    options = {**files, "learning_rate": 0.0}  # nothing improves after the first evaluation
    run(num_train_epochs=1, early_stopping_patience=before, **options)
    (checkpoint,) = checkpoints(tmp_path / "run")
    resume = {"resume_from_checkpoint": str(checkpoint), "num_train_epochs": 8}
    run("resumed", early_stopping_patience=after, **resume, **options)
    assert len(evaluations(tmp_path / "resumed", "accuracy")) == 1 + after


def test_seeds_free_the_model_of_the_seed_before(prepare, files, monkeypatch):
    run = prepare(seeds=[1, 2], **files)
    first, alive = weakref.ref(run.first_trainer.model), []

    def train_and_predict(trainer, task, checkpoint):
        gc.collect()
        alive.append(first() is not None)
        return {"eval_loss": 0.0}

    monkeypatch.setattr(FinetuningTrainer, "train_and_predict", train_and_predict)
    run.train()
    assert alive == [True, False]


def test_hub_metric_must_have_a_direction(run, files, tmp_path):
    metric = write_metric(tmp_path / "wrong.py", "{'errors': sum(a != b for a, b in zip(predictions, references))}")
    options = {**files, "metrics": metric, "trust_remote_code": True, "num_train_epochs": 4}
    with pytest.raises(ValueError, match="metric_for_best_model must be one of loss, errors"):
        run(**options)
    options["metric_for_best_model"] = "errors"
    with pytest.raises(ValueError, match="Pass --greater_is_better true or false: is a greater errors better?"):
        run(**options)
    metrics = run(greater_is_better=False, **options)
    errors = evaluations(tmp_path / "run", "errors")
    assert metrics["eval_errors"] == min(errors) < max(errors)


def test_seeds_are_averaged_and_resumed(saved, prepare, run, files, tmp_path):
    few_steps = {**files, "max_steps": 2, **WITHOUT_CHECKPOINTS, "save_strategy": "epoch"}

    def finetune_seeds(**options):
        return prepare(**{"seeds": [1, 2, 3], **few_steps, **options}).train()

    results = finetune_seeds()
    losses = [results.seeds[seed]["eval_loss"] for seed in (1, 2, 3)]
    assert len(set(losses)) == 3
    mean = sum(losses) / 3
    assert results.mean["eval_loss"] == pytest.approx(mean)
    assert results.std["eval_loss"] == pytest.approx((sum((loss - mean) ** 2 for loss in losses) / 2) ** 0.5)
    written = json.loads((tmp_path / "run/metrics.json").read_text())
    assert written["mean"] == results.mean and written["seeds"]["2"] == results.seeds[2]
    assert run("one", seed=2, **few_steps)["eval_loss"] == pytest.approx(losses[1], rel=1e-6)

    # Resumed, only what is missing is trained.
    shutil.rmtree(tmp_path / "run/seed-3")
    (tmp_path / "run/seed-1/metrics.json").write_text(json.dumps({**results.seeds[1], "eval_loss": 0.0}))
    (tmp_path / "run/seed-2/metrics.json").unlink()
    again = finetune_seeds(resume_from_checkpoint="auto")
    assert [again.seeds[seed]["eval_loss"] for seed in (1, 2, 3)] == [0.0, *map(pytest.approx, losses[1:])]

    # Seeds of different runs are not averaged.
    with pytest.raises(ValueError, match="The run in .*seed-1 has a different learning_rate: 0.003, not 0.001"):
        finetune_seeds(resume_from_checkpoint="auto", learning_rate=1e-3)
    finetune_seeds(resume_from_checkpoint="auto", save_total_limit=1, per_device_eval_batch_size=8)  # no other results
    tested = finetune_seeds(resume_from_checkpoint="auto", test_file=files["validation_file"])
    assert tested.seeds[2]["test_loss"] == pytest.approx(tested.seeds[2]["eval_loss"])
    shutil.copytree(tmp_path / "run/seed-1", tmp_path / "run/seed-4")
    with pytest.raises(ValueError, match="seed-4 holds the run of another seed, 1"):
        finetune_seeds(resume_from_checkpoint="auto", seeds=[1, 4])
    other = shutil.copytree(saved, tmp_path / "other") / "model.safetensors"
    save_file({name: 2 * weight for name, weight in load_file(other).items()}, other, metadata={"format": "pt"})
    swapped = write_examples(tmp_path / "swapped.csv", 160, label=lambda good: "bad" if good else "good")
    for name, options in {
        "validation split": {"validation_file": files["train_file"]},
        "train split": {"train_file": swapped},
        "model": {"model": other.parent},
    }.items():
        with pytest.raises(ValueError, match=f"seed-1 has a different {name}: .* CRC-32"):
            finetune_seeds(resume_from_checkpoint="auto", **options)
    label = ["bad", "great"].__getitem__  # the same ids
    renamed = {"train_file": write_examples(tmp_path / "train.csv", 160, label=label)}
    renamed["validation_file"] = write_examples(tmp_path / "validation.csv", 60, seed=1, label=label)
    with pytest.raises(ValueError, match="seed-1 has a different set of labels: bad, good, not bad, great"):
        finetune_seeds(resume_from_checkpoint="auto", **renamed)
    (tmp_path / "run/seed-1/metrics.json").write_text("")
    with pytest.raises(ValueError, match="seed-1/metrics.json cannot be read"):
        finetune_seeds(resume_from_checkpoint="auto")
    with pytest.raises(ValueError, match="pass --resume_from_checkpoint without a value"):
        finetune_seeds(resume_from_checkpoint=str(tmp_path / "one"))


def test_finished_seeds_predict_a_changed_test_file(prepare, files, tmp_path):
    test = write_examples(tmp_path / "test.csv", 40, seed=2)
    options = {**files, "seeds": [1, 2], "max_steps": 2, **WITHOUT_CHECKPOINTS, "save_strategy": "epoch"}
    first = prepare(**options, test_file=test).train()
    write_examples(test, 40, seed=2, label=lambda good: "bad" if good else "good")
    options["resume_from_checkpoint"] = "auto"
    second = prepare(**options, test_file=test).train()
    for seed in (1, 2):
        assert second.seeds[seed]["test_accuracy"] == pytest.approx(1 - first.seeds[seed]["test_accuracy"])
        assert second.seeds[seed]["eval_loss"] == first.seeds[seed]["eval_loss"]

    test.write_text("text\nan object\n")
    prepare(**options, test_file=test).train()
    assert len(read_jsonl(tmp_path / "run/seed-1/test_predictions.jsonl")) == 1
    for checkpoint in (tmp_path / "run").glob("seed-*/checkpoint-*"):
        shutil.rmtree(checkpoint)  # without one, a seed that isn't finished can't be resumed
    assert "test_loss" not in prepare(**options, test_file=test).train().mean
    for name, value in {"decision_threshold": 0.3, "positive_label": "bad"}.items():
        with pytest.raises(ValueError, match=f"seed-1 has a different {name}: None, not {value}"):
            prepare(**options, test_file=test, **{name: value})


@pytest.mark.parametrize(
    "options",
    [{"problem_type": "regression"}, {"problem_type": "multi_label_classification"}],
    ids=lambda o: o["problem_type"],
)
def test_label_smoothing_needs_one_label(options, prepare, tmp_path):
    (file := tmp_path / "data.csv").write_text("text,label\n" + "a class,0\nan object,1\n" * 10)
    prepare("smooth", train_file=file, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match="label_smoothing_factor is for tasks with one label"):
        prepare(train_file=file, label_smoothing_factor=0.1, **options)


def test_pairs_need_a_model_of_two_segments(prepare, files, saved, tmp_path):
    model = ScratchBertForPreTraining.from_pretrained(saved)
    config = ScratchBertConfig.from_dict({**model.config.to_dict(), "type_vocab_size": 1})
    ScratchBertForPreTraining(config).save_pretrained(shutil.copytree(saved, tmp_path / "one"))
    prepare(model=tmp_path / "one", **files)
    (pairs := tmp_path / "pairs.csv").write_text("sentence1,sentence2,label\n" + "a,b,0\nc,d,1\n" * 20)
    with pytest.raises(ValueError, match="one has one segment .* choose another model"):
        prepare("pairs", "wnli", model=tmp_path / "one", train_file=pairs)


def test_fine_tuning_starts_from_a_pickle_and_records_its_checksum(prepare, files, saved, tokenizer, tmp_path, caplog):
    caplog.set_level("INFO", "scratch_bert")
    model = ScratchBertForPreTraining.from_pretrained(saved)
    model.config.save_pretrained(tmp_path / "old")
    tokenizer.save_pretrained(tmp_path / "old")
    models = []
    for factor in (1, 2):
        weights = {name: factor * weight for name, weight in model.state_dict().items()}
        torch.save(weights, tmp_path / "old/pytorch_model.bin")
        models.append(prepare(model=tmp_path / "old", **files).data_and_model["model"])
    assert "Newly initialised: classifier.bias, classifier.weight\n" in caplog.text
    assert all(re.fullmatch(r"scratch_bert × 2 × 32 × 2000, CRC-32 \w{8}", model) for model in models)
    assert models[0] != models[1]
    model.save_pretrained(tmp_path / "shards", max_shard_size="100KB")
    tokenizer.save_pretrained(tmp_path / "shards")
    assert prepare(model=tmp_path / "shards", **files).data_and_model["model"].count("CRC-32") > 1


def test_runs_of_several_seeds_hold_out_the_same_examples(prepare, files, monkeypatch):
    def held_out(name, **options):
        run = prepare(name, train_file=files["train_file"], max_steps=1, **options)
        return run, run.task.splits["validation"]["origin"][:]

    run, origins = held_out("one", seed=3, split_seed=3)
    assert held_out("two", seed=1)[1] == held_out("three", seed=2)[1] != origins
    other, other_origins = held_out("four", seed=3, split_seed=5)
    run.train()
    other.train()
    with pytest.raises(ValueError, match="a different train split"):
        held_out("one", seed=3, resume_from_checkpoint="auto")
    record = "scratch_bert.checkpoints.resume.read_record"
    monkeypatch.setattr(record, lambda checkpoint: {"seed": 3})  # of an earlier version
    assert held_out("one", seed=3, resume_from_checkpoint="auto")[1] == origins
    monkeypatch.setattr(record, lambda checkpoint: {})  # lost
    assert held_out("four", seed=3, split_seed=5, resume_from_checkpoint="auto")[1] == other_origins
    prepare("five", seed=3, max_steps=1, **files).train()
    monkeypatch.setattr(record, lambda checkpoint: {"seed": 3})
    prepare("five", seed=3, max_steps=1, **files, resume_from_checkpoint="auto")  # nothing was drawn
