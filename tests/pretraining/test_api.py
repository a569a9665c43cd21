"""pretrain() as a user calls it: texts in memory with a fresh cache, every option a keyword."""

import json
import logging
from pathlib import Path

import datasets
import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import Subset
from transformers import Trainer, TrainingArguments

import scratch_bert
from helpers import ROOT, SIZES, SMALL, run_process
from scratch_bert import ScratchBertConfig, ScratchBertForMaskedLM, ScratchBertForPreTraining
from scratch_bert.logs import shown_messages
from scratch_bert.pretraining import (
    OBJECTIVES,
    PretrainingCollator,
    PretrainingMetrics,
    SentencePairDataset,
    init_token_embeddings,
    train_tokenizer,
)
from scratch_bert.pretraining.evaluation import open_with_objective


@pytest.fixture(scope="module")
def texts(documents):
    """Long ones: each has more characters than the name of a file may have."""
    return [" ".join(document[:20])[:900] for document in documents[:40] if len(" ".join(document)) > 900]


@pytest.fixture
def pretrain(tmp_path):
    def call(texts=None, name="run", **options):
        sizes = {} if "model_name_or_path" in options else {"config_overrides": SIZES}
        options = {"max_steps": 2, "max_seq_length": 32, "disable_tqdm": True, "use_cpu": True} | sizes | options
        return scratch_bert.pretrain(texts, output_dir=tmp_path / name, cache_dir=tmp_path / "cache", **options)

    return call


def test_pretrain_continues_from_a_model_and_takes_a_tokenizer_with_texts_in_memory(pretrain, texts, saved, tmp_path):
    pretrain(texts, model_name_or_path=str(saved))
    pretrain(texts, "tokenizer", tokenizer_name_or_path=saved)
    assert json.loads((tmp_path / "tokenizer" / "config.json").read_text())["vocab_size"] == 2000
    card = (tmp_path / "run" / "README.md").read_text()
    assert "texts in memory" in card and "text held out from training" in card


@pytest.mark.parametrize("in_memory", [False, True])
def test_pretrain_evaluates_on_the_validation_that_is_given(in_memory, pretrain, texts, tmp_path):
    (tmp_path / "train.txt").write_text("\n\n".join(texts[:-6]))
    file = str(tmp_path / "train.txt")
    metrics = pretrain(iter(texts[:-6]) if in_memory else file, validation=pandas.Series(texts[-6:]))
    held_out = pretrain(texts[:-6] if in_memory else file, "held-out")
    assert metrics["eval_mlm_loss"] != held_out["eval_mlm_loss"]
    assert "examples from validation text" in (tmp_path / "run" / "README.md").read_text()
    train = datasets.Dataset.from_dict({"text": texts[:-6]})
    split = pretrain({"train": train, "validation": texts[-6:]}, "split")
    assert not in_memory or split["eval_mlm_loss"] == metrics["eval_mlm_loss"]


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (["a."], {"train_file": "x"}, "train_file has no effect when texts are given"),
        (["a."], {"streaming": True}, "streaming has no effect with texts in memory"),
        ({"test": ["a."]}, {}, "There is no split 'train' and no column text, only test"),
        (
            None,
            {"validation": ["b."], "prepared_data": "x", "max_seq_length": None},
            "Preprocessed examples have their own validation split",
        ),
        (["Makefile", "README.md"], {}, "These texts are all names of files"),
        (["a."], {"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy cannot be group_by_length"),
    ],
)
def test_pretrain_rejects(given, options, message, pretrain, monkeypatch):
    monkeypatch.chdir(Path(scratch_bert.__file__).parent.parent)
    with pytest.raises(ValueError, match=message):
        pretrain(given, **options)


def test_pretrain_with_resume_false_is_a_new_run(pretrain, texts):
    assert pretrain(texts, resume_from_checkpoint=False)["eval_mlm_loss"] > 0


def test_tokenizer_of_any_kind_of_texts_is_the_same(texts):
    expected = train_tokenizer(texts, vocab_size=500).get_vocab()
    for given in (pandas.DataFrame({"x": texts}), [*texts, None], [[text] for text in texts], iter(texts)):
        assert train_tokenizer(given, vocab_size=500).get_vocab() == expected


FORK = """
import os, sys
from scratch_bert.pretraining import SentencePairDataset
from scratch_bert.corpus.tokenizer import load_tokenizer

texts = ("One sentence. And the next one." for _ in range(4))
dataset = SentencePairDataset.from_texts(texts, load_tokenizer(sys.argv[1]), 64)
process = os.fork()
if process == 0:
    sys.exit()  # a normal end, with its exit handlers
os.waitpid(process, 0)
print(dataset.corpus.directory.is_dir(), dataset.corpus.directory)
"""


@pytest.mark.slow
def test_token_ids_of_an_iterator_survive_a_fork_but_not_the_process(saved):
    there, directory = run_process("-c", FORK, saved).stdout.split()
    assert there == "True" and not Path(directory).exists()


def make_stock(dataset, tokenizer, directory, **options):
    config = ScratchBertConfig(**SMALL | {"vocab_size": 2000, "max_position_embeddings": 64})
    arguments = {"max_steps": 3, "use_cpu": True, "disable_tqdm": True} | options
    model, collator = ScratchBertForPreTraining(config), PretrainingCollator(tokenizer)
    return Trainer(model, TrainingArguments(directory, **arguments), train_dataset=dataset, data_collator=collator)


def test_epochs_are_announced_to_the_dataset_of_a_subset(small_corpus, tokenizer, tmp_path):
    dataset = SentencePairDataset(small_corpus, tokenizer, 64)
    make_stock(Subset(dataset, range(8)), tokenizer, tmp_path).train()
    assert dataset.epoch == 2


def test_persistent_workers_are_rejected_where_they_would_keep_the_pairs(small_corpus, tokenizer, tmp_path):
    dataset = SentencePairDataset(small_corpus, tokenizer, 64)
    options = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    with pytest.raises(ValueError, match="dataloader_persistent_workers must be False"):
        make_stock(dataset, tokenizer, tmp_path, **options).train()


def test_metrics_without_their_arguments_say_so(small_corpus, tokenizer, tmp_path):
    trainer = make_stock(None, tokenizer, tmp_path)
    trainer.compute_metrics = PretrainingMetrics(torch.zeros(2000))
    with pytest.raises(ValueError, match="needs TrainingArguments.batch_eval_metrics=True"):
        trainer.evaluate(SentencePairDataset(small_corpus, tokenizer, 64))


def test_token_embeddings_of_a_smaller_vocabulary_are_an_error(small_corpus, tokenizer):
    model = ScratchBertForMaskedLM(ScratchBertConfig(**SMALL))
    with pytest.raises(ValueError, match="but the model's vocab_size is 120"):
        init_token_embeddings(model, SentencePairDataset(small_corpus, tokenizer, 64))


def test_objective_gives_pairs(small_corpus, tokenizer, monkeypatch):
    monkeypatch.setattr(type(OBJECTIVES["nsp"]), "draw_pairs", lambda *_: np.zeros((3, 4), dtype=np.int64))
    with pytest.raises(ValueError, match=r"draw_pairs must give pairs \(pairs, 5\), but gave \(3, 4\)"):
        SentencePairDataset(small_corpus, tokenizer, 64)
    monkeypatch.setattr(type(OBJECTIVES["nsp"]), "draw_pairs", lambda *_: np.zeros((0, 5), dtype=np.int64))
    with pytest.raises(ValueError, match="the text gives no pair of segments"):
        SentencePairDataset(small_corpus, tokenizer, 64)


def test_a_users_own_registered_class_is_saved_as_itself(tmp_path, monkeypatch):
    (tmp_path / "modeling_mine.py").write_text(
        "from scratch_bert import ScratchBertForMaskedLM\n\n\nclass Mine(ScratchBertForMaskedLM):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from modeling_mine import Mine

    Mine(ScratchBertConfig(**SMALL)).save_pretrained(tmp_path / "as-ours")
    Mine.register_for_auto_class("AutoModelForMaskedLM")
    Mine(ScratchBertConfig(**SMALL)).save_pretrained(tmp_path / "as-mine")
    names = [
        json.loads((tmp_path / name / "config.json").read_text())["architectures"] for name in ("as-ours", "as-mine")
    ]
    assert names == [["ScratchBertForMaskedLM"], ["Mine"]]


def test_evaluation_takes_what_a_checkpoint_can_do_of_the_objective(saved):
    for name in ("none", "sop"):
        assert open_with_objective(OBJECTIVES[name], str(saved), False)[1].name == name


@pytest.mark.parametrize("configured", [{}, {"handlers": [logging.NullHandler()]}, {"level": logging.ERROR}], ids=str)
def test_messages_are_shown_unless_the_application_has_configured_logging(configured, monkeypatch, capsys):
    for name, value in {"handlers": [], "level": logging.NOTSET, "propagate": False, **configured}.items():
        monkeypatch.setattr(logging.getLogger("scratch_bert"), name, value)
    with shown_messages():
        logging.getLogger("scratch_bert").info("a message")
    logging.getLogger("scratch_bert").warning("not within")
    assert ("a message\n" in capsys.readouterr().err) == (not configured)


@pytest.mark.slow
def test_calls_show_their_messages_and_leave_logging_as_it_was(text_file, tmp_path):
    code = f"""
import logging, scratch_bert
root, ours = logging.getLogger(), logging.getLogger("scratch_bert")
before = (root.level, root.handlers[:], ours.level, ours.handlers[:])
options = {{"max_steps": 2, "logging_steps": 1, "save_strategy": "no", "max_seq_length": 32, "vocab_size": 500}}
scratch_bert.pretrain({str(text_file)!r}, output_dir="run", **options)
table = {{"text": ["a class", "a name"] * 8, "label": ["good", "bad"] * 8}}
scratch_bert.finetune("sequence-classification", table, "run", output_dir="tuned", max_steps=2)
assert (root.level, root.handlers[:], ours.level, ours.handlers[:]) == before
"""
    result = run_process("-c", code, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert "train 2/2  loss" in result.stdout and "Writing model shards" not in result.stderr
    for part in ("Held-out text: ", "MLM: the masked word", "NSP accuracy ", "In run: the model", "bag of words"):
        assert part in result.stderr, part
    assert "In tuned: the model" in result.stderr


def test_import_beside_a_folder_of_the_same_name(tmp_path):
    (tmp_path / "scratch_bert").mkdir()  # such as a clone
    assert run_process("-c", "import scratch_bert; print(scratch_bert.pretrain)", cwd=tmp_path, PYTHONPATH="").stdout
