import os

import pytest

from scratch_bert.atomic import locked
from scratch_bert.corpus import cache
from scratch_bert.corpus.cache import cached


def write(content):
    return lambda directory: (directory / "file").write_text(content)


def must_not_build(directory):
    raise AssertionError("built again")


def test_cache_builds_a_directory_once_for_its_kind_and_settings(tmp_path):
    first = cached(tmp_path / "new" / "cache", "corpus", ("a", 1), write("first"))
    assert (first.parent, (first / "file").read_text()) == (tmp_path / "new" / "cache", "first")
    assert cached(first.parent, "corpus", ("a", 1), must_not_build) == first
    others = [cached(first.parent, *key, write("other")) for key in (("corpus", ("a", 2)), ("tokenizer", ("a", 1)))]
    assert len({first, *others}) == 3
    assert (first / "file").read_text() == "first"


def test_cache_key_follows_the_version_and_the_settings_alone(tmp_path, monkeypatch):
    """The same in any process, and whatever else is edited in the code: existing caches stay valid."""
    monkeypatch.setattr(cache, "VERSION", 1)
    settings = ("0123", {"vocab_size": 500}, ["0.22"])
    first = cached(tmp_path, "corpus", settings, write("first"))
    assert first.name == "corpus-e53d4eb42e3a3238d754aa0ca64462f6"
    monkeypatch.setattr(cache, "VERSION", 2)
    assert cached(tmp_path, "corpus", settings, write("second")) != first


def test_cache_of_two_builders_at_once_is_that_of_the_first(tmp_path):
    first = []

    def build(directory):
        first.append(cached(tmp_path, "corpus", 1, write("first")))  # begins later, but ends earlier
        write("second")(directory)

    assert [cached(tmp_path, "corpus", 1, build)] == first == list(tmp_path.iterdir())
    assert (first[0] / "file").read_text() == "first"


def test_cache_is_left_without_a_trace_by_a_builder_that_fails(tmp_path):
    def build(directory):
        write("half")(directory)
        raise ValueError("The text is empty.")

    with pytest.raises(ValueError, match="The text is empty"):
        cached(tmp_path, "corpus", 1, build)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="forks")
def test_cache_of_a_builder_that_is_killed_is_built_again(tmp_path):
    def build(directory):
        write("half")(directory)
        os._exit(9)

    process = os.fork()
    if process == 0:
        try:
            cached(tmp_path, "corpus", 1, build)
        finally:
            os._exit(1)  # not reached
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9
    (left,) = tmp_path.iterdir()
    with locked(left):  # as if it lived
        os.utime(left, (0, 0))
        cached(tmp_path, "corpus", 2, write("other"))
        assert left.exists()
    os.utime(left, (0, 0))
    directory = cached(tmp_path, "corpus", 1, write("whole"))
    assert (directory / "file").read_text() == "whole" and not left.exists()


def test_cache_on_a_disk_that_is_full_for_the_tokenizers_library(tmp_path):
    def build(directory):
        raise Exception("No space left on device (os error 28)")  # as it does

    with pytest.raises(OSError, match="There is no space left in the cache_dir"):
        cached(tmp_path, "tokenizer", 1, build)
