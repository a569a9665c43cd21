"""The parts as a stranger uses them: the stock Trainer with its default arguments, data in memory."""

import itertools
import math
import re
import shutil

import datasets
import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from helpers import SMALL, assert_same_weights, make_bert, run_process
from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining
from scratch_bert.pretraining import PretrainingCollator, SentencePairDataset, init_token_embeddings, muon
from scratch_bert.text.files import TextError


@pytest.fixture(scope="module")
def texts(documents):
    return [" ".join(document[:12]) for document in documents[:40]]


@pytest.fixture
def from_texts(tokenizer, tmp_path):
    return lambda texts, **options: SentencePairDataset.from_texts(
        texts, tokenizer, **{"max_seq_length": 64, "cache_dir": tmp_path / "cache"} | options
    )


def content(dataset):
    return [example["input_ids"].tolist() for example in dataset]


@pytest.mark.parametrize(
    ("convert", "options"),
    [
        pytest.param(iter, {}, id="iterator"),
        pytest.param(lambda texts: (text for text in texts), {}, id="generator"),
        pytest.param(pandas.Series, {}, id="Series"),
        pytest.param(np.array, {}, id="array"),
        pytest.param(lambda texts: pandas.DataFrame({"n": 1, "b": texts}), {"text_column": "b"}, id="DataFrame"),
        pytest.param(lambda texts: pandas.DataFrame({0: texts, 1: 1}), {"text_column": 0}, id="number of a column"),
        pytest.param(pandas.DataFrame, {}, id="only column, a number"),
        pytest.param(lambda texts: {0: texts, 1: texts[1:] + texts[:1]}, {"text_column": "0"}, id="dict of numbers"),
        pytest.param(lambda texts: datasets.Dataset.from_dict({"review": texts})["review"], {}, id="column"),
        pytest.param(lambda texts: datasets.Dataset.from_dict({"review": texts}), {}, id="Dataset"),
        pytest.param(
            lambda texts: datasets.Dataset.from_dict({"n": range(len(texts)), "b": texts}).to_iterable_dataset(),
            {"text_column": "b"},
            id="IterableDataset",
        ),
        pytest.param(
            lambda texts: datasets.Dataset.from_dict({"b": texts}).to_iterable_dataset()["b"], {}, id="IterableColumn"
        ),
        pytest.param(lambda texts: [*texts[:9], None, float("nan"), "", *texts[9:]], {}, id="missing values"),
    ],
)
def test_texts_of_any_kind_give_the_same_examples(convert, options, texts, from_texts):
    assert content(from_texts(convert(texts), **options)) == content(from_texts(texts))


def test_texts_that_are_split_into_sentences_stay_so(documents, from_texts):
    split = [["one sentence. still the same", "another one"], ["the last", "of all"]] * 4
    dataset = from_texts(split)
    assert dataset.corpus.num_sentences == 16 and dataset.corpus.num_documents == 8
    assert content(from_texts(datasets.Dataset.from_dict({"text": split}))) == content(dataset)


def test_texts_are_encoded_once_but_an_iterators_are_not_kept(texts, from_texts, tmp_path):
    first = from_texts(texts)
    assert from_texts(pandas.Series(texts)).corpus.directory == first.corpus.directory
    assert len(from_texts({"text": texts})) == len(first)
    assert from_texts(texts[1:]).corpus.directory != first.corpus.directory
    assert tmp_path not in from_texts(iter(texts)).corpus.directory.parents


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ("a file.txt", {}, "A list of texts is needed, one for each document, not str 'a file.txt'"),
        (["a", "b"], {"text_column": "review"}, "text_column is for a dataset or DataFrame, not for a list"),
        (pandas.DataFrame({"a": ["x"], "b": ["y"]}), {}, "no column 'text', only a, b: set text_column"),
        (["One. Two."], {}, "Next-sentence prediction needs 2 documents"),
    ],
)
def test_texts_that_are_none_are_named(texts, options, message, from_texts):
    with pytest.raises((TextError, ValueError), match=message):
        from_texts(texts, **options)


def test_what_is_no_tokenizer_is_rejected(texts):
    for take in (lambda: SentencePairDataset.from_texts(texts, "bert-base"), lambda: PretrainingCollator("bert-base")):
        with pytest.raises(ValueError, match="must be loaded, as with AutoTokenizer.from_pretrained, not 'bert-base'"):
            take()


def test_split_is_by_documents(texts, from_texts):
    dataset = from_texts(texts, single_segment_prob=0.5)
    train, held_out = dataset.split(0.2, seed=3)
    assert (train.corpus.num_documents, held_out.corpus.num_documents) == (32, 8)
    spans = [set(map(tuple, part.corpus.documents.tolist())) for part in (train, held_out)]
    assert not spans[0] & spans[1] and spans[0] | spans[1] == set(map(tuple, dataset.corpus.documents.tolist()))
    assert (train.labels() == -100).any() and not (held_out.labels() == -100).any()
    with pytest.raises(ValueError, match="fraction.* got 1"):
        dataset.split(1)


def stock_trainer(directory, train, tokenizer, held_out=None, **options):
    torch.manual_seed(0)
    model = ScratchBertForPreTraining(ScratchBertConfig(**SMALL | {"vocab_size": 2000, "max_position_embeddings": 64}))
    init_token_embeddings(model, train)
    options = {"max_steps": 12, "save_steps": 7, "per_device_train_batch_size": 16, "disable_tqdm": True} | options
    args = TrainingArguments(str(directory), use_cpu=True, **options)
    parts = {"train_dataset": train, "eval_dataset": held_out, "data_collator": PretrainingCollator(tokenizer)}
    return Trainer(model, args, optimizers=(muon(model), None), **parts)


@pytest.mark.parametrize("workers", [0, 2])
def test_stock_trainer_has_new_pairs_each_epoch_and_resumes_exactly(workers, texts, from_texts, tokenizer, tmp_path):
    def run(directory, **options):
        train, held_out = from_texts(texts[:12]).split(0.2)
        trainer = stock_trainer(directory, train, tokenizer, held_out, dataloader_num_workers=workers)
        batches, step = [], trainer.training_step
        trainer.training_step = lambda model, inputs, *rest: (batches.append(inputs), step(model, inputs, *rest))[1]
        trainer.train(**options)
        return trainer, batches

    trainer, batches = run(tmp_path / "run")
    steps = trainer.state.max_steps / trainer.state.epoch  # in an epoch
    assert 2 < steps < 5 and trainer.train_dataset.epoch == int((12 - 1) / steps) > 1
    assert {"input_ids", "labels", "next_sentence_label"} <= batches[0].keys() and "mask_seed" not in batches[0]
    assert trainer.evaluate()["eval_loss"] > 0

    shutil.copytree(tmp_path / "run" / "checkpoint-7", tmp_path / "again" / "checkpoint-7")
    resumed, rest = run(tmp_path / "again", resume_from_checkpoint=True)
    torch.testing.assert_close(rest, batches[7:], rtol=0, atol=0)
    assert_same_weights(*(tmp_path / name / "checkpoint-12" for name in ("run", "again")))


def test_muon_trains_transformers_bert(texts, from_texts, tokenizer):
    bert, dataset = make_bert("ForPreTraining", tokenizer=tokenizer, max_position_embeddings=64), from_texts(texts)
    optimizer = muon(bert, lr=5e-3)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=PretrainingCollator(tokenizer))
    losses = []
    for batch in itertools.islice(itertools.cycle(loader), 60):
        loss = bert(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.3
    with pytest.raises(ValueError, match="muon needs a BERT: Linear has no matrices"):
        muon(torch.nn.Linear(3, 3))


def test_collator_without_the_columns_that_trainer_removes(texts, from_texts, tokenizer):
    """As the stock Trainer leaves the dicts of a stream or of somebody's own dataset."""
    examples = [dict(example) for example in from_texts(texts)][:8]
    for example in examples:
        del example["special_tokens_mask"], example["mask_seed"]
    batch = PretrainingCollator(tokenizer)(examples)
    chosen = batch["labels"] != -100
    assert chosen.any() and not torch.isin(batch["labels"][chosen], torch.tensor(tokenizer.all_special_ids)).any()


TORCHRUN = """
import sys, time, torch
from transformers import Trainer, TrainingArguments
from scratch_bert import ScratchBertConfig, ScratchBertForPreTraining
from scratch_bert.pretraining import PretrainingCollator, SentencePairDataset, muon
from scratch_bert.corpus.tokenizer import load_tokenizer

directory, saved, texts, cache = sys.argv[1:]
tokenizer = load_tokenizer(saved)
train = SentencePairDataset.from_texts(open(texts).read().split("\\n"), tokenizer, 40, cache_dir=cache)
torch.manual_seed(0)
model = ScratchBertForPreTraining(ScratchBertConfig.from_pretrained(saved))
args = TrainingArguments(directory, max_steps=10, save_steps=5, use_cpu=True, disable_tqdm=True)
trainer = Trainer(
    model, args, train_dataset=train, data_collator=PretrainingCollator(tokenizer), optimizers=(muon(model), None)
)
trainer.train(resume_from_checkpoint="again" in directory)
if args.process_index == 1:
    sys.stdout.write(f"of rank 1: {train.epoch} {trainer.state.epoch}\\n")  # at once: rank 0 prints, too
time.sleep(1)  # gloo aborts a process that exits while its threads free what they have gathered
"""


@pytest.mark.slow
def test_stock_trainer_in_two_processes_resumes_exactly(texts, saved, tmp_path):
    (tmp_path / "script.py").write_text(TORCHRUN)
    (tmp_path / "texts.txt").write_text("\n".join(texts[:8]))

    def run(name):
        rest = [tmp_path / name, saved, tmp_path / "texts.txt", tmp_path / "cache"]
        torchrun = ("-m", "torch.distributed.run", "--nproc_per_node", "2", tmp_path / "script.py")
        return run_process(*torchrun, *rest, OMP_NUM_THREADS="1").stdout

    epoch, progress = re.search(r"of rank 1: (\d+) ([\d.]+)", run("run")).groups()
    assert int(epoch) == math.ceil(float(progress)) - 1 >= 1
    shutil.copytree(tmp_path / "run" / "checkpoint-5", tmp_path / "again" / "checkpoint-5")
    run("again")
    assert_same_weights(*(tmp_path / name / "checkpoint-10" for name in ("run", "again")))
