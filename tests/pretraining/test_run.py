"""Pretraining and evaluation from Python: what the scripts call."""

import json
import logging
import resource
import shutil
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoTokenizer

from helpers import mlm_and_nsp
from scratch_bert.atomic import seal
from scratch_bert.corpus.tokenizer import segment_ids
from scratch_bert.pretraining import run as pretraining
from scratch_bert.pretraining.evaluation import evaluate
from scratch_bert.pretraining.run import PretrainingRun, describe_best
from scratch_bert.pretraining.trainer import PretrainingTrainer
from scratch_bert.text.files import TextError
from scratch_bert.training import clock
from scratch_bert_options.evaluation import EvaluationDataOptions, EvaluationOptions


@pytest.fixture(scope="module")
def finished(prepare, tmp_path_factory):
    """(the output directory, the run, what `train` returned). To be read only."""
    directory = tmp_path_factory.mktemp("runs") / "finished"
    run = prepare(directory)
    return directory, run, run.train()


def test_run_returns_and_writes_its_metrics(finished):
    directory, run, metrics = finished
    assert isinstance(run, PretrainingRun) and run.checkpoint is None and not run.trainer.interrupted
    assert run.trainer.state.global_step == 4
    assert metrics == json.loads((directory / "metrics.json").read_text())
    assert {"train_loss", "eval_mlm_loss", "eval_nsp_accuracy"} <= set(metrics)
    assert {"README.md", "model.safetensors", "tokenizer.json"} <= {file.name for file in directory.iterdir()}


def test_run_masks_more_tokens_in_training_than_in_evaluation(finished):
    def share(loader):
        counts = [((batch["labels"] != -100).sum(), (batch["input_ids"] > 4).sum()) for batch in loader]
        predicted, tokens = map(sum, zip(*counts, strict=True))
        return (predicted / tokens).item()

    _, run, _ = finished
    special = set(run.data.tokenizer.all_special_ids) - {run.data.tokenizer.mask_token_id}
    assert special <= set(range(5)) and run.data.tokenizer.mask_token_id == 4
    # [MASK] is one of the five special ids: 80% of the predicted tokens are not among those counted.
    assert share(run.trainer.get_train_dataloader()) == pytest.approx(0.3 / (1 - 0.8 * 0.3), rel=0.1)
    assert share(run.trainer.get_eval_dataloader()) == pytest.approx(0.15 / (1 - 0.8 * 0.15), rel=0.1)


def test_run_takes_dropout_from_its_option_or_from_the_overrides(prepare, tmp_path):
    def dropout(number, **model):
        config = prepare(tmp_path / str(number), **model).trainer.model.config
        return config.hidden_dropout_prob, config.attention_probs_dropout_prob

    assert dropout(0) == (0, 0)
    assert dropout(1, dropout=0.1) == (0.1, 0.1)
    assert dropout(2, dropout=0.1, config_overrides="hidden_dropout_prob=0.2") == (0.2, 0.1)


@pytest.mark.parametrize("streaming", [False, True])
def test_token_embeddings_start_from_the_text_unless_asked_not_to(streaming, prepare, tmp_path):
    def embeddings(number, **model):
        run = prepare(tmp_path / str(number), streaming=streaming, **model)
        return run.trainer.model.get_input_embeddings().weight

    normal, default, again = embeddings(0, token_embedding_init="normal"), embeddings(1), embeddings(2)
    assert torch.equal(default, again) and not torch.equal(default, normal)
    assert torch.equal(default[:5], normal[:5])  # special tokens


def test_run_with_room_for_more_tokens(prepare, tmp_path):
    model = {"config_overrides": "hidden_size=32,vocab_size=512", "max_position_embeddings": 48}
    config = prepare(tmp_path / "run", **model).trainer.model.config
    assert (config.vocab_size, config.max_position_embeddings) == (512, 48)


def test_run_with_a_segment_id_for_padding(prepare, tmp_path):
    """The ids are those of the tokenizer in the run, its evaluation and its continuation."""
    run = prepare(tmp_path / "run", first_segment_id=1)
    assert run.trainer.model.config.type_vocab_size == 3
    expected = run.train()
    (batch, *_) = run.trainer.get_eval_dataloader()
    assert (batch["token_type_ids"].eq(0) == batch["attention_mask"].eq(0)).all()
    metrics, data = evaluation(run, tmp_path / "run")
    assert segment_ids(data.tokenizer) == (1, 2)
    assert mlm_and_nsp(metrics) == pytest.approx(mlm_and_nsp(expected), rel=1e-5)
    prepare(tmp_path / "run", first_segment_id=1, max_steps=6, resume_from_checkpoint="auto").train()


WORST = {"load_best_model_at_end": True, "metric_for_best_model": "mlm_loss", "greater_is_better": True}


@pytest.mark.parametrize(
    ("training", "evaluations", "step"),
    [
        pytest.param({"eval_steps": 2}, 2, 4, id="at the last step"),
        pytest.param({"eval_steps": 3, "save_steps": 3}, 2, 4, id="not at the last step"),
        pytest.param({"eval_steps": 2, "muon_learning_rate": 0.1, **WORST}, 2, 2, id="of another checkpoint"),
    ],
)
def test_model_is_evaluated_once(training, evaluations, step, prepare, tmp_path, monkeypatch):
    passes, evaluation_loop = [], PretrainingTrainer.evaluation_loop
    monkeypatch.setattr(
        PretrainingTrainer,
        "evaluation_loop",
        lambda *args, **kwargs: passes.append(1) or evaluation_loop(*args, **kwargs),
    )
    run = prepare(tmp_path / "run", **training)
    metrics = run.train()
    assert len(passes) == evaluations
    assert mlm_and_nsp(metrics) == pytest.approx(mlm_and_nsp(run.trainer.evaluate()), rel=1e-6)
    card = (tmp_path / "run" / "README.md").read_text()
    assert f"After {step} steps" in card and f" {metrics['eval_mlm_loss']:.3f} " in card
    if step < 4:  # the best step, if nothing was saved after it, is that of other weights
        assert run.trainer.state.best_model_checkpoint.endswith(f"checkpoint-{step}")
        run.trainer.state.best_global_step = 3
        assert run.trainer.weights_step == step


SPEED = {"tokens_per_second", "tokens_per_step", "examples_per_step", "data_share", "memory_mib"}
TRAIN = {"loss", "grad_norm", "learning_rate", "mlm_loss", "nsp_loss", "mlm_accuracy"}


def test_run_with_all_that_tensorboard_can_show_trains_as_without(finished, prepare, tmp_path):
    logging = {"report_to": ["tensorboard"], "tensorboard_graph": True, "logging_steps": 2, "eval_steps": 2}
    metrics = prepare(tmp_path / "run", **logging).train()
    assert mlm_and_nsp(metrics) == mlm_and_nsp(finished[2])
    (directory,) = (tmp_path / "run" / "runs").iterdir()
    events = EventAccumulator(str(directory)).Reload()
    found = events.Tags()
    expected = {f"speed/{name}" for name in SPEED} | {f"train/{name}" for name in TRAIN} | {"eval/mlm_loss"}
    assert found["graph"] and expected <= set(found["scalars"])
    shown = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("predictions/text_summary")]
    assert len(shown) == 2 and all(text.count("[MASK]") == 4 and text.count("  B: ") == 4 for text in shown)


@pytest.fixture(scope="module")
def phases(prepare, tmp_path_factory):
    """A run of ten steps, the last four of them with sequences of 96 tokens instead of 32, and the lengths it has seen."""
    lengths = {}

    def make(directory, **training):
        steps = {"max_steps": 10, "final_max_seq_length": 96, "final_share": 0.4}
        return prepare(directory, **steps | {"save_total_limit": 99, "logging_steps": 1} | training)

    def watch(trainer):
        forward = trainer.model.forward

        def watched(*args, **inputs):
            if trainer.model.training:
                lengths.setdefault(trainer.state.global_step + 1, inputs["input_ids"].shape[1])
            return forward(*args, **inputs)

        trainer.model.forward = watched
        return trainer

    directory, build = tmp_path_factory.mktemp("phases") / "run", pretraining.build_trainer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "build_trainer", lambda *args: watch(build(*args)))
        run = make(directory)
        yield directory, make, run, run.train(), lengths


def test_run_ends_with_longer_sequences_under_one_schedule(phases):
    directory, _, run, metrics, lengths = phases
    assert list(lengths) == list(range(1, 11))
    assert all(lengths[step] <= 32 for step in range(1, 7)) and all(lengths[step] > 32 for step in range(7, 11))
    assert run.data.max_seq_length == run.trainer.model.config.max_position_embeddings == 96
    assert run.trainer.state.global_step == 10 and metrics == json.loads((directory / "metrics.json").read_text())
    rates = json.loads((directory / "checkpoint-10" / "trainer_state.json").read_text())["log_history"]
    assert [entry["learning_rate"] for entry in rates if "learning_rate" in entry] == pytest.approx(
        [0, *(2e-3 * (1 - step / 9) for step in range(9))]  # a step of warm-up
    )


def test_time_and_speed_are_of_both_phases(phases):
    directory, _, run, metrics, _ = phases
    last = next(entry for entry in reversed(run.trainer.state.log_history) if "train_runtime" in entry)
    assert metrics["train_runtime"] > last["train_runtime"]
    assert metrics["train_steps_per_second"] * metrics["train_runtime"] == pytest.approx(10, rel=0.02)
    assert f"| time | {metrics['train_runtime']:.0f} seconds |" in (directory / "README.md").read_text()


@pytest.mark.parametrize("step", [4, 6, 8])
def test_run_of_two_lengths_resumes_as_if_it_had_not_stopped(step, phases, tmp_path):
    directory, make, *_ = phases
    shutil.copytree(directory / f"checkpoint-{step}", tmp_path / "run" / f"checkpoint-{step}")
    make(tmp_path / "run", resume_from_checkpoint="auto").train()
    assert "seconds since the last resume |" in (tmp_path / "run" / "README.md").read_text()
    expected, found = (load_file(path / "model.safetensors") for path in (directory, tmp_path / "run"))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_final_phase_continues_the_schedule_although_checkpoints_hold_models_alone(phases, tmp_path):
    directory, make, *_ = phases
    make(tmp_path / "run", save_only_model=True, save_steps=5).train()
    expected, found = (load_file(path / "model.safetensors") for path in (directory, tmp_path / "run"))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_run_of_two_lengths_continues_where_nothing_else_would_be_saved(phases, tmp_path):
    _, make, *_ = phases
    best = {"save_strategy": "best", "eval_steps": 3, "metric_for_best_model": "mlm_loss", "learning_rate": 1e-7}
    run = make(tmp_path / "run", **best, muon_learning_rate=1e-7)
    run.train()
    assert (tmp_path / "run" / "checkpoint-6").is_dir() and run.trainer.state.global_step == 10


def test_final_phase_may_have_shorter_sequences(prepare, tmp_path):
    run = prepare(tmp_path / "run", max_steps=4, final_max_seq_length=16, final_share=0.5)
    run.train()
    assert run.data.max_seq_length == 16
    assert run.trainer.model.config.max_position_embeddings == 32


def test_final_phase_begins_by_the_clock(prepare, tmp_path, monkeypatch, caplog):
    times, seen, build = count(1000), {}, pretraining.build_trainer
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: next(times)))

    def watch(*args):
        trainer = build(*args)
        collate = trainer.train_collator

        def watched(examples):
            seen[trainer.state.global_step + 1] = collate.mlm_probability, max(len(e["input_ids"]) for e in examples)
            return collate(examples)

        trainer.train_collator = watched
        return trainer

    monkeypatch.setattr(pretraining, "build_trainer", watch)
    training = {"max_steps": -1, "max_minutes": 10 / 60, "warmup_steps": 0, "eval_strategy": "no", "save_steps": 100}
    training |= {"final_share": 0.4, "final_max_seq_length": 96, "final_mlm_probability": 0.15}
    run = prepare(tmp_path / "run", **training, validation_share=0)
    caplog.clear()
    with caplog.at_level(logging.INFO, "scratch_bert"):
        metrics = run.train()
    samples_per_step = metrics["train_samples_per_second"] / metrics["train_steps_per_second"]
    assert samples_per_step == pytest.approx(run.trainer.args.train_batch_size, rel=0.01)
    assert caplog.messages == ["Final phase: sequences of up to 96 tokens, 15% masked"]
    assert run.trainer.state.global_step == 9  # one of the ten seconds is the reading for the checkpoint
    assert [seen[step][0] for step in range(1, 10)] == [0.3] * 6 + [0.15] * 3
    assert all((seen[step][1] > 32) == (step > 6) for step in seen if step < 10)

    checkpoint = tmp_path / "run" / "checkpoint-6"
    resumed = prepare(tmp_path / "run", **training, validation_share=0, resume_from_checkpoint=checkpoint)
    assert [phase.mlm_probability for phase in resumed.phases] == [0.15] and resumed.data.max_seq_length == 96


def test_time_of_the_final_evaluation_is_that_of_its_longer_sequences(prepare, tmp_path, monkeypatch):
    """From the first phase on: the final phase keeps its share."""
    times = count(1000)
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    training = {"max_steps": -1, "max_minutes": 0.75, "warmup_steps": 0, "eval_strategy": "no", "save_steps": 100}
    run = prepare(tmp_path / "run", **training, final_max_seq_length=96, final_share=0.3)
    first = run.trainer
    run.train()
    batches, longer = (len(trainer.get_eval_dataloader()) for trainer in (first, run.trainer))
    assert first.clock.reserved == 3 * batches and run.trainer.clock.reserved == longer


def test_time_that_is_over_before_the_final_phase_is_reported(prepare, tmp_path, monkeypatch, caplog):
    times = count(1000)
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    training = {"max_steps": -1, "max_minutes": 4 / 60, "warmup_steps": 0, "eval_strategy": "no", "save_steps": 100}
    phase = {"final_share": 0.3, "final_mlm_probability": 0.15}
    run = prepare(tmp_path / "run", **training, **phase, validation_share=0)
    metrics = run.train()  # of four seconds, three are steps, and one the reading for the checkpoint
    assert run.trainer.state.global_step == 3 and metrics["train_loss"] > 1
    assert "The time ran out before the final phase" in caplog.text
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_run_of_two_lengths_stops_where_the_text_has_changed(prepare, text_file, tmp_path):
    text = shutil.copy(text_file, tmp_path / "text.txt")
    run = prepare(tmp_path / "run", train_file=[text], final_max_seq_length=64, final_share=0.5)
    text.write_text(text_file.read_text() + "\n\nAnd more.\n", encoding="utf-8")
    with pytest.raises(TextError, match="cannot continue with its final phase.* has a different training text"):
        run.train()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"streaming": True, "final_max_seq_length": 64, "max_steps": 10},
            "needs text that is neither streamed nor preprocessed",
        ),
        ({"streaming": True, "max_steps": -1}, "streaming needs max_steps"),
        ({"config_overrides": "vocab_size=400"}, "has 500 entries, but the model's vocab_size is 400"),
        ({"max_position_embeddings": 16}, r"max_seq_length \(32\) is longer than max_position_embeddings \(16\)"),
        ({"config_overrides": "type_vocab_size=1"}, "type_vocab_size must be 2 or more"),
        ({"config_overrides": "type_vocab_size=2", "first_segment_id": 1}, "type_vocab_size must be 3 or more"),
        ({"text_column": "body"}, "text_column is for tables, which .*txt is not"),
        ({"metric_for_best_model": "mlm_acuracy"}, "mlm_acuracy. Did you mean mlm_accuracy?"),
        # The stock Trainer would end at once, as if it had trained.
        (
            {"dataloader_drop_last": True, "per_device_train_batch_size": 870},
            "global batch size, 870, exceeds an epoch's examples: 869. With dataloader_drop_last, there would be no "
            "step",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
def test_run_rejects(options, message, prepare, tmp_path):
    with pytest.raises(ValueError, match=message):
        prepare(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_tokenizer_of_the_checkpoint_must_fit_its_model(finished, prepare, tmp_path):
    copy = shutil.copytree(finished[0], tmp_path / "copy")
    tokenizer = AutoTokenizer.from_pretrained(copy / "checkpoint-4")
    tokenizer.add_tokens(["newword"])
    tokenizer.save_pretrained(copy / "checkpoint-4")
    seal(copy / "checkpoint-4")
    with pytest.raises(ValueError, match="The tokenizer has 501 entries, but the model's vocab_size is 500"):
        prepare(copy, resume_from_checkpoint="auto")


def test_documents_in_another_order_are_another_text(prepare, text_file, tmp_path):
    documents = text_file.read_text(encoding="utf-8").split("\n\n")
    text = tmp_path / "text.txt"

    def run(order, **training):
        text.write_text("\n\n".join(documents[::order]), encoding="utf-8")
        return prepare(tmp_path / "run", train_file=[text], validation_share=0, **training)

    run(1, max_steps=1, save_steps=1).train()
    with pytest.raises(ValueError, match="a different training text: .* CRC-32"):
        run(-1, resume_from_checkpoint="auto")


def test_best_model_is_selected_by_one_measure_on_one_text(prepare, text_file, tmp_path):
    held_out = shutil.copy(text_file, tmp_path / "held-out.txt")
    best = {"validation_file": [held_out], "load_best_model_at_end": True, "eval_steps": 2}
    prepare(tmp_path / "run", **best).train()
    best["resume_from_checkpoint"] = "auto"
    prepare(tmp_path / "run", **best)
    with pytest.raises(ValueError, match="has a different metric_for_best_model: loss, not"):
        prepare(tmp_path / "run", **best, metric_for_best_model="mlm_accuracy")
    held_out.write_text(text_file.read_text(encoding="utf-8") + "\n\nAnd more.\n", encoding="utf-8")
    with pytest.raises(ValueError, match="has a different held-out text: CRC-32 .*, not CRC-32"):
        prepare(tmp_path / "run", **best)


@contextmanager
def files_limited_to(size):
    """Writes beyond this many bytes in a file fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["tokenizer.json", "modeling_scratch_bert.py", "model.safetensors", "optimizer.pt"])
def test_run_that_cannot_write_a_file_says_so_and_resumes_when_it_can(name, finished, prepare, tmp_path):
    directory, *_ = finished
    size = (directory / "checkpoint-4" / name).stat().st_size

    def run():
        prepare(tmp_path / "run", resume_from_checkpoint="auto").train()

    with files_limited_to(size - 1), pytest.raises(OSError, match="could not be written to .*(large|full)"):
        run()
    run()
    expected, found = (load_file(path / "model.safetensors") for path in (directory, tmp_path / "run"))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


# ------------------------------------------------------------------------------------------------------ evaluation


def evaluation(run, name, **data):
    """The metrics of one model on the text of a run, and the data."""
    data_args = run.options.data
    options = {"max_seq_length": "32", "cache_dir": data_args.cache_dir, "train_file": data_args.train_file}
    results, found = evaluate(
        EvaluationDataOptions(**(options | data)), EvaluationOptions(model_name_or_path=[str(name)])
    )
    return results[str(name)], found


def test_evaluation_gives_the_metrics_of_pretraining(finished):
    directory, run, expected = finished
    metrics, data = evaluation(run, directory)
    assert len(mlm_and_nsp(expected)) == 10
    assert mlm_and_nsp(metrics) == pytest.approx(mlm_and_nsp(expected), rel=1e-5)
    assert data.eval_dataset is not data.train_dataset
    assert len(data.eval_dataset) == len(run.data.eval_dataset)


def test_evaluation_of_sequences_that_are_too_long_is_rejected(finished):
    directory, run, _ = finished
    with pytest.raises(ValueError, match="finished takes 32 tokens at most: pass a max_seq_length of 32 or less"):
        evaluation(run, directory, max_seq_length="64")


def test_evaluation_in_training_is_on_evenly_spread_examples(prepare, tmp_path, caplog):
    caplog.set_level("INFO", "scratch_bert")
    run = prepare(tmp_path / "run", max_eval_examples=7)
    complete, capped = run.data.eval_dataset, run.trainer.eval_dataset
    assert len(capped) == 7 < len(complete)
    assert f"Evaluation: 7 of the {len(complete)} held-out examples, evenly spread" in caplog.text
    last = capped[6]["input_ids"].tolist()
    assert last == complete[6 * len(complete) // 7]["input_ids"].tolist()
    assert run.train()["eval_mlm_loss"] > 0
    card = (tmp_path / "run" / "README.md").read_text()
    assert f"After 4 steps, on 7 of {len(complete)} examples from text held out" in card
    assert "| held-out text | 9.4% of the tokens, 6 documents drawn at random; " in card
    for number in (0, 10**6):
        run = prepare(tmp_path / f"all{number}", max_eval_examples=number)
        assert run.trainer.eval_dataset is run.data.eval_dataset


def test_an_overfitted_run_says_where_it_was_best():
    log = [
        {"step": 50, "eval_mlm_loss": 2.0},
        {"step": 100, "eval_mlm_loss": 1.5},
        {"step": 150, "eval_mlm_loss": 1.8},
    ]
    assert "lowest after 100 steps (1.500)" in describe_best(log, 1.8)
    assert not describe_best(log, 1.51) and not describe_best([], 1.8) and not describe_best(log, None)
