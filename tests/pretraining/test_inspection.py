import dataclasses

import numpy as np
import pytest

from scratch_bert.corpus.corpus import TokenizedCorpus
from scratch_bert.corpus.tokenizer_training import train_tokenizer
from scratch_bert.examples.collator import PretrainingCollator
from scratch_bert.examples.dataset import SentencePairDataset
from scratch_bert.examples.stream import stream_examples
from scratch_bert.objectives import OBJECTIVES
from scratch_bert.pretraining.inspection import describe_examples, describe_statistics, example_statistics
from scratch_bert.pretraining.sources import PretrainingData
from scratch_bert.text.formats import TextSource


@pytest.fixture
def data(pairs, tokenizer):
    counts = {name: np.ones(len(tokenizer)) for name in ("token_counts", "eval_token_counts")}
    parts = {"train_dataset": pairs, "eval_dataset": None, "first_examples": pairs, "objective": pairs.objective}
    return PretrainingData(tokenizer=tokenizer, max_seq_length=128, description="", **parts, **counts)


@pytest.fixture
def streamed(data, documents, tokenizer):
    source = TextSource([[" ".join(document) for document in documents[:20]]])
    stream = stream_examples(source, 10, tokenizer, 128, 0.1, seed=0, objective="nsp", passes=1)
    return dataclasses.replace(data, train_dataset=stream)


def test_statistics_are_those_of_the_paper(data, tokenizer):
    statistics = example_statistics(data, PretrainingCollator(tokenizer))
    for name, value, tolerance in (
        ("label_0_share", 0.5, 0.02),
        ("masked_share", 0.15, 0.005),
        ("mask_token_share", 0.8, 0.01),
        ("random_token_share", 0.1, 0.01),
        ("kept_token_share", 0.1, 0.01),
    ):
        assert statistics[name] == pytest.approx(value, abs=tolerance), name
    for name in ("same_document_negatives", "too_long", "empty_segments"):
        assert statistics[name] == 0, name
    assert statistics["coverage"] > 0.95
    assert statistics["length_percentiles"][100] == 128
    assert statistics["examples"] == 20_000 and statistics["examples_per_epoch"] == len(data.train_dataset)
    mean = np.mean([length for epoch in range(5) for length in lengths_of(data.train_dataset, epoch)])
    assert statistics["padding_share"] == pytest.approx(1 - mean / 128, abs=0.01)


def lengths_of(dataset, epoch):
    dataset.set_epoch(epoch)
    return dataset.lengths()


def test_statistics_of_a_sample_are_drawn_by_seed(data, tokenizer):
    def percentiles(seed):
        statistics = example_statistics(data, PretrainingCollator(tokenizer), sample=50, seed=seed)
        assert statistics["examples"] == 50
        return statistics["length_percentiles"]

    assert percentiles(0) == percentiles(0) != percentiles(1)


def test_statistics_without_sentence_objective_leave_out_labels(data, corpus, tokenizer):
    dataset = SentencePairDataset(corpus, tokenizer, objective="none")
    data = dataclasses.replace(data, train_dataset=dataset, objective=OBJECTIVES["none"])
    statistics = example_statistics(data, PretrainingCollator(tokenizer), sample=100)
    assert not {"label_0_share", "empty_segments", "same_document_negatives"} & set(statistics)
    assert statistics["coverage"] == 1
    assert "label 0" not in describe_statistics(statistics)


def test_statistics_of_single_segments(data, corpus, tokenizer):
    dataset = SentencePairDataset(corpus, tokenizer, single_segment_prob=0.5)
    data = dataclasses.replace(data, train_dataset=dataset)
    statistics = example_statistics(data, PretrainingCollator(tokenizer), sample=1000)
    assert statistics["single_segments"] == pytest.approx(0.5, abs=0.05)
    assert statistics["label_0_share"] == pytest.approx(0.5, abs=0.05) and statistics["empty_segments"] == 0


def test_statistics_of_a_stream_leave_out_what_an_epoch_tells(streamed, tokenizer):
    statistics = example_statistics(streamed, PretrainingCollator(tokenizer), sample=60)
    assert statistics["examples"] == 60
    assert not {"examples_per_epoch", "coverage", "same_document_negatives"} & set(statistics)
    assert "examples in the sample" in describe_statistics(statistics)


def test_statistics_of_no_example_are_an_error(data, tokenizer):
    stream = stream_examples(TextSource([["One."]]), 10, tokenizer, 128, 0.1, seed=0, objective="nsp", passes=1)
    data = dataclasses.replace(data, train_dataset=stream)
    with pytest.raises(ValueError, match="The text gives no example"):
        example_statistics(data, PretrainingCollator(tokenizer))


def test_statistics_are_a_table(data, tokenizer):
    statistics = example_statistics(data, PretrainingCollator(tokenizer), sample=1000)
    lines = describe_statistics(statistics).splitlines()
    assert lines[0].split() == ["examples", "per", "epoch", f"{len(data.train_dataset):,}"]
    assert lines[1].split() == ["examples", "in", "the", "sample", "1,000"]
    assert f"{'label 0 (fraction)':<32}{statistics['label_0_share']:>12.4f}" in lines
    assert lines[-1].startswith("length in tokens, percentiles   5%: ") and lines[-1].endswith("100%: 128")


def test_examples_with_a_segment_id_for_padding(data, sentences, documents):
    tokenizer = train_tokenizer(sentences, 900, first_segment_id=1)
    dataset = SentencePairDataset(TokenizedCorpus.from_documents(documents[:20], tokenizer), tokenizer)
    data = dataclasses.replace(data, train_dataset=dataset, tokenizer=tokenizer)
    assert example_statistics(data, PretrainingCollator(tokenizer), sample=200)["empty_segments"] == 0
    shown = describe_examples(data, PretrainingCollator(tokenizer), 4)
    assert shown.count("  A text   [CLS]") == shown.count("  B text") == 4


@pytest.mark.parametrize("objective", ["nsp", "none"])
def test_examples_are_described_as_text(objective, data, corpus, tokenizer):
    dataset = SentencePairDataset(corpus, tokenizer, objective=objective)
    data = dataclasses.replace(data, train_dataset=dataset, objective=OBJECTIVES[objective])
    shown = describe_examples(data, PretrainingCollator(tokenizer), 4)
    assert shown.count("  A text   [CLS]") == shown.count("  A masked [CLS]") == 4
    assert shown.count("  B text") == shown.count(", label ") == (4 if objective == "nsp" else 0)
    assert shown.count(", documents ") == 4 and "[MASK]" in shown
    example, (a, b) = dataset[len(dataset) // 4 // 2], dataset.documents()[len(dataset) // 4 // 2]
    assert shown.startswith(f"{len(example['input_ids'])} tokens, documents {a} and {b}")
    if objective == "none":
        ends = dataset._pairs()[:, 1]
        assert np.isin(ends, corpus.document_tokens[:, 1]).any()
        assert (dataset.documents()[:, 0] == dataset.documents()[:, 1]).all()


def test_examples_of_a_stream_are_described_from_its_begin(streamed, tokenizer):
    shown = describe_examples(streamed, PretrainingCollator(tokenizer), 3)
    assert shown.count("  B text") == 3 and "documents" not in shown
    first = next(iter(streamed.train_dataset))
    assert shown.startswith(f"{len(first['input_ids'])} tokens, label {first['next_sentence_label']}\n")
