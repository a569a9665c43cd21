import json
import os
import pickle
import subprocess
import sys
from itertools import islice

import datasets
import numpy as np
import pytest
from torch.utils.data import DataLoader

from helpers import make_corpus
from scratch_bert.pretraining.collator import PreTrainingCollator
from scratch_bert.pretraining.corpus import TokenizedCorpus
from scratch_bert.pretraining.dataset import PreparedRows, SentencePairDataset, stream_rows
from scratch_bert.pretraining.text import TextSource


def test_rows(pairs, tokenizer, corpus):
    for index in (0, 7, len(pairs) - 1):
        row = pairs[index]
        a_start, a_end, b_start, b_end, label = pairs.rows[index].tolist()
        a, b = corpus.tokens[a_start:a_end].tolist(), corpus.tokens[b_start:b_end].tolist()
        ids = [tokenizer.cls_token_id, *a, tokenizer.sep_token_id, *b, tokenizer.sep_token_id]
        assert row["input_ids"].tolist() == ids
        assert row["token_type_ids"].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        expected = [int(token in tokenizer.all_special_ids) for token in ids]
        assert row["special_tokens_mask"].tolist() == expected
        assert row["next_sentence_label"] == label
    dataset = SentencePairDataset(pairs.corpus, tokenizer, objective="none")
    row = dataset[3]
    a_start, a_end, *_ = dataset.rows[3].tolist()
    assert row["input_ids"].tolist() == [tokenizer.cls_token_id, *corpus.tokens[a_start:a_end], tokenizer.sep_token_id]
    assert not row["token_type_ids"].any() and "next_sentence_label" not in row


def all_rows(dataset):
    return [{name: np.asarray(value).tolist() for name, value in dataset[i].items()} for i in range(len(dataset))]


def test_epochs_differ_and_come_back(corpus, tokenizer):
    first, second = (SentencePairDataset(corpus, tokenizer, seed=7) for _ in range(2))
    epoch_0 = all_rows(first)
    assert all_rows(second) == epoch_0
    first.set_epoch(3)
    epoch_3 = all_rows(first)
    assert len(epoch_3) == len(epoch_0) and epoch_3 != epoch_0
    second.set_epoch(1)
    second.set_epoch(3)
    assert all_rows(second) == epoch_3
    first.set_epoch(0)
    assert all_rows(first) == epoch_0
    assert all_rows(SentencePairDataset(corpus, tokenizer, seed=8)) != epoch_0


@pytest.mark.parametrize("static_pairs", [False, True])
def test_another_process_gets_the_rows_by_name(documents, tokenizer, tmp_path, static_pairs):
    """As a data loader's workers do where processes are spawned: little is sent, and the rows are the same."""
    source = TextSource([[" ".join(document) for document in documents]])
    train, _ = TokenizedCorpus.from_source(source, tokenizer, tmp_path).hold_out(0.2, seed=0)
    dataset = SentencePairDataset(train, tokenizer, static_pairs=static_pairs)
    dataset.set_epoch(2)
    sent = pickle.dumps(dataset)
    assert len(sent) < len(pickle.dumps(tokenizer)) + 60_000
    assert all_rows(pickle.loads(sent)) == all_rows(dataset)


def test_static_pairs_stay_but_get_new_masks(corpus, tokenizer):
    dataset = SentencePairDataset(corpus, tokenizer, static_pairs=True)
    first = all_rows(dataset)
    dataset.set_epoch(1)
    second = all_rows(dataset)
    assert all(a.pop("mask_seed") != b.pop("mask_seed") for a, b in zip(first, second, strict=True))
    assert first == second


def test_blocks_give_the_rows_of_their_documents(corpus, monkeypatch, tokenizer):
    """A corpus of several blocks: each row's segments are of one block, and the labels stay in balance."""
    original = TokenizedCorpus.blocks
    monkeypatch.setattr(TokenizedCorpus, "blocks", lambda self: original(self, sentences=300))
    assert len(list(corpus.blocks())) > 5
    dataset = SentencePairDataset(corpus, tokenizer)
    assert (dataset.labels() == 0).mean() == pytest.approx(0.5, abs=0.02)
    assert dataset.tokens_used() > 0.95
    assert (np.diff(np.array(dataset.documents()), axis=1)[dataset.labels() == 0] == 0).all()


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
def test_workers_and_processes_have_the_same_rows(pairs, tokenizer, tmp_path):
    collator = PreTrainingCollator(tokenizer)
    one, four = (
        [batch["input_ids"].tolist() for batch in DataLoader(pairs, 16, collate_fn=collator, num_workers=workers)]
        for workers in (0, 4)
    )
    assert one == four
    # In a process of its own, with another hash seed.
    script = """
import sys, numpy as np
from scratch_bert.pretraining.text import TextSource, builtin_documents
from scratch_bert.pretraining.dataset import SentencePairDataset
from scratch_bert.pretraining.corpus import TokenizedCorpus
from scratch_bert.tokenizer import load_tokenizer
tokenizer = load_tokenizer(sys.argv[1])
dataset = SentencePairDataset(
    TokenizedCorpus.from_documents(TextSource([builtin_documents()]).documents(), tokenizer), tokenizer)
print(sum(int(row["input_ids"].sum()) * row["mask_seed"] % 1000003 for row in map(dataset.__getitem__, range(50))))
"""
    tokenizer.save_pretrained(tmp_path)
    command = [sys.executable, "-c", script, str(tmp_path)]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert int(output) == sum(int(pairs[i]["input_ids"].sum()) * pairs[i]["mask_seed"] % 1000003 for i in range(50))


def stream(tokenizer, documents=40, buffer=10, **options):
    texts = [f"Number {n} begins. It is {n} again. Then {n} goes on. And {n} ends." for n in range(documents)]
    settings = {"max_seq_length": 24, "short_seq_prob": 0.1, "seed": 3, "objective": "nsp", "passes": 1} | options
    return stream_rows(TextSource([texts[:20], texts[20:]]), buffer, tokenizer, **settings)


def rows_as_text(rows, tokenizer):
    return [(tokenizer.decode(row["input_ids"]), row["next_sentence_label"]) for row in rows]


def test_streams(tokenizer):
    rows = list(stream(tokenizer, max_seq_length=64))
    text = rows_as_text(rows, tokenizer)
    assert text == rows_as_text(stream(tokenizer, max_seq_length=64), tokenizer)
    for n in range(40):
        assert sum(f"{n} ends" in row for row, _ in text) >= 1
    assert np.mean([label for _, label in text]) == pytest.approx(0.5, abs=0.1)
    for row, label in text:
        numbers = [word for word in row.split() if word.isdigit()]
        assert (len(set(numbers)) == 1) == (label == 0), row
    assert set(rows[0]) == {"input_ids", "token_type_ids", "special_tokens_mask", "next_sentence_label", "mask_seed"}


def test_a_stream_shorter_than_its_buffer(tokenizer):
    """Its documents come round within a batch; they are not taken for different ones, and each batch is another."""
    dataset = stream(tokenizer, documents=20, buffer=100, max_seq_length=64, passes=None)
    text = rows_as_text(islice(dataset, 400), tokenizer)
    assert np.mean([label for _, label in text]) == pytest.approx(0.5, abs=0.1)
    for row, label in text:
        assert (len({word for word in row.split() if word.isdigit()}) == 1) == (label == 0), row
    assert len(set(text)) > 200


def test_a_stream_goes_on_without_end(tokenizer):
    rows = rows_as_text(islice(stream(tokenizer, passes=None), 600), tokenizer)
    counts = [sum(f"then {n} goes" in row for row, _ in rows) for n in range(40)]
    assert min(counts) >= 8 and max(counts) <= 16  # about ten passes over both shards
    assert len(set(rows)) > 200  # with other rows each


def test_a_stream_is_shared_without_overlap(tokenizer):
    """Among machines, and among workers."""
    dataset = stream(tokenizer, max_seq_length=64)
    shares = [list(dataset.shard(2, index)) for index in range(2)]
    words = [{token for row in share for token in tokenizer.decode(row["input_ids"]).split()} for share in shares]
    numbers = [{word for word in share if word.isdigit()} for share in words]
    assert not numbers[0] & numbers[1] and numbers[0] | numbers[1] == set(map(str, range(40)))
    rows = [row for batch in DataLoader(dataset, 4, collate_fn=list, num_workers=2) for row in batch]
    text = " ".join(row for row, _ in rows_as_text(rows, tokenizer))
    counts = [text.count(f"{number} ends") for number in range(10, 40)]
    assert min(counts) == 1 and sum(counts) < 36  # a few are drawn again as random segments


def test_prepared_rows(pairs, tokenizer):
    rows = [{k: np.asarray(v).tolist() for k, v in pairs[i].items() if k != "mask_seed"} for i in range(40)]
    dataset = PreparedRows(datasets.Dataset.from_list(rows), tokenizer, seed=1)
    assert len(dataset) == 40 and dataset.lengths().tolist() == [len(row["input_ids"]) for row in rows]
    counts = np.bincount(np.concatenate([row["input_ids"] for row in rows]), minlength=2000)
    assert np.array_equal(dataset.token_counts(2000), counts)
    first = PreTrainingCollator(tokenizer)([dataset[i] for i in range(4)])
    dataset.set_epoch(1)
    second = PreTrainingCollator(tokenizer)([dataset[i] for i in range(4)])
    assert not np.array_equal(first["labels"], second["labels"])
    assert np.array_equal(first["next_sentence_label"], [row["next_sentence_label"] for row in rows[:4]])
    bad = datasets.Dataset.from_list([rows[0] | {"input_ids": [2, 9999, 3]}])
    with pytest.raises(ValueError, match="hold the token id 9999, but the tokenizer has 2000 entries"):
        PreparedRows(bad, tokenizer)
    with pytest.raises(ValueError, match="no column token_type_ids"):
        PreparedRows(datasets.Dataset.from_dict({"input_ids": [[1]], "special_tokens_mask": [[1]]}), tokenizer)


def test_bad_values(corpus, tokenizer):
    one = make_corpus([5, 5])
    with pytest.raises(ValueError, match="need two documents.*this text has 1.*--text_format"):
        SentencePairDataset(one, tokenizer)
    assert len(SentencePairDataset(one, tokenizer, objective="sop")) == 1
    for seed in range(50):  # two documents of a row each, as a small text's held-out part has
        assert (SentencePairDataset(make_corpus([5, 5], [5, 5]), tokenizer, seed=seed).labels() == 0).any()
    with pytest.raises(ValueError, match="No document has two sentences.*--sentence_splitter"):
        SentencePairDataset(make_corpus([5], [5]), tokenizer)
    with pytest.raises(ValueError, match="max_seq_length must be 5 or more"):
        SentencePairDataset(corpus, tokenizer, max_seq_length=4)
    with pytest.raises(ValueError, match="short_seq_prob"):
        SentencePairDataset(corpus, tokenizer, short_seq_prob=1.1)
    with pytest.raises(ValueError, match="must be one of nsp, sop, none"):
        SentencePairDataset(corpus, tokenizer, objective="npc")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["corpus", "stream"])
def test_two_processes_together_have_the_rows_of_one(kind, tokenizer, tmp_path):
    """As accelerate, under Trainer, deals the rows of two epochs out to processes, each with two workers."""
    script = """
import json, sys
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader
from scratch_bert.pretraining.text import TextSource, builtin_documents
from scratch_bert.pretraining.dataset import SentencePairDataset, stream_rows
from scratch_bert.pretraining.corpus import TokenizedCorpus
from scratch_bert.tokenizer import load_tokenizer
kind, directory, rows_per_batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
tokenizer, texts = load_tokenizer(directory), builtin_documents()
if kind == "corpus":
    corpus = TokenizedCorpus.from_documents(TextSource([texts]).documents(), tokenizer)
    dataset = SentencePairDataset(corpus, tokenizer)
else:
    shards = [texts[n::4] for n in range(4)]
    dataset = stream_rows(TextSource(shards), 10, tokenizer, 128, 0.1, seed=0, objective="none", passes=1)
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
loader = DataLoader(
    dataset, rows_per_batch, shuffle=kind == "corpus", collate_fn=list, num_workers=2, drop_last=False)
loader = accelerator.prepare(loader)
seen = []
for epoch in range(2):
    loader.set_epoch(epoch)
    dataset.set_epoch(epoch)
    seen.append([[int(token) for token in row["input_ids"]] for batch in loader for row in batch])
with open(f"{directory}/{rows_per_batch}-{accelerator.process_index}.json", "w") as file:
    json.dump(seen, file)
"""
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "rows.py").write_text(script)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    two = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    for launcher, rows in (([], 16), (two, 8)):
        command = [sys.executable, *launcher, str(tmp_path / "rows.py"), kind, str(tmp_path), str(rows)]
        subprocess.run(command, check=True, env=environment, capture_output=True)
    one, *both = (json.loads((tmp_path / name).read_text()) for name in ("16-0.json", "8-0.json", "8-1.json"))
    assert one[0] != one[1]
    for epoch in range(2):
        expected = sorted(one[epoch])
        together = sorted(both[0][epoch] + both[1][epoch])
        if kind == "corpus":  # the last batches are filled up with rows that others have, too
            extra = len(together) - len(expected)
            assert 0 <= extra < 16 and {tuple(row) for row in together} == {tuple(row) for row in expected}
        else:  # rows come from other buffers, but each text once
            tokens = [sorted(token for row in rows for token in row[1:-1]) for rows in (expected, together)]
            assert tokens[0] == tokens[1]
