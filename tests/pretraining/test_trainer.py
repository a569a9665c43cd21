import copy

import numpy as np
import pytest
import torch
from transformers import Trainer, get_linear_schedule_with_warmup

from helpers import NO_DROPOUT, SMALL
from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining
from scratch_bert.examples.collator import PretrainingCollator
from scratch_bert.examples.dataset import SentencePairDataset
from scratch_bert.examples.stream import stream_examples
from scratch_bert.objectives import OBJECTIVES
from scratch_bert.pretraining.arguments import pretraining_arguments
from scratch_bert.pretraining.metrics import PretrainingMetrics
from scratch_bert.pretraining.trainer import PretrainingTrainer
from scratch_bert.text.formats import TextSource
from scratch_bert.training.counting import CountingCollator
from scratch_bert_options.declare import from_keywords
from scratch_bert_options.pretraining import PretrainingOptions


def make_trainer(output_dir, corpus, tokenizer, dropout=0.1, pack_to=None, **options):
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 64}
    config = ScratchBertConfig(**SMALL | sizes | dict.fromkeys(NO_DROPOUT, dropout))
    options = {"max_steps": 12, "save_steps": 5, "per_device_train_batch_size": 8, "logging_steps": 1, **options}
    options |= {"eval_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    (training,) = from_keywords(PretrainingOptions, output_dir=output_dir, **options)
    training.save_total_limit = None
    return PretrainingTrainer(
        model=ScratchBertForPreTraining(config),
        args=pretraining_arguments(training),
        options=training,
        data_collator=PretrainingCollator(tokenizer),
        train_collator=PretrainingCollator(tokenizer, pack_to=pack_to),
        train_dataset=SentencePairDataset(corpus, tokenizer, max_seq_length=64),
        processing_class=tokenizer,
    )


@pytest.mark.parametrize(("kind", "workers"), [("corpus", 0), ("corpus", 2), ("stream", 2)])
def test_resumed_run_ends_with_the_same_weights(kind, workers, small_corpus, documents, tokenizer, tmp_path):
    def make(name):
        trainer = make_trainer(tmp_path / name, small_corpus, tokenizer, dataloader_num_workers=workers)
        if kind == "stream":  # twelve short documents, which twelve steps go through more than once
            texts = [[" ".join(document)] for document in documents if len(document) < 20][:12]
            trainer.train_dataset = stream_examples(TextSource(texts), 4, tokenizer, 64, 0.1, seed=0, objective="nsp")
        else:
            assert 12 > len(trainer.get_train_dataloader()) > 1  # the run crosses epochs, and stops within one
        return trainer

    straight = make("run")
    straight.train()
    resumed = make("again")
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-5"))
    assert resumed.state.global_step == 12
    torch.testing.assert_close(resumed.model.state_dict(), straight.model.state_dict(), rtol=0, atol=0)
    names = ("step", "loss", "mlm_loss", "nsp_loss")
    logs = [[[log[n] for n in names] for log in t.state.log_history if "loss" in log] for t in (straight, resumed)]
    assert len(logs[0]) == 12 and logs[0] == logs[1]


def test_steps_are_those_of_a_plain_loop(small_corpus, tokenizer, tmp_path):
    """Adam with the gradients of each batch alone, and one schedule over all steps."""
    options = {"optim": "adamw_torch", "weight_decay": 0.0, "max_grad_norm": 0.0, "warmup_steps": 2, "bf16": False}
    trainer = make_trainer(tmp_path, small_corpus, tokenizer, dropout=0.0, max_steps=6, save_strategy="no", **options)
    model, batches, step = copy.deepcopy(trainer.model), [], trainer.training_step

    def training_step(model, inputs, *args):
        batches.append({name: value.clone() if torch.is_tensor(value) else value for name, value in inputs.items()})
        return step(model, inputs, *args)

    trainer.training_step = training_step
    trainer.train()
    optimizer = torch.optim.AdamW(model.parameters(), trainer.args.learning_rate, weight_decay=0.0)
    scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=6)
    for batch in batches:
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
        scheduler.step()
    torch.testing.assert_close(trainer.model.state_dict(), model.state_dict(), rtol=0, atol=1e-5)


def test_evaluation_drops_no_examples(small_corpus, tokenizer, tmp_path):
    made = make_trainer(tmp_path, small_corpus, tokenizer, dataloader_drop_last=True, per_device_eval_batch_size=999)
    assert len(made.get_eval_dataloader(made.train_dataset)) == 1 and made.args.dataloader_drop_last


def test_model_that_computes_all_logits_is_evaluated(small_corpus, tokenizer, tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, small_corpus, tokenizer)
    metrics = PretrainingMetrics(torch.zeros(len(tokenizer)), OBJECTIVES["nsp"])
    trainer.compute_metrics, trainer.preprocess_logits_for_metrics = metrics, metrics.reduce
    expected = trainer.evaluate(trainer.train_dataset)
    forward, seen = trainer.model.forward, []

    def all_logits(input_ids, attention_mask, token_type_ids, labels, next_sentence_label, **kwargs):
        outputs = forward(
            input_ids, attention_mask, token_type_ids, labels=labels, next_sentence_label=next_sentence_label
        )
        seen.append(outputs["prediction_logits"].dim())
        return outputs

    monkeypatch.setattr(trainer.model, "forward", all_logits)
    trainer.data_collator = PretrainingCollator(tokenizer)  # masks as before
    found = trainer.evaluate(trainer.train_dataset)
    assert set(seen) == {3} and found["eval_mlm_loss"] == pytest.approx(expected["eval_mlm_loss"], rel=0.02)


@pytest.mark.parametrize(("batch_size", "accumulation_steps"), [(16, 1), (4, 4)])
def test_mlm_and_nsp_loss_are_logged_and_add_up(batch_size, accumulation_steps, small_corpus, tokenizer, tmp_path):
    options = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation_steps}
    options |= {"max_steps": 4, "logging_steps": 2, "save_strategy": "no"}
    trainer = make_trainer(tmp_path, small_corpus, tokenizer, dropout=0.0, **options)
    trainer.train()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert len(logs) == 2
    for log in logs:
        assert log["loss"] == pytest.approx(log["mlm_loss"] + log["nsp_loss"], abs=1e-4)
        assert log["mlm_loss"] == pytest.approx(7.6, abs=0.2)  # an untrained model: near log(2000)
        assert log["nsp_loss"] == pytest.approx(0.69, abs=0.1)


def test_mlm_and_nsp_loss_of_several_gpus_in_one_process_are_logged(small_corpus, tokenizer, tmp_path, monkeypatch):
    """DataParallel hands back one number per GPU; here each GPU has had half of the masked tokens."""
    compute_loss = Trainer.compute_loss

    def on_two_gpus(self, *args, **kwargs):
        loss, outputs = compute_loss(self, *args, **kwargs)
        for name in ("mlm_loss", "nsp_loss"):
            outputs[name] = torch.stack([outputs[name] / 2, outputs[name] / 2])
        return loss, outputs

    monkeypatch.setattr(Trainer, "compute_loss", on_two_gpus)
    trainer = make_trainer(tmp_path, small_corpus, tokenizer, max_steps=1, save_strategy="no")
    trainer.train()
    log = trainer.state.log_history[0]
    assert log["loss"] == pytest.approx(log["mlm_loss"] + log["nsp_loss"], abs=1e-4)


@pytest.mark.parametrize(("workers", "steps", "pack_to"), [(0, 1, None), (2, 2, None), (0, 2, 64)], ids=str)
def test_training_with_counts_is_that_without(workers, steps, pack_to, small_corpus, tokenizer, tmp_path, monkeypatch):
    """As on a GPU, where each batch carries lists and numbers beside its tensors."""
    options = {"dataloader_num_workers": workers, "gradient_accumulation_steps": steps, "max_steps": 4, "dropout": 0.0}
    logs, batches = [], []
    for counts in (False, True):
        monkeypatch.setattr(PretrainingTrainer, "counts_on_the_host", counts)
        trainer = make_trainer(tmp_path / str(counts), small_corpus, tokenizer, pack_to=pack_to, **options)
        assert isinstance(trainer.train_collator, CountingCollator) == counts
        batches.append(next(iter(trainer.get_train_dataloader())))
        trainer.train()
        names = ("step", "loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "grad_norm")
        logs.append([[entry[name] for name in names] for entry in trainer.state.log_history if "loss" in entry])
    assert len(logs[0]) == 4 and logs[0] == logs[1]
    assert "num_masked" not in batches[0] and sum(batches[1]["sequence_lengths"]) == batches[1]["attention_mask"].sum()


def test_packing_logs_the_losses_of_unpacked_training_and_evaluates_unpacked(small_corpus, tokenizer, tmp_path):
    logs = []
    for name, pack_to in (("unpacked", None), ("packed", 128)):
        trainer = make_trainer(tmp_path / name, small_corpus, tokenizer, dropout=0.0, pack_to=pack_to, bf16=False)
        batches = [len(batch["input_ids"]) for batch in trainer.get_train_dataloader()]
        assert ("seq_idx" in next(iter(trainer.get_train_dataloader()))) == (pack_to is not None)
        assert "seq_idx" not in next(iter(trainer.get_eval_dataloader(trainer.train_dataset)))
        trainer.train()
        logs.append([(log["mlm_loss"], log["nsp_loss"]) for log in trainer.state.log_history if "mlm_loss" in log])
    assert min(batches) < 8
    np.testing.assert_allclose(logs[0], logs[1], rtol=0, atol=1e-4)
