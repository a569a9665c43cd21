import pytest

from scratch_bert.text.formats import TextSource
from scratch_bert.text.sample import sample_text


PARAGRAPHS = 500


@pytest.fixture
def source(tmp_path):
    """Four files of numbered paragraphs of ten bytes."""
    files = [tmp_path / f"{name}.txt" for name in "abcd"]
    for file in files:
        file.write_text("\n\n".join(f"{file.stem}{number:07} €"[:8] + "xé" for number in range(PARAGRAPHS)))
    return TextSource(files)


def test_sample_is_spread_over_and_within_all_files(source):
    sample = sample_text(source, 4000)
    assert 3980 < sample.size <= 4000 and sample.read == 4 * PARAGRAPHS * 11
    assert sample.size == sum(len(text.encode()) for text in sample.paragraphs)
    for file in "abcd":
        numbers = [int(text[1:8]) for text in sample.paragraphs if text[0] == file]
        assert 60 < len(numbers) < 120 and len(set(numbers)) == len(numbers)
        assert 150 < sum(numbers) / len(numbers) < 350 and numbers != sorted(numbers)
    assert sample == sample_text(source, 4000) != sample_text(source, 4000, seed=1)


def test_sample_of_a_small_text_is_all_of_it(source):
    assert sorted(sample_text(source, 10**9).paragraphs) == sorted(source)


def test_sample_of_beginnings_reads_no_further(source):
    sample = sample_text(source, 4000, beginnings=True)
    assert max(int(text[1:8]) for text in sample.paragraphs) == 90
    assert {text[0] for text in sample.paragraphs} == set("abcd") and sample.read < 4100


def test_sample_has_a_part_of_a_paragraph_that_is_larger():
    sample = sample_text(TextSource([[["ACGTA" * 100_000]]]), 100_000)
    assert 80_000 <= sample.size <= 100_000 and sample.read == 500_000
