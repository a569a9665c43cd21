import json
import pickle
from itertools import chain, islice
from types import SimpleNamespace

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, DataLoader, Subset

from helpers import all_examples, launch, make_corpus, run_process
from scratch_bert.corpus.corpus import TokenizedCorpus
from scratch_bert.corpus.tokenizer_training import train_tokenizer
from scratch_bert.examples.collator import PretrainingCollator
from scratch_bert.examples.dataset import AnnounceEpoch, SentencePairDataset
from scratch_bert.examples.stream import stream_examples
from scratch_bert.text.formats import TextSource


def test_examples_are_encoded_pairs(pairs, tokenizer, corpus):
    for index in (0, 7, len(pairs) - 1):
        example = pairs[index]
        a_start, a_end, b_start, b_end, label = pairs.pairs[index].tolist()
        a, b = corpus.tokens[a_start:a_end].tolist(), corpus.tokens[b_start:b_end].tolist()
        ids = [tokenizer.cls_token_id, *a, tokenizer.sep_token_id, *b, tokenizer.sep_token_id]
        assert example["input_ids"].tolist() == ids
        assert example["token_type_ids"].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        expected = [int(token in tokenizer.all_special_ids) for token in ids]
        assert example["special_tokens_mask"].tolist() == expected
        assert example["next_sentence_label"] == label


def test_examples_have_the_segment_ids_of_the_tokenizer():
    texts = [[f"number {n} begins.", f"number {n} ends."] for n in range(8)]
    tokenizer = train_tokenizer(chain(*texts), 200, first_segment_id=1)
    dataset = SentencePairDataset(TokenizedCorpus.from_documents(texts, tokenizer), tokenizer, short_seq_prob=0)
    for example, (a, b) in zip(dataset, dataset.documents().tolist(), strict=True):
        assert example["token_type_ids"].tolist() == tokenizer(texts[a][0], texts[b][1])["token_type_ids"]
    batch = PretrainingCollator(tokenizer, pad_to_multiple_of=16)(list(dataset))
    assert (batch["token_type_ids"].eq(0) == batch["attention_mask"].eq(0)).all()


def test_examples_without_sentence_objective_have_one_segment_and_no_label(corpus, tokenizer):
    dataset = SentencePairDataset(corpus, tokenizer, objective="none")
    example = dataset[3]
    a_start, a_end, *_ = dataset.pairs[3].tolist()
    ids = [tokenizer.cls_token_id, *corpus.tokens[a_start:a_end], tokenizer.sep_token_id]
    assert example["input_ids"].tolist() == ids
    assert not example["token_type_ids"].any() and "next_sentence_label" not in example


def test_single_segments_have_no_second_segment_and_no_label(corpus, tokenizer):
    dataset = SentencePairDataset(corpus, tokenizer, short_seq_prob=0, single_segment_prob=0.5)
    single = dataset.labels() == -100
    assert 0.3 < single.mean() < 0.7 and (dataset.labels()[~single] == 0).mean() == pytest.approx(0.5, abs=0.1)
    assert "% of the pairs with label 0 (B follows A)" in dataset.summary()
    for example, is_single, length, (a, b) in zip(
        dataset, single, dataset.lengths(), dataset.documents().tolist(), strict=True
    ):
        ids = example["input_ids"].tolist()
        assert ids.count(tokenizer.sep_token_id) == 2 - is_single and len(ids) == length
        assert example["token_type_ids"].any() != is_single
        assert (example["next_sentence_label"] == -100) == is_single and (a == b or not is_single)
    assert dataset.coverage() > 0.9


def test_epochs_differ_and_come_back(corpus, tokenizer):
    first, second = (SentencePairDataset(corpus, tokenizer, seed=7) for _ in range(2))
    epoch_0 = all_examples(first)
    assert all_examples(second) == epoch_0
    first.set_epoch(3)
    epoch_3 = all_examples(first)
    assert len(epoch_3) == len(epoch_0) and epoch_3 != epoch_0
    second.set_epoch(1)
    second.set_epoch(3)
    assert all_examples(second) == epoch_3
    first.set_epoch(0)
    assert all_examples(first) == epoch_0
    assert all_examples(SentencePairDataset(corpus, tokenizer, seed=8)) != epoch_0


def test_static_pairs_stay_but_get_new_masks(corpus, tokenizer):
    dataset = SentencePairDataset(corpus, tokenizer, static_pairs=True)
    first = all_examples(dataset)
    dataset.set_epoch(1)
    second = all_examples(dataset)
    assert all(a.pop("mask_seed") != b.pop("mask_seed") for a, b in zip(first, second, strict=True))
    assert first == second


def test_blocks_give_the_pairs_of_their_documents(corpus, monkeypatch, tokenizer):
    """A corpus of several blocks: a pair's segments are of one block, and the labels stay in balance."""
    original = TokenizedCorpus.blocks
    monkeypatch.setattr(TokenizedCorpus, "blocks", lambda self: original(self, sentences=300))
    assert len(list(corpus.blocks())) > 5
    dataset = SentencePairDataset(corpus, tokenizer)
    assert (dataset.labels() == 0).mean() == pytest.approx(0.5, abs=0.02)
    assert dataset.coverage() > 0.95
    assert (np.diff(dataset.documents(), axis=1)[dataset.labels() == 0] == 0).all()


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([[5, 5]], {}, "Next-sentence prediction needs 2 documents or more.*this text has 1.*text_format"),
        ([[5], [5]], {}, "No document has two sentences.*sentence_splitter"),
        ([[5, 5]] * 2, {"max_seq_length": 4}, "max_seq_length must be 5 or more, got 4"),
        ([[5]], {"max_seq_length": 2, "objective": "none"}, "max_seq_length must be 3 or more, got 2"),
        ([[5, 5]] * 2, {"short_seq_prob": 1.1}, "short_seq_prob.* got 1.1"),
        ([[5, 5]] * 2, {"objective": "npc"}, "no sentence_objective 'npc', only none: MLM alone"),
    ],
)
def test_dataset_rejects(lengths, options, message, tokenizer):
    with pytest.raises(ValueError, match=message):
        SentencePairDataset(make_corpus(*lengths), tokenizer, **options)


def test_sop_needs_one_document_of_two_sentences_alone(tokenizer):
    assert len(SentencePairDataset(make_corpus([5, 5]), tokenizer, objective="sop")) == 1


# ------------------------------------------------------------------------------------------------------- processes


@pytest.fixture(scope="module")
def train_corpus(documents, tokenizer, tmp_path_factory):
    """Most documents of the built-in corpus, on disk."""
    source = TextSource([[" ".join(document) for document in documents]])
    return TokenizedCorpus.from_source(source, tokenizer, tmp_path_factory.mktemp("cache")).split(0.2, seed=0)[0]


@pytest.mark.parametrize("options", [{}, {"static_pairs": True}, {"objective": "sop"}, {"objective": "none"}], ids=str)
def test_dataset_is_pickled_by_name(train_corpus, tokenizer, options):
    """As for a data loader's workers where processes are spawned: little is sent, and the examples are the same."""
    dataset = SentencePairDataset(train_corpus, tokenizer, **options)
    dataset.set_epoch(2)
    sent = pickle.dumps(dataset)
    assert len(sent) < len(pickle.dumps(tokenizer)) + 60_000
    assert all_examples(pickle.loads(sent)) == all_examples(dataset)


def test_dataset_is_the_same_in_workers(pairs, tokenizer):
    collator = PretrainingCollator(tokenizer)
    here, workers = (
        [batch["input_ids"].tolist() for batch in DataLoader(pairs, 16, collate_fn=collator, num_workers=workers)]
        for workers in (0, 2)
    )
    assert here == workers


# --------------------------------------------------------------------------------------------------------- streams


def stream(tokenizer, documents=40, buffer=10, **options):
    texts = [f"Number {n} begins. It is {n} again. Then {n} goes on. And {n} ends." for n in range(documents)]
    settings = {"max_seq_length": 24, "short_seq_prob": 0.1, "seed": 3, "objective": "nsp", "passes": 1} | options
    return stream_examples(TextSource([texts[:20], texts[20:]]), buffer, tokenizer, **settings)


def as_text(examples, tokenizer):
    return [(tokenizer.decode(example["input_ids"]), example["next_sentence_label"]) for example in examples]


def numbers_in(text):
    return {word for word in text.split() if word.isdigit()}


def test_stream_has_every_document_and_balanced_labels(tokenizer):
    examples = list(stream(tokenizer, max_seq_length=64))
    texts = as_text(examples, tokenizer)
    assert texts == as_text(stream(tokenizer, max_seq_length=64), tokenizer)
    for n in range(40):
        assert sum(f"{n} ends" in text for text, _ in texts) >= 1
    assert np.mean([label for _, label in texts]) == pytest.approx(0.5, abs=0.1)
    for text, label in texts:
        assert (len(numbers_in(text)) == 1) == (label == 0), text
    columns = {"input_ids", "token_type_ids", "special_tokens_mask", "next_sentence_label", "mask_seed"}
    assert set(examples[0]) == columns


def test_stream_shorter_than_its_buffer(tokenizer):
    """Its documents come round within a batch; they are not taken for different ones, and each batch is another."""
    dataset = stream(tokenizer, documents=20, buffer=100, max_seq_length=64, passes=None)
    texts = as_text(islice(dataset, 400), tokenizer)
    assert np.mean([label for _, label in texts]) == pytest.approx(0.5, abs=0.1)
    for text, label in texts:
        assert (len(numbers_in(text)) == 1) == (label == 0), text
    assert len(set(texts)) > 200


def test_stream_continues_without_end(tokenizer):
    texts = as_text(islice(stream(tokenizer, passes=None), 600), tokenizer)
    counts = [sum(f"then {n} goes" in text for text, _ in texts) for n in range(40)]
    assert min(counts) >= 8 and max(counts) <= 16  # about ten passes over both shards
    assert len(set(texts)) > 200  # with other examples each


def test_stream_is_divided_among_machines_and_workers_without_overlap(tokenizer):
    dataset = stream(tokenizer, max_seq_length=64)
    shares = [list(dataset.shard(2, index)) for index in range(2)]
    numbers = [set().union(*(numbers_in(text) for text, _ in as_text(share, tokenizer))) for share in shares]
    assert not numbers[0] & numbers[1] and numbers[0] | numbers[1] == set(map(str, range(40)))
    examples = [example for batch in DataLoader(dataset, 4, collate_fn=list, num_workers=2) for example in batch]
    text = " ".join(text for text, _ in as_text(examples, tokenizer))
    counts = [text.count(f"{number} ends") for number in range(10, 40)]
    assert min(counts) == 1 and sum(counts) < 36  # a few are drawn again as random segments


# ----------------------------------------------------------------------------------------------- several processes

DEALT_OUT = """
import json, sys
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader
from scratch_bert.text.builtin import builtin_documents
from scratch_bert.text.formats import TextSource
from scratch_bert.corpus.tokenizer_training import train_tokenizer
from scratch_bert.examples.dataset import SentencePairDataset
from scratch_bert.examples.stream import stream_examples
from scratch_bert.corpus.corpus import TokenizedCorpus
from scratch_bert.corpus.tokenizer import load_tokenizer
kind, directory, batch_size = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.stdlib_module_names = frozenset()  # the topics of help() alone: to parse the docstrings takes seconds
tokenizer, texts = load_tokenizer(directory), builtin_documents()
if kind == "corpus":
    corpus = TokenizedCorpus.from_documents(TextSource([texts]).documents(), tokenizer)
    dataset = SentencePairDataset(corpus, tokenizer)
else:
    shards = [texts[n::4] for n in range(4)]
    dataset = stream_examples(TextSource(shards), 10, tokenizer, 128, 0.1, seed=0, objective="none", passes=1)
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
loader = DataLoader(
    dataset, batch_size, shuffle=kind == "corpus", collate_fn=list, num_workers=2, drop_last=False)
loader = accelerator.prepare(loader)
seen = []
for epoch in range(2):
    loader.set_epoch(epoch)
    dataset.set_epoch(epoch)
    seen.append([[int(token) for token in example["input_ids"]] for batch in loader for example in batch])
with open(f"{directory}/{batch_size}-{accelerator.process_index}.json", "w") as file:
    json.dump(seen, file)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["corpus", "stream"])
def test_examples_of_two_processes_are_those_of_one(kind, tokenizer, tmp_path):
    """As accelerate, under Trainer, deals the examples of two epochs out to processes, each with two workers."""
    tokenizer.save_pretrained(tmp_path)
    script = tmp_path / "deal.py"
    script.write_text(DEALT_OUT)
    run_process(script, kind, tmp_path, 16, OMP_NUM_THREADS="1")
    launch("torch.distributed.run --nproc_per_node 2 --standalone", script, kind, tmp_path, 8)
    one, *both = (json.loads((tmp_path / name).read_text()) for name in ("16-0.json", "8-0.json", "8-1.json"))
    assert one[0] != one[1]
    for epoch in range(2):
        expected = sorted(one[epoch])
        together = sorted(both[0][epoch] + both[1][epoch])
        if kind == "corpus":  # the last batches are filled up with examples that others have, too
            extra = len(together) - len(expected)
            assert 0 <= extra < 16 and {tuple(ids) for ids in together} == {tuple(ids) for ids in expected}
        else:  # examples come from other buffers, but each text once
            tokens = [sorted(token for ids in examples for token in ids[1:-1]) for examples in (expected, together)]
            assert tokens[0] == tokens[1]


def test_epoch_reaches_datasets_within_those_of_pytorch(corpus, tokenizer):
    one, two = (SentencePairDataset(corpus, tokenizer, seed=seed) for seed in (0, 1))
    state, args = SimpleNamespace(epoch=3.0), SimpleNamespace(dataloader_persistent_workers=False)
    loader = DataLoader(ConcatDataset([Subset(one, range(9)), two]))
    AnnounceEpoch().on_epoch_begin(args, state, None, train_dataloader=loader)
    assert one.epoch == two.epoch == 3
